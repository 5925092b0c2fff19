"""GRPO, DAPO and Dr. GRPO with episodes."""

from __future__ import annotations

import textwrap
from collections.abc import Callable
from typing import Any

from transformers import PreTrainedModel, PreTrainedTokenizerBase, ProcessorMixin, TrainerCallback
from trl import GRPOTrainer

from ..filtering import flat_groups
from .agent_mixin import AgentMixin
from .episodes import AnyDataset
from .filter_mixin import SNRFilterMixin
from .grpo_config import RagenGRPOConfig


# For model cards.
PAPER = {
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
    _paper = PAPER

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

    def _generate_and_score_completions(self, inputs: list[dict[str, Any]]) -> dict[str, Any]:
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
