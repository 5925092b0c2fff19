"""GRPO, DAPO and Dr. GRPO with episodes."""

from __future__ import annotations

import copy
import textwrap
import warnings
from collections.abc import Callable
from typing import Any

import torch
from accelerate.utils import gather
from datasets import Dataset
from transformers import PreTrainedModel, PreTrainedTokenizerBase, ProcessorMixin, TrainerCallback
from trl import GRPOTrainer

from ..filtering import flat_groups
from ..rollout.dataset import COLUMNS
from ..rollout.engine import RolloutSettings
from ..rollout.trajectory import Trajectory
from .agent_mixin import AgentMixin, AnyDataset, EpisodeReward
from .filter_mixin import SNRFilterMixin
from .grpo_config import RagenGRPOConfig


_EMPTY_USER, _EMPTY_ANSWER = {"role": "user", "content": ""}, {"role": "assistant", "content": ""}


class RagenGRPOTrainer(AgentMixin, SNRFilterMixin, GRPOTrainer):
    """
    TRL's [`~trl.GRPOTrainer`] that plays an episode for each dataset row with an `env_id`.

    The constructor is TRL's, and without such rows so is everything else. With them, completions come from a
    multi-turn rollout (through TRL's `rollout_func`), the return of the episode is one more reward function named
    `environment` (weight 1), and failed episodes leave the loss and the group statistics.

    Args:
        model (`str` or [`~transformers.PreTrainedModel`] or [`~peft.PeftModel`]):
            Model to train.
        reward_funcs (`RewardFunc` or `list[RewardFunc]`, *optional*):
            Reward functions. With environments they are optional and add to the return; they get the episodes as
            `trajectory` (`list[`[`~ragen_trl.rollout.Trajectory`]`]`) and the dialogues, from the first answer on, as
            `completions`.
        args ([`RagenGRPOConfig`], *optional*):
            Configuration. A plain [`~trl.GRPOConfig`] will do where no dataset names environments.
        train_dataset ([`~datasets.Dataset`] or [`~datasets.IterableDataset`], *optional*):
            Rows with `prompt`, and for environments `env_id`, `seed` and `env_kwargs`; see
            [`~ragen_trl.env_dataset`].
        eval_dataset (*optional*):
            Like `train_dataset`, or a dictionary of such.
        processing_class, reward_processing_classes, callbacks, optimizers, quantization_config, peft_config, tools, \
        rollout_func, environment_factory (*optional*):
            As for [`~trl.GRPOTrainer`]. The last three are for data without environments.

    Raises:
        ValueError: If the data cannot be played: unknown `env_id`, missing columns, an environment that breaks the
            contract, limits that leave no room for an answer, a chat template that cannot hold a dialogue.
        TypeError: If `args` has no episode settings but the data name environments.

    Example:

    ```python
    >>> from ragen_trl import RagenGRPOConfig, RagenGRPOTrainer, env_dataset

    >>> trainer = RagenGRPOTrainer(
    ...     model="Qwen/Qwen2.5-0.5B-Instruct",
    ...     args=RagenGRPOConfig("runs/sokoban", max_completion_length=2048, max_tokens_per_turn=256),
    ...     train_dataset=env_dataset("ragen_envs/Sokoban-v0", 1000),
    ... )
    >>> trainer.train()
    ```
    """

    _tag_names = ["trl", "grpo", "ragen-trl"]
    _name = "RAGEN-2 GRPO"
    _needs_filter_settings = False
    _paper = {
        "title": "RAGEN-2: Reasoning Collapse in Agentic RL",
        "id": "2604.06268",
        "citation": textwrap.dedent("""\
            @article{wang2026ragen2,
                title  = {{RAGEN-2: Reasoning Collapse in Agentic RL}},
                author = {Wang, Zihan and Gui, Chi and Jin, Xing and Wang, Qineng and Liu, Licheng and others},
                year   = 2026,
                eprint = {arXiv:2604.06268},
            }"""),
    }

    def __init__(
        self,
        model: str | PreTrainedModel,
        reward_funcs: Any = None,
        args: RagenGRPOConfig | None = None,
        train_dataset: AnyDataset | None = None,
        eval_dataset: Any = None,
        processing_class: PreTrainedTokenizerBase | ProcessorMixin | None = None,
        reward_processing_classes: Any = None,
        callbacks: list[TrainerCallback] | None = None,
        optimizers: tuple[Any, Any] = (None, None),
        quantization_config: Any = None,
        peft_config: Any = None,
        tools: list[Callable[..., Any]] | None = None,
        rollout_func: Callable[..., dict[str, Any]] | None = None,
        environment_factory: Any = None,
    ) -> None:
        if args is None:
            name = model if isinstance(model, str) else model.config._name_or_path
            args = RagenGRPOConfig(f"{name.rstrip('/').split('/')[-1]}-RAGEN-GRPO")
        settings = self._episode_settings(args, train_dataset, eval_dataset)
        if settings is not None:
            _refuse_others(rollout_func=rollout_func, tools=tools, environment_factory=environment_factory)
            args = _for_episodes(args, settings, reward_funcs)
            _check_amount(args, train_dataset)
            # TRL checks this only if `eval_strategy` asks for evaluations, and `evaluate()` then fails on a shape.
            if eval_dataset is not None and (hint := args.eval_batch_hint()):
                raise ValueError(hint)
            reward_funcs, reward_processing_classes = _with_episode_reward(reward_funcs, reward_processing_classes)
            rollout_func = self._rollout
        with warnings.catch_warnings():
            if settings is not None:  # TRL warns that `rollout_func` may change, which is ours to follow
                warnings.filterwarnings("ignore", message="You are using 'rollout_func'")
            super().__init__(
                model=model,
                reward_funcs=reward_funcs,
                args=args,
                train_dataset=train_dataset,
                eval_dataset=eval_dataset,
                processing_class=processing_class,
                reward_processing_classes=reward_processing_classes,
                callbacks=callbacks,
                optimizers=optimizers,
                quantization_config=quantization_config,
                peft_config=peft_config,
                tools=tools,
                rollout_func=rollout_func,
                environment_factory=environment_factory,
            )
        if settings is not None:
            self._start_engine(settings)

    def _set_signature_columns_if_needed(self) -> None:
        super()._set_signature_columns_if_needed()
        if self._engine is not None:
            self._signature_columns: list[str] = list(dict.fromkeys([*self._signature_columns, *COLUMNS]))

    def _generate_and_score_completions(self, inputs: list[dict[str, Any]]) -> dict[str, Any]:
        if self._engine is None and self.rollout_func is None and "env_id" in inputs[0]:
            raise ValueError(
                "The rows name environments (column `env_id`), but the trainer was built without such data and plays "
                "no episodes. Give it as `train_dataset` or `eval_dataset` to the trainer."
            )
        # `rollout_func` gets the prompts alone, so the rows are put aside for it.
        self._rows = inputs
        output = super()._generate_and_score_completions(inputs)
        if self._engine is not None and self.multi_objective_aggregation == "sum_then_normalize":
            self._silence_flat_groups(output)
        return output

    def _silence_flat_groups(self, output: dict[str, Any]) -> None:
        """
        Give groups whose members earned the same exactly no advantage. TRL's is float noise of one sign, and where a
        whole batch has no other signal Adam makes a full step of it.
        """
        group_size = self.num_generations if self._mode == "train" else self.num_generations_eval
        totals = self._total_rewards()
        flat = flat_groups(totals.view(-1, group_size))
        advantages = output["advantages"]
        first = self.accelerator.process_index * len(advantages)
        mine = flat.repeat_interleave(group_size)[first : first + len(advantages)]
        output["advantages"] = advantages.masked_fill(mine.to(advantages.device), 0.0)
        scaled_together = flat_groups(totals.view(1, -1)) if self.scale_rewards == "batch" else flat
        self._metrics[self._mode]["frac_reward_zero_std"][-1] = scaled_together.double().mean().item()

    def _calculate_rewards(
        self, inputs: list[dict[str, Any]], prompts: list[Any], completions: list[Any], completion_ids_list: list[Any]
    ) -> torch.Tensor:
        if self._engine is None:
            return super()._calculate_rewards(inputs, prompts, completions, completion_ids_list)
        trajectories: list[Trajectory] = [row["trajectory"] for row in inputs]
        # A failed episode may lack even a first message, which reward functions need not be ready for.
        prompts = [trajectory.prompt_messages or [_EMPTY_USER] for trajectory in trajectories]
        completions = [trajectory.completion_messages or [_EMPTY_ANSWER] for trajectory in trajectories]
        rewards = super()._calculate_rewards(inputs, prompts, completions, completion_ids_list)
        facts = [[t.failed, t.success, sum(turn.format_penalty for turn in t.turns)] for t in trajectories]
        failed, self._successes, self._penalties = gather(torch.tensor(facts, device=rewards.device).float()).T
        # Without any reward TRL leaves a row out of the group statistics and gives it no advantage.
        self._rewards_per_func = rewards.masked_fill(failed.bool().unsqueeze(1), torch.nan)
        return self._rewards_per_func

    def _has_episodes(self) -> bool:
        return bool(self.rollout_func == self._rollout)

    def _rewards_to_rank(self) -> torch.Tensor:
        totals, parts = self._total_rewards(), self._reward_parts()
        match self.args.reward_variance_filtering_reward:
            case "success":
                return self._successes.to(totals).masked_fill(totals.isnan(), torch.nan)
            case "without_format_penalty":
                penalties = self._penalties.to(parts).masked_fill(totals.isnan(), torch.nan)
                return self._summed(torch.cat([parts, -penalties.unsqueeze(1)], dim=1))
        return totals

    def _compute_loss(self, model: Any, inputs: dict[str, Any]) -> torch.Tensor:
        loss: torch.Tensor = super()._compute_loss(model, inputs)
        if (self._engine is not None or self._filtering) and not torch.isfinite(loss):
            raise FloatingPointError(
                f"The loss is {loss.item()}. Training stops before weights are overwritten; go on from the last "
                "checkpoint. Rewards out of proportion, a learning rate that is too high, and half precision are the "
                "usual causes."
            )
        return loss

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        self._flush_episode_metrics()
        super().log(logs, start_time)


def _refuse_others(**others: Any) -> None:
    given = [name for name, value in others.items() if value]
    if given:
        raise ValueError(
            f"The data name environments (column `env_id`), and {given} was given too. Episodes come from one place: "
            "drop the argument, or the column."
        )


def _check_amount(args: RagenGRPOConfig, train_dataset: AnyDataset | None) -> None:
    """TRL leaves out groups that do not fill a batch, and would train no step at all without a word."""
    groups = (args.generation_batch_size or 0) // (args.num_generations or 1)
    if isinstance(train_dataset, Dataset) and len(train_dataset) < groups:
        raise ValueError(
            f"`train_dataset` has {len(train_dataset)} row(s), a batch takes {groups} groups (generation_batch_size="
            f"{args.generation_batch_size}, num_generations={args.num_generations}), so not even one step could be "
            "made. Give more rows, or make the batch smaller."
        )


def _for_episodes(args: RagenGRPOConfig, settings: RolloutSettings, reward_funcs: Any) -> RagenGRPOConfig:
    """A copy of `args` that knows of the additional reward and of the limits of a turn; the caller's is left alone."""
    if args.use_transformers_continuous_batching:
        raise ValueError(
            "`use_transformers_continuous_batching=True` does not play episodes. Leave it off, or use `use_vllm=True`."
        )
    args = copy.copy(args)
    if args.reward_weights is not None:
        given = len(_as_list(reward_funcs))
        if len(args.reward_weights) != given:
            raise ValueError(
                f"`reward_weights` has {len(args.reward_weights)} value(s) for {given} reward function(s). Give one "
                "for each function in `reward_funcs`; the return of the episode comes on top with weight 1."
            )
        args.reward_weights = [*args.reward_weights, 1.0]
    if args.use_vllm:  # TRL's backend takes sampling settings at construction only
        limits = {"max_tokens": settings.max_tokens_per_turn} if settings.max_tokens_per_turn else {}
        stop = {"stop": [settings.stop_string], "include_stop_str_in_output": True} if settings.stop_string else {}
        args.generation_kwargs = {**limits, **stop, **(args.generation_kwargs or {})}
    return args


def _with_episode_reward(reward_funcs: Any, processing_classes: Any) -> tuple[list[Any], Any]:
    if processing_classes is not None:
        processing_classes = [*_as_list(processing_classes), None]
    return [*_as_list(reward_funcs), EpisodeReward()], processing_classes


def _as_list(value: Any) -> list[Any]:
    return [] if value is None else value if isinstance(value, list) else [value]
