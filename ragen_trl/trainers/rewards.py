"""Rewards of rollouts, and the tokens that get them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch.nn.utils.rnn import pad_sequence

from ..rollout.trajectory import Trajectory
from .critic import token_scores


class RewardModelScore:
    """
    Reward function that asks a reward model for its score of prompt and completion, token by token as they were
    sampled. TRL calls it with the completions; `prompt_ids` has to be set before.

    Args:
        model ([`~transformers.PreTrainedModel`]):
            Sequence classifier with one output and the policy's tokens.
        batch_size (`int`):
            Rows of a forward call.
        pad_token_id (`int`):
            Fills up rows, on the right.
    """

    __name__ = "reward_model"

    def __init__(self, model: Any, batch_size: int, pad_token_id: int) -> None:
        self.model, self.batch_size, self.pad_token_id = model, batch_size, pad_token_id
        self.prompt_ids: list[list[int]] = []

    @torch.no_grad()
    def __call__(self, completion_ids: list[list[int]], **kwargs: Any) -> list[float]:
        rows = [[*prompt, *completion] for prompt, completion in zip(self.prompt_ids, completion_ids, strict=True)]
        scores: list[float] = []
        for start in range(0, len(rows), self.batch_size):
            chunk = [torch.tensor(row) for row in rows[start : start + self.batch_size]]
            lengths = torch.tensor([len(row) for row in chunk])
            input_ids = pad_sequence(chunk, batch_first=True, padding_value=self.pad_token_id)
            mask = (torch.arange(input_ids.size(1)) < lengths.unsqueeze(1)).long()
            device = next(self.model.parameters()).device
            values = token_scores(self.model, input_ids.to(device), mask.to(device))
            scores += values[torch.arange(len(chunk)), lengths - 1].tolist()
        return scores


class MissingEOSPenalty:
    """
    Reward function that takes `penalty` off completions without an end-of-sequence token.

    Args:
        penalty (`float`):
            At least 0.
        eos_token_id (`int`):
            What they lack.
    """

    __name__ = "missing_eos_penalty"

    def __init__(self, penalty: float, eos_token_id: int) -> None:
        self.penalty, self.eos_token_id = penalty, eos_token_id

    def __call__(self, completion_ids: list[list[int]], **kwargs: Any) -> list[float]:
        return [0.0 if self.eos_token_id in ids else -self.penalty for ids in completion_ids]


def token_rewards(totals: torch.Tensor, mask: torch.Tensor, trajectories: Sequence[Any] | None = None) -> torch.Tensor:
    """
    Reward of each token. Only trained tokens get any: the last one of a rollout its total reward, or, with
    `trajectories`, the last one of each turn what that turn earned (format penalty included), and the last one of the
    rollout what is left of the total. Episodes that were cut short are rewarded like those that ended.

    Args:
        totals (`torch.Tensor`):
            Total reward of each rollout, (B,).
        mask (`torch.Tensor`):
            1 for trained tokens, (B, C). A row without any gets no reward.
        trajectories (`Sequence[`[`~ragen_trl.rollout.Trajectory`]`]`, *optional*):
            Episodes.

    Returns:
        `torch.Tensor`: (B, C) float32.
    """
    rewards = torch.zeros(mask.shape, device=mask.device)
    for i, (total, trained) in enumerate(zip(totals.tolist(), mask.bool(), strict=True)):
        positions = trained.nonzero().flatten().tolist()
        if not positions:
            continue
        if trajectories is not None:
            numbers = trajectories[i].turn_numbers
            ends = {numbers[position]: position for position in positions}
            for turn, position in ends.items():
                earned = trajectories[i].turns[turn].reward + trajectories[i].turns[turn].format_penalty
                rewards[i, position] += earned
                total -= earned
        rewards[i, positions[-1]] += total
    return rewards


def turn_numbers(trajectories: Sequence[Trajectory | None], mask: torch.Tensor) -> torch.Tensor:
    """
    Number of the turn that each token belongs to, (B, C) int64; 0 throughout where there are no episodes.

    Args:
        trajectories (`Sequence[`[`~ragen_trl.rollout.Trajectory`]` or None]`):
            Episodes.
        mask (`torch.Tensor`):
            1 for trained tokens, (B, C).
    """
    numbers = torch.zeros(mask.shape, dtype=torch.long, device=mask.device)
    for row, trajectory in zip(numbers, trajectories, strict=True):
        if trajectory is not None:
            own = torch.tensor(trajectory.turn_numbers[: len(row)], dtype=torch.long)
            row[: len(own)] = own
    return numbers
