"""Trainers whose groups differ or not as the data say, and the gradient that a batch of the kept groups alone has."""

from __future__ import annotations

from typing import Any

import torch
from accelerate.utils import gather_object
from datasets import Dataset
from kit import Recording, trainer
from transformers import TrainerCallback
from trl import GRPOTrainer

from ragen_trl import SNRFilterMixin
from ragen_trl.trainers.repack import join_rows, split_rows


class Plain(SNRFilterMixin, GRPOTrainer):
    """The mixin in front of TRL's own trainer."""


def spreads(values: list[float]) -> Dataset:
    """One prompt for each value, repeated; rewards within its group are 0 and the value in turn."""
    rows = [
        {"prompt": [{"role": "user", "content": f"{'go ' * i}question"}], "spread": v} for i, v in enumerate(values)
    ]
    return Dataset.from_list(rows * 8)


def alternating(completions: Any, spread: list[float], **kwargs: Any) -> list[float]:
    return [value * (i % 2) for i, value in enumerate(spread)]


class Gradients(TrainerCallback):
    """Keeps the gradients of every step as the optimizer sees them."""

    def __init__(self) -> None:
        self.steps: list[dict[str, torch.Tensor | None]] = []

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, model: Any = None, **kwargs: Any) -> None:
        named = getattr(model, "module", model).named_parameters()
        self.steps.append({n: None if p.grad is None else p.grad.detach().clone() for n, p in named})


def filtered(folder: Any, model: Any, tokenizer: Any, values: list[float], **settings: Any) -> Any:
    """A trainer that keeps the groups with a spread. It stays where it is, so that gradients can be computed later."""
    settings = {
        "reward_variance_filtering": "top_p", "reward_variance_top_p": 1.0, "learning_rate": 0.0, "max_steps": 1,
        "max_completion_length": 12, "shuffle_dataset": False, "max_grad_norm": 0.0,
    } | settings  # fmt: skip
    data = settings.pop("data", None) or spreads(values)
    made = trainer(
        folder, model, tokenizer, data, kind=Recording, reward_funcs=alternating, settings=settings,
        callbacks=[Gradients()],
    )  # fmt: skip
    if made.ref_model is not None:  # else there is nothing for KL to pull at
        noise = torch.Generator().manual_seed(1)
        for parameter in made.ref_model.parameters():
            parameter.data += 0.02 * torch.randn(parameter.shape, generator=noise)
    made.gradients = next(c for c in made.callback_handler.callbacks if isinstance(c, Gradients)).steps
    return made


def members(made: Any, groups: list[int]) -> set[int]:
    return {group * made.num_generations + i for group in groups for i in range(made.num_generations)}


def gradient_of(made: Any, wanted: set[int], batch: int = -1) -> dict[str, torch.Tensor]:
    """TRL's own gradient of one micro-batch that holds the given rows of a recorded batch and nothing else."""
    rows = gather_object([row for row in split_rows(made.outputs[batch]) if int(row["row"]) in wanted])
    assert len(rows) == len(wanted)
    inputs = join_rows(sorted(rows, key=lambda row: int(row["row"])), made._tokenizer.pad_token_id)
    mask = inputs["completion_mask"] * inputs.get("tool_mask", 1)
    # What TRL divides by spans all ranks and all micro-steps of a generation.
    scale = made.accelerator.num_processes * made.args.steps_per_generation
    inputs["num_items_in_batch"] = mask.sum() * scale
    model = made.accelerator.unwrap_model(made.model)
    model.train()
    model.zero_grad()
    made._filtering, made.current_gradient_accumulation_steps = False, 1
    loss = GRPOTrainer._compute_loss(made, model, inputs)
    loss.backward()
    made._filtering, made.expected_loss = True, float(loss)
    return {name: p.grad.detach().clone() for name, p in model.named_parameters() if p.grad is not None}


def difference(first: dict[str, Any], second: dict[str, Any]) -> float:
    assert first.keys() == second.keys()
    return max(float((value - second[name]).abs().max()) for name, value in first.items())


def largest(gradient: dict[str, torch.Tensor]) -> float:
    return max(float(value.abs().max()) for value in gradient.values())
