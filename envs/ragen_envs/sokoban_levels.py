"""Sokoban positions and the rule of a move. Pure functions on small boards."""

from __future__ import annotations

from dataclasses import dataclass


MOVES: dict[str, tuple[int, int]] = {"Up": (-1, 0), "Down": (1, 0), "Left": (0, -1), "Right": (0, 1)}


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


def offsets(cols: int) -> list[int]:
    """
    Difference between a cell and its neighbours, in the order of [`MOVES`].

    Args:
        cols (`int`):
            Columns of the board.

    Returns:
        `list[int]`: One number for each move.
    """
    return [down * cols + right for down, right in MOVES.values()]


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
