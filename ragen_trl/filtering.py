"""
Which prompt groups say something about what to do, judged by the rewards of their members (RAGEN-2, arXiv 2604.06268,
SNR-aware filtering). Pure torch: knows no trainer.
"""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass
from numbers import Real
from typing import Any

import torch


STRATEGIES = ("top_p", "top_k", "top_k_fraction", "min_p")
REWARD_SCORES = ("variance", "std", "mean", "sum")
ROLLOUT_SCORES = ("entropy", "entropy_variance", "length")
MODES = ("linear", "softmax")
KEEPS = ("largest", "smallest")

# Scores and sums of scores that differ by less, relatively, are equal: what float32 rewards leave of a tie.
_NOISE = 1e-6


@dataclass(frozen=True, eq=False)
class GroupSelection:
    """
    Result of [`select_groups`], on the CPU.

    Attributes:
        kept (`torch.Tensor`):
            Indices of the kept groups, ascending, int64.
        scores (`torch.Tensor`):
            Score of each group, (G,) float64; exactly 0 for those that count as zero.
        metrics (`dict[str, float]`):
            Over groups: `kept_groups`, `kept_share`, `zero_share` (score counts as zero), and of the sample variance
            of rewards `variance_mean`, `variance_std` (n-1), `variance_min`, `variance_max`, `variance_ratio` = std /
            mean. Over rollouts: `reward_before` and `reward_after`, mean reward in all and in the kept groups. What is
            undefined is left out: `variance_ratio` if no group varies, `variance_*` if no group has two rewards,
            `reward_after` if nothing is kept.
    """

    kept: torch.Tensor
    scores: torch.Tensor
    metrics: dict[str, float]


def flat_groups(rewards: torch.Tensor, rtol: float = 1e-6, scale: torch.Tensor | None = None) -> torch.Tensor:
    """
    Groups whose members all earned the same, so that none was better than another.

    The mean of equal float32 numbers need not be one of them (`-0.3` eight times has the mean `-0.30000004`), so a
    deviation from it proves nothing.

    Args:
        rewards (`torch.Tensor`):
            Total reward of each rollout, (G, K). NaN for a rollout without a reward.
        rtol (`float`, *optional*, defaults to `1e-6`):
            Spread that counts as none, relative to the largest magnitude in the group.
        scale (`torch.Tensor`, *optional*):
            Magnitude of what each reward was computed from, (G, K), where that is larger than the reward: the parts
            of a sum may cancel. Defaults to the rewards.

    Returns:
        `torch.Tensor`: (G,) bool. A group with no more than one reward is flat.
    """
    live = ~rewards.isnan()
    highest = rewards.masked_fill(~live, -torch.inf).amax(dim=1)
    lowest = rewards.masked_fill(~live, torch.inf).amin(dim=1)
    magnitude = (rewards if scale is None else scale).abs().masked_fill(~live, 0.0).amax(dim=1)
    return (live.sum(dim=1) < 2) | (highest - lowest <= rtol * magnitude)


def select_groups(
    rewards: torch.Tensor,
    *,
    strategy: str,
    value: float,
    score: str = "variance",
    mode: str = "linear",
    keep: str = "largest",
    include_zero: bool = False,
    eps: float = 0.01,
    zero_rtol: float = 1e-6,
    per_rollout: torch.Tensor | None = None,
) -> GroupSelection:
    """
    Choose the prompt groups to update on.

    The paper ranks groups by the sample variance of their returns and keeps the shortest prefix of the ranking whose
    summed variance reaches a share `rho` of the total (`strategy="top_p"`, `value=rho`). Groups with equal scores keep
    their order. The result depends on the numbers only, not on device, dtype, or the order of members.

    A rollout without a reward (NaN) is as if it had not been played: the score is that of the others. A group with
    fewer than two rewards has score 0 and is never kept, even with `include_zero`.

    Args:
        rewards (`torch.Tensor`):
            Total reward of each rollout, (G, K): one row a group. NaN for a rollout without a reward.
        strategy (`str`):
            `"top_p"` (share of the summed scores), `"top_k"` (number of groups), `"top_k_fraction"` (share of all G
            groups, rounded down, at least one) or `"min_p"` (share of the best score that a group must have).
        value (`float`):
            The number that belongs to `strategy`. 1.0 with `"top_p"` keeps every group that may be kept.
        score (`str`, *optional*, defaults to `"variance"`):
            `"variance"` (the paper), `"std"` (the paper's code), `"mean"` or `"sum"` of the rewards; `"entropy"` or
            `"length"` (mean of `per_rollout`) or `"entropy_variance"` (its sample variance).
        mode (`str`, *optional*, defaults to `"linear"`):
            What `"top_p"` adds up: the scores, or with `"softmax"` their softmax, which depends on their scale.
        keep (`str`, *optional*, defaults to `"largest"`):
            End of the ranking that is kept, `"largest"` or `"smallest"`.
        include_zero (`bool`, *optional*, defaults to `False`):
            Whether groups with score zero may be kept.
        eps (`float`, *optional*, defaults to `0.01`):
            Taken off the sum that linear `"top_p"` has to reach, `value * sum(scores) - eps`. If nothing is left of
            it, nothing is kept.
        zero_rtol (`float`, *optional*, defaults to `1e-6`):
            What counts as zero, relative to the largest magnitude in the group: the spread for scores that measure
            spread (see [`flat_groups`]), the mean for the others.
        per_rollout (`torch.Tensor`, *optional*):
            Mean token entropy or number of trained tokens of each rollout, (G, K), for the scores that need it.

    Returns:
        [`GroupSelection`]: The kept groups, all scores, and what to log.

    Raises:
        ValueError: If a setting is out of range (see [`check_filter_settings`]), a shape is wrong, a number is
            infinite, or no rollout has a reward.
    """
    rewards = _matrix("rewards", torch.as_tensor(rewards))
    check_filter_settings(
        strategy=strategy, value=value, score=score, mode=mode, keep=keep, eps=eps, zero_rtol=zero_rtol,
        num_groups=rewards.shape[0], group_size=rewards.shape[1],
    )  # fmt: skip
    if rewards.isnan().all():
        raise ValueError(
            f"None of the {rewards.numel()} rollouts has a reward (all NaN). Check that the reward functions return "
            "numbers and that the environments run."
        )
    variance, flat, known = _group_scores(rewards, "variance", zero_rtol)
    metrics = _reward_metrics(rewards, variance[known])
    scores, zero = variance, flat
    if score in ROLLOUT_SCORES:
        scores, zero, known = _group_scores(_rollout_values(per_rollout, rewards, score), score, zero_rtol)
    elif score != "variance":
        scores, zero, known = _group_scores(rewards, score, zero_rtol)

    candidates = (known if include_zero else known & ~zero).nonzero().flatten()
    order = candidates[_ranking(scores[candidates], keep)]
    if not len(order):
        rule = "count as zero: do rewards vary within a group?" if known.any() else "rest on fewer than two rollouts."
        count, note = 0, f"all scores {rule}"
    elif strategy == "top_p":
        count, note = _top_p(scores[order], value, mode, keep, eps)
    elif strategy == "min_p":
        count, note = _min_p(scores[order], value, keep)
    else:
        wanted = int(value) if strategy == "top_k" else int(value * len(rewards))
        count, note = max(1, min(wanted, len(order))), ""
    if note:
        warnings.warn(note if count else f"No group is kept: {note}", stacklevel=2)

    kept = order[:count].sort().values
    metrics |= {"kept_groups": float(count), "kept_share": count / len(rewards)}
    metrics["zero_share"] = float(zero.double().mean())
    if count:
        metrics["reward_after"] = float(rewards[kept].nanmean())
    return GroupSelection(kept, scores, metrics)


def check_filter_settings(
    *,
    strategy: str,
    value: float,
    score: str = "variance",
    mode: str = "linear",
    keep: str = "largest",
    eps: float = 0.01,
    zero_rtol: float = 1e-6,
    num_groups: int | None = None,
    group_size: int | None = None,
) -> None:
    """
    Check settings of [`select_groups`] before there are rewards.

    Args:
        strategy, value, score, mode, keep, eps, zero_rtol:
            As in [`select_groups`].
        num_groups (`int`, *optional*):
            Groups in a batch, if known: `"top_k"` cannot keep more.
        group_size (`int`, *optional*):
            Rollouts in a group, if known: at least 2.

    Raises:
        ValueError: With the value, what is allowed, and what to do.
    """
    for name, given, allowed in (
        ("strategy", strategy, STRATEGIES),
        ("score", score, REWARD_SCORES + ROLLOUT_SCORES),
        ("mode", mode, MODES),
        ("keep", keep, KEEPS),
    ):
        if given not in allowed:
            raise ValueError(f"`{name}` must be one of {list(allowed)}, got {given!r}.")
    for name, number in (("eps", eps), ("zero_rtol", zero_rtol)):
        if not _is_number(number) or number < 0:
            raise ValueError(f"`{name}` must be a number of at least 0, got {number!r}. The default is usually right.")
    if group_size is not None and group_size < 2:
        raise ValueError(
            f"A group of {group_size} has no spread to filter by; 2 or more rollouts are needed. Raise "
            "`num_generations` (8 and 16 are common), or turn the filter off."
        )
    hint = {
        "top_p": ("in (0, 1]", "the share of the summed scores to keep; the paper has 0.9"),
        "top_k": ("a whole number of at least 1", "how many groups to keep; 'top_k_fraction' takes a share of them"),
        "top_k_fraction": ("in (0, 1]", "the share of groups to keep; 'top_k' takes their number"),
        "min_p": ("in [0, 1]", "the share of the best score that a group must reach, such as 0.05"),
    }[strategy]
    fits = _is_number(value) and value >= 0 and (value > 0 or strategy == "min_p")
    if fits:
        fits = value == int(value) if strategy == "top_k" else value <= 1
    if not fits:
        raise ValueError(f"`value` of strategy {strategy!r} must be {hint[0]}, got {value!r}. It is {hint[1]}.")
    if strategy == "top_k" and num_groups is not None and value > num_groups:
        raise ValueError(
            f"`value` of strategy 'top_k' must be at most the number of groups in a batch, {num_groups}, got {value}. "
            "Lower it, enlarge the batch, or use 'top_k_fraction'."
        )


def _is_number(value: Any) -> bool:
    return isinstance(value, Real) and not isinstance(value, bool) and math.isfinite(value)


def _matrix(name: str, values: torch.Tensor) -> torch.Tensor:
    """The numbers in float64 on the CPU, so that no device or dtype decides which group is kept."""
    if values.dim() != 2 or not values.numel():
        raise ValueError(f"`{name}` must have shape (groups, rollouts of a group), got {tuple(values.shape)}.")
    values = values.detach().to("cpu", torch.float64)
    # The square of what is larger would be infinite; float32 has nothing as large.
    if (bad := (values.abs() > 1e150).any(dim=1)).any():
        raise ValueError(
            f"`{name}` must be finite, or NaN where there is none; groups {bad.nonzero().flatten().tolist()} have "
            "infinite ones. Bound them where they are computed, or leave the rollout without (NaN)."
        )
    return values


def _rollout_values(per_rollout: torch.Tensor | None, rewards: torch.Tensor, score: str) -> torch.Tensor:
    if per_rollout is None or per_rollout.shape != rewards.shape:
        got = None if per_rollout is None else tuple(per_rollout.shape)
        raise ValueError(
            f"score={score!r} needs `per_rollout`, a number for each rollout in the shape of the rewards, "
            f"{tuple(rewards.shape)}, got {got}. Give it, or use one of {list(REWARD_SCORES)}."
        )
    return _matrix("per_rollout", per_rollout).masked_fill(rewards.isnan(), math.nan)


def _group_scores(
    values: torch.Tensor, score: str, zero_rtol: float
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Score of each group, whether it counts as zero, and whether it rests on two rollouts at least."""
    values = values.sort(dim=1).values  # sums do not hang on the order of members
    live = ~values.isnan()
    count, filled = live.sum(dim=1), values.masked_fill(~live, 0.0)
    known, mean = count >= 2, filled.sum(dim=1) / count.clamp(min=1)
    if score in ("variance", "std", "entropy_variance"):
        squares = (filled - mean[:, None]).square() * live
        scores = squares.sum(dim=1) / (count - 1).clamp(min=1)
        scores = scores.sqrt() if score == "std" else scores
        zero = flat_groups(values, zero_rtol)
    else:
        # A missing rollout counts as an average one in the sum; as a 0 it would make the group look better or worse.
        scores = mean * values.shape[1] if score == "sum" else mean
        zero = ~known | (mean.abs() <= zero_rtol * filled.abs().amax(dim=1))
    return scores.masked_fill(zero, 0.0), zero, known


def _ranking(scores: torch.Tensor, keep: str) -> torch.Tensor:
    """Positions from the first to be kept to the last; the earlier of two groups with equal scores first."""
    order = scores.argsort(descending=keep == "largest")
    ranked = scores[order]
    step = ranked.diff().abs() > _NOISE * torch.maximum(ranked[1:].abs(), ranked[:-1].abs())
    level = torch.cat([step.new_zeros(min(1, len(order)), dtype=torch.int64), step.cumsum(0)])
    return order[(level * len(order) + order).argsort()]


def _min_p(ranked: torch.Tensor, value: float, keep: str) -> tuple[int, str]:
    """How many groups reach a share of the best score, given the scores, best first; and what to warn of."""
    best = ranked[0]
    if keep == "largest":
        bound = value * best
        count = int((ranked >= bound - _NOISE * bound.abs()).sum())
    else:
        bound = best / max(value, 1e-10)
        count = int((ranked <= bound + _NOISE * bound.abs()).sum())
    if count:
        return count, ""
    return 0, f"the best score is {best:.3g}, and 'min_p' needs scores of at least 0. Use 'top_k_fraction' instead."


def _top_p(ranked: torch.Tensor, value: float, mode: str, keep: str, eps: float) -> tuple[int, str]:
    """How many groups hold a share of the mass, given the scores, best first; and what to warn of."""
    if value >= 1:
        return len(ranked), ""
    if mode == "softmax":
        running = (ranked if keep == "largest" else -ranked).softmax(0).cumsum(0)
        return min(len(ranked), 1 + int((running < value - _NOISE).sum())), ""
    threshold = value * float(ranked.sum()) - eps
    if threshold <= 0:
        return 0, (
            f"the sum to reach, value * sum(scores) - eps, is {threshold:.3g}, as scores are negative or smaller than "
            f"`eps={eps}`. Lower `eps`, or use another mode or strategy."
        )
    # Up to the first score that adds nothing; if the sum is not reached by then, nothing is kept.
    running = ranked[: int((ranked > 0).cumprod(0).sum())].cumsum(0)
    count = 1 + int((running < threshold * (1 - _NOISE)).sum())
    if count > len(running):
        return 0, f"keep={keep!r} begins with a score of {ranked[0]:.3g}, which adds nothing. Use mode='softmax'."
    if (ranked < 0).any():
        return count, "Linear 'top_p' never keeps a group with a negative score. Use mode='softmax' for such scores."
    return count, ""


def _reward_metrics(rewards: torch.Tensor, variance: torch.Tensor) -> dict[str, float]:
    metrics = {"reward_before": float(rewards.nanmean())}
    if len(variance):
        mean, std = float(variance.mean()), float(variance.std()) if len(variance) > 1 else 0.0
        metrics |= {"variance_mean": mean, "variance_std": std}
        metrics |= {"variance_min": float(variance.min()), "variance_max": float(variance.max())}
        if mean > 0:
            metrics["variance_ratio"] = std / mean
    return metrics
