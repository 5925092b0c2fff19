"""Sokoban: push every box onto a target."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any, get_args

from .boards import Cell, ObservationFormat, board_legend, board_text, compact_text, coordinate_text, parse_move
from .core import Limits, Split, TextEnv, check_choice, check_int, settings_text, step_info
from .sokoban_levels import MOVES, Layout, Level, draw_level, push, search, shortest_plan


STEP_REWARD = -0.1
BOX_REWARD = 1.0
SOLVED_REWARD = 10.0

# Positions that the searches for one level may visit together: some seconds. Counted rather than timed, so that a seed
# gives the same level on every machine. The shipped settings need a few hundred.
_MAX_POSITIONS_PER_RESET = 2_000_000

_SYMBOLS = "# wall, _ floor, O target, X box, √ box on a target, P you, S you on a target"
_LETTERS = "P you, B box, G target"


class Sokoban(TextEnv):
    """
    Push every box onto a target. You push a box by moving into it; nothing can be pulled.

    **Actions.** `Up`, `Down`, `Left`, `Right`, whatever their case and surrounding blanks. Anything else is invalid. A
    blocked move is valid, not effective, and is charged like any other.

    **Observation.** The board as rows of symbols (`"grid"`), as lists of coordinates (`"coord"`), as both
    (`"grid_coord"`) or as one word for each object (`"compact"`). Coordinates are (row, column), from zero, on the
    whole board with its border. Inner walls are named in `"coord"` and `"compact"` only for the carved layout; the
    open layout has none.

    **Start.** A level drawn from the seed and solved exactly; its shortest solution has 1 to `max_solution_length`
    moves. No box starts on a target.

    **Rewards.** -0.1 a valid action, +1 for a box moved onto a target, -1 for one moved off, +10 when all are on
    targets.

    **End.** When all boxes are on targets, which is success.

    Args:
        size (`tuple[int, int]`, *optional*, defaults to `(6, 6)`):
            Rows and columns, border walls included.
        num_boxes (`int`, *optional*, defaults to `1`):
            Boxes and targets.
        layout (`str`, *optional*, defaults to `"carved"`):
            `"carved"` draws inner walls by a random walk, `"open"` leaves the whole interior free.
        observation_format (`str`, *optional*, defaults to `"grid_coord"`):
            `"grid"`, `"coord"`, `"grid_coord"` or `"compact"`.
        max_solution_length (`int`, *optional*, defaults to `10`):
            Longest shortest solution of a level. Beyond 10 the limits on actions and turns grow with it.
        split (`str`, *optional*, defaults to `"train"`):
            `"train"` or `"validation"`; the levels of the two are disjoint.

    Raises:
        `ValueError`: A setting is not possible. `reset` raises it where no level can be found in a bounded search.
    """

    limits = Limits(max_turns=5, max_actions_per_turn=2, max_actions=10, max_tokens_per_turn=400, max_words=120)
    sample_actions = tuple(MOVES)

    def __init__(
        self,
        *,
        size: tuple[int, int] = (6, 6),
        num_boxes: int = 1,
        layout: Layout = "carved",
        observation_format: ObservationFormat = "grid_coord",
        max_solution_length: int = 10,
        split: Split = "train",
    ) -> None:
        super().__init__(split=split)
        check_choice("layout", layout, get_args(Layout))
        check_choice("observation_format", observation_format, get_args(ObservationFormat))
        check_int("max_solution_length", max_solution_length, 1, 50)
        self.size = _checked_size(size, num_boxes)
        self.num_boxes = num_boxes
        self.layout: Layout = layout
        self.observation_format: ObservationFormat = observation_format
        self.max_solution_length = max_solution_length
        self.limits = _fitting_limits(type(self).limits, max_solution_length)
        letters = _LETTERS + (", W inner wall" if layout == "carved" else "")
        self.instruction = (
            "You are solving a Sokoban puzzle: push every box onto a target. You push a box by moving into it. A box "
            "cannot be pulled, and cannot be pushed into a wall or another box. "
            f"{board_legend(observation_format, self.size, _SYMBOLS, letters)} Actions: {', '.join(MOVES)}."
        )
        self._level: Level | None = None
        self._plan: list[str] | None = None
        self._visited = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        """Draw a level; see [`TextEnv`]."""
        super().reset(seed=seed, options=options)
        self._visited = 0
        self._level = self.draw_problem(
            lambda rng: draw_level(rng, self.size, self.num_boxes, self.layout), grid_text, self._solvable
        )
        return self._observation(self._level), {}

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """Carry out one move; see [`TextEnv`]."""
        before = self._current()
        move = parse_move(action, MOVES)
        if move is None or before.solved:
            info = step_info(success=before.solved, valid=False, effective=False)
            return self._observation(before), 0.0, before.solved, False, info
        down, right = MOVES[move]
        player, boxes = push(before.walls, before.boxes, before.player, down * before.cols + right)
        after = replace(before, player=player, boxes=boxes)
        self._level = after
        self._plan = self._plan[1:] if self._plan and self._plan[0] == move else None
        info = step_info(success=after.solved, valid=True, effective=player != before.player)
        return self._observation(after), _reward(before, after), after.solved, False, info

    def oracle_action(self) -> str | None:
        """Next move of a shortest solution; `None` when the level is solved or lost."""
        level = self._current()
        if self._plan is None:
            self._plan = shortest_plan(level)
        return self._plan[0] if self._plan else None

    def _current(self) -> Level:
        if self._level is None:
            raise self.needs_reset()
        return self._level

    def _solvable(self, level: Level) -> bool:
        if self._visited > _MAX_POSITIONS_PER_RESET:
            raise ValueError(
                f"Sokoban found no level in {_MAX_POSITIONS_PER_RESET} searched positions with {settings_text(self)}; "
                "use a smaller board or fewer boxes."
            )
        # Kept, so that the oracle need not solve the start a second time.
        self._plan, visited = search(level, self.max_solution_length)
        self._visited += visited
        return self._plan is not None

    def _observation(self, level: Level) -> str:
        listed_walls = _cells(level, _inner_walls(level)) if self.layout == "carved" else []
        on_target = level.boxes & level.targets
        return board_text(
            self.observation_format,
            grid=grid_text(level),
            coordinates=coordinate_text(
                (level.rows, level.cols),
                [
                    ("Targets", _cells(level, level.targets - level.boxes - {level.player})),
                    ("Boxes", _cells(level, level.boxes - level.targets)),
                    ("Boxes on target", _cells(level, on_target)),
                    ("Player", _cells(level, {level.player} - level.targets)),
                    ("Player on target", _cells(level, {level.player} & level.targets)),
                    # The grid shows them already.
                    ("Inner walls", listed_walls if self.observation_format == "coord" else []),
                ],
            ),
            compact=compact_text(
                [
                    ("P", _cells(level, {level.player})),
                    ("B", _cells(level, level.boxes)),
                    ("G", _cells(level, level.targets)),
                    ("W", listed_walls),
                ]
            ),
        )


def grid_text(level: Level) -> str:
    """
    Level as rows of symbols.

    Args:
        level (`Level`):
            Position to draw.

    Returns:
        `str`: One line for each row.
    """
    symbols = [_symbol(level, cell) for cell in range(level.rows * level.cols)]
    return "\n".join("".join(symbols[start : start + level.cols]) for start in range(0, len(symbols), level.cols))


def _symbol(level: Level, cell: int) -> str:
    on_target = cell in level.targets
    if cell in level.walls:
        return "#"
    if cell == level.player:
        return "S" if on_target else "P"
    if cell in level.boxes:
        return "√" if on_target else "X"
    return "O" if on_target else "_"


def _cells(level: Level, cells: Iterable[int]) -> list[Cell]:
    return [divmod(cell, level.cols) for cell in sorted(cells)]


def _inner_walls(level: Level) -> list[int]:
    def inside(cell: int) -> bool:
        row, col = divmod(cell, level.cols)
        return 0 < row < level.rows - 1 and 0 < col < level.cols - 1

    return [cell for cell in level.walls if inside(cell)]


def _reward(before: Level, after: Level) -> float:
    gained = len(after.boxes & after.targets) - len(before.boxes & before.targets)
    return STEP_REWARD + BOX_REWARD * gained + (SOLVED_REWARD if after.solved else 0.0)


def _checked_size(size: tuple[int, int], num_boxes: int) -> tuple[int, int]:
    pair = tuple(size) if isinstance(size, (tuple, list)) else ()
    if len(pair) != 2 or not all(isinstance(n, int) and not isinstance(n, bool) and 3 <= n <= 12 for n in pair):
        raise ValueError(f"size={size!r} is not possible; give (rows, columns), each from 3 to 12, border included.")
    rows, cols = pair
    # A push needs three cells in a line: player, box and the cell the box moves to.
    if max(rows, cols) < 5:
        raise ValueError(f"size={size!r} leaves no room for a push; one side must be at least 5, border included.")
    check_int("num_boxes", num_boxes, 1, 4)
    if (rows - 2) * (cols - 2) < 2 * num_boxes + 1:
        raise ValueError(
            f"num_boxes={num_boxes} does not fit on a board of size={size!r}; use a larger board or fewer boxes."
        )
    return rows, cols


def _fitting_limits(limits: Limits, max_solution_length: int) -> Limits:
    turns = -(-max_solution_length // limits.max_actions_per_turn)
    return replace(
        limits,
        max_actions=max(limits.max_actions, max_solution_length),
        max_turns=max(limits.max_turns, turns),
    )
