"""Configuration of [`RagenPPOTrainer`]."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil, gcd
from typing import Any, Literal

from transformers import TrainingArguments

from .filter_config import setting
from .grpo_config import RagenGRPOConfig
from .ppo_interface import PPOConfig


# What may be set to a value of another name's, and the name that decides.
_SAME_AS = {"epsilon": "cliprange", "num_iterations": "num_ppo_epochs"}
# Settings of GRPO that mean nothing here, or that the loss here does not have.
_UNSUPPORTED = {
    "beta": (0.0, "Set `kl_coef`."),
    "importance_sampling_level": ("token", "PPO clips the ratio of each token."),
    "use_liger_kernel": (False, "It has no values."),
    "multi_objective_aggregation": ("sum_then_normalize", "Rewards are added up."),
    "ref_adapter_name": (None, "The reference is the model without its adapter, or `ref_model`."),
    "model_adapter_name": (None, "The active adapter is trained."),
    "sync_ref_model": (False, "The reference of PPO stays as it is."),
}
_CHOICES = {
    "loss_type": ("dapo", "grpo", "bnpo", "dr_grpo"),
    "kl_estimator": ("k1", "k2", "k3"),
    "kl_penalty": ("reward", "loss"),
    "advantage_estimator": ("gae", "turn_level_gae"),
    "reward_placement": ("episode", "turn"),
    "stop_token": (None, "eos"),
}
# Smallest and largest value.
_RANGES: dict[str, tuple[float, float]] = {
    "gamma": (0, 1), "lam": (0, 1), "turn_gamma": (0, 1), "kl_coef": (0, float("inf")), "vf_coef": (0, float("inf")),
    "cliprange": (0, float("inf")), "cliprange_value": (0, float("inf")), "critic_learning_rate": (0, float("inf")),
    "critic_warmup_steps": (0, float("inf")), "missing_eos_penalty": (0, float("inf")),
    "num_ppo_epochs": (1, float("inf")), "num_mini_batches": (1, float("inf")),
}  # fmt: skip


@dataclass
class RagenPPOConfig(PPOConfig, RagenGRPOConfig):
    """
    Configuration class for the [`RagenPPOTrainer`]: TRL's [`~trl.experimental.ppo.PPOConfig`] with the settings of
    [`RagenGRPOConfig`] for generation, episodes and filter. Defaults of TRL's `PPOConfig` are kept.

    A batch has `per_device_train_batch_size x gradient_accumulation_steps x processes` rollouts, as in TRL; it is
    trained on `num_ppo_epochs` times, in `num_mini_batches` optimizer steps each. Steps are counted by the optimizer,
    as everywhere in [`~transformers.Trainer`], and after construction `gradient_accumulation_steps` (and, if need be,
    `per_device_train_batch_size`) is what one such step takes. Who sets `steps_per_generation` gives both as they are.

    Parameters:
        disable_dropout (`bool`, *optional*, defaults to `True`):
            Whether policy, critic, reference and reward model go without dropout, as in TRL.
        num_generations (`int`, *optional*, defaults to `1`):
            Rollouts of each prompt in a batch: a group. The filter and Retrieval-Accuracy need more than one.
        max_completion_length (`int`, *optional*):
            Tokens after the prompt; of episodes, observations included. Defaults to `response_length`.
        kl_penalty (`str`, *optional*, defaults to `"reward"`):
            Where `kl_coef` times the divergence from the reference goes: `"reward"`, off each token's reward as in
            TRL, or `"loss"`.
        kl_estimator (`str`, *optional*, defaults to `"k1"`):
            `"k1"`, `"k2"` or `"k3"`; `"k2"` in the loss only. The gradient of `"k1"` in the loss is zero on average.
        advantage_estimator (`str`, *optional*, defaults to `"gae"`):
            `"gae"` over the sampled tokens of an episode, or `"turn_level_gae"`, over turns and then inside each.
        turn_gamma (`float`, *optional*, defaults to `0.95`):
            Discount from turn to turn of `"turn_level_gae"`.
        reward_placement (`str`, *optional*, defaults to `"episode"`):
            `"episode"` puts the return on the last sampled token, `"turn"` what each turn earned, format penalty
            included, on the last one of that turn. Other rewards go on the last token either way.
        whiten_advantages (`bool`, *optional*, defaults to `True`):
            Whether advantages have mean 0 and variance 1 over all trained tokens of the batch, of all ranks.
        critic_learning_rate (`float`, *optional*):
            Learning rate of the critic. Defaults to `learning_rate`; the same schedule.
        critic_warmup_steps (`int`, *optional*, defaults to `0`):
            First optimizer steps in which only the critic learns.

    `cliprange` is the lower and, unless `epsilon_high` is set, the upper bound of the ratio; `delta` bounds it for
    negative advantages (dual clip). `entropy_coef` is the entropy bonus. `loss_type` says what losses are means of:
    `"dapo"` the tokens of an optimizer step, `"grpo"` tokens of a rollout and then rollouts, `"bnpo"` the tokens of a
    micro-batch (as TRL's PPO), `"dr_grpo"` by a constant.

    Raises:
        ValueError: If a setting is out of range, unknown, or has no meaning for PPO.
    """

    # As in GRPOConfig, where reward functions get all columns.
    remove_unused_columns: bool | None = setting(False, "Whether columns that the trainer does not read are dropped.")
    disable_dropout: bool = setting(True, "Whether policy, critic, reference and reward model go without dropout.")
    num_generations: int | None = setting(1, "Rollouts of each prompt in a batch.")
    max_completion_length: int | None = setting(None, "Tokens after the prompt. Defaults to `response_length`.")
    kl_penalty: Literal["reward", "loss"] = setting("reward", "Where the KL penalty goes: 'reward' or 'loss'.")
    kl_estimator: Literal["k1", "k2", "k3"] = setting("k1", "Estimator of the KL divergence; 'k2' in the loss only.")
    advantage_estimator: Literal["gae", "turn_level_gae"] = setting("gae", "'gae' or 'turn_level_gae'.")
    turn_gamma: float = setting(0.95, "Discount from turn to turn of 'turn_level_gae'.")
    reward_placement: Literal["episode", "turn"] = setting("episode", "Rewards at the end of 'episode' or 'turn'.")
    whiten_advantages: bool = setting(True, "Whether to whiten advantages over all trained tokens of a batch.")
    critic_learning_rate: float | None = setting(None, "Learning rate of the critic. Defaults to `learning_rate`.")
    critic_warmup_steps: int = setting(0, "First optimizer steps in which only the critic learns.")

    # TRL's PPOConfig has a field of this name, which hides the number of processes from all of Trainer.
    @property
    def world_size(self) -> int:
        return TrainingArguments.world_size.fget(self)

    @world_size.setter
    def world_size(self, value: Any) -> None:
        pass

    def __post_init__(self: Any) -> None:
        self._check()
        for name, decides in _SAME_AS.items():
            setattr(self, name, getattr(self, decides))
        if self.max_completion_length is None:
            self.max_completion_length = self.response_length
        if self.steps_per_generation is None and self.generation_batch_size is None:
            self._split_batch()
        group, group_eval = self.num_generations or 1, self.num_generations_eval
        if group == 1:
            self._as_one_group(super().__post_init__)
        else:
            super().__post_init__()
        self.num_generations, self.num_generations_eval = group, group_eval
        if self.load_best_model_at_end and self.metric_for_best_model in (None, "loss", "eval_loss"):
            raise ValueError(
                "`load_best_model_at_end=True` would choose by the loss, which says nothing of an evaluation of PPO. "
                "Set `metric_for_best_model='eval_reward'` and `greater_is_better=True`."
            )
        if group == 1 and self.reward_variance_filtering is not None:
            raise ValueError(
                f"reward_variance_filtering={self.reward_variance_filtering!r} compares rollouts of one prompt, and "
                "`num_generations` is 1 (the default of PPO). Set it to e.g. 8, or turn the filter off."
            )
        self._count()

    def _check(self) -> None:
        for name, allowed in _CHOICES.items():
            if getattr(self, name) not in allowed:
                raise ValueError(f"{name}={getattr(self, name)!r} is unknown. Choose one of {list(allowed)}.")
        for name, (least, most) in _RANGES.items():
            value = getattr(self, name)
            if value is not None and not least <= value <= most:
                raise ValueError(f"`{name}` must lie between {least} and {most}, got {value}.")
        for name, (only, remedy) in _UNSUPPORTED.items():
            if getattr(self, name) != only:
                raise ValueError(f"`{name}` must be {only!r} for PPO, got {getattr(self, name)!r}. {remedy}")
        if self.stop_token is not None and self.stop_token_id is not None:
            raise ValueError("`stop_token` and `stop_token_id` were both given. Give one of them.")
        if self.kl_estimator == "k2" and self.kl_penalty == "reward":
            raise ValueError("kl_estimator='k2' is for kl_penalty='loss'. Use 'k1' or 'k3' in the reward.")
        defaults = {name: field.default for name, field in self.__dataclass_fields__.items()}
        for name, decides in _SAME_AS.items():
            if getattr(self, name) not in (defaults[name], getattr(self, decides)):
                raise ValueError(
                    f"`{name}={getattr(self, name)}` and `{decides}={getattr(self, decides)}` are two names of one "
                    f"setting. Set `{decides}` alone."
                )

    def _split_batch(self: Any) -> None:
        """Spread the batch over `num_mini_batches` optimizer steps."""
        steps, rows, parts = self.gradient_accumulation_steps, self.per_device_train_batch_size, self.num_mini_batches
        common = gcd(steps, parts)
        if rows % (parts // common):
            raise ValueError(
                f"`num_mini_batches={parts}` does not divide the {rows * steps} rollouts of a process "
                f"(per_device_train_batch_size={rows} x gradient_accumulation_steps={steps}). Choose a divisor."
            )
        self.gradient_accumulation_steps = steps // common
        self.per_device_train_batch_size = rows // (parts // common)
        self.steps_per_generation = self.gradient_accumulation_steps * parts

    def _as_one_group(self: Any, check: Any) -> None:
        """Run checks of GRPO's, which wants groups, where there are none."""
        size = self.generation_batch_size or self.per_device_train_batch_size * (self.steps_per_generation or 1)
        if size == 1:
            raise ValueError(
                "A process has one rollout in a batch, and needs two: raise `per_device_train_batch_size`."
            )
        self.num_generations, self.num_generations_eval = size, self.num_generations_eval or 1
        check()

    def _count(self: Any) -> None:
        """Fill in what TRL's trainer would, and see that it fits together."""
        assert self.generation_batch_size is not None and self.steps_per_generation is not None
        accumulation = self.gradient_accumulation_steps
        if self.steps_per_generation != accumulation * self.num_mini_batches:
            raise ValueError(
                f"`steps_per_generation={self.steps_per_generation}` is not `gradient_accumulation_steps="
                f"{accumulation}` x `num_mini_batches={self.num_mini_batches}`. Leave the first out, or make them fit."
            )
        self.batch_size = self.generation_batch_size
        self.mini_batch_size = self.batch_size // self.num_mini_batches
        self.local_batch_size = self.batch_size // self.world_size
        self.local_mini_batch_size = self.mini_batch_size // self.world_size
        self.micro_batch_size = self.per_device_train_batch_size * self.world_size
        if self.total_episodes is not None:
            self.num_total_batches = ceil(self.total_episodes / self.batch_size)
            if self.max_steps <= 0:
                self.max_steps = self.num_total_batches * self.num_ppo_epochs * self.num_mini_batches
