"""FrozenLake: cross the ice to the goal without falling into a hole."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, get_args

import numpy as np
from gymnasium.envs.toy_text.frozen_lake import FrozenLakeEnv

from .boards import (
    Cell,
    ObservationFormat,
    board_legend,
    board_text,
    checked_symbols,
    compact_text,
    coordinate_text,
    parse_move,
    symbol_legend,
)
from .core import Limits, Split, TextEnv, check_choice, check_int, step_info
from .pictures import (
    RENDER_MODES,
    Mark,
    Picture,
    Tile,
    checked_render_mode,
    paint,
    picture_legend,
    warn_without_render_mode,
)


# In gymnasium's order: the position in this table is its action number.
MOVES: dict[str, Cell] = {"Left": (0, -1), "Down": (1, 0), "Right": (0, 1), "Up": (-1, 0)}

# Named values of `success_rate`.
SUCCESS_RATES = {
    "deterministic": 1.0,  # main table of RAGEN-2
    "paper": 0.98,  # what its text states
    "slippery": 0.8,  # default of its code
    **{f"slip_{percent}": 1 - percent / 100 for percent in (0, 2, 5, 10, 20, 50, 100)},  # its sweep
}

SYMBOLS = {"player": "P", "ice": "_", "hole": "O", "goal": "G", "player_in_hole": "X", "player_on_goal": "√"}
MEANINGS = {
    "player": "you",
    "ice": "ice",
    "hole": "hole",
    "goal": "goal",
    "player_in_hole": "you in a hole",
    "player_on_goal": "you on the goal",
}
_LETTERS = "P you, G goal, H hole"
_ICE, _HOLE = Mark("pale blue", "field"), Mark("black", "field")
_GOAL, _PLAYER = Mark("green", "square"), Mark("red", "disc")
TILES: dict[str, Tile] = {
    "player": (_ICE, _PLAYER),
    "ice": (_ICE,),
    "hole": (_HOLE,),
    "goal": (_ICE, _GOAL),
    "player_in_hole": (_HOLE, _PLAYER),
    "player_on_goal": (_ICE, _GOAL, _PLAYER),
}
_KINDS = {"S": "ice", "F": "ice", "H": "hole", "G": "goal"}


class FrozenLake(TextEnv):
    """
    Walk over the ice to the goal without falling into a hole. The game itself is gymnasium's `FrozenLakeEnv`.

    **Actions.** `Left`, `Down`, `Right`, `Up`, whatever their case and surrounding blanks. Anything else is invalid,
    action numbers such as `0` among them. A move off the board is valid, not effective.

    **Observation.** The board as rows of symbols (`"grid"`), as lists of coordinates (`"coord"`), as both
    (`"grid_coord"`) or as one word for each object (`"compact"`). Coordinates are (row, column), from zero. With
    `render_mode="rgb_array"`, `render()` gives the board as a picture, and the instruction says what is what in it.

    **Start.** A map drawn from the seed, start and goal on different cells, with a path free of holes of at most 10
    moves.

    **Slips.** A move goes where it was meant to with probability `success_rate`, else to one of the two sides, never
    back. With the default of 1 it is always carried out. Slips are drawn from `options["noise_seed"]` of `reset`, so
    that the rollouts of a group, which the trainers give one each, do not share their luck. Without it, or with
    `shared_noise`, they follow from the seed.

    **Rewards.** 1 for reaching the goal, 0 otherwise, also in a hole.

    **End.** On the goal, which is success, or in a hole.

    Args:
        size (`int`, *optional*, defaults to `4`):
            Rows and columns of the square board.
        frozen_probability (`float`, *optional*, defaults to `0.9`):
            Chance of a cell to be ice rather than a hole.
        success_rate (`float` or `str`, *optional*, defaults to `1.0`):
            Chance of a move to go where it was meant to, from 0 to 1; or the name of a setting of RAGEN-2:
            `"deterministic"` (1), `"paper"` (0.98), `"slippery"` (0.8), and `"slip_0"`, `"slip_2"`, `"slip_5"`,
            `"slip_10"`, `"slip_20"`, `"slip_50"` or `"slip_100"` by the percentage of slips.
        shared_noise (`bool`, *optional*, defaults to `False`):
            Whether slips follow from the seed alone: then all rollouts of a group slip at the same steps.
        observation_format (`str`, *optional*, defaults to `"grid_coord"`):
            `"grid"`, `"coord"`, `"grid_coord"` or `"compact"`.
        symbols (`Mapping[str, str]`, *optional*):
            Characters for the grid, for some or all of `player`, `ice`, `hole`, `goal`, `player_in_hole` and
            `player_on_goal`. The others keep theirs.
        render_mode (`str`, *optional*):
            `"rgb_array"` to have `render()` draw pictures, of 32 x 32 pixels a cell.
        split (`str`, *optional*, defaults to `"train"`):
            `"train"` or `"validation"`; the maps of the two are disjoint.

    Raises:
        `ValueError`: A setting is not possible.
    """

    limits = Limits(max_turns=5, max_actions_per_turn=2, max_actions=10, max_tokens_per_turn=400, max_words=120)
    sample_actions = tuple(MOVES)
    metadata: dict[str, Any] = {"render_modes": list(RENDER_MODES), "render_fps": 4}

    def __init__(
        self,
        *,
        size: int = 4,
        frozen_probability: float = 0.9,
        success_rate: float | str = 1.0,
        shared_noise: bool = False,
        observation_format: ObservationFormat = "grid_coord",
        symbols: Mapping[str, str] | None = None,
        render_mode: str | None = None,
        split: Split = "train",
    ) -> None:
        super().__init__(split=split)
        check_int("size", size, 2, 16)
        if isinstance(success_rate, str):
            check_choice("success_rate", success_rate, SUCCESS_RATES)
            success_rate = SUCCESS_RATES[success_rate]
        _check_probability("success_rate", success_rate)
        _check_probability("frozen_probability", frozen_probability)
        if frozen_probability == 0:
            raise ValueError("frozen_probability=0 leaves no ice to walk on; give a number above 0.")
        if not isinstance(shared_noise, bool):
            raise ValueError(f"shared_noise={shared_noise!r} is not possible; give True or False.")
        check_choice("observation_format", observation_format, get_args(ObservationFormat))
        self.size = size
        self.frozen_probability = float(frozen_probability)
        self.success_rate = float(success_rate)
        self.shared_noise = shared_noise
        self.observation_format: ObservationFormat = observation_format
        self._symbols = checked_symbols(symbols, SYMBOLS)
        self.render_mode = checked_render_mode(render_mode)
        self.instruction = self._instruction()
        self._lake: FrozenLakeEnv | None = None
        self._map: tuple[str, ...] = ()
        self._taken = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        """Draw a map; see [`TextEnv`]."""
        super().reset(seed=seed, options=None if self.shared_noise else options)
        self._taken = 0
        self._map = self.draw_problem(
            lambda rng: draw_map(rng, self.size, self.frozen_probability), "\n".join, self._walkable
        )
        self._places = {letter: cells_of(self._map, letter) for letter in "SGH"}
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
        self._taken += 1
        _, reward, terminated, _, _ = lake.step(list(MOVES).index(move))
        after = self._player()
        info = step_info(success=self._tile(after) == "G", valid=True, effective=after != before)
        return self._observation(), float(reward), bool(terminated), False, info

    def render(self) -> Picture | None:
        """
        Board as a picture.

        Returns:
            `np.ndarray` or `None`: Array of `uint8` and the shape `(32 * size, 32 * size, 3)`; `None`, with a warning,
            without a `render_mode`.
        """
        self._current()
        if self.render_mode is None:
            warn_without_render_mode(self)
            return None
        return paint(_kinds(self._map, self._player()), TILES)

    def oracle_action(self) -> str | None:
        """
        Move with the best chance to reach the goal in the actions that are left: on ice that does not slip the first
        move of a shortest path. `None` at the end of the episode.
        """
        self._current()
        player = self._player()
        if self._tile(player) in "GH":
            return None
        path = shortest_path(self._map, player)
        if self.success_rate == 1.0:
            return path[0] if path else None
        left = self.limits.max_actions - self._taken
        return safest_move(self._map, player, self.success_rate, left if left > 0 else self.limits.max_actions, path)

    def _instruction(self) -> str:
        shape = (self.size, self.size)
        legend = board_legend(self.observation_format, shape, symbol_legend(self._symbols, MEANINGS), _LETTERS)
        picture = f" {picture_legend(TILES, MEANINGS)}" if self.render_mode is not None else ""
        return (
            "You are walking on a frozen lake: reach the goal without falling into a hole. "
            f"{_slip_sentence(self.success_rate)} {legend}{picture} Actions: {', '.join(MOVES)}."
        )

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
        start, goal, holes = (self._places[letter] for letter in "SGH")
        player_name = {"G": "Player on goal", "H": "Player in hole"}.get(tile, "Player")
        return board_text(
            self.observation_format,
            grid=lambda: "\n".join("".join(self._symbols[kind] for kind in row) for row in _kinds(self._map, player)),
            coordinates=lambda: coordinate_text(
                (self.size, self.size),
                [
                    # A pair of numbers is shown as Python shows it.
                    (name, list(map(str, cells)))
                    for name, cells in (("Start", start), ("Goal", goal), (player_name, [player]), ("Holes", holes))
                ],
            ),
            compact=lambda: compact_text([("P", [player]), ("G", goal), ("H", holes)]),
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


def safest_move(
    rows: tuple[str, ...], start: Cell, success_rate: float, moves_left: int, path: list[str] | None
) -> str:
    """
    Move with the best chance to reach the goal on ice that slips, by exact dynamic programming.

    Args:
        rows (`tuple[str, ...]`):
            The map.
        start (`tuple[int, int]`):
            Cell of the player.
        success_rate (`float`):
            Chance of a move to go where it was meant to; half of the rest goes to either side.
        moves_left (`int`):
            Moves within which to reach it.
        path (`list[str]`, *optional*):
            A path whose first move is taken if none is better.

    Returns:
        `str`: The move.
    """
    size, tiles = len(rows), "".join(rows)
    final = np.array([tile in "GH" for tile in tiles])
    ahead = np.array([_neighbours(cell, size) for cell in range(size * size)])  # (cells, moves)
    chance = np.array([tile == "G" for tile in tiles], dtype=float)
    slip = (1 - success_rate) / 2
    for _ in range(moves_left):
        reached = chance[ahead]
        # The sides of a move are its neighbours in the order of MOVES, which goes round.
        of_move = success_rate * reached + slip * (np.roll(reached, 1, axis=1) + np.roll(reached, -1, axis=1))
        chance = np.where(final, chance, of_move.max(axis=1))
    mine = of_move[start[0] * size + start[1]]
    names = list(MOVES)
    if path and mine[names.index(path[0])] >= mine.max() - 1e-12:
        return path[0]
    return names[int(mine.argmax())]


def _neighbours(cell: int, size: int) -> list[int]:
    row, col = divmod(cell, size)
    return [
        min(max(row + down, 0), size - 1) * size + min(max(col + right, 0), size - 1) for down, right in MOVES.values()
    ]


def _kinds(rows: tuple[str, ...], player: Cell) -> list[list[str]]:
    kinds = [[_KINDS[tile] for tile in line] for line in rows]
    row, col = player
    kinds[row][col] = {"goal": "player_on_goal", "hole": "player_in_hole"}.get(kinds[row][col], "player")
    return kinds


def _slip_sentence(success_rate: float) -> str:
    if success_rate == 1.0:
        return "Every move is carried out as you say."
    slip = 1.0 - success_rate
    return f"The ice is slippery: with probability {slip:.4g} a move goes to one of its two sides instead."


def _check_probability(name: str, value: object) -> None:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0.0 <= value <= 1.0:
        raise ValueError(f"{name}={value!r} is not possible; give a number from 0 to 1.")
