"""Callbacks that look at rollouts: the link between diagnostics and trainers."""

from __future__ import annotations

import copy
import random
import time
from abc import ABC, abstractmethod
from typing import Any

import torch
from accelerate.logging import get_logger
from accelerate.utils import DistributedType
from transformers import TrainerCallback
from transformers.trainer_callback import ExportableState

from .diagnostics.cross_scoring import cross_log_probs
from .diagnostics.mutual_information import MarginalStdEMA
from .diagnostics.regimes import CollapseRules, RegimeTracker
from .diagnostics.survey import survey, thought_metrics
from .diagnostics.thoughts import Thought, draw_first_turns, draw_turns, fitting
from .rollout.batch import RolloutBatch
from .rollout.generation import context_length


logger = get_logger(__name__)


class RolloutCallback(TrainerCallback):
    """
    A [`~transformers.TrainerCallback`] with one more event: `on_rollout_end`, called on all ranks for every generation
    of the training, after rewards and before the filter.
    """

    def on_rollout_end(
        self, args: Any, state: Any, control: Any, *, trainer: Any, rollouts: RolloutBatch, **kwargs: Any
    ) -> None:
        """
        Look at the rollouts of a generation.

        Args:
            args, state, control:
                As for every event of a [`~transformers.TrainerCallback`].
            trainer ([`~transformers.Trainer`]):
                The trainer, with the policy that made the rollouts.
            rollouts ([`~ragen_trl.rollout.RolloutBatch`]):
                The whole batch of this rank, nothing filtered.
        """


class _Resumed(RolloutCallback, ExportableState, ABC):
    """Keeps its state in checkpoints and takes it up again, with `restore_callback_states_from_checkpoint` or not."""

    _arguments: dict[str, Any]

    @abstractmethod
    def _parts(self) -> dict[str, Any]:
        """What has a `state_dict`, by name."""

    def state(self) -> dict[str, Any]:
        """What a checkpoint keeps."""
        parts = {name: part.state_dict() for name, part in self._parts().items()}
        # Under one name, as transformers may set attributes of these names.
        return {"args": self._arguments, "attributes": {"_kept": parts}}

    @abstractmethod
    def _start(self) -> None:
        """Begin with nothing remembered."""

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._start()
        stored = (state.stateful_callbacks or {}).get(type(self).__name__)
        if state.global_step and isinstance(stored, dict):
            for name, kept in stored["attributes"].get("_kept", {}).items():
                self._parts()[name].load_state_dict(kept)

    def _check_alone(self, trainer: Any) -> None:
        others = [c for c in trainer.callback_handler.callbacks if type(c) is type(self)]
        if len(others) > 1:
            raise ValueError(
                f"There are {len(others)} callbacks of the kind {type(self).__name__}, which log under the same "
                "names. Give one."
            )


class MutualInformationCallback(_Resumed):
    """
    Logs how much the reasoning depends on the input (RAGEN-2, section 3; docs/diagnostics.md): `collapse/first_turn/*`
    and `collapse/trajectory/*`, what they rest on (`collapse/valid_thinking_rate`), what they cost
    (`collapse/time_s`, `collapse/time_share`), and what they mean: `collapse/regime`, the place of the regime in
    [`~ragen_trl.diagnostics.Regime`], and its name. A run that enters a collapse is warned of once.

    Reasoning is what was sampled between the thinking tags; of a trainer whose rollouts use no tags at all, the whole
    turn. Samples are drawn with a generator of its own, from `seed`, step and generation, so that nothing else changes
    and a resumed run draws what the uninterrupted one would have drawn.

    Args:
        every_n_steps (`int`, *optional*, defaults to `1`):
            Steps between two measurements.
        num_samples (`int`, *optional*, defaults to `64`):
            Reasonings scored in each variant.
        first_turn (`bool`, *optional*, defaults to `True`):
            Whether to measure first turns: distinct rollouts, one column for each distinct prompt among them.
        trajectory (`bool`, *optional*, defaults to `True`):
            Whether to measure turns of whole rollouts: a uniform rollout, a uniform turn, a column for each.
        length_normalization (`str`, *optional*, defaults to `"after_mix"`):
            `"after_mix"` (the paper) or `"before_mix"` (its code).
        max_tokens_per_forward (`int`, *optional*, defaults to `8192`):
            Bound on the size of a forward pass.
        seed (`int`, *optional*, defaults to `0`):
            Seed of the samples.

    Raises:
        ValueError: If a number is out of range.
    """

    def __init__(
        self,
        every_n_steps: int = 1,
        num_samples: int = 64,
        first_turn: bool = True,
        trajectory: bool = True,
        length_normalization: str = "after_mix",
        max_tokens_per_forward: int = 8192,
        seed: int = 0,
    ) -> None:
        for name, value, least in (("every_n_steps", every_n_steps, 1), ("num_samples", num_samples, 2)):
            if value < least:
                raise ValueError(f"`{name}` must be at least {least}, got {value}.")
        if length_normalization not in ("after_mix", "before_mix"):
            raise ValueError(
                f"`length_normalization` must be 'after_mix' or 'before_mix', got {length_normalization!r}."
            )
        self._arguments = {
            "every_n_steps": every_n_steps, "num_samples": num_samples, "first_turn": first_turn,
            "trajectory": trajectory, "length_normalization": length_normalization,
            "max_tokens_per_forward": max_tokens_per_forward, "seed": seed,
        }  # fmt: skip
        self.every_n_steps, self.num_samples, self.seed = every_n_steps, num_samples, seed
        self.first_turn, self.trajectory = first_turn, trajectory
        self.length_normalization, self.max_tokens_per_forward = length_normalization, max_tokens_per_forward
        self._start()

    def _start(self) -> None:
        self._ema = {"first_turn": MarginalStdEMA(), "trajectory": MarginalStdEMA()}
        self._tracker = RegimeTracker()
        self._memory = _Memory()
        self._generation = (-1, 0)  # step, and how many generations it has had
        self._last_end: float | None = None
        self.last: dict[str, dict[str, float]] = {}

    @property
    def labels(self) -> dict[str, str]:
        """What goes into log lines beside the metrics."""
        return self._memory.labels

    def _parts(self) -> dict[str, Any]:
        return {**self._ema, "tracker": self._tracker, "memory": self._memory}

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        super().on_train_begin(args, state, control, **kwargs)
        self._last_end = time.perf_counter()

    def on_rollout_end(
        self, args: Any, state: Any, control: Any, *, trainer: Any, rollouts: RolloutBatch, **kwargs: Any
    ) -> None:
        start = time.perf_counter()
        self._check_alone(trainer)
        step, last = state.global_step, self._memory.last_step
        self._generation = (step, self._generation[1] + 1 if self._generation[0] == step else 0)
        if last is None or step == last or step - last >= self.every_n_steps:
            self._memory.last_step = step
            self._measure(trainer, rollouts)
        end = time.perf_counter()
        metrics = trainer._metrics["train"]
        metrics["collapse/time_s"].append(end - start)
        if self._last_end is not None and end > self._last_end:
            metrics["collapse/time_share"].append((end - start) / (end - self._last_end))
        self._last_end = end

    def _measure(self, trainer: Any, rollouts: RolloutBatch) -> None:
        rank, think = trainer.accelerator.process_index, getattr(trainer.args, "enable_think", True)
        found = survey(rollouts, trainer._tokenizer, rank, think, tags_seen=self._memory.tags_seen)
        self._memory.tags_seen |= found.tags is not None
        self._memory.measurements += 1
        metrics = trainer._metrics["train"]
        metrics["collapse/valid_thinking_rate"].append(found.valid_rate)
        metrics["collapse/first_turn/valid_rate"].append(found.first_valid_rate)
        rng = random.Random(f"{self.seed} {self._generation}")
        self.last = {}
        for name, wanted, draw in (
            ("first_turn", self.first_turn, draw_first_turns),
            ("trajectory", self.trajectory, draw_turns),
        ):
            if wanted:
                self.last[name] = self._score(trainer, name, found.thoughts(draw(found.valid, self.num_samples, rng)))
                for key, value in self.last[name].items():
                    metrics[f"collapse/{name}/{key}"].append(value)
        self._name_regime(trainer)

    def telling(self) -> dict[str, float] | None:
        """
        The last measurement by which a run is judged, always of the same variant, with `mi_share`: MI by what is
        possible with the prompts drawn, whose number varies. `None` if there was too little to measure.
        """
        found = self.last.get("first_turn" if self.first_turn else "trajectory", {})
        if "mi_seq_estimate" not in found:
            return None
        return {**found, "mi_share": found["mi_seq_estimate"] / found["mi_upper_bound"]}

    def _name_regime(self, trainer: Any) -> None:
        found = self.telling()
        if found is None:
            return
        metrics = trainer._metrics["train"]
        regime = self._tracker.update(
            found["conditional_entropy_est"],
            found["mi_share"],
            retrieval=found["retrieval_accuracy"],
            chance=found["retrieval_chance_level"],
            valid_thinking_rate=metrics["collapse/valid_thinking_rate"][-1],
        )
        metrics["collapse/regime"] = [float(regime.code)]
        self.labels["collapse/regime_name"] = str(regime)
        if regime.collapsed and str(regime) not in self._memory.warned:
            self._memory.warned.append(str(regime))
            logger.warning(f"The run has entered {regime}: {self._tracker.evidence()}")

    def _score(self, trainer: Any, name: str, thoughts: list[Thought]) -> dict[str, float]:
        """Metrics of one variant, the same on all ranks."""
        limit = context_length(trainer.model)
        fit = fitting(thoughts, limit)
        if len(fit) < len(thoughts):
            logger.warning_once(
                f"collapse/{name}: contexts that leave no room for the longest reasoning in the {limit} positions of "
                "the model are left out."
            )
        found = thought_metrics(
            fit,
            lambda prompts, reasonings: self._cross_log_probs(trainer, prompts, reasonings),
            distinct_prompts=name == "first_turn",
            length_normalization=self.length_normalization,
            ema=self._ema[name],
        )
        if "mi_estimate" not in found:
            logger.warning_once(
                f"collapse/{name}: the reasonings drawn come from fewer than two distinct prompts, so there is "
                "nothing to tell apart. Check collapse/valid_thinking_rate, and that a batch has several prompts."
            )
        return found

    def _cross_log_probs(
        self, trainer: Any, prompts: list[tuple[int, ...]], reasonings: list[tuple[int, ...]]
    ) -> torch.Tensor:
        accelerator = trainer.accelerator
        sharded = accelerator.distributed_type in (DistributedType.DEEPSPEED, DistributedType.FSDP)
        model = trainer.model_wrapped if sharded else accelerator.unwrap_model(trainer.model)
        scores = cross_log_probs(
            model,
            prompts,
            reasonings,
            max_tokens_per_forward=self.max_tokens_per_forward,
            temperature=trainer.temperature,
            rank=accelerator.process_index,
            world_size=accelerator.num_processes,
        )
        summed: torch.Tensor = accelerator.reduce(scores.to(accelerator.device), reduction="sum").cpu()
        return summed


class _Memory:
    """What a run remembers between measurements."""

    def __init__(self) -> None:
        self.last_step: int | None = None
        self.tags_seen = False
        self.measurements = 0
        self.warned: list[str] = []
        self.labels: dict[str, str] = {}

    def state_dict(self) -> dict[str, Any]:
        return copy.deepcopy(vars(self))

    def load_state_dict(self, state: dict[str, Any]) -> None:
        vars(self).update(state)


class EarlyStopOnCollapseCallback(_Resumed):
    """
    Ends a run that is past saving, with a checkpoint, by the rules of
    [`~ragen_trl.diagnostics.CollapseRules`]: rewards that vary no more within groups, success that stays low, mutual
    information that has fallen (with [`MutualInformationCallback`]).

    Args:
        action (`str`, *optional*, defaults to `"stop"`):
            `"stop"` ends the run; `"mark"` only warns and logs `collapse/rule/<rule>`.
        spread (`str`, *optional*, defaults to `"variance"`):
            Spread of the rewards of a group: `"variance"` (the paper) or `"std"` (its code).
        **rules:
            Settings of [`~ragen_trl.diagnostics.CollapseRules`].

    Raises:
        ValueError: If a setting is out of range.
    """

    def __init__(self, action: str = "stop", spread: str = "variance", **rules: Any) -> None:
        for name, value, allowed in (("action", action, ("stop", "mark")), ("spread", spread, ("variance", "std"))):
            if value not in allowed:
                raise ValueError(f"`{name}` must be one of {list(allowed)}, got {value!r}.")
        self._arguments = {"action": action, "spread": spread, **rules}
        self.action, self.spread = action, spread
        self._settings = rules
        self._start()

    def _start(self) -> None:
        self._rules = CollapseRules(**self._settings)
        self._found: dict[str, str] = {}
        self._measurements = 0
        self._trainer: Any = None

    def _parts(self) -> dict[str, Any]:
        return {"rules": self._rules}

    def on_rollout_end(
        self, args: Any, state: Any, control: Any, *, trainer: Any, rollouts: RolloutBatch, **kwargs: Any
    ) -> None:
        self._check_alone(trainer)
        self._trainer = trainer
        groups = rollouts.rewards.view(-1, trainer.num_generations)
        spreads = [row[~row.isnan()] for row in groups]
        values = [row.var() if self.spread == "variance" else row.std() for row in spreads if len(row) > 1]
        mi = None
        for other in trainer.callback_handler.callbacks:
            if isinstance(other, MutualInformationCallback) and other._memory.measurements > self._measurements:
                self._measurements, found = other._memory.measurements, other.telling()
                mi = found["mi_share"] if found else None
        spread = float(torch.stack(values).mean()) if values else None
        self._note(self._rules.update_step(reward_spread=spread, mi=mi))

    def on_evaluate(
        self, args: Any, state: Any, control: Any, metrics: dict[str, float] | None = None, **kwargs: Any
    ) -> Any:
        """Judge the success rates of an evaluation."""
        success = {name: value for name, value in (metrics or {}).items() if name.endswith("/success_rate")}
        self._note(self._rules.update_validation(success))
        return self.on_step_end(args, state, control)

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> Any:
        """End the run, with a checkpoint and an evaluation where the settings have any."""
        if self._found and self.action == "stop":
            control.should_training_stop = True
            control.should_save = control.should_save or str(args.save_strategy) != "SaveStrategy.NO"
        return control

    def _note(self, holding: dict[str, str]) -> None:
        for rule, sentence in holding.items():
            if rule not in self._found:
                ending = "Training stops." if self.action == "stop" else "Training goes on."
                logger.warning(f"{rule}: {sentence} {ending}")
        self._found |= holding
        if self._trainer is not None:
            for rule in self._found:
                self._trainer._metrics["train"][f"collapse/rule/{rule}"] = [1.0]
