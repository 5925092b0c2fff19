"""Filtered updates on each of two ranks; started by test_filter_two_processes.py. Writes what it saw as JSON."""

from __future__ import annotations

import json
import sys
from pathlib import Path


sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parent.parent)]

import conftest  # noqa: E402, F401  (environment and threads)
import torch  # noqa: E402
from filter_kit import difference, filtered, gradient_of, largest, members  # noqa: E402
from helpers import build_model, build_tokenizer  # noqa: E402
from kit import config, logs, trainer  # noqa: E402

from ragen_trl import MutualInformationCallback, env_dataset  # noqa: E402
from ragen_trl.diagnostics import cross_log_probs  # noqa: E402


OUT = Path(sys.argv[1])
TOKENIZER = build_tokenizer()
MODEL = build_model(TOKENIZER)
MODEL.config._name_or_path = sys.argv[2]

# Groups of 4 and their spreads; rows of a rank; which of the rows move from one rank to the other.
PATTERNS = {
    "even": [0, 1, 2, 0],
    "uneven": [0, 1, 2, 3, 0, 0],
    "one rank has none": [0, 0, 1, 2],
    "an odd number of rows": [0, 1, 0, 0],
    "a group on both ranks": [0, 1, 0],
    "none": [0, 0],
}
GROUP = {"an odd number of rows": 3, "a group on both ranks": 4}
SETTINGS = {
    "grpo": {"loss_type": "grpo", "beta": 0.1},
    "bnpo": {"loss_type": "bnpo", "entropy_coef": 0.02},
    "dapo": {"loss_type": "dapo", "beta": 0.1, "entropy_coef": 0.02},
    "dr_grpo": {"loss_type": "dr_grpo", "entropy_coef": 0.02},
}


def play(pattern: str, name: str, accumulation: int) -> dict:
    values = PATTERNS[pattern]
    group = GROUP.get(pattern, 4)
    rows = len(values) * group // 2
    made = filtered(
        OUT / f"{pattern}-{name}", MODEL, TOKENIZER, values, **SETTINGS[name], num_generations=group,
        per_device_train_batch_size=rows // accumulation, gradient_accumulation_steps=accumulation, weight_decay=0.1,
    )  # fmt: skip
    made.train()
    kept = [i for i, value in enumerate(values) if value]
    assert made.last_selection.kept.tolist() == kept
    seen = {
        "rows": made.last_update_rows,
        "kept_groups": logs(made, "filter/kept_groups"),
        "empty_steps": logs(made, "filter/empty_steps"),
        "norm": logs(made, "grad_norm"),
        "checksum": [float(p.double().sum()) for p in made.model.parameters()],
    }
    if kept:
        expected = gradient_of(made, members(made, kept))
        gradient = made.gradients[0]
        seen |= {"difference": difference(gradient, expected), "largest": largest(expected)}
    else:
        seen["gradients"] = [name for name, g in made.gradients[-1].items() if g is not None and g.any()]
    return seen


def play_episodes() -> dict:
    """Groups of 4 over ranks of 6 rows, a failing member, what is ranked gathered from episodes."""
    settings = {"per_device_train_batch_size": 6, "num_generations": 4, "max_steps": 3}
    settings |= {"reward_variance_filtering": "top_p", "reward_variance_filtering_reward": "without_format_penalty"}
    data = env_dataset("helpers:Faulty-v0", 8, env_kwargs={"fault": "step", "members": [1]})
    callback = MutualInformationCallback(num_samples=16)
    args = config(OUT / "episodes", **settings)
    made = trainer(OUT / "episodes", MODEL, TOKENIZER, data, args=args, callbacks=[callback])
    made.train()
    prompts, reasonings = [(5, 6, 7), (8, 9), (5, 9, 9, 9)], [(10, 11), (12, 13, 14), (10,)]
    alone = cross_log_probs(made.accelerator.unwrap_model(made.model), prompts, reasonings)
    shared = callback._cross_log_probs(made, prompts, reasonings)
    return {
        "scores_differ_by": float((alone - shared).abs().max()),
        "collapse": {
            key: value
            for line in made.state.log_history
            for key, value in line.items()
            if key.startswith("collapse/") and "time" not in key
        },
        "rows": made.last_update_rows,
        "scores": made.last_selection.scores.tolist(),
        "kept_groups": logs(made, "filter/kept_groups"),
        "norm": logs(made, "grad_norm"),
        "checksum": [float(p.double().sum()) for p in made.model.parameters()],
    }


def main() -> None:
    cases = [(pattern, name, 1) for pattern in PATTERNS for name in SETTINGS]
    cases += [(pattern, name, 2) for pattern in ("even", "one rank has none") for name in SETTINGS]
    result = {f"{pattern} | {name} | {steps}": play(pattern, name, steps) for pattern, name, steps in cases}
    result["episodes"] = play_episodes()
    rank = torch.distributed.get_rank()
    (OUT / f"rank{rank}.json").write_text(json.dumps(result))
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()  # a rank that ends first may take the other's down


if __name__ == "__main__":
    main()
