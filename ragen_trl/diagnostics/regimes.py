"""
What the diagnostics say about a run: the regimes of Figure 1 of RAGEN-2 (arXiv 2604.06268; entropy x mutual
information) and the rules that end a collapsed run. Pure Python: knows no model and no trainer.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping
from enum import StrEnum
from typing import Any


class Regime(StrEnum):
    """
    Where a run stands between diversity H(Z|X) and dependence on the input I(X;Z) (the paper's Figure 1).

    Attributes:
        MEASURING:
            The first steps, which the rest is compared with.
        DIVERSE_REASONING:
            High entropy, high information: many ways to say it, all about this prompt.
        COMPRESSED_REASONING:
            Low entropy, high information: one way to say it, another for each prompt.
        TEMPLATE_COLLAPSE:
            High entropy, low information: varied words that would fit any prompt. Entropy cannot see it.
        LOW_ENTROPY_COLLAPSE:
            Low entropy, low information: the same words whatever the prompt.
    """

    MEASURING = "measuring baseline"
    DIVERSE_REASONING = "diverse reasoning"
    COMPRESSED_REASONING = "compressed reasoning"
    TEMPLATE_COLLAPSE = "template collapse"
    LOW_ENTROPY_COLLAPSE = "low-entropy collapse"

    @property
    def code(self) -> int:
        """Place in the list above, from 0, for loggers that take numbers only."""
        return list(Regime).index(self)

    @property
    def collapsed(self) -> bool:
        """Whether the reasoning has lost the input."""
        return self in (Regime.TEMPLATE_COLLAPSE, Regime.LOW_ENTROPY_COLLAPSE)


def classify_regime(
    entropy: float,
    mi: float,
    *,
    baseline_entropy: float | None = None,
    baseline_mi: float | None = None,
    retrieval: float | None = None,
    chance: float | None = None,
    entropy_share: float = 0.5,
    mi_share: float = 0.5,
    retrieval_margin: float = 0.1,
    entropy_floor: float = 0.05,
) -> Regime:
    """
    Name the regime of one measurement.

    Information is low at or below `mi_share` of its baseline, at or below zero, or, whatever the baseline, where
    retrieval is hardly better than guessing: a run that starts collapsed has a collapsed baseline. Entropy is low at
    or below `entropy_share` of its baseline, or without one at or below `entropy_floor`. The thresholds are ours.

    Args:
        entropy (`float`):
            H(Z|X), such as `conditional_entropy_est`, nats per token.
        mi (`float`):
            I(X;Z), such as `mi_seq_estimate`, or `gap_per_token`, nats.
        baseline_entropy, baseline_mi (`float`, *optional*):
            The same in a state known to be good.
        retrieval, chance (`float`, *optional*):
            `retrieval_accuracy` and `retrieval_chance_level`.
        entropy_share, mi_share (`float`, *optional*, defaults to `0.5`):
            Shares of the baselines at which entropy and information are low.
        retrieval_margin (`float`, *optional*, defaults to `0.1`):
            Share of the way from chance to 1 up to which retrieval counts as guessing.
        entropy_floor (`float`, *optional*, defaults to `0.05`):
            Entropy that is low without a baseline, nats per token.

    Returns:
        [`Regime`]: Any but `MEASURING`.

    Raises:
        ValueError: If a number is not finite, or there is neither a baseline of the information nor retrieval.
    """
    _check_measurement(entropy=entropy, mi=mi, retrieval=retrieval, chance=chance)
    _check_measurement(baseline_entropy=baseline_entropy, baseline_mi=baseline_mi)
    if baseline_mi is None and retrieval is None:
        raise ValueError("Low is low against something: give `baseline_mi`, or `retrieval` and `chance`.")
    mi_low = mi <= max(0.0, mi_share * (baseline_mi or 0.0))
    if retrieval is not None and chance is not None:
        mi_low = mi_low or retrieval <= chance + retrieval_margin * (1 - chance)
    entropy_low = entropy <= (entropy_floor if baseline_entropy is None else entropy_share * baseline_entropy)
    if mi_low:
        return Regime.LOW_ENTROPY_COLLAPSE if entropy_low else Regime.TEMPLATE_COLLAPSE
    return Regime.COMPRESSED_REASONING if entropy_low else Regime.DIVERSE_REASONING


class RegimeTracker:
    """
    The regime of a run relative to its own first steps.

    Args:
        baseline_steps (`int`, *optional*, defaults to `10`):
            Measurements at the start whose means are the baselines. Until they are complete the regime is
            `Regime.MEASURING`.
        window (`int`, *optional*, defaults to `3`):
            Measurements whose mean is judged, so that one odd batch is no collapse.
        entropy_share, mi_share, retrieval_margin:
            As in [`classify_regime`].

    Example:

    ```python
    >>> tracker = RegimeTracker(baseline_steps=2, window=1)
    >>> for mi in (3.1, 2.9, 0.2):
    ...     regime = tracker.update(entropy=0.7, mi=mi)
    >>> regime, tracker.changed
    (<Regime.TEMPLATE_COLLAPSE: 'template collapse'>, True)
    ```
    """

    def __init__(
        self,
        *,
        baseline_steps: int = 10,
        window: int = 3,
        entropy_share: float = 0.5,
        mi_share: float = 0.5,
        retrieval_margin: float = 0.1,
    ) -> None:
        _check_counts(baseline_steps=baseline_steps, window=window)
        _check_shares(entropy_share=entropy_share, mi_share=mi_share, retrieval_margin=retrieval_margin)
        self.baseline_steps = baseline_steps
        self.thresholds = {
            "entropy_share": entropy_share, "mi_share": mi_share, "retrieval_margin": retrieval_margin,
        }  # fmt: skip
        self.regime = Regime.MEASURING
        self.changed = False
        self._baseline: list[dict[str, float]] = []
        self._recent: deque[dict[str, float]] = deque(maxlen=window)

    def update(
        self,
        entropy: float,
        mi: float,
        *,
        retrieval: float | None = None,
        chance: float | None = None,
        valid_thinking_rate: float | None = None,
        invalid_action_rate: float | None = None,
    ) -> Regime:
        """
        Take in a measurement.

        Args:
            entropy, mi, retrieval, chance (`float`):
                As in [`classify_regime`].
            valid_thinking_rate, invalid_action_rate (`float`, *optional*):
                Share of turns with reasoning, and of actions that were refused. For [`~RegimeTracker.evidence`] alone.

        Returns:
            [`Regime`]: The regime now; `changed` tells whether it was another before.
        """
        measured = _check_measurement(
            entropy=entropy, mi=mi, retrieval=retrieval, chance=chance, valid_thinking_rate=valid_thinking_rate,
            invalid_action_rate=invalid_action_rate,
        )  # fmt: skip
        self._recent.append(measured)
        before, measuring = self.regime, len(self._baseline) < self.baseline_steps
        if measuring:
            self._baseline.append({"entropy": measured["entropy"], "mi": measured["mi"]})
        else:
            now, first = _means(self._recent), _means(self._baseline)
            self.regime = classify_regime(
                now["entropy"], now["mi"], baseline_entropy=first["entropy"], baseline_mi=first["mi"],
                retrieval=now.get("retrieval"), chance=now.get("chance"), **self.thresholds,
            )  # fmt: skip
        self.changed = self.regime != before
        return self.regime

    def evidence(self) -> str:
        """What the regime rests on, in one sentence: information, retrieval against chance, entropy, format rates."""
        if not self._recent:
            return "nothing measured yet"
        now, first = _means(self._recent), _means(self._baseline)
        parts = [f"MI {now['mi']:.3g}{_of_baseline(now['mi'], first['mi'])}"]
        if "retrieval" in now and "chance" in now:
            parts.append(f"retrieval {now['retrieval']:.3g} where guessing has {now['chance']:.3g}")
        parts.append(f"entropy {now['entropy']:.3g} nats per token{_of_baseline(now['entropy'], first['entropy'])}")
        rates = {"valid_thinking_rate": "turns with valid thinking", "invalid_action_rate": "invalid actions"}
        parts += [f"{text} {now[name]:.0%}" for name, text in rates.items() if name in now]
        text = f"{', '.join(parts)} (last {len(self._recent)} measurements)"
        if now.get("valid_thinking_rate", 1.0) < 0.5:
            # In a reproduction of the paper MI rose to 2.3 nats while the format was being lost, and then fell to 0.1.
            text += "; most turns hold no reasoning, and MI, however high, speaks of the others only"
        return text

    def state_dict(self) -> dict[str, Any]:
        """Regime, baselines and last measurements, for a checkpoint (JSON)."""
        return {"regime": str(self.regime), "baseline": list(self._baseline), "recent": list(self._recent)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from what [`~RegimeTracker.state_dict`] returned."""
        self.regime, self.changed = Regime(state["regime"]), False
        self._baseline = [dict(step) for step in state["baseline"]]
        self._recent = deque((dict(step) for step in state["recent"]), maxlen=self._recent.maxlen)


class CollapseRules:
    """
    When a run is past saving (the paper's appendix B; its code differs in window and quantity).

    - `reward_variance_collapse`: the spread of rewards within groups was below `variance_share` of its mean over the
      first `baseline_steps` steps, for `variance_window` steps in a row.
    - `low_validation_success`: an environment was solved in less than `success_threshold` of the episodes, at
      `success_window` validations in a row.
    - `low_mutual_information`: MI was below `mi_share` of its mean over the first `baseline_steps` measurements, for
      `mi_window` in a row. Ours, off by default.

    A baseline that is not above zero has no share, and the rule never holds. The baseline steps are in no window.

    Args:
        baseline_steps (`int`, *optional*, defaults to `10`):
            Steps at the start that are averaged.
        variance_share (`float`, *optional*, defaults to `0.1`):
            Share of the baseline that is too little. `None` turns the rule off.
        variance_window (`int`, *optional*, defaults to `5`):
            Steps in a row: 5 in the paper, 10 in its code.
        success_threshold (`float`, *optional*, defaults to `0.01`):
            Success rate that is too little. `None` turns the rule off.
        success_window (`int`, *optional*, defaults to `5`):
            Validations in a row.
        mi_share (`float`, *optional*):
            Share of the baseline that is too little, such as 0.2. Off by default.
        mi_window (`int`, *optional*, defaults to `10`):
            Measurements in a row.
    """

    def __init__(
        self,
        *,
        baseline_steps: int = 10,
        variance_share: float | None = 0.1,
        variance_window: int = 5,
        success_threshold: float | None = 0.01,
        success_window: int = 5,
        mi_share: float | None = None,
        mi_window: int = 10,
    ) -> None:
        _check_counts(
            baseline_steps=baseline_steps, variance_window=variance_window, success_window=success_window,
            mi_window=mi_window,
        )  # fmt: skip
        _check_shares(variance_share=variance_share, success_threshold=success_threshold, mi_share=mi_share)
        self._variance = _Fall(variance_share, baseline_steps, variance_window)
        self._mi = _Fall(mi_share, baseline_steps, mi_window)
        self.success_threshold, self.success_window = success_threshold, success_window
        self._low_validations: dict[str, int] = {}

    def update_step(self, *, reward_spread: float | None = None, mi: float | None = None) -> dict[str, str]:
        """
        Take in a training step.

        Args:
            reward_spread (`float`, *optional*):
                Mean over all groups, before any filter, of the sample variance (the paper) or deviation (its code) of
                the rewards in a group. To be left out where nothing was kept.
            mi (`float`, *optional*):
                I(X;Z), such as `mi_seq_estimate`, nats. To be left out where it was not measured.

        Returns:
            `dict[str, str]`: The rules that hold now, each with the reason in a sentence.
        """
        broken = {}
        if reward_spread is not None and (why := self._variance.update("reward_spread", reward_spread)):
            broken["reward_variance_collapse"] = f"rewards hardly differ within groups any more: {why}"
        if mi is not None and (why := self._mi.update("mi", mi)):
            broken["low_mutual_information"] = f"reasoning hardly depends on the prompt any more: MI, {why}"
        return broken

    def update_validation(self, success: Mapping[str, float]) -> dict[str, str]:
        """
        Take in a validation.

        Args:
            success (`Mapping[str, float]`):
                Success rate by environment.

        Returns:
            `dict[str, str]`: As [`~CollapseRules.update_step`].
        """
        for name, rate in success.items():
            _check_finite(f"success[{name!r}]", rate)
        if self.success_threshold is None:
            return {}
        for name, rate in success.items():
            low = rate < self.success_threshold
            self._low_validations[name] = self._low_validations.get(name, 0) + 1 if low else 0
        failed = [name for name in success if self._low_validations[name] >= self.success_window]
        if not failed:
            return {}
        rates = ", ".join(f"{name} {success[name]:.2%} ({self._low_validations[name]})" for name in failed)
        why = f"success below {self.success_threshold:.2%} at {self.success_window} validations in a row or more"
        return {"low_validation_success": f"{why}: {rates}"}

    def state_dict(self) -> dict[str, Any]:
        """Baselines and counts, for a checkpoint (JSON)."""
        return {
            "variance": self._variance.state_dict(),
            "mi": self._mi.state_dict(),
            "low_validations": dict(self._low_validations),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from what [`~CollapseRules.state_dict`] returned."""
        self._variance.load_state_dict(state["variance"])
        self._mi.load_state_dict(state["mi"])
        self._low_validations = dict(state["low_validations"])


class _Fall:
    """Whether a number stayed below a share of its mean over the first steps, several times in a row."""

    def __init__(self, share: float | None, baseline_steps: int, window: int) -> None:
        self.share, self.baseline_steps, self.window = share, baseline_steps, window
        self.first: list[float] = []
        self.below = 0

    def update(self, name: str, value: float) -> str:
        """The reason if it holds, or an empty string."""
        _check_finite(name, value)
        if self.share is None:
            return ""
        if len(self.first) < self.baseline_steps:
            self.first.append(float(value))
            return ""
        baseline = math.fsum(self.first) / len(self.first)
        self.below = self.below + 1 if baseline > 0 and value < self.share * baseline else 0
        if self.below < self.window:
            return ""
        return f"{value:.3g}, below {self.share:.0%} of {baseline:.3g} at the start, {self.below} times in a row"

    def state_dict(self) -> dict[str, Any]:
        return {"first": list(self.first), "below": self.below}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.first, self.below = list(state["first"]), int(state["below"])


def _means(steps: deque[dict[str, float]] | list[dict[str, float]]) -> dict[str, float]:
    """Mean of what the last step measured, over the steps that measured it too."""
    latest = steps[-1]
    values = {name: [step[name] for step in steps if name in step] for name in latest}
    return {name: math.fsum(known) / len(known) for name, known in values.items()}


def _of_baseline(value: float, baseline: float) -> str:
    if baseline <= 0:
        return f" ({baseline:.3g} at the start)"
    return f" ({value / baseline:.0%} of {baseline:.3g} at the start)"


def _check_measurement(**values: float | None) -> dict[str, float]:
    """What was measured, all of it finite."""
    known = {name: float(value) for name, value in values.items() if value is not None}
    for name, value in known.items():
        _check_finite(name, value)
    if ("retrieval" in known) != ("chance" in known):
        raise ValueError(f"`retrieval` means nothing without `chance`, got {known}. Give both or neither.")
    return known


def _check_finite(name: str, value: float) -> None:
    if not math.isfinite(value):
        raise ValueError(f"`{name}` must be a finite number, got {value!r}. Leave out what could not be measured.")


def _check_counts(**counts: int) -> None:
    for name, count in counts.items():
        if not isinstance(count, int) or isinstance(count, bool) or count < 1:
            raise ValueError(f"`{name}` must be a whole number of at least 1, got {count!r}.")


def _check_shares(**shares: float | None) -> None:
    for name, share in shares.items():
        if share is not None and not 0 < share < 1:
            raise ValueError(f"`{name}` must be in (0, 1), got {share!r}.")
