"""
What gym_sokoban 0.0.6 does in some seconds, as JSON. `benchmarks/environments.py` runs this with an interpreter that
has the package; it imports nothing of ours.

    python benchmarks/gym_sokoban_side.py ROWS COLUMNS BOXES SEED SECONDS
"""

import contextlib
import io
import json
import random
import sys
import time
import warnings
from collections.abc import Callable
from typing import Any


warnings.filterwarnings("ignore")
with contextlib.redirect_stderr(io.StringIO()):  # gym says at length that it is no longer maintained
    import numpy as np
    from gym_sokoban.envs.room_utils import generate_room
    from gym_sokoban.envs.sokoban_env import SokobanEnv


# Wall, floor, target, box on target, box, player; and the player on a target, which is drawn in two layers there.
SYMBOLS = "# .*$@"


def rate(action: Callable[[], Any], seconds: float) -> tuple[float, list[Any]]:
    """How often something can be done in a second, and what came of it."""
    results = []
    start = time.perf_counter()
    while time.perf_counter() - start < seconds:
        results.append(action())
    return len(results) / (time.perf_counter() - start), results


def xsb(fixed: Any, state: Any) -> str:
    """Level in XSB notation."""
    rows = []
    for fixed_row, row in zip(fixed.astype(int), state.astype(int), strict=True):
        rows.append("".join("+" if (f, s) == (2, 5) else SYMBOLS[s] for f, s in zip(fixed_row, row, strict=True)))
    return "\n".join(rows)


def main() -> None:
    rows, columns, boxes, seed = map(int, sys.argv[1:5])
    seconds = float(sys.argv[5])
    random.seed(seed)
    np.random.seed(seed)
    env = SokobanEnv(dim_room=(rows, columns), num_boxes=boxes, max_steps=10**9, reset=False)

    def generate() -> str:
        while True:
            try:
                fixed, state, _ = generate_room(dim=env.dim_room, num_steps=env.num_gen_steps, num_boxes=boxes)
                return xsb(fixed, state)
            except (RuntimeError, RuntimeWarning):  # tries again, as its reset does
                continue

    with contextlib.redirect_stdout(io.StringIO()):  # its reset reports each retry
        levels_per_s, levels = rate(generate, seconds)
        resets_per_s, _ = rate(env.reset, seconds / 2)
        steps_per_s, _ = rate(lambda: env.step(1 + random.randrange(4)), seconds / 4)
        tiny_per_s, _ = rate(lambda: env.step(1 + random.randrange(4), observation_mode="tiny_rgb_array"), seconds / 4)
    found = {"levels": levels, "generated": levels_per_s, "resets": resets_per_s}
    print(json.dumps({**found, "steps": steps_per_s, "tiny_steps": tiny_per_s}))


if __name__ == "__main__":
    main()
