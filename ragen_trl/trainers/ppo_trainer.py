"""PPO with episodes."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import fields
from itertools import chain
from typing import Any

import torch
from accelerate.logging import get_logger
from accelerate.utils import gather_object
from transformers import PreTrainedModel, PreTrainedTokenizerBase, ProcessorMixin, TrainerCallback
from trl.models import prepare_deepspeed
from trl.trainer.utils import disable_dropout_in_model

from ..advantages import gae, turn_level_gae, whiten
from ..report.summary import print_completions
from ..rollout.dataset import uses_envs
from .actor_critic import ActorCriticTrainer, kl_estimate
from .agent_mixin import AgentMixin
from .critic import check_scorer
from .episodes import AnyDataset, as_list, check_amount, check_weights
from .filter_mixin import SNRFilterMixin, loss_mask
from .grpo_trainer import PAPER
from .ppo_config import RagenPPOConfig
from .ppo_interface import PPOConfig
from .rewards import MissingEOSPenalty, RewardModelScore, token_rewards, turn_numbers


logger = get_logger(__name__)

_SHOWN = 5  # rows of a printed table


class RagenPPOTrainer(AgentMixin, SNRFilterMixin, ActorCriticTrainer):
    """
    PPO (arXiv 1707.06347) for agents. A [`~trl.experimental.ppo.PPOTrainer`] by type and by its constructor, so that
    scripts run on after the import was changed; the loop is [`~transformers.Trainer`]'s own, with its evaluation,
    saving, logging, callbacks and sharding.

    Rewards come from environments (rows with `env_id`), from `reward_funcs`, from `reward_model`, or from several of
    them, whose sum counts. Values and advantages are over sampled tokens only: observations and padding get no reward,
    no value and no discount. An episode that was cut short (turn or action limit, token budget) is treated as one that
    ended: nothing is bootstrapped, as the agent was told its limits.

    Args:
        args ([`RagenPPOConfig`], *optional*):
            Configuration. A plain [`~trl.experimental.ppo.PPOConfig`] will do where no dataset names environments.
        processing_class ([`~transformers.PreTrainedTokenizerBase`], *optional*):
            Tokenizer. Defaults to the model's.
        model (`str` or [`~transformers.PreTrainedModel`] or [`~peft.PeftModel`]):
            Policy.
        ref_model ([`~transformers.PreTrainedModel`], *optional*):
            Reference of the KL penalty. Defaults to the policy as it is at the beginning (with PEFT: without its
            adapter), and without a penalty (`kl_coef=0`) to none.
        reward_model ([`~transformers.PreTrainedModel`], *optional*):
            Sequence classifier with one output that shares the policy's tokenizer. One with its own tokenizer belongs
            into `reward_funcs`.
        train_dataset ([`~datasets.Dataset`] or [`~datasets.IterableDataset`]):
            Rows with `prompt`, or, as for TRL's trainer, with `input_ids`; for environments see
            [`~ragen_trl.env_dataset`].
        value_model ([`~transformers.PreTrainedModel`], *optional*):
            Critic, a sequence classifier with one output. Defaults to a copy of the policy's backbone with a head that
            starts at zero.
        data_collator (*optional*):
            Not used: rows go to the rollout as they are.
        eval_dataset, optimizers, callbacks, peft_config, quantization_config (*optional*):
            As for [`~trl.GRPOTrainer`].
        reward_funcs, reward_processing_classes (*optional*):
            As for [`~trl.GRPOTrainer`]; with environments functions get the episodes as `trajectory`.

    Raises:
        ImportError: On TRL 1.13 and newer, which have no PPO.
        ValueError: If there is no source of rewards, a value or reward model has other tokens than the policy, or the
            data cannot be played.

    Example:

    ```python
    >>> from ragen_trl import RagenPPOConfig, RagenPPOTrainer, env_dataset

    >>> trainer = RagenPPOTrainer(
    ...     RagenPPOConfig("runs/sokoban", num_generations=8, max_completion_length=2048, max_tokens_per_turn=256),
    ...     model="Qwen/Qwen2.5-0.5B-Instruct",
    ...     train_dataset=env_dataset("ragen_envs/Sokoban-v0", 1000),
    ... )
    >>> trainer.train()
    ```
    """

    _tag_names = ["trl", "ppo", "ragen-trl"]
    _name = "RAGEN-2 PPO"
    _paper = PAPER
    _needs_filter_settings = False
    _always_guarded = True

    def __init__(
        self,
        args: RagenPPOConfig | PPOConfig | None = None,
        processing_class: PreTrainedTokenizerBase | ProcessorMixin | None = None,
        model: str | PreTrainedModel | None = None,
        ref_model: PreTrainedModel | None = None,
        reward_model: PreTrainedModel | None = None,
        train_dataset: AnyDataset | None = None,
        value_model: PreTrainedModel | None = None,
        data_collator: Any = None,
        eval_dataset: Any = None,
        optimizers: tuple[Any, Any] = (None, None),
        callbacks: list[TrainerCallback] | None = None,
        peft_config: Any = None,
        reward_funcs: Any = None,
        reward_processing_classes: Any = None,
        quantization_config: Any = None,
    ) -> None:
        _check_arguments(model, ref_model, train_dataset, reward_model, reward_funcs, value_model)
        if data_collator is not None:
            logger.warning("`data_collator` is not used: rows go to the rollout as they are.")
        args, own_weights = _own_config(args, model), len(as_list(reward_funcs))
        reward_funcs, reward_processing_classes = [*as_list(reward_funcs)], [*as_list(reward_processing_classes)]
        # Their settings depend on the tokenizer, which TRL loads.
        self._reward_model_score = RewardModelScore(reward_model, args.local_rollout_forward_batch_size, 0)
        self._missing_eos = MissingEOSPenalty(args.missing_eos_penalty or 0.0, -1)
        if reward_model is not None:
            reward_funcs.append(self._reward_model_score)
        if args.missing_eos_penalty:
            reward_funcs.append(self._missing_eos)
        added = len(reward_funcs) - own_weights
        if args.reward_weights is not None:
            check_weights(args.reward_weights, own_weights)
            args.reward_weights = [*args.reward_weights, *[1.0] * added]
        if reward_processing_classes:
            reward_processing_classes += [None] * added
        check_amount(args, train_dataset)
        self._foreign_padding, processing_class = _known_padding(processing_class, model)
        super().__init__(
            model=model,
            reward_funcs=reward_funcs,
            args=args,
            train_dataset=_with_prompts(train_dataset),
            eval_dataset=_with_prompts(eval_dataset),
            processing_class=processing_class,
            reward_processing_classes=reward_processing_classes or None,
            callbacks=callbacks,
            optimizers=optimizers,
            quantization_config=quantization_config,
            peft_config=peft_config,
            value_model=value_model,
            ref_model=ref_model,
        )
        self._missing_eos.eos_token_id = self._tokenizer.eos_token_id
        if reward_model is not None:
            self._prepare_reward_model(reward_model)

    def _prepare_reward_model(self, model: Any) -> None:
        check_scorer("reward_model", model, self.model, len(self._tokenizer))
        disable_dropout_in_model(model)
        if self.is_deepspeed_enabled:
            model = prepare_deepspeed(model, self.accelerator)
        self._reward_model_score.model = model.to(self.accelerator.device).eval()
        self._reward_model_score.pad_token_id = self._tokenizer.pad_token_id

    # --- Prompts that are token ids, and what follows a stop token ---

    def _tokenize_prompts(self, prompts: list[Any]) -> Any:
        if _are_ids(prompts):  # in data for TRL's they may be padded
            padding = {self._tokenizer.pad_token_id, self._foreign_padding}
            return [_stripped(ids, padding) for ids in prompts], None, {}
        return super()._tokenize_prompts(prompts)

    def _generate(self, prompts: list[Any]) -> Any:
        result = super()._generate(prompts)
        self._reward_model_score.prompt_ids = result[0]
        return result

    def _generate_single_turn(self, *args: Any, **kwargs: Any) -> Any:
        completion_ids, logprobs = super()._generate_single_turn(*args, **kwargs)
        stop = self.args.stop_token_id
        if stop is None:
            return completion_ids, logprobs
        lengths = [ids.index(stop) + 1 if stop in ids else len(ids) for ids in completion_ids]
        cut = [
            rows and [row[:length] for row, length in zip(rows, lengths, strict=True)]
            for rows in (completion_ids, logprobs)
        ]
        return tuple(cut)

    def _calculate_rewards(
        self, inputs: list[dict[str, Any]], prompts: list[Any], completions: list[Any], completion_ids_list: list[Any]
    ) -> torch.Tensor:
        if _are_ids(prompts):  # functions expect text
            prompts = self.processing_class.batch_decode(self._reward_model_score.prompt_ids)
        rewards = super()._calculate_rewards(inputs, prompts, completions, completion_ids_list)
        if self._missing_eos in self.reward_funcs:  # a penalty alone is no reward
            column = self.reward_funcs.index(self._missing_eos)
            others = torch.cat([rewards[:, :column], rewards[:, column + 1 :]], dim=1)
            rewards[others.isnan().all(dim=1), column] = torch.nan
        return rewards

    # --- From rewards to advantages ---

    def _generate_and_score_completions(self, inputs: list[dict[str, Any]]) -> dict[str, Any]:
        output = super()._generate_and_score_completions(inputs)
        if not self.model.training:
            return output
        number = len(output["prompt_ids"])
        first = self.accelerator.process_index * number
        totals = self._total_rewards()
        self._leave_out(output, totals.isnan(), first)
        mask, trajectories = loss_mask(output), [row.get("trajectory") for row in inputs]
        per_turn = self.args.reward_placement == "turn" and self._engine is not None
        mine = totals[first : first + number].nan_to_num(0.0)
        output["token_rewards"] = token_rewards(mine, mask, trajectories if per_turn else None)
        if self.args.advantage_estimator == "turn_level_gae":
            output["turn_numbers"] = turn_numbers(trajectories, mask)
        return output

    def _leave_out(self, output: dict[str, Any], missing: torch.Tensor, first: int) -> None:
        """A rollout that nobody could reward is not trained on, neither by the policy nor by the critic."""
        if not missing.any():
            return
        known = ~missing[first : first + len(output["prompt_ids"])].to(output["completion_mask"].device)
        output["tool_mask"] = loss_mask(output) * known.unsqueeze(1)
        output["num_items_in_batch"] = self.accelerator.gather(loss_mask(output).sum()).sum()

    def _prepare_inputs(self, generation_batch: Any) -> dict[str, Any]:
        buffered = self._buffered_inputs
        inputs = super()._prepare_inputs(generation_batch)
        if self.model.training and self._buffered_inputs is not buffered:
            # After the filter, so that values are computed for kept rows only.
            self._add_advantages(self._buffered_inputs or [])
        return inputs

    def _add_advantages(self, batches: list[dict[str, Any]]) -> None:
        """Replace the group's advantages by those of PPO, (B, C), and add `values` and `returns`, in place."""
        masks = [loss_mask(batch) for batch in batches]
        rewards = [self._rewards_with_kl(batch) for batch in batches]
        if self.args.whiten_rewards:
            rewards = _together(rewards, masks, shift_mean=False)
        for batch, reward, mask in zip(batches, rewards, masks, strict=True):
            # Micro-steps without a row of the kept ones are not computed.
            batch["values"] = self._values_of(batch) if batch.get("rows", 1) else torch.zeros_like(reward)
            batch["advantages"], batch["returns"] = self._estimate(batch, reward, mask)
        self._log_values(batches, masks)
        if self.args.whiten_advantages:
            whitened = _together([batch["advantages"] for batch in batches], masks)
            for batch, advantages in zip(batches, whitened, strict=True):
                batch["advantages"] = advantages
        for batch in batches:
            batch["advantages"] = batch["advantages"] * self._advantage_factor

    def _estimate(
        self, batch: dict[str, Any], reward: torch.Tensor, mask: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        gamma, lam = self.args.gamma, self.args.lam
        if self.args.advantage_estimator == "turn_level_gae":
            turns = batch.pop("turn_numbers")
            return turn_level_gae(
                reward, batch["values"], mask, turns, gamma=gamma, lam=lam, turn_gamma=self.args.turn_gamma
            )
        return gae(reward, batch["values"], mask, gamma=gamma, lam=lam)

    def _rewards_with_kl(self, batch: dict[str, Any]) -> torch.Tensor:
        rewards: torch.Tensor = batch.pop("token_rewards")
        if not self.beta or self.args.kl_penalty != "reward" or not batch.get("rows", 1):
            return rewards
        old = batch.get("old_per_token_logps")
        kl = kl_estimate(
            self._logps_of(batch) if old is None else old, batch["ref_per_token_logps"], self.args.kl_estimator
        )
        self._metrics["train"]["kl"].append(self._mean_of_tokens(kl, batch))
        return rewards - self.beta * kl * loss_mask(batch)

    def _log_values(self, batches: list[dict[str, Any]], masks: list[torch.Tensor]) -> None:
        """Mean value and return of the trained tokens of all ranks, and how much of the returns values explain."""
        pairs = zip(batches, masks, strict=True)
        columns = [torch.stack([batch["values"][mask.bool()], batch["returns"][mask.bool()]]) for batch, mask in pairs]
        values, returns = torch.cat(columns, dim=1).double().cpu()
        errors = returns - values
        own = [torch.ones_like(values), values, returns, returns**2, errors, errors**2]
        count, value, total, squares, error, errors_squared = (
            sum(column) for column in zip(*gather_object([[column.sum().item() for column in own]]), strict=True)
        )
        if not count:
            return
        variance, unexplained = squares / count - (total / count) ** 2, errors_squared / count - (error / count) ** 2
        metrics = self._metrics["train"]
        metrics["value/mean"].append(value / count)
        metrics["value/return_mean"].append(total / count)
        metrics["value/return_std"].append(max(variance, 0.0) ** 0.5)
        if variance > 1e-12:
            metrics["value/explained_variance"].append(1 - unexplained / variance)

    # --- TRL's PPOTrainer has it ---

    def generate_completions(self, sampling: bool = False) -> None:
        """
        Print a table of completions of the evaluation data and their rewards, at the temperature of training.

        Args:
            sampling (`bool`, *optional*, defaults to `False`):
                Whether one batch will do.
        """
        if self.eval_dataset is None:
            return
        training = self.model.training
        rows: list[tuple[str, str, float]] = []
        self.model.eval()
        named = list(self.eval_dataset) if isinstance(self.eval_dataset, Mapping) else [None]
        for inputs in chain.from_iterable(map(self.get_eval_dataloader, named)):
            output = self._generate_and_score_completions(inputs)
            texts = [
                self.processing_class.batch_decode(output[name], skip_special_tokens=True)
                for name in ("prompt_ids", "completion_ids")
            ]
            rewards = self._total_rewards().tolist()  # of all ranks
            pairs = gather_object(list(zip(*texts, strict=True)))
            rows += [(*pair, reward) for pair, reward in zip(pairs, rewards, strict=True)]
            if sampling:
                break
        self._metrics["eval"].clear()
        if self._engine is not None:
            self._summaries["eval"].clear()
        self.model.train(training)
        if self.accelerator.is_main_process:
            print_completions(rows[:_SHOWN])


def _are_ids(prompts: list[Any]) -> bool:
    return isinstance(prompts[0], list) and bool(prompts[0]) and isinstance(prompts[0][0], int)


def _check_arguments(
    model: Any, ref_model: Any, train_dataset: Any, reward_model: Any, reward_funcs: Any, value_model: Any
) -> None:
    if model is None or train_dataset is None:
        raise ValueError("`model` and `train_dataset` are required.")
    if ref_model is model:
        raise ValueError("`model` and `ref_model` are the same object. Leave `ref_model` out for a copy.")
    if value_model is not None and value_model is reward_model:
        raise ValueError(
            "`value_model` and `reward_model` are the same object, and the first is trained. Load it twice."
        )
    if reward_model is None and not as_list(reward_funcs) and not uses_envs(train_dataset):
        raise ValueError(
            "Nothing gives rewards. Give rows that name environments (column `env_id`, see `env_dataset`), or "
            "`reward_funcs`, or a `reward_model`."
        )


def _own_config(args: Any, model: Any) -> RagenPPOConfig:
    """A configuration of ours with the settings of TRL's; the caller's is left alone."""
    if args is None:
        name = model if isinstance(model, str) else model.config._name_or_path
        return RagenPPOConfig(f"{name.rstrip('/').split('/')[-1]}-RAGEN-PPO")
    if isinstance(args, RagenPPOConfig):
        return copy.copy(args)
    if not isinstance(args, PPOConfig):
        raise TypeError(f"`args` is a {type(args).__name__}. Use `RagenPPOConfig`, or TRL's `PPOConfig`.")
    known = {field.name for field in fields(RagenPPOConfig)}  # a configuration of the user's may have more
    given = {field.name: getattr(args, field.name) for field in fields(args) if field.init and field.name in known}
    return RagenPPOConfig(**(given | {"remove_unused_columns": False}))


def _with_prompts(dataset: Any) -> Any:
    """Datasets as TRL's PPOTrainer takes them, with token ids for prompts, as other trainers take them."""
    if isinstance(dataset, Mapping):
        return {name: _with_prompts(value) for name, value in dataset.items()}
    columns = [] if dataset is None else dataset.column_names or list(next(iter(dataset), {}))
    if "prompt" in columns or "input_ids" not in columns:
        return dataset
    return dataset.with_format(None).rename_column("input_ids", "prompt")


def _known_padding(processing_class: Any, model: Any) -> tuple[int | None, Any]:
    """
    The padding token that the model does not know, if so (TRL's examples add one, which TRL's trainer hides from it),
    and a tokenizer that pads with one it does.
    """
    own = getattr(processing_class, "pad_token_id", None)
    if own is None or isinstance(model, str) or own < model.get_input_embeddings().num_embeddings:
        return None, processing_class
    logger.warning(
        f"The model does not know the padding token {processing_class.pad_token!r}; the end-of-sequence token is used."
    )
    processing_class = copy.deepcopy(processing_class)
    processing_class.pad_token = processing_class.eos_token
    return own, processing_class


def _stripped(ids: list[int], padding: set[int | None]) -> list[int]:
    first = next((i for i, token in enumerate(ids) if token not in padding), 0)
    last = next((i for i, token in enumerate(reversed(ids)) if token not in padding), 0)
    return ids[first : len(ids) - last]


def _together(columns: list[torch.Tensor], masks: list[torch.Tensor], shift_mean: bool = True) -> list[torch.Tensor]:
    """Tensors of different widths, whitened as one, with those of the other ranks."""
    flat = whiten(
        torch.cat([column.flatten() for column in columns]),
        torch.cat([mask.flatten() for mask in masks]),
        shift_mean=shift_mean,
    )
    parts = flat.split([column.numel() for column in columns])
    return [part.view_as(column) for part, column in zip(parts, columns, strict=True)]
