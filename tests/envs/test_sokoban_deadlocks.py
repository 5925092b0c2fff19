"""Deadlocks: what is called lost is lost, by exhaustive search over every position of small boards."""

from itertools import combinations

import numpy as np
import pytest
from sokoban_kit import on_level, parse

from ragen_envs import make_env
from ragen_envs.sokoban_deadlocks import DeadlockDetector
from ragen_envs.sokoban_generation import draw_level
from ragen_envs.sokoban_levels import Level, push
from ragen_envs.sokoban_search import shortest_plan


def solvable_positions(level):
    """Players and boxes from which the board can be solved: every position, and then back from the solved ones."""
    floor = sorted(set(range(level.rows * level.cols)) - level.walls)
    predecessors, won = {}, []
    for chosen in combinations(floor, len(level.boxes)):
        boxes = frozenset(chosen)
        for player in set(floor) - boxes:
            if boxes == level.targets:
                won.append((player, boxes))
            for step in (1, -1, level.cols, -level.cols):
                following = push(level.walls, boxes, player, step)
                predecessors.setdefault(following, []).append((player, boxes))
    found, frontier = set(won), won
    while frontier:
        frontier = [before for after in frontier for before in predecessors.get(after, ()) if before not in found]
        found.update(frontier)
    return found


def boards():
    rng = np.random.default_rng(0)
    for size, num_boxes, layout, count in (
        ((5, 5), 1, "open", 4),
        ((5, 5), 2, "open", 6),
        ((5, 5), 3, "open", 4),
        ((6, 6), 1, "carved", 10),
        ((6, 6), 2, "carved", 25),
        ((6, 6), 3, "carved", 12),
        ((4, 7), 2, "carved", 10),
    ):
        drawn = 0
        while drawn < count:
            level = draw_level(rng, size, num_boxes, layout)
            if level is not None:
                drawn += 1
                yield level


def test_no_position_that_can_be_solved_is_called_lost():
    lost, seen = 0, 0
    for level in boards():
        solvable = {boxes for _, boxes in solvable_positions(level)}
        detector = DeadlockDetector(level)
        floor = sorted(set(range(level.rows * level.cols)) - level.walls)
        for chosen in combinations(floor, len(level.boxes)):
            boxes = frozenset(chosen)
            called = detector.lost(boxes)
            assert not (called and boxes in solvable), (level, boxes)
            lost += boxes not in solvable
            seen += called
    # Of the placements that are lost wherever the player is, nearly all are recognised.
    assert lost > 4000 and seen > 0.9 * lost


@pytest.mark.parametrize(
    "rows",
    [
        ("######", "#X___#", "#_PO_#", "######"),  # in a corner
        ("######", "#_X__#", "#_P__#", "#__O_#", "######"),  # along a wall without a target
        ("#######", "#_X_XO#", "#__P__#", "#_____#", "#__O__#", "#######"),  # two along a wall with one target
        ("#######", "#_____#", "#_XX__#", "#_XX__#", "#_OOP_#", "#_OO__#", "#######"),  # a square
        ("#######", "#_PXX_#", "#_____#", "#OO___#", "#######"),  # two side by side along a wall
        ("######", "#_#___#", "#_X#PO#", "######"),  # between walls
    ],
)
def test_well_known_deadlocks(rows):
    rows = [row.ljust(max(map(len, rows)), "#") for row in rows]
    level = parse(*rows)
    assert DeadlockDetector(level).lost(level.boxes)
    assert shortest_plan(level) is None


@pytest.mark.parametrize(
    "rows",
    [
        ("######", "#_X_O#", "#_P__#", "######"),  # along a wall with a target
        ("######", "#√___#", "#_PXO#", "######"),  # in a corner that is a target
        ("#######", "#_____#", "#_√√__#", "#_√√__#", "#__P__#", "#_XO__#", "#######"),  # a square on targets
    ],
)
def test_positions_that_only_look_like_deadlocks(rows):
    level = parse(*rows)
    assert not DeadlockDetector(level).lost(level.boxes)
    assert shortest_plan(level) is not None


def test_info_says_so_from_the_push_on():
    env = on_level("######", "#____#", "#_XP_#", "#_O__#", "######")
    assert [env.step(action)[4]["deadlock"] for action in ("Up", "Down", "Left", "", "Right")] == [
        False,
        False,
        True,  # along the left wall, which has no target
        True,
        True,
    ]
    assert env.oracle_action() is None
    env.reset(seed=0)
    assert env.step("Up")[4]["deadlock"] is False


def test_drawn_levels_are_no_deadlocks():
    for kwargs in ({}, {"size": (8, 8), "num_boxes": 3, "max_solution_length": 30, "generation": "reverse"}):
        env = make_env("Sokoban-v0", **kwargs)
        for seed in range(100):
            env.reset(seed=seed)
            assert not env._detector.lost(env._level.boxes)


def test_many_boxes_are_judged_at_once():
    # Every box can reach every target, so a search through the assignments would not end.
    side = 20
    inside = [row * side + col for row in range(2, side - 2) for col in range(2, side - 2)]
    floor = {row * side + col for row in range(1, side - 1) for col in range(1, side - 1)}
    apart = [cell for cell in inside if sum(divmod(cell, side)) % 2]
    level = Level(
        side, side, frozenset(range(side * side)) - floor, frozenset(apart[:60]), frozenset(apart[-60:]), side + 1
    )
    assert not DeadlockDetector(level).lost(level.boxes)
    assert DeadlockDetector(level).lost(level.boxes - {apart[-1]} | {side + 1})
