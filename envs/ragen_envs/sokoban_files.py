"""Sokoban levels from text files in the XSB notation, such as Boxoban's and Microban's."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator, Sequence
from functools import lru_cache
from pathlib import Path
from threading import Lock
from typing import get_args

from .core import Split, problem_split
from .rows import DatasetError
from .sokoban_levels import Level, offsets
from .sokoban_search import MAX_CELLS, search
from .sokoban_views import grid_text


logger = logging.getLogger(__name__)

SUFFIXES = (".txt", ".xsb", ".sok")
# Positions searched for the solution of one level; Boxoban's levels need up to 250,000.
MAX_POSITIONS_PER_LEVEL = 500_000

_SPLIT_FOLDERS: dict[Split, tuple[str, ...]] = {"train": ("train",), "validation": ("valid", "validation")}
_ROW = re.compile(r"[#.$*@+ _-]*#[#.$*@+ _-]*")
_RUN_LENGTHS = re.compile(r"[#.$*@+ _|0-9-]*#[#.$*@+ _|0-9-]*\|[#.$*@+ _|0-9-]*")
_FEWEST_ROWS = 3  # fewer cannot surround a cell, so such lines are taken for text
_REMEDY = (
    f"Give a text file ({', '.join(SUFFIXES)}) in XSB notation (# wall, blank floor, . target, $ box, * box on a "
    "target, @ player, + player on a target), or a folder of such files."
)

_loaded: dict[str, dict[Split, tuple[str, ...]]] = {}
_loading = Lock()


def load_levels(dataset: str) -> dict[Split, tuple[str, ...]]:
    """
    Levels of a file or folder by split, loaded once in a process and shared from then on.

    Args:
        dataset (`str`):
            A text file, or a folder of such files, read in the order of their paths. A folder with a folder `train`
            or `valid` (or `validation`) in it, as of Boxoban, has its splits from these; otherwise a level's split
            follows from the level.

    Returns:
        `dict[str, tuple[str, ...]]`: Levels of `"train"` and of `"validation"` in XSB notation, in the order of the
        files, each once.

    Raises:
        `DatasetError`: The levels cannot be read, or one of them is faulty.
    """
    path = Path(dataset).expanduser() if isinstance(dataset, str) and dataset.strip() else None
    if path is None or not path.exists():
        raise DatasetError(f"dataset={dataset!r}: there is no such file or folder. {_REMEDY}")
    # Environments are made in threads; the second must wait for the first rather than load everything again.
    with _loading:
        key = str(path.resolve())
        if key not in _loaded:
            _loaded[key] = _levels_by_split(path)
        return _loaded[key]


def _levels_by_split(path: Path) -> dict[Split, tuple[str, ...]]:
    found: dict[Split, dict[str, None]] = {split: {} for split in get_args(Split)}
    folders = {
        split: [path / name for name in names if (path / name).is_dir()] for split, names in _SPLIT_FOLDERS.items()
    }
    if any(folders.values()):
        for split, own in folders.items():
            found[split] = dict.fromkeys(text for folder in own for text in _texts(folder))
    else:
        for text in _texts(path):
            found[problem_split(grid_text(parse_level(text)))][text] = None
    for text in found["validation"]:
        found["train"].pop(text, None)
    if not any(found.values()):
        raise DatasetError(f"dataset={str(path)!r} has no level. {_REMEDY}")
    logger.info(f"{path}: " + ", ".join(f"{len(levels)} levels for {split}" for split, levels in found.items()))
    return {split: tuple(levels) for split, levels in found.items()}


def _texts(path: Path) -> Iterator[str]:
    files = sorted(file for file in path.rglob("*") if file.suffix.lower() in SUFFIXES) if path.is_dir() else [path]
    if not files or files[0].suffix.lower() not in SUFFIXES:
        found = "is a folder without" if path.is_dir() else "is not one of"
        raise DatasetError(f"dataset={str(path)!r} {found} the files that can be read. {_REMEDY}")
    for file in files:
        try:
            lines = file.read_text(encoding="utf-8-sig", errors="replace").expandtabs().splitlines()
        except OSError as error:
            raise DatasetError(f"{str(file)!r} cannot be read: {error}. {_REMEDY}") from error
        for number, rows in _blocks(lines, file):
            text = "\n".join(rows)
            try:
                parse_level(text)
            except ValueError as error:
                raise DatasetError(f"The level at line {number} of {str(file)!r} {error}. {_REMEDY}") from error
            yield text


def _blocks(lines: Sequence[str], file: Path) -> Iterator[tuple[int, list[str]]]:
    rows: list[str] = []
    for number, line in enumerate([*lines, ""], start=1):
        if _RUN_LENGTHS.fullmatch(line):
            raise DatasetError(f"Line {number} of {str(file)!r} is run-length encoded; write its rows out. {_REMEDY}")
        if _ROW.fullmatch(line):
            rows.append(line.rstrip())
            continue
        if len(rows) >= _FEWEST_ROWS:
            yield number - len(rows), rows
        elif any(symbol in row for row in rows for symbol in "@+$*"):
            raise DatasetError(f"The level at line {number - len(rows)} of {str(file)!r} is cut short. {_REMEDY}")
        rows = []


def parse_level(text: str) -> Level:
    """
    Level written in XSB notation. What the player cannot get to, past boxes too, becomes wall.

    Args:
        text (`str`):
            Rows, of any lengths.

    Returns:
        `Level`: The level.

    Raises:
        `ValueError`: It is not one that can be played; the message is what to say of it, such as `"has no player"`.
    """
    rows = text.split("\n")
    cols = max(map(len, rows))
    if len(rows) * cols > MAX_CELLS:
        raise ValueError(f"has {len(rows)} x {cols} cells, more than {MAX_CELLS}")
    cells = "".join(row.ljust(cols) for row in rows)
    players, boxes, targets = (_where(cells, symbols) for symbols in ("@+", "$*", ".*+"))
    if len(players) != 1:
        raise ValueError(f"has {len(players) or 'no'} player{'s' * (len(players) > 1)}")
    (player,) = players
    floor = _reachable(cells, player, len(rows), cols)
    # A box on a target behind walls is an ornament.
    boxes, targets = (found - ((boxes & targets) - floor) for found in (boxes, targets))
    if len(boxes) != len(targets) or not boxes:
        raise ValueError(f"has {len(boxes)} boxes for {len(targets)} targets")
    if not boxes | targets <= floor:
        raise ValueError("has a box or a target that the player cannot get to")
    if boxes == targets:
        raise ValueError("is solved from the start")
    walls = frozenset(range(len(cells))) - floor
    return Level(len(rows), cols, walls, targets, boxes, player)


def _where(cells: str, symbols: str) -> frozenset[int]:
    return frozenset(cell for cell, symbol in enumerate(cells) if symbol in symbols)


def _reachable(cells: str, player: int, rows: int, cols: int) -> frozenset[int]:
    found, frontier = {player}, [player]
    for cell in frontier:
        row, col = divmod(cell, cols)
        if not (0 < row < rows - 1 and 0 < col < cols - 1):
            raise ValueError("is not closed by walls")
        for step in offsets(cols):
            if cells[cell + step] != "#" and cell + step not in found:
                found.add(cell + step)
                frontier.append(cell + step)
    return frozenset(found)


@lru_cache(maxsize=10_000)
def solve_text(text: str, max_length: int) -> tuple[tuple[str, ...] | None, int]:
    """
    Shortest solution of a level, remembered, as every episode of a group asks for it.

    Args:
        text (`str`):
            Level in XSB notation.
        max_length (`int`):
            Longest solution of interest.

    Returns:
        `tuple[tuple[str, ...] | None, int]`: The moves, `None` when none was found, and the positions visited for it.
    """
    plan, visited = search(parse_level(text), max_length, MAX_POSITIONS_PER_LEVEL)
    return None if plan is None else tuple(plan), visited
