"""What callbacks get to see of a batch of rollouts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from .trajectory import Trajectory


@dataclass(frozen=True)
class RolloutBatch:
    """
    Rollouts of one generation on this rank, scored and not filtered. Of episodes, tools and plain completions alike.

    Args:
        prompt_ids (`list[list[int]]`):
            Prompt of each rollout, without padding.
        completion_ids (`list[list[int]]`):
            What follows it: sampled tokens, observations, tool results.
        sampled (`list[list[int]]`):
            1 for the sampled tokens of a completion that are trained, else 0. All zero for a failed episode.
        groups (`list[int]`):
            Group of each rollout, counted over all ranks.
        advantages (`torch.Tensor`):
            As TRL has computed them, (B,).
        rewards (`torch.Tensor`):
            Total reward of each rollout of all ranks, (N,) float64 on the CPU; NaN without any.
        trajectories (`list[`[`Trajectory`]`]`, *optional*):
            Episodes, where there are environments.
    """

    prompt_ids: list[list[int]]
    completion_ids: list[list[int]]
    sampled: list[list[int]]
    groups: list[int]
    advantages: torch.Tensor
    rewards: torch.Tensor
    trajectories: list[Trajectory] | None = None


def rollout_batch(
    inputs: Sequence[Mapping[str, Any]], output: Mapping[str, Any], rewards: torch.Tensor, rank: int, group_size: int
) -> RolloutBatch:
    """
    Make a [`RolloutBatch`] of what TRL's `_generate_and_score_completions` takes and gives.

    Args:
        inputs (`Sequence[Mapping[str, Any]]`):
            Dataset rows of this rank, with `trajectory` where there are environments.
        output (`Mapping[str, Any]`):
            Padded tensors of this rank.
        rewards (`torch.Tensor`):
            Total rewards of all ranks, (N,).
        rank (`int`):
            This rank.
        group_size (`int`):
            Rollouts of a group.
    """
    mask = output["completion_mask"]
    sampled = mask if output.get("tool_mask") is None else mask * output["tool_mask"]
    number = len(mask)
    trajectories = [row.get("trajectory") for row in inputs]
    # Whole rows to the CPU first: one transfer, not one for each.
    columns = [output["prompt_ids"], output["prompt_mask"], output["completion_ids"], mask, sampled]
    prompts, prompt_masks, completions, masks, flags = (column.tolist() for column in columns)
    lengths = [_length(row) for row in masks]
    return RolloutBatch(
        prompt_ids=[[t for t, m in zip(*row, strict=True) if m] for row in zip(prompts, prompt_masks, strict=True)],
        completion_ids=[row[:length] for row, length in zip(completions, lengths, strict=True)],
        sampled=[row[:length] for row, length in zip(flags, lengths, strict=True)],
        groups=[(rank * number + i) // group_size for i in range(number)],
        advantages=output["advantages"],
        rewards=rewards,
        trajectories=None if None in trajectories else trajectories,  # type: ignore[arg-type]
    )


def _length(mask: Sequence[int]) -> int:
    return next((i + 1 for i in reversed(range(len(mask))) if mask[i]), 0)
