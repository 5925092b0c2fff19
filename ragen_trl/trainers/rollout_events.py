"""The event `on_rollout_end`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from ..filtering import flat_groups
from ..rollout.batch import rollout_batch


class RolloutEventsMixin:
    """
    Calls `on_rollout_end` of every callback that has it (see [`~ragen_trl.RolloutCallback`]), in front of
    [`~trl.GRPOTrainer`]: after rewards, in training, on all ranks.
    """

    if TYPE_CHECKING:
        accelerator: Any
        args: Any
        callback_handler: Any
        control: Any
        model: Any
        state: Any
        num_generations: int
        num_generations_eval: int
        reward_weights: torch.Tensor

    _rewards_per_func: torch.Tensor | None = None

    def _calculate_rewards(self, *args: Any, **kwargs: Any) -> torch.Tensor:
        self._rewards_per_func = super()._calculate_rewards(*args, **kwargs)  # type: ignore[misc]
        return self._rewards_per_func

    def _total_rewards(self) -> torch.Tensor:
        """
        Weighted sum of the rewards of each row of all ranks, (N,) float64 on the CPU; NaN where no function gave any.
        In a group whose sums differ by no more than rounding of their summands all are equal.
        """
        return self._summed(self._reward_parts())

    def _reward_parts(self) -> torch.Tensor:
        """Weighted rewards of each row of all ranks by function, (N, F) float64 on the CPU; NaN where none is."""
        assert self._rewards_per_func is not None
        return self._rewards_per_func.to("cpu", torch.float64) * self.reward_weights.to("cpu", torch.float64)

    def _summed(self, parts: torch.Tensor) -> torch.Tensor:
        missing = parts.isnan().all(dim=1)
        shape = (-1, self.num_generations if self.model.training else self.num_generations_eval)
        totals = parts.nansum(dim=1).masked_fill(missing, torch.nan).view(shape)
        rtol = min(1e-6, getattr(self.args, "reward_variance_filtering_zero_rtol", 1e-6))
        flat = flat_groups(totals, rtol, scale=parts.abs().nansum(dim=1).view(shape))
        means = totals.nanmean(dim=1, keepdim=True).expand_as(totals)
        return torch.where(flat.unsqueeze(1) & ~totals.isnan(), means, totals).flatten()

    def _generate_and_score_completions(self, inputs: list[dict[str, Any]]) -> dict[str, Any]:
        output: dict[str, Any] = super()._generate_and_score_completions(inputs)  # type: ignore[misc]
        listeners = [c for c in self.callback_handler.callbacks if hasattr(c, "on_rollout_end")]
        if listeners and self.model.training:
            rank = self.accelerator.process_index
            batch = rollout_batch(inputs, output, self._total_rewards(), rank, self.num_generations)
            for listener in listeners:
                listener.on_rollout_end(self.args, self.state, self.control, trainer=self, rollouts=batch)
        return output

    def log(self, logs: dict[str, Any], *args: Any, **kwargs: Any) -> None:
        # TensorBoard takes numbers only and would say so at every line.
        if self.model.training and "tensorboard" not in self.args.report_to:
            for callback in self.callback_handler.callbacks:
                logs = {**logs, **getattr(callback, "labels", {})}  # what has a name and not a number
        super().log(logs, *args, **kwargs)  # type: ignore[misc]
