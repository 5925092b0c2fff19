"""Which reasonings of a batch of rollouts are looked at: between rollouts and scores, on one rank or several."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from accelerate.utils import gather_object

from ..rollout.batch import RolloutBatch
from ..rollout.protocol import THINK_CLOSE, THINK_OPEN
from .mutual_information import MarginalStdEMA, mutual_information_metrics
from .thoughts import Tags, Thought, find_reasoning, reasoning_borders, sampled_spans


TAGS: Tags = (THINK_OPEN, THINK_CLOSE)


@dataclass(frozen=True)
class Survey:
    """
    The turns of a batch and which of them hold reasoning. A rank has its own rows and knows the counts of all.

    Args:
        rollouts ([`~ragen_trl.rollout.RolloutBatch`]):
            Rollouts of this rank.
        tokenizer ([`~transformers.PreTrainedTokenizerBase`]):
            Tokenizer of their ids.
        tags (`tuple[str, str]`, *optional*):
            What stands around the reasoning; `None` takes whole turns.
        turns (`list[list[tuple[int, int]]]`):
            Borders of the turns of each rollout of this rank.
        valid (`list[list[int]]`):
            Numbers of the turns with reasoning, of each rollout of all ranks.
        counts (`list[int]`):
            Turns of each rollout of all ranks.
        first (`int`):
            Place of this rank's first rollout among all.
    """

    rollouts: RolloutBatch
    tokenizer: Any
    tags: Tags | None
    turns: list[list[tuple[int, int]]]
    valid: list[list[int]]
    counts: list[int]
    first: int

    @property
    def valid_rate(self) -> float:
        """Share of the turns that hold reasoning."""
        return sum(map(len, self.valid)) / max(sum(self.counts), 1)

    @property
    def first_valid_rate(self) -> float:
        """Share of the first turns that hold reasoning."""
        played = [valid for valid, count in zip(self.valid, self.counts, strict=True) if count]
        return sum(0 in valid for valid in played) / max(len(played), 1)

    def thoughts(self, drawn: Sequence[tuple[int, int]]) -> list[Thought]:
        """
        The reasonings of some turns, from the ranks that have them, in the order given, the same on all ranks.

        Args:
            drawn (`Sequence[tuple[int, int]]`):
                Rollouts, counted over all ranks, and turns.
        """
        own: list[tuple[int, Thought]] = []
        for place, (row, turn) in enumerate(drawn):
            row -= self.first
            if not 0 <= row < len(self.turns):
                continue
            start, end = self.turns[row][turn]
            context = _context(self.rollouts, row, start)
            ids = self.rollouts.completion_ids[row][start:end]
            found = find_reasoning(self.tokenizer, context, ids, self.tags)
            if found is not None:
                reasoning = tuple(ids[found[0] : found[1]])
                own.append((place, Thought(tuple(context + ids[: found[0]]), reasoning, tuple(context))))
        return [thought for _, thought in sorted(gather_object(own), key=lambda pair: pair[0])]


def survey(
    rollouts: RolloutBatch, tokenizer: Any, rank: int = 0, enable_think: bool = True, tags_seen: bool = False
) -> Survey:
    """
    Look through a batch of rollouts for reasoning. Called on all ranks together.

    Args:
        rollouts ([`~ragen_trl.rollout.RolloutBatch`]):
            Rollouts of this rank, as many on each.
        tokenizer ([`~transformers.PreTrainedTokenizerBase`]):
            Tokenizer of their ids.
        rank (`int`, *optional*, defaults to `0`):
            This rank.
        enable_think (`bool`, *optional*, defaults to `True`):
            Whether episodes are played with a thinking block. Of other rollouts the tags are used where any of them
            has a closed block.
        tags_seen (`bool`, *optional*, defaults to `False`):
            Whether earlier rollouts of the run had one: then whole turns are no reasoning where all have lost it.
    """
    turns = [sampled_spans(flags) for flags in rollouts.sampled]
    rows = range(len(turns))
    tags: Tags | None = TAGS
    if rollouts.trajectories is not None:
        tags = TAGS if enable_think else None
    elif not tags_seen and not any(gather_object([any(_valid(rollouts, tokenizer, i, turns[i], TAGS) for i in rows)])):
        tags = None
    valid = gather_object([_valid(rollouts, tokenizer, i, turns[i], tags) for i in rows])
    counts = gather_object([_played(rollouts, i, turns[i]) for i in rows])
    return Survey(rollouts, tokenizer, tags, turns, valid, counts, rank * len(turns))


def thought_metrics(
    thoughts: Sequence[Thought],
    cross_log_probs: Callable[[list[tuple[int, ...]], list[tuple[int, ...]]], torch.Tensor],
    *,
    distinct_prompts: bool,
    length_normalization: str = "after_mix",
    ema: MarginalStdEMA | None = None,
) -> dict[str, float]:
    """
    Metrics of some reasonings, each scored under the contexts of all.

    Args:
        thoughts (`Sequence[Thought]`):
            Reasonings with their contexts.
        cross_log_probs (`Callable`):
            Gives the (NK, N) matrix for contexts and reasonings.
        distinct_prompts (`bool`):
            Whether each distinct context is one column, or the context of each reasoning one of its own.
        length_normalization (`str`, *optional*, defaults to `"after_mix"`):
            As in [`mutual_information_metrics`].
        ema ([`MarginalStdEMA`], *optional*):
            As in [`mutual_information_metrics`].

    Returns:
        `dict[str, float]`: As of [`mutual_information_metrics`]; the counters alone with fewer than two prompts.
    """
    prompt_of = {thought.context_ids: thought.prompt for thought in thoughts}
    num_prompts = len(set(prompt_of.values()))
    if num_prompts < 2:
        return {"num_reasonings": float(len(thoughts)), "num_prompts": float(num_prompts)}
    contexts, own = columns(thoughts, distinct_prompts)
    return mutual_information_metrics(
        cross_log_probs(contexts, [thought.reasoning_ids for thought in thoughts]),
        torch.tensor([len(thought.reasoning_ids) for thought in thoughts]),
        torch.tensor(own),
        column_signatures=[prompt_of[context] for context in contexts],
        length_normalization=length_normalization,
        ema=ema,
    )


def columns(thoughts: Sequence[Thought], distinct_prompts: bool) -> tuple[list[tuple[int, ...]], list[int]]:
    """
    Contexts that reasonings are scored under, and the place of each reasoning's own.

    Args:
        thoughts (`Sequence[Thought]`):
            Reasonings with their contexts.
        distinct_prompts (`bool`):
            As in [`thought_metrics`].
    """
    contexts = [thought.context_ids for thought in thoughts]
    if not distinct_prompts:
        return contexts, list(range(len(contexts)))
    place = {context: i for i, context in enumerate(dict.fromkeys(contexts))}
    return list(place), [place[context] for context in contexts]


def _context(rollouts: RolloutBatch, row: int, start: int) -> list[int]:
    return rollouts.prompt_ids[row] + rollouts.completion_ids[row][:start]


def _played(rollouts: RolloutBatch, row: int, turns: list[tuple[int, int]]) -> int:
    """Turns of a rollout; those count too that are masked because they were cut."""
    if rollouts.trajectories is not None:
        return 0 if rollouts.trajectories[row].failed else len(rollouts.trajectories[row].turns)
    return max(len(turns), 1)


def _valid(
    rollouts: RolloutBatch, tokenizer: Any, row: int, turns: list[tuple[int, int]], tags: Tags | None
) -> list[int]:
    """Numbers of the turns of a rollout that hold reasoning."""
    if tags is None:
        return list(range(len(turns)))
    if rollouts.trajectories is not None:  # has been read already
        return [i for i, turn in enumerate(rollouts.trajectories[row].turns[: len(turns)]) if turn.reasoning]
    return [
        i
        for i, (start, end) in enumerate(turns)
        if reasoning_borders(tokenizer, _context(rollouts, row, start), rollouts.completion_ids[row][start:end], tags)
    ]
