"""PPO on each of two ranks; started by test_ppo_two_processes.py. Writes what it saw as JSON."""

from __future__ import annotations

import copy
import json
import sys
from pathlib import Path


sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parent.parent)]

import conftest  # noqa: E402, F401  (environment and threads)
import torch  # noqa: E402
from accelerate.utils import gather_object  # noqa: E402
from filter_kit import difference, largest  # noqa: E402
from helpers import build_model, build_tokenizer  # noqa: E402
from kit import logs, parameters  # noqa: E402
from ppo_kit import episodes, first_gradient, noisy, ppo  # noqa: E402

from ragen_trl import env_dataset  # noqa: E402


OUT = Path(sys.argv[1])
TOKENIZER = build_tokenizer()
MODEL = build_model(TOKENIZER)

FILTER = {"reward_variance_filtering": "top_k", "reward_variance_top_k": 1}
# Eight rollouts in all: groups of four, on one rank or on both.
CASES = {
    "plain": {},
    "in two micro-steps": {"per_device_train_batch_size": 2, "gradient_accumulation_steps": 2},
    "checkpointing": {"gradient_checkpointing": True},
    "rollouts": {"loss_type": "grpo", "kl_coef": 0.2, "kl_penalty": "loss", "kl_estimator": "k3"},
    "penalty in reward": {"kl_coef": 0.2, "advantage_estimator": "turn_level_gae"},
    "filtered": FILTER,
    "filtered in two micro-steps": FILTER | {"per_device_train_batch_size": 2, "gradient_accumulation_steps": 2},
}


def gradient(name: str) -> dict:
    settings = {"per_device_train_batch_size": 4} | CASES[name]
    reference = noisy(MODEL) if settings.get("kl_coef") else None
    made = ppo(OUT / name, MODEL, TOKENIZER, settings=settings, ref_model=copy.deepcopy(reference))
    policy, critic = copy.deepcopy(MODEL), copy.deepcopy(made.critic).cpu()
    made.train()
    played = gather_object(list(enumerate(made.batches[0], start=4 * made.accelerator.process_index)))
    if "filtered" in name:
        kept = made.last_selection.kept.tolist()
        played = [(i, t) for i, t in played if i // 4 in kept]
    expected = first_gradient(made, episodes([t for _, t in played]), policy, critic, reference)
    return {
        "difference": difference(made.gradients[0], expected),
        "largest": largest(expected),
        "explained": logs(made, "value/explained_variance"),
        "loss": logs(made, "value/loss"),
    }


def training(fault: str) -> dict:
    """A few steps: uneven episodes, all of one rank failing, a rank with nothing kept, warm-up, several epochs."""
    data, settings = env_dataset("helpers:Awkward-v0", 8), {"max_turns": 5, "learning_rate": 1e-3, "max_steps": 4}
    settings |= {"per_device_train_batch_size": 4, "num_ppo_epochs": 2, "critic_warmup_steps": 1}
    if fault == "a rank fails":
        data = env_dataset("helpers:Faulty-v0", 8, env_kwargs={"fault": "reset", "members": [4, 5, 6, 7]})
        settings["num_generations"] = 8
    if fault == "filtered training":
        settings |= FILTER
    made = ppo(OUT / fault, MODEL, TOKENIZER, data, settings=settings)
    made.train()
    made.save_model(str(OUT / fault / "final"))
    return {
        "checksum": [float(p.double().sum()) for p in parameters(made.accelerator.unwrap_model(made.model)).values()],
        "steps": made.state.global_step,
        "kept": logs(made, "filter/kept_groups"),
    }


def main() -> None:
    result = {name: gradient(name) for name in CASES}
    result |= {fault: training(fault) for fault in ("uneven", "a rank fails", "filtered training")}
    (OUT / f"rank{torch.distributed.get_rank()}.json").write_text(json.dumps(result))
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()  # a rank that ends first may take the other's down


if __name__ == "__main__":
    main()
