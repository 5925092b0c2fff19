"""How a Sokoban position is shown: as text in several formats, and as a picture."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from .boards import Cell, compact_text, coordinate_text
from .pictures import Mark, Tile
from .sokoban_levels import Level


SYMBOLS = {
    "wall": "#",
    "floor": "_",
    "target": "O",
    "box": "X",
    "box_on_target": "√",
    "player": "P",
    "player_on_target": "S",
}
MEANINGS = {
    "wall": "wall",
    "floor": "floor",
    "target": "target",
    "box": "box",
    "box_on_target": "box on a target",
    "player": "you",
    "player_on_target": "you on a target",
}
LETTERS = "P you, B box, G target"

_FLOOR = Mark("white", "field")
TILES: dict[str, Tile] = {
    "wall": (Mark("grey", "field"),),
    "floor": (_FLOOR,),
    "target": (_FLOOR, Mark("red", "ring")),
    "box": (_FLOOR, Mark("brown", "square")),
    "box_on_target": (_FLOOR, Mark("green", "square")),
    "player": (_FLOOR, Mark("blue", "disc")),
    "player_on_target": (_FLOOR, Mark("red", "ring"), Mark("blue", "disc")),
}


class BoardView:
    """
    Shows the positions of one board.

    Args:
        level (`Level`):
            Any position of the board.
        symbols (`Mapping[str, str]`, *optional*):
            Symbol of each kind of cell. Defaults to `SYMBOLS`.
    """

    def __init__(self, level: Level, symbols: Mapping[str, str] = SYMBOLS) -> None:
        self._rows, self._cols = level.rows, level.cols
        self._symbols = symbols
        self._cells = [divmod(cell, level.cols) for cell in range(level.rows * level.cols)]
        self._texts = [str(cell) for cell in self._cells]
        self._empty = [
            "wall" if cell in level.walls else "target" if cell in level.targets else "floor"
            for cell in range(len(self._cells))
        ]
        self._drawn = [symbols[kind] for kind in self._empty]
        self._inner_walls = [
            (row, col)
            for cell, (row, col) in enumerate(self._cells)
            if cell in level.walls and 0 < row < level.rows - 1 and 0 < col < level.cols - 1
        ]

    def kinds(self, level: Level) -> list[list[str]]:
        """Kind of each cell, row by row."""
        kinds = self._empty.copy()
        for cell in level.boxes:
            kinds[cell] = "box_on_target" if cell in level.targets else "box"
        kinds[level.player] = "player_on_target" if level.player in level.targets else "player"
        return [kinds[start : start + self._cols] for start in range(0, len(kinds), self._cols)]

    def grid(self, level: Level) -> str:
        """Rows of symbols."""
        return _grid(level, self._drawn.copy(), self._symbols)

    def coordinates(self, level: Level, *, with_walls: bool) -> str:
        """Lists of coordinates, with those of the inner walls on request."""
        targets, boxes, texts = level.targets, level.boxes, self._texts
        on_target = level.player in targets
        return coordinate_text(
            (self._rows, self._cols),
            [
                ("Targets", [texts[cell] for cell in sorted(targets - boxes) if cell != level.player]),
                ("Boxes", [texts[cell] for cell in sorted(boxes - targets)]),
                ("Boxes on target", [texts[cell] for cell in sorted(boxes & targets)]),
                ("Player on target" if on_target else "Player", [texts[level.player]]),
                ("Inner walls", [str(cell) for cell in self._inner_walls] if with_walls else []),
            ],
        )

    def compact(self, level: Level, *, with_walls: bool) -> str:
        """One word for each object, inner walls among them on request."""
        return compact_text(
            [
                ("P", [self._cells[level.player]]),
                ("B", self._listed(level.boxes)),
                ("G", self._listed(level.targets)),
                ("W", self._inner_walls if with_walls else []),
            ]
        )

    def _listed(self, cells: Iterable[int]) -> list[Cell]:
        return [self._cells[cell] for cell in sorted(cells)]


def grid_text(level: Level) -> str:
    """
    Level as rows of the default symbols.

    Args:
        level (`Level`):
            Position to draw.

    Returns:
        `str`: One line for each row.
    """
    drawn = [SYMBOLS["floor"]] * (level.rows * level.cols)
    for kind, cells in (("wall", level.walls), ("target", level.targets)):
        for cell in cells:
            drawn[cell] = SYMBOLS[kind]
    return _grid(level, drawn, SYMBOLS)


def _grid(level: Level, drawn: list[str], symbols: Mapping[str, str]) -> str:
    # `drawn` is the board without boxes and player, which are added to it.
    for cell in level.boxes:
        drawn[cell] = symbols["box_on_target" if cell in level.targets else "box"]
    drawn[level.player] = symbols["player_on_target" if level.player in level.targets else "player"]
    text, cols = "".join(drawn), level.cols
    return "\n".join([text[start : start + cols] for start in range(0, len(text), cols)])
