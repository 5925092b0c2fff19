"""SNR-aware filtering inside TRL's GRPO trainer: dropped groups leave the batch, and the update gets cheaper."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Sequence
from math import gcd, sqrt
from typing import TYPE_CHECKING, Any

import torch
from accelerate.logging import get_logger
from accelerate.utils import gather, gather_object
from transformers import TrainerCallback

from ..filtering import ROLLOUT_SCORES, GroupSelection, flat_groups, select_groups
from .filter_config import SNRFilterConfig
from .repack import Row, blank, join_rows, plan_rows, split_rows
from .rollout_events import RolloutEventsMixin


if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

logger = get_logger(__name__)

# What TRL's loss types divide by: the rows of a micro-batch, its tokens, or `num_items_in_batch`.
_BY_ROWS = ("grpo", "sapo", "dr_grpo", "luspo")
_BY_OWN_TOKENS = ("bnpo",)
_BY_ALL_TOKENS = ("dapo", "cispo", "vespo")
_SCALINGS = {"none": lambda share: 1.0, "linear": lambda share: share, "sqrt": sqrt}
_PATIENCE = 20
_STORED = "SNRFilter"


class SNRFilterMixin(RolloutEventsMixin):
    """
    Drops prompt groups whose rewards do not vary, in front of [`~trl.GRPOTrainer`]:

    ```python
    class MyTrainer(SNRFilterMixin, GRPOTrainer):
        pass
    ```

    Groups are ranked by the raw total reward, and only those chosen by [`~ragen_trl.filtering.select_groups`] enter
    the update. The others take no part in any term of the loss (policy, KL, entropy bonus, router loss), in its
    denominators or in its statistics: their rows, and rows without a reward, are removed, the rest is spread evenly
    over the ranks, and every rank runs the same number of passes. Where nothing is kept there is no update at all. The
    gradient is that of a batch that held only the kept rows; means over tokens (`bnpo`, entropy bonus) are means over
    all kept tokens of an optimizer step, whatever the micro-batches. Evaluation is never filtered.

    Its settings are those of [`SNRFilterConfig`], which [`~ragen_trl.RagenGRPOConfig`] has; off by default.

    Attributes:
        last_selection ([`~ragen_trl.filtering.GroupSelection`] or `None`):
            What was kept of the last batch.
        last_update_rows (`list[list[int]]`):
            Rows of the last batch (of all ranks together) that enter each micro-step on this rank; row `i` belongs to
            group `i // num_generations`.

    Raises:
        ValueError: If settings are out of range or do not go with the trainer's.
        TypeError: If `args` has no settings for the filter.
    """

    if TYPE_CHECKING:
        loss_type: str
        pad_to_multiple_of: int | None
        aux_loss_enabled: bool
        current_gradient_accumulation_steps: int
        entropy_coef: float
        router_aux_loss_coef: float
        _last_world_entropy: float
        _buffered_inputs: list[dict[str, Any]] | None
        _entropy_bonus_enabled: bool
        _metrics: dict[str, dict[str, list[float]]]
        _step: int
        _tokenizer: Any

    # Who mixes this in wants a filter; a trainer that has it among other things may do without.
    _needs_filter_settings = True
    _filtering = False
    _mean_terms_weight = 1.0
    _advantage_factor = 1.0
    _is_empty = False
    _means: list[torch.Tensor | None] | None = None

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.last_selection: GroupSelection | None = None
        self.last_update_rows: list[list[int]] = []
        if not isinstance(self.args, SNRFilterConfig):
            if self._needs_filter_settings:
                raise TypeError(
                    f"`args` is a {type(self.args).__name__}, which has no settings for the filter. Use "
                    "`ragen_trl.RagenGRPOConfig`, which has all of TRL's too."
                )
            return
        self._filtering = self.args.reward_variance_filtering is not None
        if self._filtering:
            groups = self.args.generation_batch_size // self.num_generations  # type: ignore[attr-defined]
            self.args.check_filter(groups, self.num_generations)
            self._check_host()
            # DeepSpeed steps its optimizer inside `backward`, so a step that is to change nothing must not get there.
            self.accelerator.backward = self._unless_empty(self.accelerator.backward)
            self._monitor = _Monitor(self)
            self.add_callback(self._monitor)  # type: ignore[attr-defined]

    def _check_host(self) -> None:
        known = _BY_ROWS + _BY_OWN_TOKENS + _BY_ALL_TOKENS
        if self.loss_type not in known:
            raise ValueError(
                f"The filter does not know what loss_type={self.loss_type!r} divides by. Known are {sorted(known)}."
            )
        for name in ("use_liger_kernel", "fp16"):
            if getattr(self.args, name, False):
                raise ValueError(f"The filter does not go with `{name}=True`. Turn one of the two off.")
        if self.args.reward_variance_filtering_reward != "total" and not self._has_episodes():
            raise ValueError(
                f"reward_variance_filtering_reward={self.args.reward_variance_filtering_reward!r} needs environments; "
                "the data name none. Use 'total'."
            )

    def _has_episodes(self) -> bool:
        return False

    # --- Selection ---

    def _rewards_to_rank(self) -> torch.Tensor:
        """What groups are ranked by, (N,) over the rows of all ranks."""
        return self._total_rewards()

    def _generate_and_score_completions(self, inputs: list[dict[str, Any]]) -> dict[str, Any]:
        output: dict[str, Any] = super()._generate_and_score_completions(inputs)
        if self._filtering and self.model.training:
            number = len(output["prompt_ids"])
            first = self.accelerator.process_index * number
            output["row"] = torch.arange(first, first + number, device=output["prompt_ids"].device)
            self._row_tokens = gather(loss_mask(output).sum(dim=1))
            self._select(output)
        return output

    def _select(self, output: Mapping[str, Any]) -> None:
        rewards = self._rewards_to_rank().view(-1, self.num_generations)
        settings = self.args.selection_settings()
        values = None
        if settings["score"] in ROLLOUT_SCORES:
            values = self._rollout_values(output, settings["score"]).view(-1, self.num_generations)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            self.last_selection = select_groups(rewards, per_rollout=values, **settings)
        for warning in caught:
            logger.warning(str(warning.message), main_process_only=True)
        metrics = self._metrics["train"]
        for name, value in self.last_selection.metrics.items():
            metrics[f"filter/{name}"].append(value)
        self._monitor.look_at(self.last_selection, flat_groups(rewards, settings["zero_rtol"]))

    def _rollout_values(self, output: Mapping[str, Any], score: str) -> torch.Tensor:
        if score == "length":
            return self._row_tokens.double()
        mask = loss_mask(output)
        # Images and the like go by name from the batch into TRL's method.
        wanted = inspect.signature(super()._get_per_token_logps_and_entropies).parameters  # type: ignore[misc]
        others = {k: v for k, v in output.items() if k in wanted and k not in ("input_ids", "attention_mask")}
        with torch.no_grad():
            _, entropies, *_ = self._get_per_token_logps_and_entropies(
                self.model,
                torch.cat([output["prompt_ids"], output["completion_ids"]], dim=1),
                torch.cat([output["prompt_mask"], output["completion_mask"]], dim=1),
                output["completion_ids"].size(1),
                batch_size=self.args.per_device_train_batch_size,
                compute_entropy=True,
                **others,
            )
        return gather((entropies * mask).sum(dim=1) / mask.sum(dim=1).clamp(min=1))

    # --- Rows of the update ---

    def _prepare_inputs(self, generation_batch: Any) -> dict[str, Any]:
        buffered = self._buffered_inputs
        inputs: dict[str, Any] = super()._prepare_inputs(generation_batch)  # type: ignore[misc]
        if not (self._filtering and self.model.training):
            return inputs
        made = self._buffered_inputs or []
        if made is not buffered:
            made = self._buffered_inputs = self._keep(made)
        return made[self._step % self.args.steps_per_generation]

    def _keep(self, batches: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Micro-batches of the kept rows, given those of all rows of this rank."""
        selection = self.last_selection
        assert selection is not None
        own = {int(row["row"]): row for batch in batches for row in split_rows(batch)}
        # A row without a reward says nothing either, even if the others of its group do.
        scored = ~self._total_rewards().isnan().view(-1, self.num_generations)
        kept = scored & torch.isin(torch.arange(len(scored)), selection.kept).unsqueeze(1)
        world_size, steps = self.accelerator.num_processes, self.args.steps_per_generation
        # Micro-steps that are surely of one generation and of one optimizer step.
        window_steps = gcd(steps, self.args.gradient_accumulation_steps)
        plan = plan_rows(
            kept.flatten().nonzero().flatten().tolist(),
            world_size=world_size,
            rows_per_rank=len(own),
            windows=steps // window_steps,
            window_steps=window_steps,
            seed=self.args.seed + self.state.global_step,
        )
        rank = self.accelerator.process_index
        mine = [ranks[rank] for ranks in plan]
        self.last_update_rows = [[row for row in rows if row is not None] for rows in mine]
        rows = self._with_foreign(own, [[row for ranks in plan for row in ranks[r]] for r in range(world_size)])
        scaling = _SCALINGS[self.args.reward_variance_filtering_loss_scaling]
        self._advantage_factor = scaling(selection.metrics["kept_share"])
        shortest = min(own.values(), key=lambda row: len(row["prompt_ids"]) + len(row["completion_ids"]))
        micro_batches = []
        for start in range(0, steps, window_steps):
            window = [row for ranks in plan[start : start + window_steps] for rows in ranks for row in rows]
            real = [row for row in window if row is not None]
            tokens = int(self._row_tokens[real].sum()) if real else 0
            for numbers in mine[start : start + window_steps]:
                if not tokens:  # nor is there anything to learn from rows that are masked throughout
                    numbers = []
                alone = not any(number is not None for number in numbers)
                spare = blank(shortest, hide_prompt=not alone)
                chosen = [spare if number is None else rows[number] for number in numbers] or [spare]
                micro_batch = join_rows(chosen, self._tokenizer.pad_token_id, self.pad_to_multiple_of)
                micro_batch["advantages"] = micro_batch["advantages"] * self._advantage_factor
                micro_batches.append(micro_batch | {"window": (window_steps, len(real), tokens), "rows": len(numbers)})
        return micro_batches

    def _with_foreign(self, own: dict[int, Row], wanted: list[list[int | None]]) -> dict[int, Row]:
        """Rows of this rank and those that it gets from others, given which rows each rank wants."""
        number, rank = len(own), self.accelerator.process_index
        moving = {row for r, rows in enumerate(wanted) for row in rows if row is not None and row // number != r}
        if not moving:
            return own
        sent = [(row, _to(own[row], "cpu")) for row in sorted(moving) if row in own]
        received = {row: content for row, content in gather_object(sent) if row in wanted[rank]}
        return own | {row: _to(content, self.accelerator.device) for row, content in received.items()}

    # --- Loss ---

    def _compute_loss(self, model: Any, inputs: dict[str, Any]) -> torch.Tensor:
        if not (self._filtering and self.model.training):
            return super()._compute_loss(model, inputs)  # type: ignore[misc]
        if not inputs["rows"]:
            return self._no_loss(model, inputs)
        self._monitor.rows_since_step += inputs["rows"]
        steps, rows, tokens = inputs["window"]
        world_size = self.accelerator.num_processes
        # TRL takes the mean over micro-batches and ranks; these weights make it one over the rows or tokens kept.
        of_rows = world_size * steps * inputs["rows"] / rows
        of_tokens = world_size * steps * int(loss_mask(inputs).sum()) / max(tokens, 1)
        weight = of_rows if self.loss_type in _BY_ROWS else of_tokens if self.loss_type in _BY_OWN_TOKENS else 1.0
        per_step = tokens * self.args.steps_per_generation / steps
        inputs = {**inputs, "num_items_in_batch": torch.tensor(per_step, device=self.accelerator.device)}
        self._mean_terms_weight = of_tokens / weight if weight else 1.0
        coefficient = self._entropy_coefficient()
        try:
            loss: torch.Tensor = super()._compute_loss(model, inputs)  # type: ignore[misc]
            # What the weight on gradients leaves out of the value, which is logged.
            missing = (self._mean_terms_weight - 1.0) * self._mean_terms(coefficient, loss_mask(inputs))
        finally:
            self._mean_terms_weight = 1.0
        return (loss + missing) * weight

    def _entropy_coefficient(self) -> float:
        """What the entropy bonus is multiplied with in this micro-step, as TRL decides it."""
        if not self._entropy_bonus_enabled:
            return 0.0
        off = getattr(self, "use_adaptive_entropy", False) and self._last_world_entropy > self.args.entropy_target
        return 0.0 if off else self.entropy_coef

    def _mean_terms(self, coefficient: float, mask: torch.Tensor) -> Any:
        """Value of the terms of the loss that are means over a micro-batch."""
        if self._mean_terms_weight == 1.0 or self._means is None:
            return 0.0
        entropies, aux = self._means
        bonus = 0.0 if entropies is None else coefficient * (entropies * mask).sum() / mask.sum().clamp(min=1)
        router = 0.0 if aux is None else self.router_aux_loss_coef * aux
        return (router - bonus) / self.current_gradient_accumulation_steps

    def _no_loss(self, model: Any, inputs: dict[str, Any]) -> torch.Tensor:
        """
        Loss of a micro-step without rows. There is nothing to go back through, unless this is where gradients of
        earlier micro-steps are averaged and entropy is controlled: then a row that makes up the number goes through
        all of the model, and its loss counts nothing.
        """
        if not (self._monitor.rows_since_step and self.accelerator.sync_gradients):
            self._is_empty = True
            return torch.zeros((), device=self.accelerator.device)
        metrics = self._metrics["train"]
        lengths = {name: len(values) for name, values in metrics.items()}
        inputs = {**inputs, "num_items_in_batch": torch.ones((), device=self.accelerator.device)}
        loss: torch.Tensor = super()._compute_loss(model, inputs)  # type: ignore[misc]
        for name in metrics:
            if name != "entropy_coef":  # statistics of a row that is none
                del metrics[name][lengths.get(name, 0) :]
        return loss * 0.0

    def _unless_empty(self, backward: Callable[..., None]) -> Callable[..., None]:
        def backward_unless_empty(loss: torch.Tensor, **kwargs: Any) -> None:
            if not self._is_empty:
                backward(loss, **kwargs)
            self._is_empty = False

        return backward_unless_empty

    def _get_per_token_logps_and_entropies(self, *args: Any, **kwargs: Any) -> Any:
        result = super()._get_per_token_logps_and_entropies(*args, **kwargs)  # type: ignore[misc]
        if self._mean_terms_weight == 1.0:
            return result
        # The entropy bonus and the router loss are means over the tokens of a micro-batch, whatever the loss type: the
        # weight goes on their gradients, so that their values are logged as they are.
        logps, *means = result
        self._means = [None if mean is None else mean.detach() for mean in means]
        return (logps, *(None if mean is None else _weigh_gradient(mean, self._mean_terms_weight) for mean in means))


class _Monitor(TrainerCallback):
    """Counts steps without a kept group, makes sure that they change nothing, and says what looks wrong."""

    def __init__(self, trainer: Any) -> None:
        self._trainer = trainer
        self.rows_since_step = 0
        self._kept_any = True
        self._empty_in_a_row = self._empty_steps = 0
        self._low_ratio_in_a_row = self._flat_in_a_row = 0

    def look_at(self, selection: GroupSelection, flat: torch.Tensor) -> None:
        self._kept_any = len(selection.kept) > 0
        ratio = selection.metrics.get("variance_ratio")
        if ratio is not None:
            self._low_ratio_in_a_row = self._low_ratio_in_a_row + 1 if ratio < 0.5 else 0
        self._flat_in_a_row = self._flat_in_a_row + 1 if flat.double().mean() > 0.9 else 0
        if self._low_ratio_in_a_row == _PATIENCE:
            logger.warning_once(
                f"filter/variance_ratio has been under 0.5 for {_PATIENCE} batches: the variances of the groups "
                "hardly differ, so the filter drops groups almost at random. Turn it off, or keep more."
            )
        if self._flat_in_a_row == _PATIENCE:
            logger.warning_once(
                f"In {_PATIENCE} batches in a row more than 90% of the groups earned the same throughout. Groups may "
                "be too small (`num_generations`), turns cut too short (`max_tokens_per_turn`, "
                "`max_completion_length`), or the task too hard or too easy."
            )

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        stored = (state.stateful_callbacks or {}).get(_STORED, {}) if state.global_step else {}
        self._empty_steps, self._empty_in_a_row = stored.get("attributes", {}).get("empty", (0, 0))

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        # Where a generation serves several steps, one of them may get no row of the groups that were kept.
        self._empty_in_a_row = 0 if self.rows_since_step or self._kept_any else self._empty_in_a_row + 1
        if not self.rows_since_step:
            self._empty_steps += 1
            for parameter in self._trainer.model.parameters():  # optimizers pass over parameters without a gradient
                parameter.grad = None
            logger.warning("No row is left for this step, so it changes nothing.", main_process_only=True)
        self.rows_since_step = 0
        counts = {"empty": (self._empty_steps, self._empty_in_a_row)}
        state.stateful_callbacks[_STORED] = {"args": {}, "attributes": counts}  # for the next checkpoint
        self._trainer._metrics["train"]["filter/empty_steps"] = [float(self._empty_steps)]  # so far, not a mean
        most = args.reward_variance_filtering_max_empty_steps
        if most and self._empty_in_a_row >= most:
            raise RuntimeError(
                f"No group was kept in {self._empty_in_a_row} steps in a row: rewards do not vary within groups. "
                "Check that the task can be solved sometimes but not always, that answers are not cut, that the "
                "reward function works, and that `reward_variance_filtering_selection_eps` is small against the "
                "variances; or raise `reward_variance_filtering_max_empty_steps` (0 never stops)."
            )


def loss_mask(batch: Mapping[str, Any]) -> torch.Tensor:
    mask: torch.Tensor = batch["completion_mask"]
    return mask if batch.get("tool_mask") is None else mask * batch["tool_mask"]


def _weigh_gradient(values: torch.Tensor, weight: float) -> torch.Tensor:
    fixed = values.detach()
    return fixed + weight * (values - fixed)


def _to(value: Any, device: Any) -> Any:
    """A row on another device."""
    if isinstance(value, torch.Tensor):
        return value.to(device)
    if isinstance(value, dict):
        return {name: _to(item, device) for name, item in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str):
        return type(value)(_to(item, device) for item in value)  # type: ignore[call-arg]
    return value
