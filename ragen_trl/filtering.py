"""Which prompt groups say something about what to do, judged by the rewards of their members."""

from __future__ import annotations

import torch


def flat_groups(rewards: torch.Tensor, rtol: float = 1e-6) -> torch.Tensor:
    """
    Groups whose members all earned the same, so that none was better than another.

    The mean of equal float32 numbers need not be one of them (`-0.3` eight times has the mean `-0.30000004`), so a
    deviation from it proves nothing.

    Args:
        rewards (`torch.Tensor`):
            Total reward of each rollout, (G, K). NaN for a rollout without a reward.
        rtol (`float`, *optional*, defaults to `1e-6`):
            Spread that counts as none, relative to the largest magnitude in the group.

    Returns:
        `torch.Tensor`: (G,) bool. A group with no more than one reward is flat.
    """
    live = ~rewards.isnan()
    highest = rewards.masked_fill(~live, -torch.inf).amax(dim=1)
    lowest = rewards.masked_fill(~live, torch.inf).amin(dim=1)
    magnitude = rewards.abs().masked_fill(~live, 0.0).amax(dim=1)
    return (live.sum(dim=1) < 2) | (highest - lowest <= rtol * magnitude)
