"""Sokoban: push every box onto a target."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, get_args

import numpy as np

from .boards import ObservationFormat, board_legend, board_text, checked_symbols, parse_move, symbol_legend
from .core import Limits, Split, TextEnv, check_choice, check_int, problem_split, settings_text, step_info
from .pictures import RENDER_MODES, Picture, checked_render_mode, paint, picture_legend, warn_without_render_mode
from .rows import DatasetError
from .sokoban_deadlocks import DeadlockDetector
from .sokoban_files import MAX_POSITIONS_PER_LEVEL, load_levels, parse_level, solve_text
from .sokoban_generation import Generation, Layout, draw_level, draw_played_back, pick_start
from .sokoban_levels import MOVES, Level, push
from .sokoban_search import search
from .sokoban_views import LETTERS, MEANINGS, SYMBOLS, TILES, BoardView, grid_text


STEP_REWARD = -0.1
BOX_REWARD = 1.0
SOLVED_REWARD = 10.0

# Positions that the searches for one level may visit together: some seconds. Counted rather than timed, so that a seed
# gives the same level on every machine. The shipped settings need a few hundred.
_MAX_POSITIONS_PER_RESET = 2_000_000


class Sokoban(TextEnv):
    """
    Push every box onto a target. You push a box by moving into it; nothing can be pulled.

    **Actions.** `Up`, `Down`, `Left`, `Right`, whatever their case and surrounding blanks. Anything else is invalid. A
    blocked move is valid, not effective, and is charged like any other.

    **Observation.** The board as rows of symbols (`"grid"`), as lists of coordinates (`"coord"`), as both
    (`"grid_coord"`) or as one word for each object (`"compact"`). Coordinates are (row, column), from zero, on the
    whole board with its border. Inner walls are named in `"coord"` and `"compact"`, except for the open layout, which
    has none. With `render_mode="rgb_array"`, `render()` gives the board as a picture, and the instruction says what is
    what in it.

    **Start.** A level drawn from the seed, or of `dataset`, and solved exactly; its shortest solution has
    `min_solution_length` to `max_solution_length` moves. No box of a drawn level starts on a target.

    **Rewards.** -0.1 a valid action, +1 for a box moved onto a target, -1 for one moved off, +10 when all are on
    targets.

    **End.** When all boxes are on targets, which is success. A lost position does not end the episode, but
    `info["deadlock"]` of `step` is true where one is recognised ([`DeadlockDetector`]); it is never true of a position
    that can be solved.

    Args:
        size (`tuple[int, int]`, *optional*, defaults to `(6, 6)`):
            Rows and columns, border walls included.
        num_boxes (`int`, *optional*, defaults to `1`):
            Boxes and targets.
        layout (`str`, *optional*, defaults to `"carved"`):
            `"carved"` draws inner walls by a random walk, `"open"` leaves the whole interior free.
        generation (`str`, *optional*, defaults to `"placed"`):
            `"placed"` puts boxes and player anywhere and keeps levels of the lengths asked for, most of which are
            short. `"reverse"` plays the solved board backwards and makes all lengths that a board offers equally
            likely: for long solutions, and for large boards, where hardly any level drawn the other way is solvable.
        min_solution_length (`int`, *optional*, defaults to `1`):
            Shortest shortest solution of a level.
        max_solution_length (`int`, *optional*, defaults to `10`):
            Longest shortest solution of a level. Beyond 10 the limits on actions and turns grow with it.
        dataset (`str`, *optional*):
            Levels to use instead of drawn ones: a text file in XSB notation, or a folder of such; see [`load_levels`].
            Seed `n` starts level `n` of the split, counted round and round in the order of the files; levels out of
            the lengths asked for are passed over for the next. With it, what shapes drawn levels stays at its default.
        observation_format (`str`, *optional*, defaults to `"grid_coord"`):
            `"grid"`, `"coord"`, `"grid_coord"` or `"compact"`.
        symbols (`Mapping[str, str]`, *optional*):
            Characters for the grid, for some or all of `wall`, `floor`, `target`, `box`, `box_on_target`, `player` and
            `player_on_target`. The others keep theirs.
        render_mode (`str`, *optional*):
            `"rgb_array"` to have `render()` draw pictures, of 32 x 32 pixels a cell.
        split (`str`, *optional*, defaults to `"train"`):
            `"train"` or `"validation"`; the levels of the two are disjoint.

    Raises:
        `ValueError`: A setting is not possible, or the levels cannot be read. `reset` raises it where no level can be
            found in a bounded search.
    """

    limits = Limits(max_turns=5, max_actions_per_turn=2, max_actions=10, max_tokens_per_turn=400, max_words=120)
    sample_actions = tuple(MOVES)
    metadata: dict[str, Any] = {"render_modes": list(RENDER_MODES), "render_fps": 4}

    def __init__(
        self,
        *,
        size: tuple[int, int] = (6, 6),
        num_boxes: int = 1,
        layout: Layout = "carved",
        generation: Generation = "placed",
        min_solution_length: int = 1,
        max_solution_length: int = 10,
        dataset: str | None = None,
        observation_format: ObservationFormat = "grid_coord",
        symbols: Mapping[str, str] | None = None,
        render_mode: str | None = None,
        split: Split = "train",
    ) -> None:
        super().__init__(split=split)
        check_choice("layout", layout, get_args(Layout))
        check_choice("generation", generation, get_args(Generation))
        check_choice("observation_format", observation_format, get_args(ObservationFormat))
        check_int("max_solution_length", max_solution_length, 1, 500)
        check_int("min_solution_length", min_solution_length, 1, max_solution_length)
        self.size = _checked_size(size, num_boxes)
        self.num_boxes = num_boxes
        self.layout: Layout = layout
        self.generation: Generation = generation
        self.min_solution_length, self.max_solution_length = min_solution_length, max_solution_length
        self.dataset = dataset
        self.observation_format: ObservationFormat = observation_format
        self._symbols = checked_symbols(symbols, SYMBOLS)
        self.render_mode = checked_render_mode(render_mode)
        self.limits = _fitting_limits(type(self).limits, max_solution_length)
        self.levels: tuple[str, ...] = () if dataset is None else self._load()
        self._lists_walls = dataset is not None or layout == "carved"
        self.instruction = self._instruction()
        self._level: Level | None = None
        self._plan: list[str] | None = None
        self._visited = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        """Draw a level; see [`TextEnv`]."""
        super().reset(seed=seed, options=options)
        self._visited = 0
        if self.dataset is not None:
            level = self._loaded_level(int(self.np_random.integers(2**32)) if seed is None else seed)
        elif self.generation == "reverse":
            level, self._plan = self.draw_problem(
                self._draw_backwards, lambda found: grid_text(found[0]), lambda found: True
            )
        else:
            level = self.draw_problem(
                lambda rng: draw_level(rng, self.size, self.num_boxes, self.layout), grid_text, self._fits
            )
        self._begin(level)
        return self._observation(level), {}

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """Carry out one move; see [`TextEnv`]."""
        before = self._current()
        move = parse_move(action, MOVES)
        if move is None or before.solved:
            info = self._info(before, valid=False, effective=False)
            return self._observation(before), 0.0, before.solved, False, info
        down, right = MOVES[move]
        player, boxes = push(before.walls, before.boxes, before.player, down * before.cols + right)
        after = Level(before.rows, before.cols, before.walls, before.targets, boxes, player)
        self._level = after
        self._plan = self._plan[1:] if self._plan and self._plan[0] == move else None
        if boxes is not before.boxes:
            self._deadlock = self._detector.lost(boxes)
        info = self._info(after, valid=True, effective=player != before.player)
        return self._observation(after), _reward(before, after), after.solved, False, info

    def render(self) -> Picture | None:
        """
        Board as a picture.

        Returns:
            `np.ndarray` or `None`: Array of `uint8` and the shape `(32 * rows, 32 * columns, 3)`; `None`, with a
            warning, without a `render_mode`.
        """
        level = self._current()
        if self.render_mode is None:
            warn_without_render_mode(self)
            return None
        return paint(self._view.kinds(level), TILES)

    def oracle_action(self) -> str | None:
        """Next move of a shortest solution; `None` when the level is solved or lost."""
        level = self._current()
        if self._plan is None:
            self._plan = search(level, max_positions=MAX_POSITIONS_PER_LEVEL)[0]
        return self._plan[0] if self._plan else None

    def _load(self) -> tuple[str, ...]:
        shaping = {"size": (6, 6), "num_boxes": 1, "layout": "carved", "generation": "placed"}
        for name, default in shaping.items():
            if getattr(self, name) != default:
                raise ValueError(f"{name}={getattr(self, name)!r} does not go with dataset=; leave it out.")
        levels = load_levels(str(self.dataset))[self.split]
        if not levels:
            raise DatasetError(f"dataset={self.dataset!r} has no level in the split {self.split!r}; use more levels.")
        return levels

    def _instruction(self) -> str:
        letters = LETTERS + (", W inner wall" if self._lists_walls else "")
        shape = self.size if self.dataset is None else None
        legend = board_legend(self.observation_format, shape, symbol_legend(self._symbols, MEANINGS), letters)
        picture = f" {picture_legend(TILES, MEANINGS)}" if self.render_mode is not None else ""
        return (
            "You are solving a Sokoban puzzle: push every box onto a target. You push a box by moving into it. A box "
            "cannot be pulled, and cannot be pushed into a wall or another box. "
            f"{legend}{picture} Actions: {', '.join(MOVES)}."
        )

    def _begin(self, level: Level) -> None:
        self._level = level
        self._view = BoardView(level, self._symbols)
        self._detector = DeadlockDetector(level)
        self._deadlock = False

    def _current(self) -> Level:
        if self._level is None:
            raise self.needs_reset()
        return self._level

    def _info(self, level: Level, *, valid: bool, effective: bool) -> dict[str, Any]:
        return step_info(success=level.solved, valid=valid, effective=effective) | {"deadlock": self._deadlock}

    def _fits(self, level: Level) -> bool:
        self._check_budget()
        # Kept, so that the oracle need not solve the start a second time.
        self._plan, visited = search(level, self.max_solution_length)
        self._visited += visited
        return self._plan is not None and len(self._plan) >= self.min_solution_length

    def _draw_backwards(self, rng: np.random.Generator) -> tuple[Level, list[str]] | None:
        self._check_budget()
        found = draw_played_back(rng, self.size, self.num_boxes, self.layout, self.max_solution_length)
        if found is None:
            return None
        self._visited += len(found.leads_to)
        return pick_start(
            rng, found, self.min_solution_length, lambda level: problem_split(grid_text(level)) == self.split
        )

    def _loaded_level(self, number: int) -> Level:
        for shift in range(len(self.levels)):
            self._check_budget()
            text = self.levels[(number + shift) % len(self.levels)]
            plan, visited = solve_text(text, self.max_solution_length)
            self._visited += visited
            if plan is not None and len(plan) >= self.min_solution_length:
                self._plan = list(plan)
                return parse_level(text)
        raise ValueError(
            f"None of the {len(self.levels)} levels of dataset={self.dataset!r}, split={self.split!r}, has a shortest "
            f"solution of {self.min_solution_length} to {self.max_solution_length} moves; set min_solution_length and "
            "max_solution_length to what they have."
        )

    def _check_budget(self) -> None:
        if self._visited > _MAX_POSITIONS_PER_RESET:
            raise ValueError(
                f"Sokoban found no level in {_MAX_POSITIONS_PER_RESET} searched positions with {settings_text(self)}; "
                "use a smaller board, fewer boxes or generation='reverse', or levels with shorter solutions."
            )

    def _observation(self, level: Level) -> str:
        view = self._view
        # In a grid the walls are seen.
        in_coordinates = self._lists_walls and self.observation_format == "coord"
        return board_text(
            self.observation_format,
            grid=lambda: view.grid(level),
            coordinates=lambda: view.coordinates(level, with_walls=in_coordinates),
            compact=lambda: view.compact(level, with_walls=self._lists_walls),
        )


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
