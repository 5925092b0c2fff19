"""
Pictures of boards, drawn with numpy alone. One table says what each kind of cell looks like: the picture and its
legend are both made from it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

import gymnasium
import numpy as np
from numpy.typing import NDArray

from .core import check_choice


TILE_PIXELS = 32
RENDER_MODES = ("rgb_array",)

Picture = NDArray[np.uint8]
Shape = Literal["field", "square", "ring", "disc"]

COLOURS: dict[str, tuple[int, int, int]] = {
    "white": (255, 255, 255),
    "grey": (90, 90, 90),
    "black": (0, 0, 0),
    "red": (220, 30, 30),
    "green": (30, 160, 60),
    "blue": (30, 80, 220),
    "brown": (150, 90, 40),
    "pale blue": (200, 230, 250),
}
_GRID_LINE = (170, 170, 170)


@dataclass(frozen=True)
class Mark:
    """
    One shape of one colour in a tile.

    Args:
        colour (`str`):
            A name of `COLOURS`.
        shape (`str`):
            `"field"` fills the tile; `"square"`, `"ring"` and `"disc"` lie in its middle. A disc leaves a ring or a
            square under it visible.
    """

    colour: str
    shape: Shape


Tile = tuple[Mark, ...]  # from the bottom up


def paint(kinds: Sequence[Sequence[str]], tiles: Mapping[str, Tile]) -> Picture:
    """
    Picture of a board.

    Args:
        kinds (`Sequence[Sequence[str]]`):
            Kind of each cell, row by row.
        tiles (`Mapping[str, Tile]`):
            What each kind looks like.

    Returns:
        `np.ndarray`: Array of `uint8` and the shape `(32 * rows, 32 * columns, 3)`.
    """
    return np.concatenate([np.concatenate([_tile(tiles[kind]) for kind in row], axis=1) for row in kinds])


def picture_legend(tiles: Mapping[str, Tile], meanings: Mapping[str, str]) -> str:
    """
    What is what in a picture, for the instruction.

    Args:
        tiles (`Mapping[str, Tile]`):
            What each kind of cell looks like.
        meanings (`Mapping[str, str]`):
            What each kind is called.

    Returns:
        `str`: One sentence.
    """
    described = ", ".join(
        f"{meanings[name]} = {' on a '.join(f'{mark.colour} {mark.shape}' for mark in reversed(tile))}"
        for name, tile in tiles.items()
    )
    return f"Cells of the picture: {described}."


def checked_render_mode(render_mode: str | None) -> str | None:
    """
    Refuse a render mode that is not available.

    Args:
        render_mode (`str`, *optional*):
            Value given.

    Returns:
        `str` or `None`: The same.

    Raises:
        `ValueError`: It is neither `None` nor `"rgb_array"`.
    """
    if render_mode is not None:
        check_choice("render_mode", render_mode, RENDER_MODES)
    return render_mode


def warn_without_render_mode(env: gymnasium.Env[str, str]) -> None:
    """
    Say, as gymnasium's environments do, that nothing is rendered unless it is asked for.

    Args:
        env (`gymnasium.Env`):
            Environment whose `render` was called.
    """
    gymnasium.logger.warn(
        f"render() of {type(env).__name__} gives no picture without a render mode; make the environment with "
        'render_mode="rgb_array".'
    )


@lru_cache(maxsize=256)
def _tile(tile: Tile) -> Picture:
    picture = np.zeros((TILE_PIXELS, TILE_PIXELS, 3), dtype=np.uint8)
    for mark in tile:
        picture[_mask(mark.shape)] = COLOURS[mark.colour]
    # Without a line between them, cells of the same kind could not be counted.
    picture[0, :] = picture[:, 0] = _GRID_LINE
    picture.flags.writeable = False
    return picture


def _mask(shape: Shape) -> NDArray[np.bool_]:
    # Distance from the middle of the tile, 1 at its edge.
    along = np.abs(np.arange(TILE_PIXELS) - (TILE_PIXELS - 1) / 2) / (TILE_PIXELS / 2)
    radius = np.hypot(along[:, None], along[None, :])
    masks: dict[Shape, NDArray[np.bool_]] = {
        "field": radius >= 0,
        "square": np.maximum(along[:, None], along[None, :]) <= 0.7,
        "ring": (radius <= 0.85) & (radius >= 0.6),
        "disc": radius <= 0.45,
    }
    return masks[shape]
