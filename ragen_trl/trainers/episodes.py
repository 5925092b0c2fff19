"""What a trainer is given, made ready for episodes."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any, TypeAlias

from datasets import Dataset, IterableDataset

from ..rollout.engine import RolloutSettings
from ..rollout.trajectory import Trajectory


if TYPE_CHECKING:
    from .grpo_config import RagenGRPOConfig

AnyDataset: TypeAlias = Dataset | IterableDataset


class EpisodeReward:
    """
    Reward function that gives the return of the episode. Its name is that of TRL's metric `rewards/environment/mean`.
    """

    __name__ = "environment"

    def __call__(self, trajectory: list[Trajectory], **kwargs: Any) -> list[float]:
        return [t.reward for t in trajectory]


def refuse_others(**others: Any) -> None:
    given = [name for name, value in others.items() if value]
    if given:
        raise ValueError(
            f"The data name environments (column `env_id`), and {given} was given too. Episodes come from one place: "
            "drop the argument, or the column."
        )


def check_amount(args: RagenGRPOConfig, train_dataset: AnyDataset | None) -> None:
    """TRL leaves out groups that do not fill a batch, and would train no step at all without a word."""
    groups = (args.generation_batch_size or 0) // (args.num_generations or 1)
    if isinstance(train_dataset, Dataset) and len(train_dataset) < groups:
        raise ValueError(
            f"`train_dataset` has {len(train_dataset)} row(s), a batch takes {groups} groups (generation_batch_size="
            f"{args.generation_batch_size}, num_generations={args.num_generations}), so not even one step could be "
            "made. Give more rows, or make the batch smaller."
        )


def for_episodes(args: RagenGRPOConfig, settings: RolloutSettings, reward_funcs: Any) -> RagenGRPOConfig:
    """A copy of `args` that knows of the additional reward and of the limits of a turn; the caller's is left alone."""
    if args.use_transformers_continuous_batching:
        raise ValueError(
            "`use_transformers_continuous_batching=True` does not play episodes. Leave it off, or use `use_vllm=True`."
        )
    args = copy.copy(args)
    if args.reward_weights is not None:
        check_weights(args.reward_weights, len(as_list(reward_funcs)))
        args.reward_weights = [*args.reward_weights, 1.0]
    if args.use_vllm:  # TRL's backend takes sampling settings at construction only
        limits = {"max_tokens": settings.max_tokens_per_turn} if settings.max_tokens_per_turn else {}
        stop = {"stop": [settings.stop_string], "include_stop_str_in_output": True} if settings.stop_string else {}
        args.generation_kwargs = {**limits, **stop, **(args.generation_kwargs or {})}
    return args


def check_weights(weights: list[float], functions: int) -> None:
    """One for each function that was given; what is added has weight 1."""
    if len(weights) != functions:
        raise ValueError(
            f"`reward_weights` has {len(weights)} value(s) for {functions} reward function(s). Give one for each "
            "function in `reward_funcs`; the return of an episode and what else is added come on top with weight 1."
        )


def with_episode_reward(reward_funcs: Any, processing_classes: Any) -> tuple[list[Any], Any]:
    if processing_classes is not None:
        processing_classes = [*as_list(processing_classes), None]
    return [*as_list(reward_funcs), EpisodeReward()], processing_classes


def as_list(value: Any) -> list[Any]:
    return [] if value is None else value if isinstance(value, list) else [value]
