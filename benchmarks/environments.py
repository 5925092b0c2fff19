"""
Resets and steps per second of the environments, beside gym_sokoban 0.0.6 and gymnasium as they are.

    python -m venv gym && gym/bin/pip install "setuptools<81" gym-sokoban==0.0.6
    python benchmarks/environments.py --gym_sokoban gym/bin/python       # about four minutes on one core
    python benchmarks/environments.py --seconds 0.5 --rounds 1           # to see that it runs

gym_sokoban does not go with the packages of today, so it runs in a subprocess, with the interpreter that is given;
without one its columns stay empty. Both sides are measured in turn, and the medians over the rounds are shown, as
Markdown. Difficulty is the exact number of moves of the shortest solution, by the same search for both.

Levels are compared with gym_sokoban's *generator*; its reset draws a picture on top, as its step does (`rgb_array`,
or `tiny_rgb_array` with a pixel a cell). FrozenLake is compared with gymnasium's class, a new random map each reset.
"""

import argparse
import json
import random
import subprocess
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from itertools import count
from pathlib import Path
from statistics import fmean, median
from time import perf_counter
from typing import Any

from gymnasium.envs.toy_text.frozen_lake import FrozenLakeEnv, generate_random_map

from ragen_envs import TextEnv, env_ids, make_env
from ragen_envs.sokoban_files import parse_level
from ragen_envs.sokoban_search import shortest_plan


SIDE = Path(__file__).with_name("gym_sokoban_side.py")
# Board, boxes, and our settings for it. Levels of more than ten moves need longer episodes than the paper's.
BOARDS: tuple[tuple[tuple[int, int], int, tuple[dict[str, Any], ...]], ...] = (
    ((6, 6), 1, ({}, {"generation": "reverse"})),
    (
        (8, 8),
        2,
        (
            {},
            {"max_solution_length": 50},
            {"generation": "reverse", "max_solution_length": 50},
            {"generation": "reverse", "min_solution_length": 10, "max_solution_length": 50},
        ),
    ),
)
LARGE: tuple[dict[str, Any], ...] = (
    {"size": (12, 12), "num_boxes": 4, "generation": "reverse"},
    {"size": (12, 12), "num_boxes": 4, "generation": "reverse", "max_solution_length": 50},
    {"size": (12, 12), "num_boxes": 4, "max_solution_length": 50},
)


def rate(action: Callable[[], Any], seconds: float) -> float:
    """How often something can be done in a second."""
    done = 0
    start = perf_counter()
    while perf_counter() - start < seconds:
        action()
        done += 1
    return done / (perf_counter() - start)


def resets(env: TextEnv, seconds: float, seeds: Iterator[int]) -> float:
    """Resets per second."""
    return rate(lambda: env.reset(seed=next(seeds)), seconds)


def steps(env: TextEnv, seconds: float) -> float:
    """Steps per second of a random player, resets after the end of an episode not counted."""
    env.action_space.seed(0)
    actions = [env.action_space.sample() for _ in range(64)]
    taken, spent, seed = 0, 0.0, count()
    while spent < seconds:
        env.reset(seed=next(seed))
        start = perf_counter()
        for action in actions:
            taken += 1
            if env.step(action)[2]:
                break
        spent += perf_counter() - start
    return taken / spent


def shipped(arguments: argparse.Namespace) -> None:
    """Table of every environment with its defaults."""
    print("| environment | resets / s | steps / s |\n|---|---|---|")
    for env_id in env_ids():
        env, seeds = make_env(env_id), count()
        found = [
            (resets(env, arguments.seconds, seeds), steps(env, arguments.seconds)) for _ in range(arguments.rounds)
        ]
        shown = " | ".join(f"{median(column):,.0f}" for column in zip(*found, strict=True))
        print(f"| {env_id} | {shown} |", flush=True)


def sokoban(arguments: argparse.Namespace) -> None:
    """Tables of levels and steps of both Sokobans."""
    levels = [["board", "settings", "levels / s", "ratio", "solution: mean", "median", "longest", "as hard"]]
    moves = [["board", "what", "steps / s", "ours is faster by"]]
    for size, num_boxes, choices in BOARDS:
        board = f"{size[0]}x{size[1]}, {num_boxes}"
        envs = [make_env("Sokoban-v0", size=size, num_boxes=num_boxes, **choice) for choice in choices]
        theirs, ours, our_steps = _measured(arguments, size, num_boxes, envs)
        reference = [_length(level) for level in theirs.pop("levels", [])]
        generated = median(theirs["generated"]) if reference else None
        if reference:
            levels.append([board, "gym_sokoban", f"{generated:,.1f}", "1", *_spread(reference), ""])
        for choice, env, per_second in zip(choices, envs, ours, strict=True):
            lengths = _lengths(env, arguments.levels)
            as_hard = "yes" if _as_hard(lengths, reference) else "no"
            ratio = f"{median(per_second) / generated:.1f}" if generated else "-"
            row = [board, _settings(choice), f"{median(per_second):,.0f}", ratio, *_spread(lengths)]
            levels.append([*row, as_hard if reference else "-"])
        moves.append([board, "ours, text", f"{our_steps:,.0f}", ""])
        for name, mode in (("steps", "rgb_array"), ("tiny_steps", "tiny_rgb_array")) if reference else ():
            per_second_there = median(theirs[name])
            moves.append(
                [board, f"gym_sokoban, {mode}", f"{per_second_there:,.0f}", f"{our_steps / per_second_there:.1f}"]
            )
    for choice in LARGE:
        env = make_env("Sokoban-v0", **choice)
        per_second_here = resets(env, max(arguments.seconds, 1.0), count())
        board = "12x12, 4"
        row = [board, _settings({k: v for k, v in choice.items() if k not in ("size", "num_boxes")})]
        levels.append([*row, f"{per_second_here:,.1f}", "-", *_spread(_lengths(env, 10)), "-"])
    _print(levels)
    _print(moves)


def _measured(
    arguments: argparse.Namespace, size: tuple[int, int], num_boxes: int, envs: Sequence[TextEnv]
) -> tuple[dict[str, list[Any]], list[list[float]], float]:
    theirs: dict[str, list[Any]] = defaultdict(list)
    ours: list[list[float]] = [[] for _ in envs]
    our_steps = []
    seeds = [count() for _ in envs]
    for number in range(arguments.rounds):
        if arguments.gym_sokoban:
            command = [arguments.gym_sokoban, SIDE, *size, num_boxes, number, 4 * arguments.seconds]
            result = subprocess.run(list(map(str, command)), capture_output=True, text=True)
            if result.returncode:
                raise SystemExit(f"{arguments.gym_sokoban} cannot run gym_sokoban:\n{result.stderr[-1000:]}")
            for name, value in json.loads(result.stdout).items():
                theirs[name] += value if name == "levels" else [value]
        for env, seed, found in zip(envs, seeds, ours, strict=True):
            found.append(resets(env, arguments.seconds, seed))
        our_steps.append(steps(envs[0], arguments.seconds))
    return theirs, ours, median(our_steps)


def _lengths(env: TextEnv, number: int) -> list[int]:
    found = []
    for seed in range(number):
        env.reset(seed=seed)
        found.append(len(env._plan))  # type: ignore[attr-defined]
    return found


def _length(text: str) -> int:
    plan = shortest_plan(parse_level(text))
    assert plan is not None, text
    return len(plan)


def _spread(lengths: Sequence[int]) -> list[str]:
    return [f"{fmean(lengths):.1f}", f"{median(lengths):g}", str(max(lengths))]


def _as_hard(ours: Sequence[int], theirs: Sequence[int]) -> bool:
    return bool(theirs) and fmean(ours) >= fmean(theirs) and median(ours) >= median(theirs)


def _settings(choice: dict[str, Any]) -> str:
    return ", ".join(f"{name}={value}" for name, value in choice.items()) or "defaults"


def frozen_lake(arguments: argparse.Namespace) -> None:
    """Table of both FrozenLakes."""
    theirs, ours = defaultdict(list), defaultdict(list)
    env, seeds, their_seeds = make_env("FrozenLake-v0"), count(), count()
    draw = random.Random(0)
    lake = FrozenLakeEnv(is_slippery=True)

    def new_map() -> None:
        FrozenLakeEnv(desc=generate_random_map(size=4, p=0.9, seed=next(their_seeds))).reset()

    def walk() -> None:
        if lake.step(draw.randrange(4))[2]:
            lake.reset()

    for _ in range(arguments.rounds):
        theirs["resets with a new map"].append(rate(new_map, arguments.seconds))
        ours["resets with a new map"].append(resets(env, arguments.seconds, seeds))
        lake.reset(seed=0)
        theirs["steps"].append(rate(walk, arguments.seconds))
        ours["steps"].append(steps(env, arguments.seconds))
    table = [["FrozenLake 4x4", "gymnasium / s", "ours, with text / s", "ratio"]]
    for name in ours:
        here, there = median(ours[name]), median(theirs[name])
        table.append([name, f"{there:,.0f}", f"{here:,.0f}", f"{here / there:.2f}"])
    _print(table)


def _print(table: Sequence[Sequence[str]]) -> None:
    head, *rows = table
    print("\n| " + " | ".join(head) + " |\n|" + "---|" * len(head))
    for row in rows:
        print("| " + " | ".join(row) + " |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gym_sokoban", help="interpreter of an environment with gym-sokoban==0.0.6")
    parser.add_argument("--seconds", type=float, default=3.0, help="of one measurement (default: 3)")
    parser.add_argument("--rounds", type=int, default=5, help="measurements of each, in turn (default: 5)")
    parser.add_argument("--levels", type=int, default=300, help="levels of ours whose length is shown (default: 300)")
    arguments = parser.parse_args()
    if not arguments.gym_sokoban:
        print("gym_sokoban is not measured: no --gym_sokoban given.\n")
    shipped(arguments)
    sokoban(arguments)
    frozen_lake(arguments)


if __name__ == "__main__":
    main()
