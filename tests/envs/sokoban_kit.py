"""Positions drawn by hand, for the tests of Sokoban."""

from ragen_envs import make_env
from ragen_envs.sokoban_levels import Level


def parse(*rows):
    """Level drawn with the symbols of the grid."""
    cells = "".join(rows)
    where = {symbol: {cell for cell, found in enumerate(cells) if found == symbol} for symbol in "#OX√PS"}
    (player,) = where["P"] | where["S"]
    return Level(
        len(rows),
        len(rows[0]),
        frozenset(where["#"]),
        frozenset(where["O"] | where["√"] | where["S"]),
        frozenset(where["X"] | where["√"]),
        player,
    )


def on_level(*rows, **kwargs):
    """Environment that stands at the given position."""
    env = make_env("Sokoban-v0", **kwargs)
    env.reset(seed=0)
    env._begin(parse(*rows))
    env._plan = None
    return env
