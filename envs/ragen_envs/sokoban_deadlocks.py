"""Positions of Sokoban that can be seen to be lost. What is called lost here is; not every lost position is seen."""

from __future__ import annotations

from collections.abc import Iterable

from .sokoban_levels import Level, offsets
from .sokoban_search import live_cells


class DeadlockDetector:
    """
    Tells lost positions of one board by its walls, targets and boxes alone. A position is lost if

    - a box stands where no target can be reached from, such as in a corner or along a wall without a target;
    - the boxes cannot be given one target each that they can reach, such as two along a wall with one target;
    - a box off target cannot be moved and never will be, for walls and for boxes that are stuck themselves, such as
      four boxes in a square.

    Args:
        level (`Level`):
            Any position of the board.
    """

    def __init__(self, level: Level) -> None:
        self._walls, self._targets = level.walls, level.targets
        self._axes = (1, level.cols)
        steps = offsets(level.cols)
        reaching = {target: live_cells(level.walls, [target], steps) for target in level.targets}
        self._live = frozenset().union(*reaching.values())
        self._reachable = {
            cell: [target for target, cells in reaching.items() if cell in cells] for cell in self._live
        }

    def lost(self, boxes: frozenset[int]) -> bool:
        """
        Whether a position can be seen to be lost.

        Args:
            boxes (`frozenset[int]`):
                Cells with a box.

        Returns:
            `bool`: `True` only if no sequence of moves solves it.
        """
        return not boxes <= self._live or not self._assignable(boxes) or not self._stuck(boxes) <= self._targets

    def _assignable(self, boxes: Iterable[int]) -> bool:
        box_of: dict[int, int] = {}

        def assign(box: int, tried: set[int]) -> bool:
            for target in self._reachable[box]:
                if target not in tried:
                    tried.add(target)
                    if target not in box_of or assign(box_of[target], tried):
                        box_of[target] = box
                        return True
            return False

        return all(assign(box, set()) for box in boxes)

    def _stuck(self, boxes: frozenset[int]) -> set[int]:
        # All are taken to be stuck; those that could be pushed although the others stay are released one by one. The
        # first of the rest to be moved would have to go to a cell from which it is lost.
        stuck = set(boxes)
        while movable := [box for box in stuck if any(self._free(box, axis, stuck) for axis in self._axes)]:
            stuck.difference_update(movable)
        return stuck

    def _free(self, box: int, axis: int, stuck: set[int]) -> bool:
        sides = (box - axis, box + axis)
        if any(side in self._walls or side in stuck for side in sides):
            return False
        return any(side in self._live for side in sides)
