"""Drawing Sokoban levels from a generator."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import numpy as np

from .sokoban_levels import MOVES, Level
from .sokoban_search import Retrograde, play_backwards


Layout = Literal["carved", "open"]
Generation = Literal["placed", "reverse"]

# The walk that carves a board: steps per unit of half perimeter, chance of a new direction, and the shapes it carves.
_WALK_FACTOR = 1.7
_TURN_CHANCE = 0.35
_STAMPS: tuple[tuple[tuple[int, int], ...], ...] = (
    ((0, -1), (0, 0), (0, 1)),
    ((-1, 0), (0, 0), (1, 0)),
    ((0, -1), (0, 0), (1, 0)),
    ((0, -1), (0, 0), (1, -1), (1, 0)),
    ((0, 0), (0, 1), (1, 0)),
)
# Starts tried on a board that has been played backwards, which costs more than all of these together.
_PICKS = 32


def draw_level(rng: np.random.Generator, size: tuple[int, int], num_boxes: int, layout: Layout) -> Level | None:
    """
    Draw a board and place targets, boxes and player on it. Nothing promises yet that it can be solved.

    Args:
        rng (`np.random.Generator`):
            Source of all randomness.
        size (`tuple[int, int]`):
            Rows and columns, border included.
        num_boxes (`int`):
            Boxes, and as many targets. No box starts on a target.
        layout (`str`):
            `"carved"` by a random walk, or `"open"`: the whole interior is floor.

    Returns:
        `Level` or `None`: The level; `None` when the carved board is too small for it.
    """
    rows, cols = size
    floor = _draw_floor(rng, rows, cols, layout)
    if len(floor) < 2 * num_boxes + 1:
        return None
    free = list(floor)
    targets = [free.pop(int(rng.integers(len(free)))) for _ in range(num_boxes)]
    boxes = [free.pop(int(rng.integers(len(free)))) for _ in range(num_boxes)]
    # The player may stand on a target.
    free = sorted(free + targets)
    player = free[int(rng.integers(len(free)))]
    walls = frozenset(range(rows * cols)) - frozenset(floor)
    return Level(rows, cols, walls, frozenset(targets), frozenset(boxes), player)


def draw_played_back(
    rng: np.random.Generator, size: tuple[int, int], num_boxes: int, layout: Layout, max_length: int
) -> Retrograde | None:
    """
    Draw a solved board and play it backwards, which gives its starts with their exact lengths, see [`pick_start`].

    Args:
        rng (`np.random.Generator`):
            Source of all randomness.
        size (`tuple[int, int]`):
            Rows and columns, border included.
        num_boxes (`int`):
            Boxes, and as many targets.
        layout (`str`):
            `"carved"` or `"open"`, as for [`draw_level`].
        max_length (`int`):
            Longest shortest solution of interest.

    Returns:
        `Retrograde` or `None`: Positions by the length of their shortest solution; `None` when the carved board is too
        small.
    """
    rows, cols = size
    floor = _draw_floor(rng, rows, cols, layout)
    if len(floor) < 2 * num_boxes + 1:
        return None
    targets = frozenset(int(cell) for cell in rng.choice(floor, num_boxes, replace=False))
    walls = frozenset(range(rows * cols)) - frozenset(floor)
    return play_backwards(Level(rows, cols, walls, targets, targets, floor[0]), max_length)


def pick_start(
    rng: np.random.Generator, found: Retrograde, min_length: int, accept: Callable[[Level], bool]
) -> tuple[Level, list[str]] | None:
    """
    Draw a length of those that a board offers, all equally likely, and then a start of that length.

    Args:
        rng (`np.random.Generator`):
            Source of all randomness.
        found (`Retrograde`):
            Positions of the board.
        min_length (`int`):
            Shortest shortest solution of interest.
        accept (`Callable[[Level], bool]`):
            Whether a start can be used.

    Returns:
        `tuple[Level, list[str]]` or `None`: A start without a box on a target and its shortest solution; `None` when
        none fits.
    """
    starts = [layer for length in range(min_length, len(found.layers)) if (layer := found.clear(length))]
    if not starts:
        return None
    layer = starts[int(rng.integers(len(starts)))]
    for number in rng.integers(len(layer), size=_PICKS):
        if accept(level := found.level(layer[number])):
            return level, found.plan(layer[number])
    return None


def _draw_floor(rng: np.random.Generator, rows: int, cols: int, layout: Layout) -> list[int]:
    if layout == "carved":
        return sorted(_carve(rng, rows, cols))
    return [row * cols + col for row in range(1, rows - 1) for col in range(1, cols - 1)]


def _carve(rng: np.random.Generator, rows: int, cols: int) -> set[int]:
    directions = list(MOVES.values())
    row, col = int(rng.integers(1, rows - 1)), int(rng.integers(1, cols - 1))
    direction = directions[int(rng.integers(4))]
    floor: set[int] = set()
    for _ in range(int(_WALK_FACTOR * (rows + cols))):
        if rng.random() < _TURN_CHANCE:
            direction = directions[int(rng.integers(4))]
        row = min(max(row + direction[0], 1), rows - 2)
        col = min(max(col + direction[1], 1), cols - 2)
        for down, right in _STAMPS[int(rng.integers(len(_STAMPS)))]:
            if 1 <= row + down <= rows - 2 and 1 <= col + right <= cols - 2:
                floor.add((row + down) * cols + col + right)
    return floor
