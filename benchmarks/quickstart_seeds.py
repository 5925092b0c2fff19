"""
What the quickstarts learn, and how much that varies: each configuration over several seeds of training.

    python benchmarks/quickstart_seeds.py                       # math and sokoban, seeds 0 1 2: about 15 minutes
    python benchmarks/quickstart_seeds.py --tasks frozenlake --seeds 0 1 2 3

Prints a Markdown table: success on the held-out problems before and after, the rise, and seconds (all of the command,
imports included). The start differs between seeds too, as answers are sampled.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from ragen_trl.report import evaluations


ROOT = Path(__file__).parents[1]
RECIPES = {"math": "grpo_metamath", "sokoban": "grpo_sokoban", "frozenlake": "grpo_frozenlake"}


def launch(
    recipe: str, config: str, output_dir: Path, *argv: str, accelerate_config: str = "cpu", timeout: float = 900.0
) -> tuple[list[dict[str, Any]], str]:
    """
    Run a recipe as a user would. Gives its log history and what it printed.

    Args:
        recipe (`str`):
            Name of the script.
        config (`str`):
            Name of its settings.
        output_dir (`Path`):
            Where the run writes.
        argv (`str`):
            Further arguments.
        accelerate_config (`str`, *optional*, defaults to `"cpu"`):
            Name of the launcher's settings.
        timeout (`float`, *optional*, defaults to `900.0`):
            Seconds it may take.
    """
    command = [sys.executable, "-m", "accelerate.commands.accelerate_cli", "launch"]
    command += ["--config_file", f"accelerate_configs/{accelerate_config}.yaml", f"recipes/{recipe}.py"]
    command += ["--config", f"recipes/configs/{config}.yaml", "--output_dir", str(output_dir), *argv]
    env = {"OMP_NUM_THREADS": "1", **os.environ}
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, check=False, timeout=timeout)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)} failed:\n{done.stderr[-3000:]}")
    return json.loads((output_dir / "trainer_state.json").read_text())["log_history"], done.stdout


def success_rates(history: list[dict[str, Any]]) -> tuple[float, float]:
    """Success on the held-out problems before and after."""
    first, *_, last = evaluations(history)
    key = next(name for name in first if name.endswith("/success_rate"))
    return float(first[key]), float(last[key])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", nargs="+", choices=RECIPES, default=["math", "sokoban"])
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    arguments = parser.parse_args()
    print("| task | seed | before | after | rise | seconds |\n|---|---|---|---|---|---|", flush=True)
    for task in arguments.tasks:
        rises = []
        for seed in arguments.seeds:
            with tempfile.TemporaryDirectory() as folder:
                start = time.perf_counter()
                history, _ = launch(RECIPES[task], f"quickstart_{task}", Path(folder), "--seed", str(seed))
                seconds = time.perf_counter() - start
            before, after = success_rates(history)
            rises.append(after - before)
            print(
                f"| {task} | {seed} | {before:.3f} | {after:.3f} | {after - before:+.3f} | {seconds:.0f} |", flush=True
            )
        if len(rises) > 1:
            print(f"| {task} | mean (sd) | | | {fmean(rises):+.3f} ({stdev(rises):.3f}) | |", flush=True)


if __name__ == "__main__":
    main()
