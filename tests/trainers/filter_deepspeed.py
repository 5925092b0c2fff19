"""
A filtered run of three steps, the second of them empty, on two ranks: with DDP (stage 0) or DeepSpeed on CPUs; of GRPO
or of PPO.
"""

from __future__ import annotations

import contextlib
import os
import sys
from functools import partial
from pathlib import Path


OUT, NAME, STAGE, PPO = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]), sys.argv[4] == "ppo"
os.environ.update(DS_ACCELERATOR="cpu", ACCELERATE_USE_DEEPSPEED=str(STAGE > 0).lower())
sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parent.parent)]

import conftest  # noqa: E402, F401  (environment and threads)
import torch  # noqa: E402
from accelerate import PartialState  # noqa: E402
from datasets import Dataset  # noqa: E402
from filter_kit import alternating, spreads  # noqa: E402
from helpers import build_model, build_tokenizer  # noqa: E402
from kit import trainer  # noqa: E402
from transformers import TrainerCallback  # noqa: E402


if PPO:
    from ppo_kit import ppo


class Watch(TrainerCallback):
    """Weights after each step."""

    def __init__(self) -> None:
        self.weights: list[torch.Tensor] = []

    def on_step_end(self, args, state, control, model=None, **kwargs):
        parameters = list(getattr(model, "module", model).parameters())
        whole = contextlib.nullcontext()
        if STAGE == 3:
            import deepspeed

            whole = deepspeed.zero.GatheredParameters(parameters)
        with whole:
            self.weights.append(torch.cat([p.detach().flatten() for p in parameters]))


def main() -> None:
    settings = {"reward_variance_filtering": "top_p", "reward_variance_top_p": 1.0, "learning_rate": 1e-3}
    settings |= {"max_steps": 3, "max_completion_length": 12, "shuffle_dataset": False, "weight_decay": 0.1}
    settings |= {"loss_type": "grpo", "entropy_coef": 0.01, "kl_coef" if PPO else "beta": 0.1}
    settings |= {"per_device_train_batch_size": 4, "gradient_accumulation_steps": 2}
    if STAGE:
        # `use_cpu` would ignore DeepSpeed without a word.
        PartialState(backend="gloo")
        auto = ["train_micro_batch_size_per_gpu", "gradient_accumulation_steps", "gradient_clipping"]
        plan = dict.fromkeys(auto, "auto") | {"zero_optimization": {"stage": STAGE}}
        settings |= {"use_cpu": False, "deepspeed": plan | {"zero_allow_untested_optimizer": True}}
        settings["accelerator_config"] = {"use_configured_state": True}
    model, tokenizer = build_model(build_tokenizer()), build_tokenizer()
    model.config._name_or_path = NAME
    if PPO:
        settings |= {"num_ppo_epochs": 1, "critic_learning_rate": 2e-3, "temperature": 1.0}
    patterns = [[1, 2, 0, 0], [0, 0, 0, 0], [3, 0, 0, 0]]
    rows = [row for values in patterns for row in spreads(values).select(range(4))]
    watch = Watch()
    make = partial(ppo, opinion=0) if PPO else trainer
    made = make(
        OUT / str(STAGE), model, tokenizer, Dataset.from_list(rows), reward_funcs=alternating, settings=settings,
        callbacks=[watch],
    )  # fmt: skip
    made.train()
    if PPO:
        made.save_model(str(OUT / f"final{STAGE}"))
    if made.accelerator.is_main_process:
        torch.save(watch.weights, OUT / f"stage{STAGE}.pt")
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()  # a rank that ends first may take the other's down


if __name__ == "__main__":
    main()
