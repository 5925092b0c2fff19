"""FrozenLake: cross the ice to the goal without falling into a hole."""

from __future__ import annotations

from typing import Any, get_args

import numpy as np
from gymnasium.envs.toy_text.frozen_lake import FrozenLakeEnv

from .boards import Cell, ObservationFormat, board_legend, board_text, compact_text, coordinate_text, parse_move
from .core import Limits, Split, TextEnv, check_choice, check_int, step_info


# In gymnasium's order: the position in this table is its action number.
MOVES: dict[str, Cell] = {"Left": (0, -1), "Down": (1, 0), "Right": (0, 1), "Up": (-1, 0)}

_SYMBOLS = "P you, _ ice, O hole, G goal, X you in a hole, √ you on the goal"
_LETTERS = "P you, G goal, H hole"


class FrozenLake(TextEnv):
    """
    Walk over the ice to the goal without falling into a hole. The game itself is gymnasium's `FrozenLakeEnv`.

    **Actions.** `Left`, `Down`, `Right`, `Up`, whatever their case and surrounding blanks. Anything else is invalid,
    action numbers such as `0` among them. A move off the board is valid, not effective.

    **Observation.** The board as rows of symbols (`"grid"`), as lists of coordinates (`"coord"`), as both
    (`"grid_coord"`) or as one word for each object (`"compact"`). Coordinates are (row, column), from zero.

    **Start.** A map drawn from the seed, start and goal on different cells, with a path free of holes of at most 10
    moves.

    **Slips.** A move goes where it was meant to with probability `success_rate`, else to one of the two sides, never
    back. With the default of 1 it is always carried out. Slips are drawn from `options["noise_seed"]` of `reset` or,
    without it, follow from the seed.

    **Rewards.** 1 for reaching the goal, 0 otherwise, also in a hole.

    **End.** On the goal, which is success, or in a hole.

    Args:
        size (`int`, *optional*, defaults to `4`):
            Rows and columns of the square board.
        frozen_probability (`float`, *optional*, defaults to `0.9`):
            Chance of a cell to be ice rather than a hole.
        success_rate (`float`, *optional*, defaults to `1.0`):
            Chance of a move to go where it was meant to.
        observation_format (`str`, *optional*, defaults to `"grid_coord"`):
            `"grid"`, `"coord"`, `"grid_coord"` or `"compact"`.
        split (`str`, *optional*, defaults to `"train"`):
            `"train"` or `"validation"`; the maps of the two are disjoint.

    Raises:
        `ValueError`: A setting is not possible.
    """

    limits = Limits(max_turns=5, max_actions_per_turn=2, max_actions=10, max_tokens_per_turn=400, max_words=120)
    sample_actions = tuple(MOVES)

    def __init__(
        self,
        *,
        size: int = 4,
        frozen_probability: float = 0.9,
        success_rate: float = 1.0,
        observation_format: ObservationFormat = "grid_coord",
        split: Split = "train",
    ) -> None:
        super().__init__(split=split)
        check_int("size", size, 2, 16)
        _check_probability("frozen_probability", frozen_probability)
        _check_probability("success_rate", success_rate)
        check_choice("observation_format", observation_format, get_args(ObservationFormat))
        self.size = size
        self.frozen_probability = float(frozen_probability)
        self.success_rate = float(success_rate)
        self.observation_format: ObservationFormat = observation_format
        self.instruction = (
            "You are walking on a frozen lake: reach the goal without falling into a hole. "
            f"{_slip_sentence(self.success_rate)} "
            f"{board_legend(observation_format, (size, size), _SYMBOLS, _LETTERS)} Actions: {', '.join(MOVES)}."
        )
        self._lake: FrozenLakeEnv | None = None
        self._map: tuple[str, ...] = ()

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        """Draw a map; see [`TextEnv`]."""
        super().reset(seed=seed, options=options)
        self._map = self.draw_problem(
            lambda rng: draw_map(rng, self.size, self.frozen_probability), "\n".join, self._walkable
        )
        self._lake = FrozenLakeEnv(desc=list(self._map), success_rate=self.success_rate)
        self._lake.np_random = self.noise
        self._lake.reset()
        return self._observation(), {}

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """Carry out one move; see [`TextEnv`]."""
        lake = self._current()
        before = self._player()
        move = parse_move(action, MOVES)
        if move is None or self._tile(before) in "GH":
            success = self._tile(before) == "G"
            info = step_info(success=success, valid=False, effective=False)
            return self._observation(), 0.0, self._tile(before) in "GH", False, info
        _, reward, terminated, _, _ = lake.step(list(MOVES).index(move))
        after = self._player()
        info = step_info(success=self._tile(after) == "G", valid=True, effective=after != before)
        return self._observation(), float(reward), bool(terminated), False, info

    def oracle_action(self) -> str | None:
        """First move of a shortest path from where the player is; `None` at the end of the episode."""
        self._current()
        player = self._player()
        if self._tile(player) in "GH":
            return None
        path = shortest_path(self._map, player)
        return path[0] if path else None

    def _current(self) -> FrozenLakeEnv:
        if self._lake is None:
            raise self.needs_reset()
        return self._lake

    def _player(self) -> Cell:
        return divmod(int(self._current().s), self.size)

    def _tile(self, cell: Cell) -> str:
        return self._map[cell[0]][cell[1]]

    def _walkable(self, rows: tuple[str, ...]) -> bool:
        path = shortest_path(rows, cells_of(rows, "S")[0])
        return path is not None and len(path) <= self.limits.max_actions

    def _observation(self) -> str:
        player = self._player()
        tile = self._tile(player)
        goal, holes = cells_of(self._map, "G"), cells_of(self._map, "H")
        player_name = {"G": "Player on goal", "H": "Player in hole"}.get(tile, "Player")
        return board_text(
            self.observation_format,
            grid=_grid_text(self._map, player),
            coordinates=coordinate_text(
                (self.size, self.size),
                [("Start", cells_of(self._map, "S")), ("Goal", goal), (player_name, [player]), ("Holes", holes)],
            ),
            compact=compact_text([("P", [player]), ("G", goal), ("H", holes)]),
        )


def draw_map(rng: np.random.Generator, size: int, frozen_probability: float) -> tuple[str, ...] | None:
    """
    Draw a map in gymnasium's letters: S start, F frozen, H hole, G goal.

    Args:
        rng (`np.random.Generator`):
            Source of all randomness.
        size (`int`):
            Rows and columns.
        frozen_probability (`float`):
            Chance of a cell to be frozen.

    Returns:
        `tuple[str, ...]` or `None`: The rows; `None` when start and goal fell on the same cell.
    """
    tiles = ["F" if frozen else "H" for frozen in rng.random(size * size) < frozen_probability]
    start, goal = (int(cell) for cell in rng.integers(size * size, size=2))
    if start == goal:
        return None
    tiles[start], tiles[goal] = "S", "G"
    return tuple("".join(tiles[row * size : (row + 1) * size]) for row in range(size))


def cells_of(rows: tuple[str, ...], letter: str) -> list[Cell]:
    """
    Cells of a map with a letter, in reading order.

    Args:
        rows (`tuple[str, ...]`):
            The map.
        letter (`str`):
            Letter to look for.

    Returns:
        `list[tuple[int, int]]`: The cells.
    """
    return [(row, col) for row, line in enumerate(rows) for col, tile in enumerate(line) if tile == letter]


def shortest_path(rows: tuple[str, ...], start: Cell) -> list[str] | None:
    """
    Shortest path to the goal that avoids the holes, by breadth-first search.

    Args:
        rows (`tuple[str, ...]`):
            The map.
        start (`tuple[int, int]`):
            Cell to start from.

    Returns:
        `list[str]` or `None`: The moves; `None` when the goal cannot be reached.
    """
    paths: dict[Cell, list[str]] = {start: []}
    frontier = [start]
    for cell in frontier:
        row, col = cell
        if rows[row][col] == "G":
            return paths[cell]
        for name, (down, right) in MOVES.items():
            ahead = (row + down, col + right)
            inside = 0 <= ahead[0] < len(rows) and 0 <= ahead[1] < len(rows[0])
            if inside and ahead not in paths and rows[ahead[0]][ahead[1]] != "H":
                paths[ahead] = [*paths[cell], name]
                frontier.append(ahead)
    return None


def _grid_text(rows: tuple[str, ...], player: Cell) -> str:
    drawn = [["_" if tile in "SF" else {"H": "O"}.get(tile, tile) for tile in line] for line in rows]
    row, col = player
    drawn[row][col] = {"G": "√", "H": "X"}.get(rows[row][col], "P")
    return "\n".join("".join(line) for line in drawn)


def _slip_sentence(success_rate: float) -> str:
    if success_rate == 1.0:
        return "Every move is carried out as you say."
    slip = 1.0 - success_rate
    return f"The ice is slippery: with probability {slip:.4g} a move goes to one of its two sides instead."


def _check_probability(name: str, value: object) -> None:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0.0 < value <= 1.0:
        raise ValueError(f"{name}={value!r} is not possible; give a number above 0 and at most 1.")
