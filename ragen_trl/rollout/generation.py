"""Backends that sample the next turn of many episodes at once."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from transformers import (
    GenerationConfig,
    LogitsProcessor,
    LogitsProcessorList,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    RepetitionPenaltyLogitsProcessor,
    StoppingCriteria,
    StoppingCriteriaList,
)

from .trajectory import Trajectory


@dataclass(frozen=True)
class Completion:
    """
    Sampled tokens of one turn.

    Args:
        token_ids (`list[int]`):
            Tokens as sampled, the one that ended the turn included.
        logprobs (`list[float]`):
            Log-probability of each token at the sampling temperature, in nats.
    """

    token_ids: list[int]
    logprobs: list[float]


def context_length(model: Any) -> int | None:
    """
    Positions that a model has, `None` if their number is not bounded.

    Args:
        model ([`~transformers.PreTrainedModel`]):
            Causal language model.
    """
    return getattr(model.config.get_text_config(), "max_position_embeddings", None)


class Generator(Protocol):
    """
    Samples the next turn of each trajectory, given `trajectory.context_ids`. It gets the trajectories themselves, so
    that a backend may keep caches for an episode.
    """

    def generate(self, trajectories: Sequence[Trajectory], max_new_tokens: Sequence[int]) -> list[Completion]: ...


class PolicyGenerator:
    """
    Lets a function write the turns, e.g. a scripted player, through the same loop and the same tokens as a model.

    Args:
        tokenizer ([`~transformers.PreTrainedTokenizerBase`]):
            Encodes what the function writes.
        policy (`Callable[[Trajectory], str]`):
            Text of the next turn, forced tag left out, end-of-turn token included if wanted.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase, policy: Callable[[Trajectory], str]) -> None:
        self._tokenizer = tokenizer
        self._policy = policy

    def generate(self, trajectories: Sequence[Trajectory], max_new_tokens: Sequence[int]) -> list[Completion]:
        completions = []
        for trajectory, limit in zip(trajectories, max_new_tokens, strict=True):
            ids = self._tokenizer(self._policy(trajectory), add_special_tokens=False)["input_ids"][:limit]
            completions.append(Completion(list(ids), [0.0] * len(ids)))
        return completions


class TransformersGenerator:
    """
    Samples with `generate` of a transformers model.

    Args:
        model_context (`Callable[[], AbstractContextManager[PreTrainedModel]]`):
            Opens the model for generation (unwrapped, weights gathered).
        tokenizer ([`~transformers.PreTrainedTokenizerBase`]):
            Tokenizer of the model.
        generation_config ([`~transformers.GenerationConfig`]):
            Sampling settings; its length limit is replaced by that of the turn.
        stop_ids (`Iterable[int | None]`, *optional*):
            Tokens that end a turn, besides those of `generation_config`; `None` is passed over.
        stop_string (`str`, *optional*, defaults to `""`):
            Text that ends a turn, the token that completes it included.
        keep_alive (`bool`, *optional*, defaults to `False`):
            Whether to run the model also when there is nothing to sample: sharded models wait for all ranks.
        defaults ([`~transformers.GenerationConfig`], *optional*):
            The model's own, which fills in what `generation_config` leaves open.

    Raises:
        ValueError: If a setting would sample from another distribution than the one recorded and trained.
    """

    def __init__(
        self,
        model_context: Callable[[], AbstractContextManager[PreTrainedModel]],
        tokenizer: PreTrainedTokenizerBase,
        generation_config: GenerationConfig,
        stop_ids: Iterable[int | None] = (),
        stop_string: str = "",
        keep_alive: bool = False,
        defaults: GenerationConfig | None = None,
    ) -> None:
        _refuse_other_distributions(generation_config, defaults)
        self._model_context = model_context
        self._tokenizer = tokenizer
        configured = generation_config.eos_token_id
        configured = configured if isinstance(configured, list) else [configured]
        self._stop_ids = sorted({int(i) for i in [*configured, *stop_ids] if i is not None})
        self._config = copy.deepcopy(generation_config)
        self._config.eos_token_id = self._stop_ids or None
        # `generate` would apply the penalty before what is recorded; 1.0 and not `None`, which means the model's own.
        self._repetition_penalty, self._config.repetition_penalty = self._config.repetition_penalty, 1.0
        self._stop = _StopString(tokenizer, stop_string) if stop_string else None
        self._keep_alive = keep_alive

    @torch.no_grad()
    def generate(self, trajectories: Sequence[Trajectory], max_new_tokens: Sequence[int]) -> list[Completion]:
        prompts = [trajectory.context_ids for trajectory in trajectories]
        if not prompts:
            if not self._keep_alive:
                return []
            prompts, max_new_tokens = [[self._stop_ids[0] if self._stop_ids else 0]], [1]
        with self._model_context() as model:
            sampled, logprobs = self._sample(model, prompts, max_new_tokens)
        completions = []
        for ids, values, limit in zip(sampled, logprobs, max_new_tokens, strict=True):
            length = self._turn_length(ids[:limit])
            completions.append(Completion(ids[:length], values[:length]))
        return completions[: len(trajectories)]

    def _sample(
        self, model: PreTrainedModel, prompts: list[list[int]], limits: Sequence[int]
    ) -> tuple[list[list[int]], list[list[float]]]:
        width = max(map(len, prompts))
        pad_id = self._tokenizer.pad_token_id
        input_ids = torch.tensor([[pad_id] * (width - len(p)) + p for p in prompts], device=model.device)
        mask = torch.tensor([[0] * (width - len(p)) + [1] * len(p) for p in prompts], device=model.device)
        recorder = _LogProbRecorder(width, self._config.temperature or 1.0)
        criteria: list[StoppingCriteria] = [_RowLimit(width, limits)]
        if self._stop is not None:
            criteria.append(self._stop.from_position(width))
        processors: list[LogitsProcessor] = [recorder]
        if self._repetition_penalty not in (None, 1.0):
            processors.append(RepetitionPenaltyLogitsProcessor(self._repetition_penalty))
        self._config.max_new_tokens = max(limits)
        output = model.generate(
            input_ids=input_ids,
            attention_mask=mask,
            generation_config=self._config,
            logits_processor=LogitsProcessorList(processors),
            stopping_criteria=StoppingCriteriaList(criteria),
        )
        return output[:, width:].tolist(), recorder.finish(output).tolist()

    def _turn_length(self, ids: list[int]) -> int:
        """Tokens up to the first that ends the turn, that one included."""
        for i, token in enumerate(ids):
            if token in self._stop_ids or (self._stop is not None and self._stop.completes(ids[: i + 1])):
                return i + 1
        return len(ids)


# Settings of `generate` that change what is sampled beyond temperature and truncation, and their harmless values.
_HARMLESS = {
    "num_beams": (1,),
    "num_return_sequences": (1,),
    "no_repeat_ngram_size": (0,),
    "min_length": (0,),
    "min_new_tokens": (0,),
    "guidance_scale": (1,),
    "suppress_tokens": ([],),
    "begin_suppress_tokens": ([],),
    "bad_words_ids": ([],),
    "sequence_bias": ({}, []),
    "forced_bos_token_id": (),
    "forced_eos_token_id": (),
    "exponential_decay_length_penalty": (),
}


def _refuse_other_distributions(config: GenerationConfig, defaults: GenerationConfig | None) -> None:
    for name, harmless in _HARMLESS.items():
        own = getattr(config, name, None)
        value = getattr(defaults, name, None) if own is None else own
        if value is not None and value not in harmless:
            where = f"`model.generation_config.{name}`" if own is None else f"`generation_kwargs[{name!r}]`"
            raise ValueError(
                f"{where} is {value!r}, which samples from another distribution than the one that is trained. Leave "
                "it out (set it to `None`)."
            )


class VLLMGenerator:
    """
    Samples with TRL's vLLM backend, which takes its sampling settings (temperature, tokens, stop string) at
    construction.

    Args:
        backend (`Any`):
            `trainer.vllm_generation`.
        filler_id (`int`, *optional*, defaults to `0`):
            Token of the prompts that make up for missing ones.
        largest (`Callable[[int], int]`, *optional*):
            Largest of the ranks' numbers. A vLLM shared by ranks (a server, tensor parallelism) takes the same number
            of prompts from each. Defaults to this rank's own number.
    """

    def __init__(self, backend: Any, filler_id: int = 0, largest: Callable[[int], int] | None = None) -> None:
        self._backend = backend
        self._filler_id = filler_id
        self._largest = largest or (lambda number: number)

    def generate(self, trajectories: Sequence[Trajectory], max_new_tokens: Sequence[int]) -> list[Completion]:
        prompts = [trajectory.context_ids for trajectory in trajectories]
        prompts += [[self._filler_id]] * (self._largest(len(prompts)) - len(prompts))
        if not prompts:
            return []
        # Contexts differ between members of a group after the first turn: each is a prompt of its own.
        _, token_ids, logprobs, _ = self._backend.generate(prompts=prompts, images=None, num_generations=1)
        number = len(trajectories)
        return [
            Completion(list(ids[:limit]), [position[0] for position in values[:limit]])
            for ids, values, limit in zip(token_ids[:number], logprobs[:number], max_new_tokens, strict=True)
        ]


class _LogProbRecorder(LogitsProcessor):
    """
    Keeps the log-probability of every sampled token without keeping the logits of more than one step.

    Custom processors run before temperature, top-k and top-p (and this one before the repetition penalty), so what is
    recorded is the policy's own distribution at the sampling temperature, as the trainer recomputes it.
    """

    def __init__(self, start: int, temperature: float) -> None:
        self._start = start
        self._temperature = temperature
        self._last: torch.Tensor | None = None
        self._columns: list[torch.Tensor] = []

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        self._collect(input_ids[:, -1])
        self._last = scores
        return scores

    def finish(self, sequences: torch.Tensor) -> torch.Tensor:
        """Log-probabilities of all sampled tokens, (B, T)."""
        self._collect(sequences[:, -1])
        return torch.stack(self._columns, dim=1)

    def _collect(self, token_ids: torch.Tensor) -> None:
        if self._last is not None:
            logits = self._last.float() / self._temperature
            chosen = logits.gather(1, token_ids.unsqueeze(1)).squeeze(1)
            self._columns.append((chosen - logits.logsumexp(dim=1)).cpu())


class _RowLimit(StoppingCriteria):
    """Ends each row at its own number of tokens."""

    def __init__(self, start: int, limits: Sequence[int]) -> None:
        self._ends = torch.tensor([start + limit for limit in limits])

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor, **kwargs: Any) -> torch.Tensor:
        return (input_ids.shape[1] >= self._ends).to(input_ids.device)


class _StopString:
    """
    Finds the token that completes a string, whatever the tokenizer.

    Only rows whose newest token contains the string's last character are decoded, so the cost does not depend on the
    size of the vocabulary.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase, text: str) -> None:
        self._tokenizer = tokenizer
        self._text = text
        pieces = tokenizer.batch_decode([[i] for i in range(len(tokenizer))], clean_up_tokenization_spaces=False)
        # Special tokens are no part of the string, and finished rows are filled up with them.
        special = {i for i in tokenizer.all_special_ids if text not in pieces[i]}
        self._candidates = torch.tensor([i for i, p in enumerate(pieces) if text[-1] in p and i not in special])
        self._candidate_ids = frozenset(self._candidates.tolist())
        # Every token before the last adds at least one byte of the string, so this many tokens hold all of it.
        self._span = len(text.encode()) + 1

    def completes(self, ids: Sequence[int]) -> bool:
        """Whether the last of `ids` completes the string."""
        if not ids or ids[-1] not in self._candidate_ids:
            return False
        tail = list(ids[-self._span :])
        return self._text in self._decode(tail) and self._text not in self._decode(tail[:-1])

    def from_position(self, start: int) -> StoppingCriteria:
        """Criterion over the tokens from `start` on."""
        outer = self

        class Criterion(StoppingCriteria):
            def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor, **kwargs: Any) -> torch.Tensor:
                done = torch.isin(input_ids[:, -1], outer._candidates.to(input_ids.device))
                for row in done.nonzero().flatten().tolist():
                    done[row] = outer.completes(input_ids[row, start:][-outer._span :].tolist())
                return done

        return Criterion()

    def _decode(self, ids: list[int]) -> str:
        return str(self._tokenizer.decode(ids, skip_special_tokens=False, clean_up_tokenization_spaces=False))
