"""Text forms shared by the environments that are played on a board."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
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
    for move in moves:
        if move.lower() == wanted:
            return move
    return None


def coordinate_text(shape: Cell, entities: Iterable[tuple[str, Sequence[str]]]) -> str:
    """
    Board as lists of coordinates, one line for each kind of entity that is present.

    Args:
        shape (`tuple[int, int]`):
            Rows and columns of the board.
        entities (`Iterable[tuple[str, Sequence[str]]]`):
            Names and cells, these as texts such as `"(0, 1)"`, in the order of the lines.

    Returns:
        `str`: The text.
    """
    lines = [f"Board size: {shape[0]} x {shape[1]}, zero-indexed"]
    lines += [f"{name}: {', '.join(cells)}" for name, cells in entities if cells]
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


def checked_symbols(symbols: Mapping[str, str] | None, defaults: Mapping[str, str]) -> dict[str, str]:
    """
    Symbols of a grid, some of them the user's.

    Args:
        symbols (`Mapping[str, str]`, *optional*):
            Symbols to use instead of the default ones, by what they stand for.
        defaults (`Mapping[str, str]`):
            Default symbols.

    Returns:
        `dict[str, str]`: Symbols in the order of `defaults`.

    Raises:
        `ValueError`: A name is unknown, a symbol is no single visible character, or two are the same.
    """
    if symbols is not None and (not isinstance(symbols, Mapping) or not set(symbols) <= set(defaults)):
        raise ValueError(
            f"symbols={symbols!r} is not possible; give a mapping with some of the names {', '.join(defaults)}."
        )
    chosen = {**defaults, **(symbols or {})}
    for name, symbol in chosen.items():
        if not isinstance(symbol, str) or len(symbol) != 1 or not symbol.isprintable() or symbol.isspace():
            raise ValueError(f"symbols[{name!r}]={symbol!r} is not possible; give one visible character.")
    if len(set(chosen.values())) < len(chosen):
        raise ValueError(f"symbols={chosen!r} uses a character twice; every kind of cell needs its own.")
    return chosen


def symbol_legend(symbols: Mapping[str, str], meanings: Mapping[str, str]) -> str:
    """
    Meaning of each symbol, for the instruction.

    Args:
        symbols (`Mapping[str, str]`):
            Symbol of each kind of cell.
        meanings (`Mapping[str, str]`):
            What each kind is called.

    Returns:
        `str`: Such as `"# wall, _ floor"`.
    """
    return ", ".join(f"{symbol} {meanings[name]}" for name, symbol in symbols.items())


def board_text(
    observation_format: ObservationFormat,
    grid: Callable[[], str],
    coordinates: Callable[[], str],
    compact: Callable[[], str],
) -> str:
    """
    Observation in one of the formats.

    Args:
        observation_format (`str`):
            `"grid"`, `"coord"`, `"grid_coord"` or `"compact"`.
        grid (`Callable[[], str]`):
            Makes the rows of symbols; called only when they are wanted, like the other two.
        coordinates (`Callable[[], str]`):
            Makes the lists of coordinates.
        compact (`Callable[[], str]`):
            Makes one word for each entity.

    Returns:
        `str`: The observation.
    """
    if observation_format == "grid_coord":
        return f"Coordinates:\n{coordinates()}\nGrid Map:\n{grid()}"
    return {"grid": grid, "coord": coordinates, "compact": compact}[observation_format]()


def board_legend(observation_format: ObservationFormat, shape: Cell | None, symbols: str, letters: str) -> str:
    """
    Explanation of an observation format for the instruction.

    Args:
        observation_format (`str`):
            `"grid"`, `"coord"`, `"grid_coord"` or `"compact"`.
        shape (`tuple[int, int]`, *optional*):
            Rows and columns of the board; `None` where they differ from one to the next.
        symbols (`str`):
            Meaning of the grid symbols.
        letters (`str`):
            Meaning of the letters of the compact format.

    Returns:
        `str`: One or two sentences.
    """
    corner = "(0, 0) at the top left"
    if shape is not None:
        corner += f" to ({shape[0] - 1}, {shape[1] - 1}) at the bottom right"
    parts = []
    if "grid" in observation_format:
        parts.append(f"Symbols of the grid: {symbols}.")
    if observation_format == "compact":
        parts.append(f"Each word is a letter with its row and column: {letters}.")
    if observation_format != "grid":
        parts.append(f"Coordinates are (row, column), from {corner}.")
    return " ".join(parts)
