"""
From the probabilities of every reasoning under every prompt to what they say about template collapse: mutual
information, entropies, retrieval (RAGEN-2, arXiv 2604.06268, section 2.3). Pure torch: knows no model and no trainer.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch


LENGTH_NORMALIZATIONS = ("after_mix", "before_mix")
RETRIEVAL_RANKS = (1, 2, 4, 8)

# Scores of one reasoning that differ by less, relatively, are equal: it is what float32 arithmetic leaves of a tie in
# batches of other shapes. 522 nats came out 1.2e-4 apart.
_NOISE = 1e-6


class MarginalStdEMA:
    """
    Running averages of the deviation of log p(Z), the denominators of `mi_zscore_ema` (the paper's MI-ZScore-EMA).

    Each kind of measurement (first turn, trajectory) needs one of its own.

    Args:
        decay (`float`, *optional*, defaults to `0.9`):
            Weight of the old average. The first value is taken as it is.
    """

    def __init__(self, decay: float = 0.9) -> None:
        if not 0 <= decay < 1:
            raise ValueError(f"`decay` must be in [0, 1), got {decay!r}. The paper has 0.9.")
        self.decay = decay
        self.averages: dict[str, float] = {}

    def update(self, name: str, value: float) -> float:
        """
        Take in a deviation.

        Args:
            name (`str`):
                Which average.
            value (`float`):
                The deviation of this step, in nats.

        Returns:
            `float`: The average with this step in it.
        """
        old = self.averages.get(name)
        self.averages[name] = value if old is None else self.decay * old + (1 - self.decay) * value
        return self.averages[name]

    def state_dict(self) -> dict[str, float]:
        """Averages so far, for a checkpoint (JSON)."""
        return dict(self.averages)

    def load_state_dict(self, state: Mapping[str, float]) -> None:
        """Go on from what [`~MarginalStdEMA.state_dict`] returned."""
        self.averages = {name: float(value) for name, value in state.items()}


def mutual_information_metrics(
    log_probs_sum: torch.Tensor,
    token_counts: torch.Tensor,
    columns: torch.Tensor,
    *,
    column_signatures: Iterable[Any] | None = None,
    length_normalization: str = "after_mix",
    std_eps: float = 1e-3,
    ema: MarginalStdEMA | None = None,
) -> dict[str, float]:
    """
    Every proxy of the paper (section 2.3) for how much the reasoning Z depends on the prompt X.

    With S_ij the log-probability of reasoning i under prompt j, c(i) its own prompt, T_i its length and N the number
    of columns, `matched` = S_ic(i) estimates log p(Z|X), and `marginal` = log(mean_j exp S_ij) estimates log p(Z).
    Every column has weight 1/N in either mode: a prompt that occurs twice is twice as likely.

    Names without `_seq` are per token: `matched / T` and `marginal / T` (`"after_mix"`, the paper's formula), or
    matched and marginal of the matrix S_ij / T_i (`"before_mix"`, the paper's code).

    Args:
        log_probs_sum (`torch.Tensor`):
            S, (NK, N), nats: log-probability of each reasoning under each prompt, summed over its tokens. -inf for
            what cannot be said under a prompt other than its own; `gap_per_token` is then infinite.
        token_counts (`torch.Tensor`):
            Tokens of each reasoning, (NK,).
        columns (`torch.Tensor`):
            Column of the prompt that each reasoning was sampled from, (NK,) int.
        column_signatures (`Iterable`, *optional*):
            What the prompt of each column is, N hashable values or sequences of token ids: equal ones count as one
            answer in retrieval. Defaults to N different prompts.
        length_normalization (`str`, *optional*, defaults to `"after_mix"`):
            `"after_mix"` or `"before_mix"`. The latter is the paper's code in all else too: rows without tokens count,
            `mi_upper_bound` and `retrieval_chance_level@k` take no heed of identical prompts, and two columns suffice.
        std_eps (`float`, *optional*, defaults to `1e-3`):
            Added to the deviation that z-scores divide by, nats.
        ema ([`MarginalStdEMA`], *optional*):
            Running deviations, updated here. Without it the names with `_ema` are missing.

    Returns:
        `dict[str, float]`: `num_prompts` (different ones) and `num_reasonings` (rows that count) always; all else,
        listed in docs/diagnostics.md, if there are two different prompts and a reasoning at least. Otherwise nothing
        is defined, `ema` stays as it was, and the caller should say so. `gap_per_token` is missing too where identical
        prompts suffice (`"before_mix"`) and there are no others.

    Raises:
        ValueError: If a setting is out of range, shapes do not fit, a number is NaN or +inf, or a reasoning is
            impossible under its own prompt.
    """
    if length_normalization not in LENGTH_NORMALIZATIONS:
        raise ValueError(
            f"`length_normalization` must be one of {list(LENGTH_NORMALIZATIONS)}, got {length_normalization!r}."
        )
    if not 0 < std_eps < math.inf:
        raise ValueError(f"`std_eps` must be a number above 0, got {std_eps!r}. The paper has 1e-3.")
    before_mix = length_normalization == "before_mix"
    scores, counts, own = _checked(log_probs_sum, token_counts, columns)
    prompts = _prompt_ids(column_signatures, scores.shape[1])
    if not before_mix:
        reasons = counts > 0
        scores, counts, own = scores[reasons], counts[reasons], own[reasons]

    num_prompts = int(prompts.max()) + 1 if len(prompts) else 0
    metrics = {"num_prompts": float(num_prompts), "num_reasonings": float(len(scores))}
    if not len(scores) or (len(prompts) if before_mix else num_prompts) < 2:
        return metrics

    lengths = counts.clamp(min=1)
    same = prompts[own, None] == prompts  # (NK, N): the columns that hold the row's own prompt
    own_score = scores.gather(1, own[:, None])  # (NK, 1)
    sequence = own_score[:, 0], _log_mean_exp(scores)
    if before_mix:
        token = sequence[0] / lengths, _log_mean_exp(scores / lengths[:, None])
    else:
        token = sequence[0] / lengths, sequence[1] / lengths
    metrics |= _information(*token, "", std_eps, ema) | _information(*sequence, "_seq", std_eps, ema)
    metrics["matched_log_prob_mean"] = float(token[0].mean())
    metrics["marginal_log_prob_mean"] = float(token[1].mean())
    copies = torch.ones_like(lengths) if before_mix else same.sum(dim=1).double()
    metrics["mi_upper_bound"] = float((len(prompts) / copies).log().mean())
    if (others := ~same).any():
        gaps = (own_score - scores).masked_fill(same, 0.0).sum(dim=1) / others.sum(dim=1) / lengths
        metrics["gap_per_token"] = float(gaps[others.any(dim=1)].mean())
    return metrics | _retrieval(scores, same, exact_chance=not before_mix)


def _checked(
    log_probs_sum: torch.Tensor, token_counts: torch.Tensor, columns: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """The inputs on the CPU: scores and token counts in float64, where differences of large sums survive."""
    scores = torch.as_tensor(log_probs_sum).detach().to("cpu", torch.float64)
    counts = torch.as_tensor(token_counts).detach().to("cpu", torch.float64)
    own = torch.as_tensor(columns).detach().to("cpu")
    rows = scores.shape[:1]
    if scores.dim() != 2 or counts.shape != rows or own.shape != rows:
        raise ValueError(
            "`log_probs_sum` must have shape (reasonings, prompts), `token_counts` and `columns` one number for each "
            f"reasoning, got {tuple(scores.shape)}, {tuple(counts.shape)}, {tuple(own.shape)}."
        )
    if not own.numel():  # an empty list is a float tensor
        return scores, counts, own.long()
    if own.is_floating_point() or own.dtype == torch.bool:
        raise ValueError(f"`columns` must be whole numbers, the column of each own prompt, got {own.dtype}.")
    if own.min() < 0 or own.max() >= scores.shape[1]:
        raise ValueError(
            f"`columns` must be from 0 to {scores.shape[1] - 1}, one for each column of `log_probs_sum`, got "
            f"{int(own.min())} to {int(own.max())}."
        )
    if not (counts.isfinite() & (counts >= 0)).all():
        raise ValueError(f"`token_counts` must be at least 0, got {counts.min()} to {counts.max()}.")
    own = own.long()
    bad = (scores.isnan() | (scores == torch.inf)).any(dim=1) | scores.gather(1, own[:, None])[:, 0].isinf()
    if bad.any():
        raise ValueError(
            f"Rows {bad.nonzero().flatten().tolist()} of `log_probs_sum` have NaN, +inf, or probability zero under "
            "their own prompt, which sampled them. Check the weights and the precision of the model."
        )
    return scores, counts, own


def _prompt_ids(signatures: Iterable[Any] | None, num_columns: int) -> torch.Tensor:
    """A number for each column, the same for the same prompt, from 0 on without holes."""
    if signatures is None:
        return torch.arange(num_columns)
    # Tensors hash by identity: two that hold the same tokens would be two prompts.
    keys = signatures.tolist() if isinstance(signatures, torch.Tensor) else list(signatures)
    keys = [key.tolist() if isinstance(key, torch.Tensor) else key for key in keys]
    keys = [tuple(key) if isinstance(key, Sequence) and not isinstance(key, str) else key for key in keys]
    if len(keys) != num_columns:
        raise ValueError(f"`column_signatures` must name each of the {num_columns} columns, got {len(keys)}.")
    ids: dict[Any, int] = {}
    return torch.tensor([ids.setdefault(key, len(ids)) for key in keys], dtype=torch.int64)


def _log_mean_exp(scores: torch.Tensor) -> torch.Tensor:
    return scores.logsumexp(dim=1) - math.log(scores.shape[1])


def _information(
    matched: torch.Tensor, marginal: torch.Tensor, kind: str, std_eps: float, ema: MarginalStdEMA | None
) -> dict[str, float]:
    """Information, entropies and z-scores from log p(Z|X) and log p(Z) of each reasoning, both (NK,)."""
    gain = matched - marginal
    std = float(marginal.std(correction=0))
    metrics = {
        f"mi{kind}_estimate": float(gain.mean()),
        f"conditional_entropy{kind}_est": -float(matched.mean()),
        f"reasoning_entropy{kind}_est": -float(marginal.mean()),
        f"marginal_std{kind}": std,
        f"mi_zscore{kind}": float(gain.mean()) / (std + std_eps),
    }
    if ema is not None:
        average = ema.update(f"marginal_std{kind}", std)
        metrics[f"marginal_std_ema{kind}"] = average
        metrics[f"mi_zscore_ema{kind}"] = float(gain.mean()) / (average + std_eps)
    return metrics


def _retrieval(scores: torch.Tensor, same: torch.Tensor, exact_chance: bool) -> dict[str, float]:
    """
    How often the own prompt is among the k that make the reasoning likeliest, and how often it would be by guessing.

    Ties are in random order, as expectation: reasoning that ignores the prompt scores chance, not the share of rows
    that belong to column 0.
    """
    best_own = scores.masked_fill(~same, -torch.inf).amax(dim=1, keepdim=True)
    slack = _NOISE * best_own.abs()
    above = scores > best_own + slack
    tied = ~above & (scores >= best_own - slack)
    columns, copies = scores.shape[1], same.sum(dim=1)
    metrics = {}
    for k in RETRIEVAL_RANKS:
        places = min(k, columns)
        hit = _hit_probability(places - above.sum(dim=1), tied.sum(dim=1), (tied & same).sum(dim=1))
        guess = _hit_probability(torch.full_like(copies, places), torch.full_like(copies, columns), copies)
        accuracy, chance = float(hit.mean()), float(guess.mean())
        if not exact_chance:
            chance = min(1.0, places * float(copies.double().mean()) / columns)
        at = "" if k == 1 else f"@{k}"
        metrics[f"retrieval_accuracy{at}"] = accuracy
        metrics[f"retrieval_chance_level{at}"] = chance
        metrics[f"retrieval_above_chance{at}"] = accuracy - chance
    return metrics


def _hit_probability(draws: torch.Tensor, pool: torch.Tensor, wanted: torch.Tensor) -> torch.Tensor:
    """Chance that `draws` of a `pool` without replacement hold one of `wanted` of it at least; all (NK,)."""
    pool, wanted = pool.double(), wanted.double()
    miss = torch.ones_like(pool)
    for drawn in range(max(RETRIEVAL_RANKS)):
        fails = (pool - wanted - drawn).clamp(min=0) / (pool - drawn).clamp(min=1)
        miss = torch.where(drawn < draws, miss * fails, miss)
    return 1 - miss
