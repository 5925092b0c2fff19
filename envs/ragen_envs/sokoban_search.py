"""
Exact searches over Sokoban positions, forwards from a start and backwards from the solved board.

A position is one integer here: the cells with a box as bits, above the cell of the player. That makes the searches
several times faster than sets of cells would, and their order, which decides between equally short plans, is the same
on every machine.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from .sokoban_levels import MOVES, Level, offsets


# Positions a search may visit. Every position of the shipped boards fits many times over; larger boards stay bounded.
MAX_POSITIONS = 200_000

_NAMES = tuple(MOVES)
_CELL_BITS = 12
_CELL = (1 << _CELL_BITS) - 1
MAX_CELLS = 1 << _CELL_BITS
# How a position was reached: the neighbouring position and the number of the move, in one integer again.
_MOVE_BITS = 2
_NO_LINK = -1


def bits(cells: Iterable[int]) -> int:
    """
    Set of cells as an integer.

    Args:
        cells (`Iterable[int]`):
            The cells.

    Returns:
        `int`: Number with the bit of each cell set.
    """
    found = 0
    for cell in cells:
        found |= 1 << cell
    return found


def live_cells(walls: frozenset[int], targets: Iterable[int], steps: Sequence[int]) -> set[int]:
    """
    Cells from which a lone box can reach one of the targets, found by pulling boxes away from them.

    A box anywhere else can never be brought home, whatever the other boxes and wherever the player.

    Args:
        walls (`frozenset[int]`):
            Wall cells.
        targets (`Iterable[int]`):
            Cells to reach.
        steps (`Sequence[int]`):
            Differences of neighbouring cells, as of [`offsets`].

    Returns:
        `set[int]`: The cells, targets included.
    """
    frontier = list(targets)
    live = set(frontier)
    while frontier:
        cell = frontier.pop()
        for step in steps:
            pulled = cell + step
            if pulled not in live and pulled not in walls and pulled + step not in walls:
                live.add(pulled)
                frontier.append(pulled)
    return live


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


def search(
    level: Level, max_length: int | None = None, max_positions: int = MAX_POSITIONS
) -> tuple[list[str] | None, int]:
    """
    [`shortest_plan`] with its cost, by breadth-first search over player and boxes.

    Args:
        level (`Level`):
            Position to solve.
        max_length (`int`, *optional*):
            Longest plan of interest.
        max_positions (`int`, *optional*, defaults to `200_000`):
            Positions to visit before giving up.

    Returns:
        `tuple[list[str] | None, int]`: The plan and the number of positions visited for it.
    """
    if level.solved:
        return [], 0
    steps = offsets(level.cols)
    live = live_cells(level.walls, level.targets, steps)
    if not level.boxes <= live:
        return None, 0
    walls, goal = bits(level.walls), bits(level.targets)
    # A box pushed off the live cells is lost, so they bound it like walls do.
    dead = ((1 << level.rows * level.cols) - 1) & ~bits(live)
    start = bits(level.boxes) << _CELL_BITS | level.player
    came_from = {start: _NO_LINK}
    frontier = [start]
    length = 0
    while frontier and len(came_from) <= max_positions and (max_length is None or length < max_length):
        length += 1
        reached = []
        for position in frontier:
            player, boxes = position & _CELL, position >> _CELL_BITS
            for move, step in enumerate(steps):
                ahead = 1 << player + step
                if walls & ahead:
                    continue
                moved = boxes
                if boxes & ahead:
                    beyond = 1 << player + 2 * step
                    if (dead | boxes) & beyond:
                        continue
                    moved ^= ahead | beyond
                following = moved << _CELL_BITS | player + step
                if following in came_from:
                    continue
                came_from[following] = position << _MOVE_BITS | move
                if moved == goal:
                    return _moves(came_from, following)[::-1], len(came_from)
                reached.append(following)
        frontier = reached
    return None, len(came_from)


def _moves(links: dict[int, int], position: int) -> list[str]:
    found = []
    while (link := links[position]) != _NO_LINK:
        position, move = link >> _MOVE_BITS, link & (1 << _MOVE_BITS) - 1
        found.append(_NAMES[move])
    return found


@dataclass(frozen=True)
class Retrograde:
    """
    Positions by the exact length of their shortest solution, found by playing backwards.

    Args:
        board (`Level`):
            Solved board that was played back from.
        layers (`list[list[int]]`):
            Positions whose shortest solution has 0, 1, 2, ... moves.
        leads_to (`dict[int, int]`):
            For each position the next one of its shortest solution together with the number of the move.
    """

    board: Level
    layers: list[list[int]]
    leads_to: dict[int, int]

    def level(self, position: int) -> Level:
        """Position as a level."""
        board = self.board
        boxes = frozenset(cell for cell in range(board.rows * board.cols) if position >> _CELL_BITS + cell & 1)
        return Level(board.rows, board.cols, board.walls, board.targets, boxes, position & _CELL)

    def plan(self, position: int) -> list[str]:
        """Shortest solution of a position."""
        return _moves(self.leads_to, position)

    def clear(self, length: int) -> list[int]:
        """Positions with a shortest solution of that length and no box on a target."""
        targets = bits(self.board.targets) << _CELL_BITS
        return [position for position in self.layers[length] if not position & targets]


def play_backwards(board: Level, max_length: int) -> Retrograde:
    """
    Play a solved board backwards, by breadth-first search over steps and pulls from every place of the player at once.

    Args:
        board (`Level`):
            Board to use; its boxes are taken to be on the targets and its player to be anywhere.
        max_length (`int`):
            Moves to go back.

    Returns:
        `Retrograde`: What was reached, exact as far as it goes. The search stops early after 200,000 positions.
    """
    steps = offsets(board.cols)
    walls, goal = bits(board.walls), bits(board.targets)
    frontier = [goal << _CELL_BITS | cell for cell in range(board.rows * board.cols) if not (walls | goal) >> cell & 1]
    leads_to = dict.fromkeys(frontier, _NO_LINK)
    layers = [frontier]
    while frontier and len(layers) <= max_length and len(leads_to) <= MAX_POSITIONS:
        reached = []
        for position in frontier:
            player, boxes = position & _CELL, position >> _CELL_BITS
            for move, step in enumerate(steps):
                behind = player - step
                if (walls | boxes) >> behind & 1:
                    continue
                earlier = [boxes]
                if boxes >> player + step & 1:
                    # The move may have pushed that box here from where the player stands.
                    earlier.append(boxes ^ (1 << player + step | 1 << player))
                for before in earlier:
                    preceding = before << _CELL_BITS | behind
                    if preceding not in leads_to:
                        leads_to[preceding] = position << _MOVE_BITS | move
                        reached.append(preceding)
        layers.append(reached)
        frontier = reached
    return Retrograde(board, layers, leads_to)
