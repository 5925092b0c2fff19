"""The network of the embedded agent: a Llama of a few hundred thousand parameters."""

from __future__ import annotations

import torch
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerBase

from .tokenizer import MAX_LENGTH


def build_config(tokenizer: PreTrainedTokenizerBase) -> LlamaConfig:
    """
    Configuration that fits a tokenizer. Llama because the Auto classes load any tokenizer file for it unchanged.

    Args:
        tokenizer ([`~transformers.PreTrainedTokenizerBase`]):
            Tokenizer of the model.

    Returns:
        [`~transformers.LlamaConfig`]
    """
    return LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=96,
        intermediate_size=256,
        num_hidden_layers=2,
        num_attention_heads=4,
        max_position_embeddings=MAX_LENGTH,
        # About 1 / sqrt(width): the usual 0.02 is meant for wide models and costs this one hundreds of steps.
        initializer_range=0.08,
        tie_word_embeddings=True,
        pad_token_id=tokenizer.pad_token_id,
        eos_token_id=tokenizer.eos_token_id,
        bos_token_id=None,
    )


def build_model(tokenizer: PreTrainedTokenizerBase, seed: int = 0) -> LlamaForCausalLM:
    """
    Fresh model, the same for the same seed.

    Args:
        tokenizer ([`~transformers.PreTrainedTokenizerBase`]):
            Tokenizer of the model.
        seed (`int`, *optional*, defaults to `0`):
            Seed of the weights.

    Returns:
        [`~transformers.LlamaForCausalLM`]
    """
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return LlamaForCausalLM(build_config(tokenizer))
