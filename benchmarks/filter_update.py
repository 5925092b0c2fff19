"""
What dropping groups saves: time of an update with a part of the groups kept, against the same update without a filter.

    python benchmarks/filter_update.py                     # a few minutes on one core
    python benchmarks/filter_update.py --rounds 1 --steps 1 --groups 4   # to see that it runs

The shipped agent, rows of random tokens in place of rollouts (sampling would only blur the figures), all settings in
turn in one process. Prints a Markdown table: median seconds of an update (forward, backward, optimizer; of the filter
the rearranging of rows too), its share of the update without a filter, the same share with all that follows sampling
(rewards, reference log-probabilities), and of the choice of groups the milliseconds and the share of the update. A
second table has the same with a KL term, whose reference pass sees all rows.
"""

import argparse
import os
import random
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any


os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch
from datasets import Dataset
from transformers import TrainerCallback

from ragen_trl import RagenGRPOConfig, RagenGRPOTrainer, tiny


GROUP_SIZE = 8
SHARES = (None, 1.0, 0.5, 0.25)


class Timed(RagenGRPOTrainer):
    """Notes seconds by part of a step."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self.seconds: dict[str, list[float]] = defaultdict(list)
        super().__init__(*args, **kwargs)
        self.add_callback(_Clock(self))

    @contextmanager
    def clock(self, part: str) -> Iterator[None]:
        start = time.perf_counter()
        yield
        self.seconds[part].append(time.perf_counter() - start)

    def _generate_and_score_completions(self, inputs: list[dict[str, Any]]) -> dict[str, Any]:
        with self.clock("rollout"):
            return super()._generate_and_score_completions(inputs)

    def _select(self, output: Any) -> None:
        with self.clock("selection"):
            super()._select(output)


class _Clock(TrainerCallback):
    def __init__(self, trainer: Timed) -> None:
        self._trainer = trainer

    def on_step_begin(self, *args: Any, **kwargs: Any) -> None:
        self._start = time.perf_counter()

    def on_step_end(self, *args: Any, **kwargs: Any) -> None:
        whole = time.perf_counter() - self._start
        self._trainer.seconds["whole"].append(whole)
        self._trainer.seconds["update"].append(whole - self._trainer.seconds["rollout"][-1])


def rollout(prompts: list[Any], trainer: Any) -> dict[str, Any]:
    """Rows of random tokens, between half and all of the length allowed."""
    rng = random.Random(trainer.state.global_step)
    most = trainer.max_completion_length
    lengths = [rng.randint(most // 2, most) for _ in prompts]
    completions = [[rng.randint(10, 600) for _ in range(length)] for length in lengths]
    return {"prompt_ids": [[5] * 40] * len(prompts), "completion_ids": completions, "logprobs": None}


def train(share: float | None, arguments: argparse.Namespace, beta: float, folder: str) -> dict[str, list[float]]:
    """Seconds by part of each step of a run that keeps a share of the groups."""
    groups = arguments.groups

    def reward(completions: list[Any], number: list[int], **kwargs: Any) -> list[float]:
        kept = groups if share is None else round(groups * share)
        return [float(i % 2) if n % groups < kept else 0.0 for i, n in enumerate(number)]

    prompts = [[{"role": "user", "content": "question"}]] * groups * arguments.steps
    args = RagenGRPOConfig(
        folder,
        use_cpu=True,
        bf16=False,
        gradient_checkpointing=False,
        shuffle_dataset=False,
        per_device_train_batch_size=2 * groups,
        gradient_accumulation_steps=4,
        num_generations=GROUP_SIZE,
        max_completion_length=arguments.tokens,
        max_steps=arguments.steps,
        beta=beta,
        reward_variance_filtering=None if share is None else "top_p",
        reward_variance_top_p=1.0,
        report_to="none",
        save_strategy="no",
        logging_strategy="no",
        disable_tqdm=True,
    )
    trainer = Timed(
        model=tiny.path(),
        reward_funcs=reward,
        args=args,
        train_dataset=Dataset.from_dict({"prompt": prompts, "number": list(range(len(prompts)))}),
        rollout_func=rollout,
    )
    trainer.train()
    if share is not None:
        assert trainer.last_selection is not None and trainer.last_selection.metrics["kept_share"] == share
    return trainer.seconds


def table(arguments: argparse.Namespace, beta: float) -> None:
    """Measure and print one table."""
    parts: dict[float | None, dict[str, list[float]]] = {share: defaultdict(list) for share in SHARES}
    with tempfile.TemporaryDirectory() as folder:
        for number in range(arguments.rounds):
            for share in SHARES[number % len(SHARES) :] + SHARES[: number % len(SHARES)]:
                for part, seconds in train(share, arguments, beta, str(Path(folder) / "run")).items():
                    parts[share][part] += seconds
    medians = {share: {part: median(seconds) for part, seconds in parts[share].items()} for share in SHARES}
    base = medians[None]
    print(f"\nbeta = {beta}\n")
    print("| kept share | update, s | relative | relative, with scoring | choice, ms | of the update |")
    print("|---|---|---|---|---|---|")
    for share, found in medians.items():
        chosen = found.get("selection")
        cells = [
            "no filter" if share is None else f"{share}",
            f"{found['update']:.2f}",
            f"{found['update'] / base['update']:.2f}",
            f"{found['whole'] / base['whole']:.2f}",
            "-" if chosen is None else f"{chosen * 1e3:.2f}",
            "-" if chosen is None else f"{chosen / base['update']:.3%}",
        ]
        print(f"| {' | '.join(cells)} |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--groups", type=int, default=16, help=f"groups of {GROUP_SIZE} (default: 16; a multiple of 4)"
    )
    parser.add_argument("--tokens", type=int, default=256, help="longest completion (default: 256)")
    parser.add_argument("--steps", type=int, default=3, help="steps of a run (default: 3)")
    parser.add_argument("--rounds", type=int, default=4, help="runs of each setting, in turn (default: 4)")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    for beta in (0.0, 0.05):
        table(arguments, beta)


if __name__ == "__main__":
    main()
