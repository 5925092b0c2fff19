"""Spreading the rows that a filter kept over micro-batches and ranks: pure functions on numbers and tensors."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import torch
from trl.trainer.utils import split_pixel_values_by_grid, unsplit_pixel_values_by_grid


# One row: its part of every column of a batch, without padding.
Row = dict[str, Any]
# Micro-steps, ranks, rows; `None` is a row that only makes up the number.
Plan = list[list[list[int | None]]]

# Columns that reach over prompt and completion.
_JOINT = ("token_type_ids", "mm_token_type_ids")
_BY_TOKEN = ("completion_ids", "completion_mask", "tool_mask")


def plan_rows(
    kept: Sequence[int], *, world_size: int, rows_per_rank: int, windows: int, window_steps: int, seed: int
) -> Plan:
    """
    Decide which rank handles which row in which micro-step. Every rank makes the same plan from the same arguments.

    Ranks get equal numbers of rows, give or take one, and keep their own where they can. The order of rows is random.
    A window ends with its real micro-steps: those left over come first and are empty on all ranks.

    Args:
        kept (`Sequence[int]`):
            Rows of the whole batch that were kept; rank `r` holds the rows from `r * rows_per_rank` on.
        world_size (`int`):
            Ranks.
        rows_per_rank (`int`):
            Rows of a rank before the filter.
        windows (`int`):
            Parts of the plan that are normalised on their own; rows are spread evenly over them.
        window_steps (`int`):
            Micro-steps of a window.
        seed (`int`):
            Seed of the order.

    Returns:
        `list[list[list[int | None]]]`: Row numbers by micro-step and rank, as many for each rank of a micro-step.
        `None` makes up the number on ranks that have a row less.
    """
    order = list(kept)
    random.Random(seed).shuffle(order)
    queues = _balanced(order, world_size, rows_per_rank)
    slots = max(map(len, queues))
    queues = [queue + [None] * (slots - len(queue)) for queue in queues]
    per_step = rows_per_rank // (windows * window_steps)
    plan: Plan = []
    for window in range(windows):
        start, end = _part(slots, window, windows)
        steps = -(-(end - start) // per_step)
        plan += [[[] for _ in queues]] * (window_steps - steps)
        for step in range(steps):
            low, high = _part(end - start, step, steps)
            plan.append([queue[start + low : start + high] for queue in queues])
    return plan


def _part(number: int, part: int, parts: int) -> tuple[int, int]:
    """Borders of one of several parts of as equal a size as can be."""
    return number * part // parts, number * (part + 1) // parts


def _balanced(order: list[int], world_size: int, rows_per_rank: int) -> list[list[int | None]]:
    """Rows of each rank: its own as far as its share goes, then what others have too many of."""
    own: list[list[int]] = [[] for _ in range(world_size)]
    for row in order:
        own[row // rows_per_rank].append(row)
    larger = sorted(range(world_size), key=lambda rank: -len(own[rank]))[: len(order) % world_size]
    shares = [len(order) // world_size + (rank in larger) for rank in range(world_size)]
    spare = [row for rows, share in zip(own, shares, strict=True) for row in rows[share:]]
    queues: list[list[int | None]] = []
    for rows, share in zip(own, shares, strict=True):
        missing = max(share - len(rows), 0)
        queues.append([*rows[:share], *spare[:missing]])
        spare = spare[missing:]
    return queues


def split_rows(batch: dict[str, Any]) -> list[Row]:
    """
    Rows of one of TRL's batches, without the columns that are padding for them. Scalars that belong to the batch as a
    whole are left out.

    Args:
        batch (`dict[str, Any]`):
            Batch of the trainer; `prompt_ids` (B, P), `completion_ids` (B, C) and what goes with them.
    """
    batch = split_pixel_values_by_grid(batch)
    number, prompt_width = batch["prompt_ids"].shape
    width = batch["completion_ids"].shape[1]
    columns = {k: v for k, v in batch.items() if isinstance(v, list) or (torch.is_tensor(v) and v.dim() > 0)}
    rows = []
    for i in range(number):
        first = _first_used(batch["prompt_mask"][i])
        last = width - _first_used(batch["completion_mask"][i].flip(0))
        row: Row = {}
        for name, values in columns.items():
            value = values[i]
            if isinstance(values, list):  # of any things, among them images of a number and size of their own
                value = [value]
            elif name.startswith("prompt_"):
                value = value[first:]
            elif name in _JOINT:
                value = (value[first:prompt_width], value[prompt_width : prompt_width + last])
            elif values.dim() == 2 and values.shape[1] == width and (width > 1 or name in _BY_TOKEN):
                value = value[:last]
            row[name] = value
        rows.append(row)
    return rows


def _first_used(mask: torch.Tensor) -> int:
    """First position that is used, or the last one if none is: no row is empty."""
    used = mask.nonzero()
    return int(used[0]) if len(used) else len(mask) - 1


def blank(row: Row, hide_prompt: bool = True) -> Row:
    """
    A row that makes up the number: nothing of it reaches a loss.

    Args:
        row (`dict[str, Any]`):
            Row of any content.
        hide_prompt (`bool`, *optional*, defaults to `True`):
            Whether the prompt is masked too, so that a router loss, which is over all tokens, leaves it out. Where
            there is no other row that loss has to have some tokens, lest it divides by zero.
    """
    silent = ("completion_mask", "tool_mask", "advantages", *(("prompt_mask",) if hide_prompt else ()))
    return {**row, **{name: torch.zeros_like(row[name]) for name in silent if name in row}}


def join_rows(rows: Sequence[Row], pad_token_id: int, multiple_of: int | None = None) -> dict[str, Any]:
    """
    A batch of rows, padded as TRL does: prompts on the left, completions on the right.

    Args:
        rows (`Sequence[dict[str, Any]]`):
            Rows as [`split_rows`] gives them.
        pad_token_id (`int`):
            Fills up ids; ratios are filled up with ones, everything else with zeros.
        multiple_of (`int`, *optional*):
            Widths of prompts and of completions are multiples of this.
    """
    width = max(len(row["completion_ids"]) for row in rows)
    batch: dict[str, Any] = {}
    for name, first in rows[0].items():
        values = [row[name] for row in rows]
        if isinstance(first, list):
            batch[name] = [item for value in values for item in value]
        elif isinstance(first, tuple):
            left, right = ([value[side] for value in values] for side in (0, 1))
            batch[name] = torch.cat([_stack(left, 0, multiple_of, left=True), _stack(right, 0, multiple_of)], dim=1)
        else:
            on_left = name.startswith("prompt_")
            by_token = on_left or name in _BY_TOKEN or (width > 1 and max(map(_length, values)) == width)
            fill = {"prompt_ids": pad_token_id, "completion_ids": pad_token_id, "importance_sampling_ratio": 1}.get(
                name, 0
            )
            batch[name] = _stack(values, fill, multiple_of if by_token else None, left=on_left)
    return unsplit_pixel_values_by_grid(batch)


def _length(value: torch.Tensor) -> int:
    return len(value) if value.dim() == 1 else 0


def _stack(values: list[torch.Tensor], fill: int, multiple_of: int | None, left: bool = False) -> torch.Tensor:
    sizes = [max(lengths) for lengths in zip(*(value.shape for value in values), strict=True)]
    if multiple_of and sizes:
        sizes[0] = -(-sizes[0] // multiple_of) * multiple_of
    stacked = values[0].new_full((len(values), *sizes), fill)
    for target, value in zip(stacked, values, strict=True):
        where = [slice(length) for length in value.shape]
        if left:
            where[0] = slice(sizes[0] - len(value), None)
        target[tuple(where)] = value
    return stacked
