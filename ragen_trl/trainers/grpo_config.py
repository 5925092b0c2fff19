"""Configuration of [`RagenGRPOTrainer`]."""

from __future__ import annotations

from dataclasses import dataclass

from trl import GRPOConfig

from .agent_config import AgentConfig
from .filter_config import SNRFilterConfig


@dataclass
class RagenGRPOConfig(AgentConfig, SNRFilterConfig, GRPOConfig):
    """
    Configuration class for the [`RagenGRPOTrainer`]: [`~trl.GRPOConfig`] with the settings of [`AgentConfig`] and
    [`SNRFilterConfig`] added. All defaults of TRL's are kept.

    Raises:
        ValueError: If a setting is out of range, or the group size does not divide the batch.
    """

    def __post_init__(self) -> None:
        try:
            super().__post_init__()
        except ValueError as error:
            if hint := self._group_size_hint() or self.eval_batch_hint():
                raise ValueError(hint) from error
            raise
        self.check_agent_settings()
        self.check_filter((self.generation_batch_size or 0) // self.num_generations, self.num_generations)

    def eval_batch_hint(self) -> str | None:
        """What to do where an evaluation batch holds no whole groups; `None` if it does."""
        if not self.generation_batch_size:  # refused before it was known
            return None
        group = self.num_generations_eval or self.num_generations
        size = self.per_device_eval_batch_size * self.world_size
        if not group or size % group == 0:
            return None
        return (
            f"`num_generations_eval={group}` (default: `num_generations`) does not divide the evaluation batch of "
            f"{size} rollouts (per_device_eval_batch_size={self.per_device_eval_batch_size} x processes="
            f"{self.world_size}). Set `num_generations_eval=1`, or make the batch a multiple of {group}."
        )

    def _group_size_hint(self) -> str | None:
        """What to do where the group size does not divide the batch; `None` if it does."""
        size, group = self.generation_batch_size, self.num_generations
        if not size or not group or size % group == 0:
            return None
        allowed = [n for n in range(2, size + 1) if size % n == 0]
        remedy = f"set `num_generations` to one of {allowed}, or make the batch" if allowed else "make the batch"
        return (
            f"`num_generations={group}` does not divide the generation batch of {size} rollouts "
            f"(per_device_train_batch_size={self.per_device_train_batch_size} x processes={self.world_size} x "
            f"steps_per_generation={self.steps_per_generation}). Groups are never split: {remedy} "
            f"a multiple of {group}."
        )
