"""Numbers about episodes, from small summaries that travel between ranks."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from math import comb
from statistics import fmean

from .trajectory import StopReason, Trajectory


@dataclass(frozen=True)
class EpisodeSummary:
    """What is logged of one episode. `group` is unique over the ranks and batches that are summarised together."""

    env_id: str
    group: tuple[int, int]
    stop_reason: StopReason | None
    success: bool
    reward: float
    format_penalty: float
    turns: int
    tokens: int
    well_formed_turns: int
    cut_turns: int
    actions: int
    invalid_actions: int
    drifted: bool
    failed: bool
    error: str | None


def summarize(trajectory: Trajectory, group: tuple[int, int], drifted: bool) -> EpisodeSummary:
    """
    Summary of a finished episode.

    Args:
        trajectory ([`Trajectory`]):
            The episode.
        group (`tuple[int, int]`):
            Which group it belongs to: batch and group within the batch.
        drifted (`bool`):
            Whether encoding the finished dialogue anew would give other tokens.
    """
    turns = trajectory.turns
    return EpisodeSummary(
        env_id=trajectory.spec.env_id,
        group=group,
        stop_reason=trajectory.stop_reason,
        success=trajectory.success,
        reward=trajectory.reward,
        format_penalty=sum(turn.format_penalty for turn in turns),
        turns=len(turns),
        tokens=sum(len(turn.token_ids) for turn in turns),
        well_formed_turns=sum(turn.well_formed for turn in turns),
        cut_turns=sum(turn.cut for turn in turns),
        actions=sum(len(turn.actions) for turn in turns),
        invalid_actions=sum(turn.invalid_actions for turn in turns),
        drifted=drifted,
        failed=trajectory.failed,
        error=trajectory.error,
    )


def pass_at_k(num_rollouts: int, num_successes: int, k: int) -> float:
    """
    Unbiased estimate of the chance that at least one of `k` rollouts succeeds, `1 - C(n - c, k) / C(n, k)` (Chen et
    al., 2021).

    Args:
        num_rollouts (`int`):
            Rollouts seen, `n`.
        num_successes (`int`):
            Successes among them, `c`.
        k (`int`):
            Rollouts asked about, at most `n`.
    """
    return 1.0 - comb(num_rollouts - num_successes, k) / comb(num_rollouts, k)


def episode_metrics(summaries: Sequence[EpisodeSummary]) -> dict[str, float]:
    """
    Metrics over episodes: `env/<name>/...` for each environment, `rollout/...` over all. Failed episodes count in the
    failure rates and the stop reasons only.

    Args:
        summaries (`Sequence[EpisodeSummary]`):
            Episodes of all ranks.

    Returns:
        `dict[str, float]`
    """
    if not summaries:
        return {}
    metrics: dict[str, float] = {}
    by_env: dict[str, list[EpisodeSummary]] = defaultdict(list)
    for summary in summaries:
        by_env[summary.env_id.removeprefix("ragen_envs/").rpartition(":")[2]].append(summary)
    for name, episodes in by_env.items():
        metrics.update({f"env/{name}/{key}": value for key, value in _env_metrics(episodes).items()})
    metrics.update({f"rollout/{key}": value for key, value in _rollout_metrics(summaries).items()})
    return metrics


def _env_metrics(episodes: Sequence[EpisodeSummary]) -> dict[str, float]:
    live = [e for e in episodes if not e.failed]
    metrics = {"failure_rate": 1 - len(live) / len(episodes)}
    if not live:
        return metrics
    metrics |= {
        "success_rate": fmean(e.success for e in live),
        "return": fmean(e.reward for e in live),
        "format_penalty": fmean(e.format_penalty for e in live),
        "turns": fmean(e.turns for e in live),
        "actions": fmean(e.actions - e.invalid_actions for e in live),
    }
    if actions := sum(e.actions for e in live):
        metrics["invalid_action_rate"] = sum(e.invalid_actions for e in live) / actions
    groups: dict[tuple[int, int], list[bool]] = defaultdict(list)
    for episode in live:
        groups[episode.group].append(episode.success)
    largest = max(map(len, groups.values()))
    for k in sorted({2**i for i in range(1, largest.bit_length())} | {largest}):
        estimates = [pass_at_k(len(g), sum(g), k) for g in groups.values() if len(g) >= k]
        metrics[f"pass@{k}"] = fmean(estimates)
    return metrics


def _rollout_metrics(summaries: Sequence[EpisodeSummary]) -> dict[str, float]:
    live = [s for s in summaries if not s.failed]
    turns = sum(s.turns for s in live)
    reasons: tuple[StopReason, ...] = (
        "terminated",
        "truncated",
        "max_turns",
        "max_actions",
        "token_budget",
        "timeout",
        "error",
    )
    metrics = {f"stop/{reason}": fmean(s.stop_reason == reason for s in summaries) for reason in reasons}
    metrics["failure_rate"] = fmean(s.failed for s in summaries)
    if live:
        metrics["retokenization_drift"] = fmean(s.drifted for s in live)
        metrics["tokens_per_turn"] = sum(s.tokens for s in live) / turns
        metrics["well_formed_rate"] = sum(s.well_formed_turns for s in live) / turns
        metrics["cut_turn_rate"] = sum(s.cut_turns for s in live) / turns
    return metrics
