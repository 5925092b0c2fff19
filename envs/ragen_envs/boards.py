"""Text forms shared by the environments that are played on a board."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal


ObservationFormat = Literal["grid", "coord", "grid_coord", "compact"]
Cell = tuple[int, int]


def parse_move(action: str, moves: Iterable[str]) -> str | None:
    """
    Name of a move, whatever its case and surrounding blanks.

    Args:
        action (`str`):
            What the model wrote.
        moves (`Iterable[str]`):
            Names of the moves.

    Returns:
        `str` or `None`: The move as it is spelt in `moves`; `None` when it is none of them.
    """
    wanted = action.strip().lower()
    return next((move for move in moves if move.lower() == wanted), None)


def coordinate_text(shape: Cell, entities: Iterable[tuple[str, Iterable[Cell]]]) -> str:
    """
    Board as lists of coordinates, one line for each kind of entity that is present.

    Args:
        shape (`tuple[int, int]`):
            Rows and columns of the board.
        entities (`Iterable[tuple[str, Iterable[tuple[int, int]]]]`):
            Names and cells, in the order of the lines.

    Returns:
        `str`: The text.
    """
    lines = [f"Board size: {shape[0]} x {shape[1]}, zero-indexed"]
    for name, cells in entities:
        listed = ", ".join(f"({row}, {col})" for row, col in cells)
        if listed:
            lines.append(f"{name}: {listed}")
    return "\n".join(lines)


def compact_text(entities: Iterable[tuple[str, Iterable[Cell]]]) -> str:
    """
    Board as one short word for each entity: its letter, row and column.

    Args:
        entities (`Iterable[tuple[str, Iterable[tuple[int, int]]]]`):
            Letters and cells, in order.

    Returns:
        `str`: The words, separated by blanks.
    """
    return " ".join(f"{letter}{row},{col}" for letter, cells in entities for row, col in cells)


def board_text(observation_format: ObservationFormat, grid: str, coordinates: str, compact: str) -> str:
    """
    Observation in one of the formats.

    Args:
        observation_format (`str`):
            `"grid"`, `"coord"`, `"grid_coord"` or `"compact"`.
        grid (`str`):
            Rows of symbols.
        coordinates (`str`):
            Lists of coordinates.
        compact (`str`):
            One word for each entity.

    Returns:
        `str`: The observation.
    """
    if observation_format == "grid_coord":
        return f"Coordinates:\n{coordinates}\nGrid Map:\n{grid}"
    return {"grid": grid, "coord": coordinates, "compact": compact}[observation_format]


def board_legend(observation_format: ObservationFormat, shape: Cell, symbols: str, letters: str) -> str:
    """
    Explanation of an observation format for the instruction.

    Args:
        observation_format (`str`):
            `"grid"`, `"coord"`, `"grid_coord"` or `"compact"`.
        shape (`tuple[int, int]`):
            Rows and columns of the board.
        symbols (`str`):
            Meaning of the grid symbols.
        letters (`str`):
            Meaning of the letters of the compact format.

    Returns:
        `str`: One or two sentences.
    """
    corner = f"(0, 0) at the top left to ({shape[0] - 1}, {shape[1] - 1}) at the bottom right"
    parts = []
    if "grid" in observation_format:
        parts.append(f"Symbols of the grid: {symbols}.")
    if observation_format == "compact":
        parts.append(f"Each word is a letter with its row and column: {letters}.")
    if observation_format != "grid":
        parts.append(f"Coordinates are (row, column), from {corner}.")
    return " ".join(parts)
