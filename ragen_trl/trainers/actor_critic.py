"""A critic beside the policy, in one model as far as training, checkpoints and sharding are concerned."""

from __future__ import annotations

import copy
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from transformers import TrainerCallback
from transformers.integrations import is_deepspeed_zero3_enabled
from transformers.utils import SAFE_WEIGHTS_NAME
from trl import GRPOTrainer
from trl.models import prepare_deepspeed, prepare_fsdp
from trl.trainer.utils import create_model_from_path, disable_dropout_in_model

from .critic import build_critic, check_scorer, token_scores
from .filter_mixin import loss_mask
from .positions import count_positions_from_mask
from .ppo_interface import PPOInterface


_FOLDER = "critic"
_PREFIX = "critic."


class ActorCriticTrainer(GRPOTrainer, PPOInterface):
    """
    [`~trl.GRPOTrainer`]'s generation, policy loss and logging, with a critic, for [`RagenPPOTrainer`].

    The critic is a submodule of the policy and runs in its forward call, so that one wrapping (DDP, ZeRO, FSDP), one
    backward pass and one optimizer serve both. It is not part of what `save_model` writes; checkpoints hold it in a
    folder of its own.

    Args:
        value_model ([`~transformers.PreTrainedModel`], *optional*):
            Critic. Defaults to one that starts from the policy.
        ref_model ([`~transformers.PreTrainedModel`], *optional*):
            Reference of the KL penalty, if there is one. Defaults to the policy as it is at the beginning.
    """

    def __init__(self, *args: Any, value_model: Any = None, ref_model: Any = None, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        if value_model is None:
            value_model = build_critic(self.model)
        else:
            check_scorer("value_model", value_model, self.model, len(self._tokenizer))
            _check_apart(value_model, self.model)
        if self.args.critic_warmup_steps and self.is_deepspeed_enabled and self.args.weight_decay:
            raise ValueError(
                f"`critic_warmup_steps={self.args.critic_warmup_steps}` and `weight_decay={self.args.weight_decay}` "
                "do not go together under DeepSpeed, which would decay the policy meanwhile. Set one of them to 0."
            )
        self.ref_model = self._reference(ref_model)
        if self.args.disable_dropout:
            disable_dropout_in_model(value_model)
        for model in (self.model, value_model):
            count_positions_from_mask(model)
        if self.args.gradient_checkpointing and hasattr(value_model, "gradient_checkpointing_enable"):
            value_model.gradient_checkpointing_enable(self.args.gradient_checkpointing_kwargs)
        self.critic = value_model.to(self.model.device)
        self._policy = self.model
        self.model.add_module(_FOLDER, self.critic)
        # Weakly, so that a copy of the model is not a copy of the trainer.
        add_values = weakref.WeakMethod(self._add_values)
        self.model.register_forward_hook(lambda *call: add_values()(*call), with_kwargs=True)  # type: ignore[misc]
        self._values: list[torch.Tensor] | None = None
        self._logps: torch.Tensor | None = None
        self._saves_critic = False
        self._warmup = self.args.critic_warmup_steps
        if self._warmup:
            self.add_callback(_CriticWarmup(self))
        if self.use_vllm:  # it is sent every parameter of the model
            self.vllm_generation.sync_weights = self._without_critic(self.vllm_generation.sync_weights)

    def _reference(self, ref_model: Any) -> Any:
        # TRL computes `ref_per_token_logps` while this is not zero.
        self.beta = self.args.kl_coef
        if self.beta == 0 or (ref_model is None and hasattr(self.model, "peft_config")):
            return None
        if ref_model is not None and _vocabulary(ref_model) < _vocabulary(self.model):
            raise ValueError(
                f"`ref_model` knows {_vocabulary(ref_model)} tokens, the policy {_vocabulary(self.model)}. Both must "
                "share a tokenizer: give the model that the policy started from, or leave it out."
            )
        if ref_model is None and is_deepspeed_zero3_enabled():  # there is nothing whole to copy
            ref_model = create_model_from_path(self.model.config._name_or_path, dtype=self.model.dtype)
        elif ref_model is None:
            ref_model = copy.deepcopy(self.model)
        disable_dropout_in_model(ref_model)
        count_positions_from_mask(ref_model)
        if self.is_deepspeed_enabled:
            return prepare_deepspeed(ref_model, self.accelerator)
        if self.is_fsdp_enabled:
            return prepare_fsdp(ref_model, self.accelerator)
        return self.accelerator.prepare_model(ref_model, evaluation_mode=True)

    # --- Values ---

    def _add_values(self, module: Any, args: Any, kwargs: dict[str, Any], output: Any) -> Any:
        if self._values is None or module is not self._policy:
            return None
        with self.accelerator.autocast():
            values = token_scores(self.critic, kwargs["input_ids"], kwargs["attention_mask"])
        self._values.append(values)
        # DDP looks for what was used in the output, and rebuilds it, so that a name of its own will not do.
        output["hidden_states"] = (values,)
        return output

    @torch.no_grad()
    def _values_of(self, batch: dict[str, Any]) -> torch.Tensor:
        """What the critic expects before each token of the completions, (B, C)."""
        if self.is_fsdp_enabled:  # parameters outside of layers are there in the forward call of the whole model only
            self._values = []
            self._logps_of(batch)
            values, self._values = self._values[0], None
        else:
            with self.accelerator.autocast():
                values = token_scores(self.critic, *_whole_rows(batch))
        return _of_completions(values, batch)

    @torch.no_grad()
    def _logps_of(self, batch: dict[str, Any]) -> torch.Tensor:
        width = batch["completion_ids"].size(1)
        logps, *_ = self._get_per_token_logps_and_entropies(self.model, *_whole_rows(batch), width)
        return logps

    # --- Loss ---

    def _get_per_token_logps_and_entropies(self, *args: Any, **kwargs: Any) -> Any:
        result = super()._get_per_token_logps_and_entropies(*args, **kwargs)
        self._logps = result[0]
        return result

    def _compute_loss(self, model: Any, inputs: dict[str, Any]) -> torch.Tensor:
        beta, self.beta = self.beta, 0.0  # TRL's KL term has one estimator
        self._values = [] if self.model.training else None
        try:
            loss: torch.Tensor = super()._compute_loss(model, inputs)
            collected = self._values
        finally:
            self.beta, self._values = beta, None
        if collected is None:  # rollouts of an evaluation are not followed by the critic
            return loss
        weights = self._token_weights(inputs)
        if beta and self.args.kl_penalty == "loss":
            assert self._logps is not None
            kl = kl_estimate(self._logps, inputs["ref_per_token_logps"], self.args.kl_estimator)
            loss = loss + beta * (kl * weights).sum()
            self._metrics["train"]["kl"].append(self._mean_of_tokens(kl, inputs))
        if self.state.global_step < self._warmup:
            loss = loss * 0.0
        values = _of_completions(torch.cat(collected), inputs)
        value_loss, clipped = value_losses(values, inputs["values"], inputs["returns"], self.args.cliprange_value)
        self._metrics["train"]["value/loss"].append(self._mean_of_tokens(value_loss, inputs))
        self._metrics["train"]["value/clip_ratio"].append(self._mean_of_tokens(clipped, inputs))
        return loss + self.args.vf_coef * (value_loss * weights).sum()

    def _token_weights(self, inputs: dict[str, Any]) -> torch.Tensor:
        """What TRL's loss type multiplies each token with before it sums over a micro-batch, (B, C)."""
        mask = loss_mask(inputs)
        steps = self.current_gradient_accumulation_steps
        if self.loss_type == "grpo":
            return mask / mask.sum(dim=1, keepdim=True).clamp(min=1) / len(mask) / steps
        if self.loss_type == "bnpo":
            return mask / mask.sum().clamp(min=1) / steps
        if self.loss_type == "dr_grpo":
            return mask / (len(mask) * self.max_completion_length * steps)
        share = self.accelerator.num_processes * self.args.steps_per_generation / steps
        return mask * share / inputs["num_items_in_batch"].clamp(min=1)

    def _mean_of_tokens(self, x: torch.Tensor, inputs: dict[str, Any]) -> float:
        mask = loss_mask(inputs)
        sums = self.accelerator.reduce(torch.stack([(x.detach() * mask).sum(), mask.sum().to(x)]), reduction="sum")
        return (sums[0] / sums[1].clamp(min=1)).item()

    # --- Optimizer ---

    def create_optimizer(self, *args: Any, **kwargs: Any) -> torch.optim.Optimizer:
        given = self.optimizer is not None
        optimizer: torch.optim.Optimizer = super().create_optimizer(*args, **kwargs)
        critic = {id(parameter): parameter for parameter in self.critic.parameters() if parameter.requires_grad}
        rate, groups = self.args.critic_learning_rate, getattr(optimizer, "param_groups", None)
        if groups is None:  # stands for one that DeepSpeed makes
            if rate is not None:
                raise ValueError(
                    f"`critic_learning_rate={rate}` needs an optimizer of Trainer's. Leave the section `optimizer` "
                    "out of the DeepSpeed configuration, or the setting."
                )
            return optimizer
        known = {id(parameter) for group in groups for parameter in group["params"]}
        if critic and not known & critic.keys():  # an optimizer of the user's, who had no critic to put in
            # Into a group that is there: a scheduler of the user's counts them.
            groups[-1]["params"] += list(critic.values())
        if rate is not None and given and self.lr_scheduler is not None:
            raise ValueError(
                f"`critic_learning_rate={rate}` needs a group of its own, which the scheduler that was given does not "
                "know. Leave the setting out, or the scheduler."
            )
        for group in list(groups) if rate is not None else []:
            values = [parameter for parameter in group["params"] if id(parameter) in critic]
            if values and len(values) < len(group["params"]):
                group["params"] = [parameter for parameter in group["params"] if id(parameter) not in critic]
                optimizer.add_param_group({**group, "params": values, "lr": rate})
        return optimizer

    # --- Saving and loading ---

    @contextmanager
    def _critic_apart(self) -> Iterator[None]:
        """The policy as it is without a critic in it."""
        self._policy._modules.pop(_FOLDER, None)
        try:
            yield
        finally:
            self._policy.add_module(_FOLDER, self.critic)

    def _without_critic(self, function: Any) -> Any:
        def wrapped(*args: Any, **kwargs: Any) -> Any:
            with self._critic_apart():
                return function(*args, **kwargs)

        return wrapped

    def _save_checkpoint(self, *args: Any, **kwargs: Any) -> None:
        self._saves_critic = True
        try:
            super()._save_checkpoint(*args, **kwargs)
        finally:
            self._saves_critic = False

    def _save(self, output_dir: str | None = None, state_dict: dict[str, Any] | None = None) -> None:
        whole = self.model.state_dict() if state_dict is None else state_dict
        policy = {name: value for name, value in whole.items() if not name.startswith(_PREFIX)}
        with self._critic_apart():
            super()._save(output_dir, policy if state_dict is not None else None)
        if self._saves_critic and self.args.should_save:
            values = {n.removeprefix(_PREFIX): value for n, value in whole.items() if n.startswith(_PREFIX)}
            folder = Path(output_dir or self.args.output_dir) / _FOLDER
            # By the names in memory, which `save_pretrained` changes for adapters and experts.
            self.critic.config.save_pretrained(folder)
            safetensors.torch.save_file(
                {name: value.detach().cpu().clone() for name, value in values.items()},
                folder / SAFE_WEIGHTS_NAME,
                metadata={"format": "pt"},
            )

    def _load_from_checkpoint(self, resume_from_checkpoint: str, model: Any = None) -> None:
        if self.is_fsdp_enabled:
            super()._load_from_checkpoint(resume_from_checkpoint, model)
            return
        with self._critic_apart():
            super()._load_from_checkpoint(resume_from_checkpoint, model)
        self._load_critic(resume_from_checkpoint)

    def _load_best_model(self) -> None:
        if self.is_fsdp_enabled or self.is_deepspeed_enabled:
            super()._load_best_model()
            return
        with self._critic_apart():
            super()._load_best_model()
        self._load_critic(self.state.best_model_checkpoint)

    def _load_critic(self, checkpoint: str) -> None:
        file = Path(checkpoint) / _FOLDER / SAFE_WEIGHTS_NAME
        if not file.exists():
            raise ValueError(
                f"There is no critic in {file.parent}. Go on from a checkpoint of a `RagenPPOTrainer`, or start "
                "anew with its policy as `model`."
            )
        self.critic.load_state_dict(safetensors.torch.load_file(file))


def _vocabulary(model: Any) -> int:
    return int(model.get_input_embeddings().num_embeddings)


def _check_apart(critic: Any, policy: Any) -> None:
    shared = {id(p) for p in critic.parameters() if p.requires_grad} & {id(p) for p in policy.parameters()}
    if shared:
        raise ValueError(
            f"`value_model` shares {len(shared)} parameter(s) with the policy. Give a model of its own, or none for a "
            "copy of the policy's backbone."
        )


class _CriticWarmup(TrainerCallback):
    """Keeps the optimizer from the policy, which has no gradient, but may have weight decay and momentum."""

    def __init__(self, trainer: ActorCriticTrainer) -> None:
        self._trainer = trainer

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.global_step < args.critic_warmup_steps:
            critic = set(self._trainer.critic.parameters())
            for parameter in self._trainer.model.parameters():
                if parameter not in critic:
                    parameter.grad = None


def kl_estimate(logps: torch.Tensor, ref_logps: torch.Tensor, estimator: str) -> torch.Tensor:
    """
    Estimate of the KL divergence from the reference at each sampled token.

    Args:
        logps (`torch.Tensor`):
            Log-probabilities under the policy, any shape.
        ref_logps (`torch.Tensor`):
            Those under the reference.
        estimator (`str`):
            `"k1"`: their difference d; `"k2"`: d^2 / 2; `"k3"`: exp(-d) - 1 + d (joschu.net/blog/kl-approx.html).
    """
    difference = logps - ref_logps
    if estimator == "k1":
        return difference
    return 0.5 * difference.square() if estimator == "k2" else torch.exp(-difference) - 1 + difference


def value_losses(
    values: torch.Tensor, old_values: torch.Tensor, returns: torch.Tensor, cliprange: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """
    Clipped value loss of each token: half the larger squared error of the value and of the value kept within
    `cliprange` of the old one.

    Args:
        values, old_values, returns (`torch.Tensor`):
            (B, T) each.
        cliprange (`float`):
            Largest change that the clipped value makes.

    Returns:
        `tuple[torch.Tensor, torch.Tensor]`: Losses and, as 0 or 1, where the clipped one decides.
    """
    kept = old_values + (values - old_values).clamp(-cliprange, cliprange)
    plain, clipped = (values - returns).square(), (kept - returns).square()
    return 0.5 * torch.maximum(plain, clipped), (clipped > plain).float()


def _whole_rows(batch: dict[str, Any]) -> tuple[torch.Tensor, torch.Tensor]:
    """Ids and attention mask of prompts and completions, (B, P + C) each."""
    ids = torch.cat([batch["prompt_ids"], batch["completion_ids"]], dim=1)
    return ids, torch.cat([batch["prompt_mask"], batch["completion_mask"]], dim=1)


def _of_completions(values: torch.Tensor, batch: dict[str, Any]) -> torch.Tensor:
    """Of values at all tokens, those that stand before each token of the completion."""
    width = batch["completion_ids"].size(1)
    return values[:, -width - 1 : -1]
