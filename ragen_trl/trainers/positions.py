"""Positions of left-padded rows, for models that look them up in a table."""

from __future__ import annotations

import inspect
from typing import Any

import torch
from transformers import PreTrainedModel


def count_positions_from_mask(model: torch.nn.Module) -> int:
    """
    Let a model with learned absolute positions (GPT-2 and its kin) count them from the attention mask.

    TRL pads prompts on the left and gives no positions. Most models only see differences of positions, and that does
    not matter to them; these would look up other positions than in sampling, up to an index beyond their table. Models
    of other kinds are left alone.

    Args:
        model (`torch.nn.Module`):
            Causal language model, bare or wrapped. Changed in place.

    Returns:
        `int`: Modules that were changed.
    """
    tables = [module for module in model.modules() if _has_table_of_positions(module)]
    tables = [module for module in tables if not _add_position_ids_is_there(module)]
    for module in tables:
        module.register_forward_pre_hook(_add_position_ids, with_kwargs=True)
    return len(tables)


def _add_position_ids_is_there(module: torch.nn.Module) -> bool:
    return _add_position_ids in module._forward_pre_hooks.values()


def _has_table_of_positions(module: torch.nn.Module) -> bool:
    size = getattr(getattr(module, "config", None), "max_position_embeddings", None)
    if size is None or "position_ids" not in inspect.signature(module.forward).parameters:
        return False
    return any(_is_table(child, size) and child is not _words(module) for child in module.children())


def _is_table(module: torch.nn.Module, size: int) -> bool:
    if type(module) is torch.nn.Embedding:
        return module.num_embeddings == size
    # Kinds of their own, e.g. with places in front (OPT, BioGPT) or sinusoids (XGLM). Those that count from the mask
    # by themselves come to the same.
    return type(module).__name__.endswith("PositionalEmbedding")


def _words(module: torch.nn.Module) -> Any:
    return module.get_input_embeddings() if isinstance(module, PreTrainedModel) else None


def _add_position_ids(
    module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
    input_ids = args[0] if args else kwargs.get("input_ids")
    mask = kwargs.get("attention_mask")
    # With a cache, as in sampling, the mask is longer than the input, and the caller gives the positions.
    if kwargs.get("position_ids") is not None or input_ids is None or mask is None or mask.shape != input_ids.shape:
        return None
    return args, kwargs | {"position_ids": (mask.long().cumsum(dim=1) - 1).clamp(min=0)}
