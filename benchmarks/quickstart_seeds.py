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

from ragen_trl.report import evaluations


ROOT = Path(__file__).parents[1]
RECIPES = {"math": "grpo_metamath.py", "sokoban": "grpo_sokoban.py", "frozenlake": "grpo_frozenlake.py"}


def run(task: str, seed: int, output_dir: Path) -> tuple[float, float, float]:
    """Success before, success after, seconds of one quickstart."""
    command = [sys.executable, "-m", "accelerate.commands.accelerate_cli", "launch"]
    command += ["--config_file", "accelerate_configs/cpu.yaml", f"recipes/{RECIPES[task]}"]
    command += ["--config", f"recipes/configs/quickstart_{task}.yaml"]
    command += ["--seed", str(seed), "--output_dir", str(output_dir), "--save_strategy", "no"]
    start = time.perf_counter()
    done = subprocess.run(
        command, cwd=ROOT, env={"OMP_NUM_THREADS": "1", **os.environ}, capture_output=True, text=True, check=False
    )
    seconds = time.perf_counter() - start
    if done.returncode:
        raise SystemExit(f"{' '.join(command)} failed:\n{done.stderr[-3000:]}")
    history = json.loads((output_dir / "trainer_state.json").read_text())["log_history"]
    first, *_, last = evaluations(history)
    key = next(name for name in first if name.endswith("/success_rate"))
    return float(first[key]), float(last[key]), seconds


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
                before, after, seconds = run(task, seed, Path(folder))
            rises.append(after - before)
            print(
                f"| {task} | {seed} | {before:.3f} | {after:.3f} | {after - before:+.3f} | {seconds:.0f} |", flush=True
            )
        if len(rises) > 1:
            print(f"| {task} | mean (sd) | | | {fmean(rises):+.3f} ({stdev(rises):.3f}) | |", flush=True)


if __name__ == "__main__":
    main()
