"""Reading the rows of a data set: a local file or folder, or a data set of the Hub."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar, get_args

from .core import Split, problem_split


Problem = TypeVar("Problem")
Row = dict[str, Any]
SUFFIXES = (".json", ".jsonl", ".parquet")


class DatasetError(ValueError):
    """A data set cannot be read, or holds nothing that can be used."""


class HubDatasetError(DatasetError):
    """A data set could not be loaded from the Hub."""


def read_rows(dataset: str, columns: tuple[str, ...], remedy: str) -> Iterator[Row]:
    """
    Rows of a data set, one dictionary each.

    Args:
        dataset (`str`):
            A `.json`, `.jsonl` or `.parquet` file, a folder that holds such files (read in the order of their names),
            or the id of a data set on the Hub, of which the split `train` is read.
        columns (`tuple[str, ...]`):
            Columns the rows must have.
        remedy (`str`):
            What the user can do when this fails; ends the message of the error.

    Returns:
        `Iterator[dict[str, Any]]`: The rows.

    Raises:
        `DatasetError`: The data set cannot be read or lacks a column.
    """
    path = Path(dataset).expanduser()
    if path.exists():
        for file in _files(path, dataset, remedy):
            yield from _checked(_file_rows(file, remedy), columns, str(file), remedy)
    elif path.suffix in SUFFIXES or path.is_absolute() or dataset.startswith((".", "~")) or dataset.count("/") > 1:
        raise DatasetError(f"dataset={dataset!r}: there is no such file or folder. {remedy}")
    else:
        yield from _checked(_hub_rows(dataset, remedy), columns, dataset, remedy)


def by_split(
    rows: Iterable[Mapping[str, Any]], read: Callable[[Mapping[str, Any]], tuple[str, Problem] | None]
) -> tuple[dict[Split, tuple[Problem, ...]], int]:
    """
    Problems of rows by the split they belong to.

    Args:
        rows (`Iterable[Mapping[str, Any]]`):
            Rows of a data set.
        read (`Callable[[Mapping[str, Any]], tuple[str, Problem] or None]`):
            Canonical text and problem of a row, `None` where it cannot be used.

    Returns:
        `tuple[dict[str, tuple[Problem, ...]], int]`: Problems in the order of the rows, and how many rows were left
        out.
    """
    found: dict[Split, list[Problem]] = {split: [] for split in get_args(Split)}
    left_out = 0
    for row in rows:
        problem = read(row)
        if problem is None:
            left_out += 1
        else:
            found[problem_split(problem[0])].append(problem[1])
    return {split: tuple(problems) for split, problems in found.items()}, left_out


def _files(path: Path, dataset: str, remedy: str) -> list[Path]:
    files = sorted(file for file in path.iterdir() if file.suffix in SUFFIXES) if path.is_dir() else [path]
    if not files or files[0].suffix not in SUFFIXES:
        found = "is a folder without" if path.is_dir() else "is not one of"
        raise DatasetError(f"dataset={dataset!r} {found} the files that can be read ({', '.join(SUFFIXES)}). {remedy}")
    return files


def _file_rows(file: Path, remedy: str) -> Iterator[Row]:
    try:
        if file.suffix == ".parquet":
            # Comes with `datasets`; only this kind of file needs it.
            from pyarrow import parquet

            for batch in parquet.ParquetFile(file).iter_batches():
                yield from batch.to_pylist()
        elif file.suffix == ".json":
            content = json.loads(file.read_text(encoding="utf-8"))
            yield from content if isinstance(content, list) else [content]
        else:
            with file.open(encoding="utf-8") as lines:
                yield from (json.loads(line) for line in lines if line.strip())
    except ImportError as error:
        raise DatasetError(f"{str(file)!r} needs pyarrow: pip install pyarrow. {remedy}") from error
    except (OSError, ValueError) as error:
        raise DatasetError(f"{str(file)!r} cannot be read as {file.suffix}: {error}. {remedy}") from error


def _hub_rows(dataset: str, remedy: str) -> Iterator[Row]:
    try:
        from datasets import load_dataset

        table = load_dataset(dataset, split="train").with_format("arrow")
    # Whatever stopped the download (network, access, a wrong id, a missing package), the user needs the same remedy.
    except Exception as error:
        reason = f"{type(error).__name__}: {error}"
        raise HubDatasetError(f"dataset={dataset!r} could not be loaded from the Hub ({reason}). {remedy}") from error
    for batch in table.iter(batch_size=1000):
        yield from batch.to_pylist()


def _checked(rows: Iterator[Row], columns: tuple[str, ...], source: str, remedy: str) -> Iterator[Row]:
    for number, row in enumerate(rows):
        # The first row stands for the table; later gaps are the caller's to count.
        if number == 0 and (not isinstance(row, dict) or not set(columns) <= set(row)):
            found = ", ".join(map(repr, row)) if isinstance(row, dict) else type(row).__name__
            wanted = ", ".join(map(repr, columns))
            raise DatasetError(f"{source!r} needs the columns {wanted}; its first row has {found}. {remedy}")
        if isinstance(row, dict):
            yield row
