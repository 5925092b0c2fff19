"""The critic: a sequence classifier with one output, read at every token."""

from __future__ import annotations

import copy
from typing import Any

import torch
from transformers import AutoModelForSequenceClassification, PreTrainedModel
from transformers.integrations import is_deepspeed_zero3_enabled


def build_critic(policy: Any) -> PreTrainedModel:
    """
    A critic that starts from a policy: its own copy of the backbone, and a head that is zero, so that the first
    advantages are the returns. Under ZeRO-3 the backbone is loaded from where the policy was.

    Args:
        policy ([`~transformers.PreTrainedModel`] or [`~peft.PeftModel`]):
            Policy; adapters are merged into the copy.

    Raises:
        ValueError: If Transformers has no sequence classifier for the architecture.
    """
    with torch.random.fork_rng(devices=[]):  # rollouts are not to depend on who made the critic
        if is_deepspeed_zero3_enabled():  # a copy of what each rank has a part of would be empty
            return _loaded_critic(_bare(policy))
        return _copied_critic(policy)


def _copied_critic(policy: Any) -> PreTrainedModel:
    if hasattr(policy, "get_base_model"):
        policy = copy.deepcopy(policy).merge_and_unload()
    config = copy.deepcopy(policy.config)
    config.num_labels = 1
    try:
        critic = AutoModelForSequenceClassification.from_config(config, dtype=policy.dtype)
    except ValueError as error:
        raise ValueError(
            f"There is no sequence classifier of the kind {config.model_type!r} to make a critic of. Give one as "
            "`value_model`."
        ) from error
    _backbone(critic).load_state_dict(policy.base_model.state_dict())
    torch.nn.init.zeros_(critic.score.weight)
    return critic.to(policy.device)


def _loaded_critic(policy: Any) -> PreTrainedModel:
    import deepspeed

    path = policy.config._name_or_path
    try:
        critic = AutoModelForSequenceClassification.from_pretrained(path, num_labels=1, dtype=policy.dtype)
    except OSError as error:
        raise ValueError(
            f"Under ZeRO-3 the critic is loaded from where the policy was, and {path!r} cannot be. Give "
            "`value_model`, and with a KL penalty `ref_model`."
        ) from error
    with deepspeed.zero.GatheredParameters([critic.score.weight], modifier_rank=0):
        torch.nn.init.zeros_(critic.score.weight)
    return critic


def check_scorer(name: str, model: Any, policy: Any, vocabulary: int) -> None:
    """
    Refuse what cannot score the policy's tokens.

    Args:
        name (`str`):
            Argument that `model` was given as.
        model (`Any`):
            Value or reward model.
        policy ([`~transformers.PreTrainedModel`]):
            Policy.
        vocabulary (`int`):
            Tokens of the tokenizer.

    Raises:
        ValueError: If it has no head `score`, or other tokens than the policy.
    """
    if not hasattr(_bare(model), "score") or not hasattr(_bare(model), "base_model_prefix"):
        raise ValueError(
            f"`{name}` is a {type(model).__name__} without a head `score` on a backbone. Give what "
            "`AutoModelForSequenceClassification.from_pretrained(..., num_labels=1)` gives."
        )
    if (width := _bare(model).config.num_labels) != 1:
        raise ValueError(f"`{name}` has {width} outputs. Load it with `num_labels=1`.")
    size, own = model.get_input_embeddings().num_embeddings, policy.get_input_embeddings().num_embeddings
    other_family = _bare(model).config.model_type != policy.config.model_type and size != own
    # A padding token on top of what the policy knows is nobody's business.
    if size < min(vocabulary, own) or other_family:
        raise ValueError(
            f"`{name}` ({_bare(model).config.model_type}) knows {size} tokens, the policy "
            f"({policy.config.model_type}) {own} and its tokenizer {vocabulary}. It gets the policy's token ids, so "
            "both must share a tokenizer. A reward model with its own belongs into `reward_funcs`, with its tokenizer "
            "in `reward_processing_classes`."
        )


def token_scores(model: Any, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
    """
    What the head says at each token, given all tokens up to it.

    Args:
        model ([`~transformers.PreTrainedModel`] or [`~peft.PeftModel`]):
            Sequence classifier with one output.
        input_ids (`torch.Tensor`):
            (B, L) int64, padded on any side.
        attention_mask (`torch.Tensor`):
            (B, L), 0 for padding.

    Returns:
        `torch.Tensor`: (B, L) float32.
    """
    hidden = _backbone(model)(input_ids=input_ids, attention_mask=attention_mask, use_cache=False)[0]
    return _bare(model).score(hidden).squeeze(-1).float()


def _bare(model: Any) -> Any:
    return model.get_base_model() if hasattr(model, "get_base_model") else model


def _backbone(model: Any) -> Any:
    bare = _bare(model)
    return getattr(bare, bare.base_model_prefix)
