"""Pictures: what the legend says is what is drawn."""

import re

import numpy as np
import pytest
from sokoban_kit import on_level

from ragen_envs import frozen_lake, make_env, sokoban_views
from ragen_envs.pictures import COLOURS, TILE_PIXELS, paint


BOARDS = ("Sokoban-v0", "FrozenLake-v0")
TABLES = {"Sokoban-v0": sokoban_views, "FrozenLake-v0": frozen_lake}


def tile_of(picture, row, col):
    return picture[row * TILE_PIXELS : (row + 1) * TILE_PIXELS, col * TILE_PIXELS : (col + 1) * TILE_PIXELS]


def colours_in(tile):
    """Names of the colours of a tile without its edge, the one in the middle first and outwards from there."""
    middle = TILE_PIXELS // 2
    names = {value: name for name, value in COLOURS.items()}
    return list(dict.fromkeys(names[tuple(int(n) for n in tile[middle, col])] for col in range(middle, TILE_PIXELS)))


@pytest.mark.parametrize("env_id", BOARDS)
def test_picture_is_a_plain_array(env_id):
    env = make_env(env_id, render_mode="rgb_array")
    env.reset(seed=0)
    picture = env.render()
    rows, cols = env.size if isinstance(env.size, tuple) else (env.size, env.size)
    assert type(picture) is np.ndarray and picture.dtype == np.uint8
    assert picture.shape == (rows * TILE_PIXELS, cols * TILE_PIXELS, 3)
    before = picture.copy()
    picture[:] = 0  # the user's own, not a part of later ones
    assert (env.render() == before).all()


@pytest.mark.parametrize("env_id", BOARDS)
def test_legend_names_the_colours_that_are_drawn(env_id):
    table = TABLES[env_id]
    instruction = make_env(env_id, render_mode="rgb_array").instruction
    legend = re.search(r"Cells of the picture: ([^.]*)\.", instruction)[1]
    described = dict(part.split(" = ") for part in legend.split(", "))
    assert list(described) == [table.MEANINGS[kind] for kind in table.TILES] == list(table.MEANINGS.values())
    for kind, meaning in table.MEANINGS.items():
        shown = colours_in(paint([[kind]], table.TILES))
        named = [part.rsplit(" ", 1)[0] for part in described[meaning].split(" on a ")]
        # A ring lets the field be seen inside as well, so it is not the middle that tells.
        assert set(shown) == set(named)
    # No two kinds of cell look alike.
    pictures = {paint([[kind]], table.TILES).tobytes() for kind in table.TILES}
    assert len(pictures) == len(table.TILES)


@pytest.mark.parametrize("env_id", BOARDS)
def test_without_render_mode_there_is_no_picture_and_no_legend(env_id):
    env = make_env(env_id)
    env.reset(seed=0)
    assert "picture" not in env.instruction
    with pytest.warns(UserWarning, match="render_mode=.rgb_array"):
        assert env.render() is None


@pytest.mark.parametrize("env_id", BOARDS)
def test_pictures_change_neither_problems_nor_observations(env_id):
    with_pictures, without = make_env(env_id, render_mode="rgb_array"), make_env(env_id)
    assert with_pictures.reset(seed=3) == without.reset(seed=3)


def test_sokoban_picture_shows_each_cell():
    env = on_level("######", "#S_√_#", "#_XO_#", "######", render_mode="rgb_array")
    picture = env.render()
    assert colours_in(tile_of(picture, 0, 0)) == ["grey"]
    assert colours_in(tile_of(picture, 1, 1)) == ["blue", "white", "red"]
    assert colours_in(tile_of(picture, 1, 3)) == ["green", "white"]
    assert colours_in(tile_of(picture, 2, 2)) == ["brown", "white"]
    assert set(colours_in(tile_of(picture, 2, 3))) == {"white", "red"}
    env.step("Down")
    after = env.render()
    assert colours_in(tile_of(after, 2, 1)) == ["blue", "white"]
    assert set(colours_in(tile_of(after, 1, 1))) == {"white", "red"}


def test_frozen_lake_picture_follows_the_player():
    env = make_env("FrozenLake-v0", render_mode="rgb_array")
    env.reset(seed=0)
    while (action := env.oracle_action()) is not None:
        row, col = env._player()
        assert colours_in(tile_of(env.render(), row, col)) == ["red", "pale blue"]
        env.step(action)
    assert colours_in(tile_of(env.render(), *env._player()))[:2] == ["red", "green"]


def test_gymnasium_makes_them_too():
    import gymnasium

    env = gymnasium.make("ragen_envs/Sokoban-v0", render_mode="rgb_array")
    env.reset(seed=0)
    assert env.render().shape == (192, 192, 3)
    env.close()
