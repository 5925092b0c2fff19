"""
How likely every reasoning is under every prompt: the matrix that all mutual-information proxies are computed from
(RAGEN-2, arXiv 2604.06268). Knows models, no trainer.
"""

from __future__ import annotations

import copy
import inspect
import logging
import math
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
import torch.nn.functional as F
from torch.nn.parallel import DataParallel, DistributedDataParallel
from transformers import DynamicCache
from transformers.cache_utils import DynamicLayer, DynamicSlidingWindowLayer


logger = logging.getLogger(__name__)

# Both only ever append: what they hold of a prefix can be lent to many continuations. Compared by identity, as a
# subclass (linear attention, indexed attention, quantized) keeps more than keys and values.
_SHARABLE_LAYERS = (DynamicLayer, DynamicSlidingWindowLayer)
# Positions whose logits are held in float32 at once.
_CHUNK = 1024

Tokens = tuple[int, ...]


def cross_log_probs(
    model: torch.nn.Module,
    prompts: Sequence[Sequence[int]],
    reasonings: Sequence[Sequence[int]],
    *,
    max_tokens_per_forward: int = 8192,
    temperature: float = 1.0,
    rank: int = 0,
    world_size: int = 1,
    device: torch.device | str | None = None,
) -> torch.Tensor:
    """
    Log-probability of every reasoning when it follows every prompt (`log p(Z | X)` of the paper's section on
    mutual-information proxies).

    Each distinct prompt is encoded once, those of one length together, and all reasonings are scored on top of its
    key/value cache; identical prompts and identical reasonings are scored once. Models whose cache cannot be lent
    (linear attention, for example), with long RoPE, or with virtual tokens of PEFT, encode the prompt again for each
    reasoning, with the same result. Evaluation mode, no gradients; training mode, settings and random generators are
    left as they were.

    Args:
        model (`torch.nn.Module`):
            Causal language model of transformers, also with PEFT, or wrapped by DDP, FSDP or DeepSpeed.
        prompts (`Sequence[Sequence[int]]`):
            Token ids of the N prompts, at least one each.
        reasonings (`Sequence[Sequence[int]]`):
            Token ids of the NK reasonings, at least one each.
        max_tokens_per_forward (`int`, *optional*, defaults to `8192`):
            Most tokens, padding and cached prompts counted for each row, that one forward call works on. A single
            pair that is longer goes alone.
        temperature (`float`, *optional*, defaults to `1.0`):
            What the logits are divided by.
        rank (`int`, *optional*, defaults to `0`):
            Which of `world_size` parts of the prompts to score. All ranks must pass the same prompts and reasonings,
            and add up what they get.
        world_size (`int`, *optional*, defaults to `1`):
            Number of parts. Every rank calls the model equally often, so that sharded models never wait.
        device (`torch.device` or `str`, *optional*):
            Where the model takes its input. Defaults to where its first parameter is, which is not the same if
            parameters are offloaded.

    Returns:
        `torch.Tensor`: (NK, N) float64 on the CPU, natural logarithm summed over the tokens of the reasoning, in nats.
        Columns of other ranks are 0.

    Raises:
        ValueError: If a prompt or reasoning is empty, does not fit the model's context or vocabulary, or a setting is
            out of range; with the value, what is allowed, and what to do.
    """
    if isinstance(model, (DataParallel, DistributedDataParallel)):
        model = model.module  # nothing to synchronise without gradients, and scattering would tear the cache apart
    x, column_of = _distinct(prompts)
    z, row_of = _distinct(reasonings)
    _check_settings(max_tokens_per_forward, temperature, rank, world_size)
    _check_tokens(_language_model(model).config.get_text_config(decoder=True), prompts, reasonings)
    table = torch.zeros(len(z), len(x), dtype=torch.float64)
    if not table.numel():
        return table.new_zeros(len(row_of), len(column_of))
    with _undisturbed(model):
        scorer = _Scorer(model, z, temperature, device)
        groups = scorer.together(x, max_tokens_per_forward, world_size)
        plans = [scorer.plan(len(x[group[0]]), max_tokens_per_forward // len(group)) for group in groups]
        for i in range(rank, len(groups), world_size):
            table[:, groups[i]] = scorer.score([x[column] for column in groups[i]], plans[i])
        calls = [sum(map(scorer.calls, plans[other::world_size])) for other in range(world_size)]
        for _ in range(max(calls) - calls[rank]):
            scorer.logits([x[0][:1]], 1)
    return table[row_of][:, column_of]


class _Scorer:
    """
    Scores distinct reasonings, longest first, under one prompt after the other. The outermost module is what is
    called, as FSDP and DeepSpeed gather weights there.
    """

    def __init__(
        self, model: torch.nn.Module, reasonings: list[Tokens], temperature: float, device: torch.device | str | None
    ) -> None:
        self.model, self.language_model = model, _language_model(model)
        self.reasonings, self.temperature = reasonings, temperature
        self.device = next(model.parameters()).device if device is None else torch.device(device)
        peft = getattr(self.language_model, "active_peft_config", None)
        self.virtual_tokens = bool(peft is not None and peft.is_prompt_learning)
        base = self.language_model.get_base_model() if peft is not None else self.language_model
        self.accepted = inspect.signature(base.forward).parameters
        # Renamed in transformers 5.24.
        self.cache_name = next((name for name in ("cache", "past_key_values") if name in self.accepted), None)
        # Long RoPE has two sets of frequencies, and the longest position of a call decides which: cached keys may
        # have the wrong ones, and so may a row beside a longer one.
        modules = self.language_model.modules()
        self.by_length = any("longrope" in str(getattr(module, "rope_type", "")) for module in modules)
        self.shares = self._can_share()
        if not self.shares:
            logger.info(f"The cache of {type(base).__name__} cannot be lent: a prompt is encoded for each reasoning.")

    def together(self, prompts: list[Tokens], budget: int, world_size: int) -> list[range]:
        """
        Consecutive prompts of one length that are encoded in one call: as many as the budget allows with all
        reasonings on top, and no more than leave the other ranks their share.
        """
        groups: list[range] = []
        longest, start = len(self.reasonings[0]), 0
        while start < len(prompts):
            length = len(prompts[start])
            size = budget // (len(self.reasonings) * (length + longest - 1)) if self.shares else 1
            size = max(1, min(size, -(-len(prompts) // world_size)))
            end = start + 1
            while end < min(start + size, len(prompts)) and len(prompts[end]) == length:
                end += 1
            groups.append(range(start, end))
            start = end
        return groups

    def plan(self, prompt_length: int, budget: int) -> list[slice]:
        """Batches of reasonings that fit the budget under a prompt, cached or not."""
        # The first token's probability comes with the encoded prompt, and the last token is never fed.
        lengths = [len(reasoning) for reasoning in self.reasonings if len(reasoning) > 1 or not self.shares]
        batches, start = [], 0
        while start < len(lengths):
            size = max(1, budget // (prompt_length + lengths[start] - 1))
            size = min(size, lengths.count(lengths[start])) if self.by_length else size
            batches.append(slice(start, min(start + size, len(lengths))))
            start += size
        return batches

    def calls(self, plan: list[slice]) -> int:
        """Forward calls that a plan takes."""
        return len(plan) + self.shares

    def score(self, prompts: list[Tokens], plan: list[slice]) -> torch.Tensor:
        """Summed log-probabilities of the reasonings under prompts of one length, (NK, P) float64 on the CPU."""
        totals = torch.zeros(len(self.reasonings), len(prompts), dtype=torch.float64)
        cache = None
        if self.shares:
            cache = DynamicCache(config=self.language_model.config)
            log_probs = _precise(self.logits(prompts, 1, cache)[:, 0], self.temperature).log_softmax(-1)
            totals += log_probs.cpu()[:, [reasoning[0] for reasoning in self.reasonings]].double().T
            cache.layers = [_lend(layer) for layer in cache.layers]
        for batch in plan:
            rows = self.reasonings[batch]
            if cache is not None:
                inputs, targets = [row[:-1] for row in rows], [row[1:] for row in rows]
            else:
                inputs, targets = [prompts[0] + row[:-1] for row in rows], rows
            logits = self.logits(inputs * len(prompts), len(targets[0]), cache)
            summed = _summed_log_probs(logits, targets * len(prompts), self.temperature)
            totals[batch] += summed.view(len(prompts), -1).T
        return totals

    def logits(self, rows: list[Tokens], keep: int, cache: Any = None) -> torch.Tensor:
        """Logits at the last `keep` positions of the rows, padded on the right; (B, keep, V). The cache is filled."""
        past = 0 if cache is None else cache.get_seq_length()
        # Whatever stands behind a row: no token sees those after it. So no mask either, which fast kernels prefer.
        input_ids = _padded(rows, self.device)
        settings: dict[str, Any] = {"use_cache": cache is not None, "logits_to_keep": keep}
        if not self.virtual_tokens:  # PEFT counts positions itself
            positions = torch.arange(past, past + input_ids.shape[1], device=self.device)
            settings["position_ids"] = positions.expand(len(rows), -1)
        if self.cache_name and cache is not None:
            settings[self.cache_name] = cache
        settings = {name: value for name, value in settings.items() if name in self.accepted}
        # Sliced again for models without `logits_to_keep`.
        return self.model(input_ids=input_ids, **settings).logits[:, -keep:]

    def _can_share(self) -> bool:
        """Whether continuations may be scored on the cache of a prompt. All ranks ask, so that they agree."""
        if self.cache_name is None or self.virtual_tokens or self.by_length:
            return False
        cache = DynamicCache(config=self.language_model.config)
        if not all(type(layer) in _SHARABLE_LAYERS for layer in cache.layers):
            return False
        # The configuration only announces the layers; one token shows whether the model fills them.
        self.logits([self.reasonings[0][:1]], 1, cache)
        return all(type(layer) in _SHARABLE_LAYERS and layer.get_seq_length() == 1 for layer in cache.layers)


def _lend(layer: Any) -> Any:
    """
    A cache layer of a prompt that any number of continuations, and rows, can be put on, one call after the other. The
    prompt's keys and values are never changed, and copied for the rows only while the layer of the model is at work.
    """

    def update(keys: torch.Tensor, values: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        borrowed = copy.copy(layer)
        borrowed.keys, borrowed.values = (_for_rows(part, len(keys)) for part in (layer.keys, layer.values))
        return borrowed.update(keys, values, *args, **kwargs)

    lent = copy.copy(layer)
    lent.update = update
    return lent


def _for_rows(part: torch.Tensor, rows: int) -> torch.Tensor:
    """Keys or values of each prompt, for as many rows as there are continuations of it."""
    each = rows // len(part)
    return part.unsqueeze(1).expand(-1, each, *part.shape[1:]).flatten(0, 1)


def _summed_log_probs(logits: torch.Tensor, targets: list[Tokens], temperature: float) -> torch.Tensor:
    """Log-probabilities summed over the tokens of each row, (B,) float64 on the CPU, from (B, T, V) logits."""
    # Targets of -100 count as nothing. In float32 only some positions at a time: vocabularies are large.
    tokens = _padded(targets, logits.device, -100).flatten()
    losses = [
        F.cross_entropy(_precise(chunk, temperature), ids, reduction="none")
        for chunk, ids in zip(logits.flatten(0, 1).split(_CHUNK), tokens.split(_CHUNK), strict=True)
    ]
    return -torch.cat(losses).cpu().double().view(len(targets), -1).sum(dim=1)


def _precise(logits: torch.Tensor, temperature: float) -> torch.Tensor:
    return logits.to(torch.promote_types(logits.dtype, torch.float32)) / temperature


def _padded(rows: Sequence[Tokens], device: torch.device, value: int = 0) -> torch.Tensor:
    width = max(map(len, rows))
    return torch.tensor([row + (value,) * (width - len(row)) for row in rows], device=device)


def _distinct(rows: Sequence[Sequence[int]]) -> tuple[list[Tokens], list[int]]:
    """Distinct rows, longest first, and the place of each given row among them."""
    found = [tuple(int(token) for token in row) for row in rows]
    distinct = sorted(dict.fromkeys(found), key=len, reverse=True)
    place = {row: i for i, row in enumerate(distinct)}
    return distinct, [place[row] for row in found]


def _language_model(model: Any) -> Any:
    """What FSDP, DeepSpeed or `torch.compile` have wrapped."""
    for name in ("module", "_orig_mod"):
        if isinstance(inner := getattr(model, name, None), torch.nn.Module):
            return _language_model(inner)
    return model


@contextmanager
def _undisturbed(model: torch.nn.Module) -> Iterator[None]:
    """No gradients, no dropout; afterwards everything is as it was, also after an error."""
    # Set by hand and module by module: parts may differ, and some `eval` methods do more than that.
    training = [module for module in model.modules() if module.training]
    devices = {parameter.device for parameter in model.parameters() if parameter.device.type in ("cuda", "xpu")}
    kind = next((device.type for device in devices), "cuda")
    with torch.no_grad(), torch.random.fork_rng([device.index for device in devices], device_type=kind):
        try:
            for module in training:
                module.training = False
            yield
        finally:
            for module in training:
                module.training = True


def _check_settings(budget: int, temperature: float, rank: int, world_size: int) -> None:
    if budget < 1:
        raise ValueError(f"`max_tokens_per_forward` must be at least 1, got {budget}. 8192 suits most machines.")
    if not (math.isfinite(temperature) and temperature > 0):
        raise ValueError(f"`temperature` must be above 0, got {temperature}. Take that of the sampling, usually 1.0.")
    if not 0 <= rank < world_size:
        raise ValueError(
            f"`rank` must be in [0, world_size), got rank {rank} of {world_size}. Pass the process index and the "
            "number of processes."
        )


def _check_tokens(config: Any, prompts: Iterable[Sequence[int]], reasonings: Iterable[Sequence[int]]) -> None:
    """Before the model sees them: on a GPU an unknown token ends the process."""
    longest, vocabulary = [], getattr(config, "vocab_size", None) or math.inf
    for name, rows in (("prompts", prompts), ("reasonings", reasonings)):
        lengths = [len(row) for row in rows]
        if 0 in lengths:
            raise ValueError(
                f"`{name}[{lengths.index(0)}]` is empty; at least one token is needed. Leave out turns without "
                "reasoning, and let a prompt have at least its opening token."
            )
        for i, row in enumerate(rows):
            if min(row) < 0 or max(row) >= vocabulary:
                raise ValueError(
                    f"`{name}[{i}]` has token ids from {min(row)} to {max(row)}; the model knows 0 to "
                    f"{vocabulary - 1}. Do the ids come from the model's own tokenizer?"
                )
        longest.append(max(lengths, default=0))
    context = getattr(config, "max_position_embeddings", None) or math.inf
    if all(longest) and sum(longest) > context:
        raise ValueError(
            f"The longest prompt has {longest[0]} tokens and the longest reasoning {longest[1]}, {sum(longest)} "
            f"together; the model's context has {context}. Every reasoning is scored under every prompt: leave out "
            "the longest ones, or cut reasonings at the end."
        )
