"""
From rewards and values to advantages: over tokens, over turns, against the other members of a group. Observations and
padding take no part. Pure torch: knows no trainer.

All arithmetic is float64 on the CPU, so that no device or dtype decides. Results carry no gradient; they have the
device of what came in and its dtype, but float32 at least.
"""

from __future__ import annotations

import math

import torch
import torch.distributed as dist

from .filtering import flat_groups


# Values that differ by less, relatively, are equal: what float32 leaves of a constant.
_NOISE = 1e-6


def gae(
    rewards: torch.Tensor, values: torch.Tensor, mask: torch.Tensor, *, gamma: float, lam: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """
    Generalised advantage estimation (arXiv 1506.02438) over the trainable tokens of each row.

    It is as if there were no other tokens: the token after an action is the first of the next action, however many
    observation tokens are between them, at the price of one discount. What stands at masked positions has no
    influence, NaN included. That goes for rewards too: one that is not on a trainable token is ignored.
    No value follows the last trainable token: an episode that was cut short is treated as one that ended.

    Args:
        rewards (`torch.Tensor`):
            Reward of each token, (B, T).
        values (`torch.Tensor`):
            What the critic expects from each token on, (B, T).
        mask (`torch.Tensor`):
            1 for the trainable (sampled) tokens, 0 for observations and padding, (B, T).
        gamma (`float`):
            Discount from one trainable token to the next, in [0, 1].
        lam (`float`):
            Weight of longer returns, in [0, 1].

    Returns:
        `tuple[torch.Tensor, torch.Tensor]`: Advantages, not whitened, and returns (advantages + values: what the
        critic should have said), both (B, T) and 0 at masked positions.

    Raises:
        ValueError: If shapes differ or a factor is out of range.
    """
    _check(rewards=rewards, values=values, mask=mask)
    _check_factors(gamma=gamma, lam=lam)
    trained = mask.bool().cpu()
    reward, value = _packed(rewards, trained), _packed(values, trained)
    advantage = _backwards(reward, value, torch.full_like(reward, gamma), lam)
    return _like(_unpacked(advantage, trained), values), _like(_unpacked(advantage + value, trained), values)


def turn_level_gae(
    rewards: torch.Tensor,
    values: torch.Tensor,
    mask: torch.Tensor,
    turns: torch.Tensor,
    *,
    gamma: float,
    lam: float,
    turn_gamma: float,
) -> tuple[torch.Tensor, torch.Tensor]:
    """
    Two-level GAE (`bi_level_gae` of the paper's code): first over turns, then over the tokens inside each turn.

    Over turns, each has the sum of its rewards and the value of its last token. The resulting return of a turn
    (advantage + value) is then the reward of its last token in a [`gae`] of that turn alone. Where a turn ends is what
    the rollout says, so that a turn without reward is a turn like the others. Masked positions are as in [`gae`].

    Args:
        rewards, values, mask, gamma:
            As in [`gae`].
        turns (`torch.Tensor`):
            Number of the turn that each token belongs to, (B, T) integers, never smaller than that of an earlier
            trainable token of the row. Read at trainable tokens only.
        lam (`float`):
            Weight of longer returns on both levels, in [0, 1].
        turn_gamma (`float`):
            Discount from one turn to the next, in [0, 1].

    Returns:
        `tuple[torch.Tensor, torch.Tensor]`: Advantages and returns as in [`gae`].

    Raises:
        ValueError: If shapes differ, a factor is out of range, or the numbers of turns decrease.
    """
    _check(rewards=rewards, values=values, mask=mask, turns=turns)
    _check_factors(gamma=gamma, lam=lam, turn_gamma=turn_gamma)
    trained = mask.bool().cpu()
    reward, value = _packed(rewards, trained), _packed(values, trained)
    number = _packed(turns, trained, math.inf)
    steps = number.diff(dim=1, append=torch.full((len(number), 1), math.inf))  # inf - inf, in padding, is nothing
    if (steps < 0).any():
        rows = (steps < 0).any(dim=1).nonzero().flatten().tolist()
        raise ValueError(
            f"`turns` must not decrease from one trainable token to the next, but does in rows {rows}. Give each "
            "token the number of its turn (0, 0, 0, 1, 1, ...), not a mark at the ends of turns."
        )
    ends = steps > 0
    turn_value = _packed(value, ends)  # (B, turns)
    turn_reward = torch.zeros_like(reward).scatter_add(1, ends.cumsum(dim=1) - ends.long(), reward)
    turn_reward = turn_reward[:, : turn_value.shape[1]]
    turn_return = turn_value + _backwards(turn_reward, turn_value, torch.full_like(turn_value, turn_gamma), lam)
    advantage = _backwards(_unpacked(turn_return, ends), value, gamma * (~ends).double(), lam)
    return _like(_unpacked(advantage, trained), values), _like(_unpacked(advantage + value, trained), values)


def whiten(x: torch.Tensor, mask: torch.Tensor, *, shift_mean: bool = True) -> torch.Tensor:
    """
    Bring what the mask selects, on all ranks together, to mean 0 and variance 1.

    `(x - mean) / sqrt(variance + 1e-8)` with the unbiased variance. If there are fewer than two values, or all are
    equal as far as float32 can tell, none deviates from the mean: the result is 0. If one is not finite, all become
    NaN. With torch.distributed initialised every rank has to call it, one without any value as well.

    Args:
        x (`torch.Tensor`):
            Numbers, any shape. What stands at masked positions has no influence, NaN included.
        mask (`torch.Tensor`):
            1 for the positions that count, in the shape of `x`.
        shift_mean (`bool`, *optional*, defaults to `True`):
            Whether the mean becomes 0. Otherwise it stays what it was, and only the spread around it changes.

    Returns:
        `torch.Tensor`: In the shape of `x`, 0 at masked positions.

    Raises:
        ValueError: If shapes differ.
    """
    if x.shape != mask.shape:
        raise ValueError(f"`mask` must have the shape of `x`, {tuple(x.shape)}, got {tuple(mask.shape)}.")
    selected = mask.bool().cpu()
    own = _numbers(x)[selected]
    # Count, mean, squares around it and range of each rank: enough to know those of all exactly.
    mean = own.sum() / max(len(own), 1)
    facts = [float(len(own)), float(mean), float((own - mean).square().sum())]
    facts += [float(own.min()), float(own.max())] if len(own) else [math.inf, -math.inf]
    every = [facts]
    if dist.is_available() and dist.is_initialized():
        every = [[]] * dist.get_world_size()
        dist.all_gather_object(every, facts)
    counts, means, squares, lowest, highest = torch.tensor(every, dtype=torch.float64).T
    low, high, count = lowest.min(), highest.max(), counts.sum()
    center = (counts * means).sum() / count.clamp(min=1)
    variance = (squares + counts * (means - center).square()).sum() / (count - 1).clamp(min=1)
    flat = bool((high - low <= _NOISE * torch.maximum(high.abs(), low.abs())) & variance.isfinite())
    deviation = torch.zeros_like(own) if flat else (own - center) * (variance + 1e-8).rsqrt()
    result = torch.zeros(x.shape, dtype=torch.float64)
    result[selected] = deviation if shift_mean else deviation + center
    return _like(result, x)


def group_advantages(
    returns: torch.Tensor, groups: torch.Tensor, *, scale: bool = True, eps: float = 1e-6
) -> torch.Tensor:
    """
    Return of each rollout against the mean of its group, as in GRPO (arXiv 2402.03300) or Dr. GRPO (arXiv 2503.20783).

    A rollout without a return (NaN) is no member of its group. Members that all earned the same (see
    [`~filtering.flat_groups`]) get exactly 0, and so does one whose companions are all without a return. A rollout
    that never had companions is compared with 0 and not scaled, as in the paper's code.

    Args:
        returns (`torch.Tensor`):
            Return of each rollout, (B,); NaN for one without.
        groups (`torch.Tensor`):
            Group (prompt) of each rollout, (B,), any integers in any order; no group may be split between calls.
        scale (`bool`, *optional*, defaults to `True`):
            Whether to divide by the unbiased standard deviation of the group + `eps` (GRPO), or not (Dr. GRPO).
        eps (`float`, *optional*, defaults to `1e-6`):
            Added to the standard deviation.

    Returns:
        `torch.Tensor`: (B,), 0 for a rollout without a return.

    Raises:
        ValueError: If a shape is wrong, `eps` is negative, or a return is infinite.
    """
    if not (eps >= 0 and math.isfinite(eps)):
        raise ValueError(f"`eps` must be a number of at least 0, got {eps!r}. The default is usually right.")
    deviation, std, _ = _compared(returns, groups)
    return _like(deviation / (std + eps) if scale else deviation, returns)


def rloo_advantages(returns: torch.Tensor, groups: torch.Tensor) -> torch.Tensor:
    """
    Return of each rollout against the mean of the *other* members of its group (RLOO, arXiv 2402.14740).

    Args:
        returns, groups:
            As in [`group_advantages`], with the same rules for those without a return or without companions.

    Returns:
        `torch.Tensor`: (B,), 0 for a rollout without a return.

    Raises:
        ValueError: If a shape is wrong or a return is infinite.
    """
    deviation, _, count = _compared(returns, groups)
    return _like(deviation * count / (count - 1).clamp(min=1), returns)


def _check(**tensors: torch.Tensor) -> None:
    shapes = {name: tuple(tensor.shape) for name, tensor in tensors.items()}
    if len(set(shapes.values())) > 1 or len(shapes["mask"]) != 2:
        raise ValueError(f"All must have the same shape (B, T), got {shapes}. Pad or cut them to the same tokens.")


def _check_factors(**factors: float) -> None:
    for name, factor in factors.items():
        if not 0 <= factor <= 1:
            raise ValueError(f"`{name}` must be in [0, 1], got {factor!r}. 1 looks ahead without limit, 0 not at all.")


def _numbers(x: torch.Tensor) -> torch.Tensor:
    return x.detach().cpu().double()


def _like(result: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    return result.to(torch.promote_types(x.dtype, torch.float32)).to(x.device)  # in this order: MPS has no float64


def _packed(x: torch.Tensor, selected: torch.Tensor, fill: float = 0.0) -> torch.Tensor:
    """The selected entries of each row moved to its beginning, (B, most in a row), then `fill`."""
    counts = selected.sum(dim=1, keepdim=True)
    live = torch.arange(int(counts.max()) if len(counts) else 0) < counts
    packed = torch.full(live.shape, fill, dtype=torch.float64)
    packed[live] = _numbers(x)[selected]
    return packed


def _unpacked(packed: torch.Tensor, selected: torch.Tensor) -> torch.Tensor:
    """What [`_packed`] moved, back in its places, 0 elsewhere."""
    result = torch.zeros(selected.shape, dtype=torch.float64)
    result[selected] = packed[torch.arange(packed.shape[1]) < selected.sum(dim=1, keepdim=True)]
    return result


def _backwards(reward: torch.Tensor, value: torch.Tensor, discount: torch.Tensor, lam: float) -> torch.Tensor:
    """GAE over all entries; `discount` leads from each to the next, 0 where nothing follows."""
    ahead = torch.cat([value[:, 1:], torch.zeros_like(value[:, :1])], dim=1)
    advantage = (reward + discount * ahead - value).T.contiguous()  # (N, B): the loop reads whole rows
    trace = (lam * discount).T.contiguous()
    for step in range(len(advantage) - 2, -1, -1):
        advantage[step].addcmul_(trace[step], advantage[step + 1])
    return advantage.T


def _compared(returns: torch.Tensor, groups: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Of each rollout: deviation from its group's mean (0 without a return), standard deviation, members; (B,)."""
    if returns.dim() != 1 or returns.shape != groups.shape:
        raise ValueError(
            f"`returns` and `groups` must both have shape (B,), got {tuple(returns.shape)} and {tuple(groups.shape)}. "
            "Give one return and the number of its group for each rollout."
        )
    earned = _numbers(returns)
    if earned.isinf().any():
        rows = earned.isinf().nonzero().flatten().tolist()
        raise ValueError(
            f"`returns` must be finite, or NaN where there is none; rollouts {rows} have infinite ones. Bound them "
            "where they are computed, or leave the rollout without (NaN)."
        )
    _, group, sizes = torch.unique(groups.detach().cpu(), return_inverse=True, return_counts=True)
    if not len(sizes):
        return earned, earned, earned
    order = group.argsort(stable=True)
    table = torch.full((len(sizes), int(sizes.max())), math.nan, dtype=torch.float64)  # (groups, members)
    placed = torch.arange(table.shape[1]) < sizes[:, None]
    table[placed] = earned[order]

    count = (~table.isnan()).sum(dim=1)
    alone, flat = sizes == 1, flat_groups(table)
    deviation = table - table.nanmean(dim=1, keepdim=True).masked_fill(alone[:, None], 0.0)
    std = (deviation.square().nansum(dim=1) / (count - 1).clamp(min=1)).sqrt().masked_fill(flat, 1.0)
    deviation = deviation.masked_fill((flat & ~alone)[:, None], 0.0).nan_to_num(nan=0.0)
    return torch.empty_like(earned).index_copy(0, order, deviation[placed]), std[group], count[group]
