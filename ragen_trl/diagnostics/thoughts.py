"""Finding the reasoning in what was sampled, and drawing samples of it for the diagnostics: pure functions."""

from __future__ import annotations

import bisect
import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any


# Around the reasoning; `None` in their place takes the whole turn for reasoning.
Tags = tuple[str, str]
# Tokens at the end of a context that may hold a forced opening tag, whatever the tokenizer makes of it.
_TAIL = 16


@dataclass(frozen=True)
class Thought:
    """
    Reasoning and what it was sampled under.

    Args:
        context_ids (`tuple[int, ...]`):
            Every token the model saw before it, the opening tag included.
        reasoning_ids (`tuple[int, ...]`):
            Sampled tokens between the tags.
        before (`tuple[int, ...]`, *optional*):
            The part of the context that was there before the turn. Contexts that differ only in what was sampled
            before the reasoning are of one prompt. Defaults to the context.
    """

    context_ids: tuple[int, ...]
    reasoning_ids: tuple[int, ...]
    before: tuple[int, ...] | None = None

    @property
    def prompt(self) -> tuple[int, ...]:
        """What tells prompts apart."""
        return self.context_ids if self.before is None else self.before


def sampled_spans(mask: Sequence[int]) -> list[tuple[int, int]]:
    """
    Borders of the turns in a completion: runs of sampled tokens.

    Args:
        mask (`Sequence[int]`):
            1 for sampled tokens, 0 for observations, tool results and padding.
    """
    edges = [i for i in range(len(mask) + 1) if (mask[i - 1] if i else 0) != (mask[i] if i < len(mask) else 0)]
    return list(zip(edges[::2], edges[1::2], strict=True))


def find_reasoning(
    tokenizer: Any, context_ids: Sequence[int], token_ids: Sequence[int], tags: Tags | None
) -> tuple[int, int] | None:
    """
    Where in a turn the reasoning is.

    Args:
        tokenizer ([`~transformers.PreTrainedTokenizerBase`]):
            Tokenizer of the ids.
        context_ids (`Sequence[int]`):
            Everything before the turn. It may end with the opening tag.
        token_ids (`Sequence[int]`):
            Sampled tokens of the turn.
        tags (`tuple[str, str]`, *optional*):
            What stands before and after the reasoning. `None` takes the whole turn.

    Returns:
        `tuple[int, int]` or `None`: First token, and the one after the last; `None` without a closed block that holds
        a token. A token that holds a part of a tag is not counted as reasoning.
    """
    if tags is None:
        return (0, len(token_ids)) if token_ids else None

    borders = reasoning_borders(tokenizer, context_ids, token_ids, tags)
    if borders is None:
        return None
    lengths = _Lengths(tokenizer, token_ids)
    start = bisect.bisect_left(lengths, borders[0])
    end = bisect.bisect_right(lengths, borders[1]) - 1
    return (start, end) if end > start else None


class _Lengths(Sequence[int]):
    """Length of the text of the first tokens, worked out where it is asked for."""

    def __init__(self, tokenizer: Any, token_ids: Sequence[int]) -> None:
        self._tokenizer, self._ids = tokenizer, token_ids

    def __len__(self) -> int:
        return len(self._ids) + 1

    def __getitem__(self, i: Any) -> Any:
        # An unfinished character may decode to several marks of replacement.
        return len(_text(self._tokenizer, self._ids[:i]).rstrip("\ufffd")) if i else 0


def _text(tokenizer: Any, ids: Sequence[int]) -> str:
    return str(tokenizer.decode(list(ids), skip_special_tokens=False, clean_up_tokenization_spaces=False))


def reasoning_borders(
    tokenizer: Any, context_ids: Sequence[int], token_ids: Sequence[int], tags: Tags
) -> tuple[int, int] | None:
    """
    Where in the text of a turn the reasoning is, in characters; `None` without a closed block that holds more than
    blanks.

    Args:
        tokenizer ([`~transformers.PreTrainedTokenizerBase`]):
            Tokenizer of the ids.
        context_ids (`Sequence[int]`):
            Everything before the turn. It may end with the opening tag.
        token_ids (`Sequence[int]`):
            Sampled tokens of the turn.
        tags (`tuple[str, str]`):
            What stands before and after the reasoning.
    """
    text, start = _text(tokenizer, token_ids), 0
    if not _text(tokenizer, context_ids[-_TAIL:]).rstrip().endswith(tags[0]):
        opening = text.find(tags[0])
        if opening < 0:
            return None
        start = opening + len(tags[0])
    end = text.find(tags[1], start)
    return (start, end) if end > start and text[start:end].strip() else None


def fitting(thoughts: Sequence[Thought], context_length: int | None) -> list[Thought]:
    """
    As many thoughts as can be scored under all contexts of each other: every context leaves room for every reasoning.

    Args:
        thoughts (`Sequence[Thought]`):
            Thoughts drawn.
        context_length (`int`, *optional*):
            Tokens that the model can attend to, if bounded.
    """
    if context_length is None:
        return list(thoughts)
    fits = [
        [t for t in thoughts if len(t.reasoning_ids) <= longest and len(t.context_ids) <= context_length - longest]
        for longest in sorted({len(thought.reasoning_ids) for thought in thoughts})
    ]
    return max(fits, key=len, default=[])


def draw_first_turns(valid: Sequence[Sequence[int]], number: int, rng: random.Random) -> list[tuple[int, int]]:
    """
    Distinct rollouts with a valid first turn, uniformly without replacement.

    Args:
        valid (`Sequence[Sequence[int]]`):
            Numbers of the turns with reasoning, of each rollout.
        number (`int`):
            How many to draw, or all there are.
        rng (`random.Random`):
            Source of chance.

    Returns:
        `list[tuple[int, int]]`: Rollouts and turns.
    """
    rows = [i for i, turns in enumerate(valid) if 0 in turns]
    return [(row, 0) for row in sorted(rng.sample(rows, min(number, len(rows))))]


def draw_turns(valid: Sequence[Sequence[int]], number: int, rng: random.Random) -> list[tuple[int, int]]:
    """
    Turns drawn with replacement: a rollout that has any, uniformly, and one of its turns, uniformly.

    Args:
        valid (`Sequence[Sequence[int]]`):
            Numbers of the turns with reasoning, of each rollout.
        number (`int`):
            How many to draw, at most as many as there are turns.
        rng (`random.Random`):
            Source of chance.

    Returns:
        `list[tuple[int, int]]`: Rollouts and turns.
    """
    rows = [i for i, turns in enumerate(valid) if turns]
    total = sum(map(len, valid))
    picked = [rng.choice(rows) for _ in range(min(number, total))]
    return [(row, rng.choice(valid[row])) for row in picked]
