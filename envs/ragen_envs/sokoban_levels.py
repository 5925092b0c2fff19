"""Sokoban levels: drawing them from a generator and solving them exactly. Pure functions on small boards."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np


Layout = Literal["carved", "open"]

MOVES: dict[str, tuple[int, int]] = {"Up": (-1, 0), "Down": (1, 0), "Left": (0, -1), "Right": (0, 1)}

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
# Positions a search may visit. Every position of the shipped boards fits many times over; larger boards stay bounded.
_MAX_POSITIONS = 200_000


@dataclass(frozen=True)
class Level:
    """
    Position on a board. A cell is `row * cols + col`.

    Args:
        rows (`int`):
            Rows, border included.
        cols (`int`):
            Columns, border included.
        walls (`frozenset[int]`):
            Wall cells, the border among them.
        targets (`frozenset[int]`):
            Cells that boxes have to reach.
        boxes (`frozenset[int]`):
            Cells with a box.
        player (`int`):
            Cell of the player.
    """

    rows: int
    cols: int
    walls: frozenset[int]
    targets: frozenset[int]
    boxes: frozenset[int]
    player: int

    @property
    def solved(self) -> bool:
        """Whether every box is on a target."""
        return self.boxes == self.targets


def push(walls: frozenset[int], boxes: frozenset[int], player: int, offset: int) -> tuple[int, frozenset[int]]:
    """
    Carry out one move: step, or push the box in the way.

    Args:
        walls (`frozenset[int]`):
            Wall cells.
        boxes (`frozenset[int]`):
            Cells with a box.
        player (`int`):
            Cell of the player.
        offset (`int`):
            Difference between the cell ahead and the player's.

    Returns:
        `tuple[int, frozenset[int]]`: Player and boxes afterwards; the same objects when the move is blocked.
    """
    ahead = player + offset
    if ahead in walls:
        return player, boxes
    if ahead not in boxes:
        return ahead, boxes
    beyond = ahead + offset
    if beyond in walls or beyond in boxes:
        return player, boxes
    return ahead, (boxes - {ahead}) | {beyond}


def shortest_plan(level: Level, max_length: int | None = None) -> list[str] | None:
    """
    Shortest sequence of moves that solves a position.

    Args:
        level (`Level`):
            Position to solve.
        max_length (`int`, *optional*):
            Longest plan of interest.

    Returns:
        `list[str]` or `None`: The moves, empty for a solved position; `None` when there is no plan (within the length,
        or within the 200,000 positions that are searched).
    """
    return search(level, max_length)[0]


def search(level: Level, max_length: int | None = None) -> tuple[list[str] | None, int]:
    """
    [`shortest_plan`] with its cost, by breadth-first search over player and boxes.

    Args:
        level (`Level`):
            Position to solve.
        max_length (`int`, *optional*):
            Longest plan of interest.

    Returns:
        `tuple[list[str] | None, int]`: The plan and the number of positions visited for it.
    """
    if level.solved:
        return [], 0
    offsets = [(name, row * level.cols + col) for name, (row, col) in MOVES.items()]
    live = _live_cells(level.walls, level.targets, [offset for _, offset in offsets])
    if not level.boxes <= live:
        return None, 0
    start = (level.player, level.boxes)
    came_from: dict[tuple[int, frozenset[int]], tuple[tuple[int, frozenset[int]], str] | None] = {start: None}
    frontier = [start]
    length = 0
    while frontier and len(came_from) <= _MAX_POSITIONS and (max_length is None or length < max_length):
        length += 1
        reached = []
        for position in frontier:
            player, boxes = position
            for name, offset in offsets:
                following = push(level.walls, boxes, player, offset)
                # Only the box just pushed, if any, can have left the live cells: it lies ahead of the player.
                if following in came_from or (following[1] is not boxes and following[0] + offset not in live):
                    continue
                came_from[following] = (position, name)
                if following[1] == level.targets:
                    return _trace(came_from, following), len(came_from)
                reached.append(following)
        frontier = reached
    return None, len(came_from)


def _live_cells(walls: frozenset[int], targets: frozenset[int], offsets: list[int]) -> set[int]:
    # Cells from which a lone box can reach a target, found by pulling boxes away from the targets. A box anywhere else
    # can never be brought home, so the search need not look at such positions.
    live = set(targets)
    frontier = list(targets)
    while frontier:
        cell = frontier.pop()
        for offset in offsets:
            pulled = cell + offset
            if pulled not in live and pulled not in walls and pulled + offset not in walls:
                live.add(pulled)
                frontier.append(pulled)
    return live


def _trace(
    came_from: dict[tuple[int, frozenset[int]], tuple[tuple[int, frozenset[int]], str] | None],
    position: tuple[int, frozenset[int]],
) -> list[str]:
    plan = []
    while (link := came_from[position]) is not None:
        position, name = link
        plan.append(name)
    return plan[::-1]


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
    interior = [row * cols + col for row in range(1, rows - 1) for col in range(1, cols - 1)]
    floor = interior if layout == "open" else sorted(_carve(rng, rows, cols))
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
