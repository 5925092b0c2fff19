"""Sokoban: rewards worked out by hand, observation formats, levels and their solutions."""

import hashlib
import time
from collections import Counter
from dataclasses import replace

import pytest
from sokoban_kit import on_level, parse

from ragen_envs import check_env, make_env, sokoban
from ragen_envs.sokoban_levels import push
from ragen_envs.sokoban_search import shortest_plan
from ragen_envs.sokoban_views import MEANINGS, grid_text


def rewards(env, *actions):
    return [env.step(action)[1] for action in actions]


ROOM = ("######", "#____#", "#PXO_#", "#____#", "#____#", "######")


def test_winning_push_pays_step_box_and_solution():
    # -0.1 for the step, +1 for the box, +10 for the level.
    env = on_level(*ROOM)
    observation, reward, terminated, truncated, info = env.step("Right")
    assert reward == pytest.approx(10.9)
    assert (terminated, truncated) == (True, False)
    assert info == {"success": True, "action_is_valid": True, "action_is_effective": True, "deadlock": False}
    assert "#_P√_#" in observation


def test_blocked_moves_cost_a_step():
    env = on_level(*ROOM)
    observation, reward, terminated, _, info = env.step("Left")
    assert reward == pytest.approx(-0.1) and not terminated
    assert info == {"success": False, "action_is_valid": True, "action_is_effective": False, "deadlock": False}
    assert grid_text(env._level) == "\n".join(ROOM)
    # A box before a wall, and a box before another box, do not move either.
    env = on_level("######", "#PX###", "######", "######", "######", "######")
    assert rewards(env, "right") == [pytest.approx(-0.1)]
    env = on_level("#######", "#PXX_O#", "####O_#", "#######")
    assert rewards(env, "right", "Right") == pytest.approx([-0.1, -0.1])
    assert env._level.boxes == {9, 10}


def test_two_boxes_pay_one_by_one_and_charge_for_moving_off():
    env = on_level("########", "#PXO_XO#", "#______#", "########")
    # First box onto a target: -0.1 + 1. One push further it is off again: -0.1 - 1.
    assert rewards(env, "Right") == pytest.approx([0.9])
    assert rewards(env, "Right") == pytest.approx([-1.1])
    # Plain steps cost -0.1 each.
    assert rewards(env, "Down", "Left", "Left") == pytest.approx([-0.1, -0.1, -0.1])
    assert not env._level.solved


def test_wasting_ten_actions_costs_one():
    env = on_level(*ROOM)
    assert sum(rewards(env, *["Left"] * 10)) == pytest.approx(-1.0)


@pytest.mark.parametrize("action", ["up", "UP", " Up ", "Up\n"])
def test_case_and_blanks_do_not_matter(action):
    env = on_level(*ROOM)
    assert env.step(action)[4]["action_is_effective"]
    assert env._level.player == 7


@pytest.mark.parametrize("action", ["Upwards", "1", "Up Up", "Up || Down", "U", "↑", "Up.", "move up", "9" * 20000])
def test_other_texts_are_invalid_and_free(action):
    env = on_level(*ROOM)
    _, reward, terminated, _, info = env.step(action)
    assert (reward, terminated, info["action_is_valid"]) == (0.0, False, False)
    assert grid_text(env._level) == "\n".join(ROOM)


def test_grid_shows_every_symbol():
    rows = ("######", "#S_√_#", "#_X__#", "######")
    assert on_level(*rows, observation_format="grid").step("")[0] == "\n".join(rows)


def test_coordinates_name_what_is_there():
    coordinates = "Board size: 4 x 6, zero-indexed\nBoxes: (2, 2)\nBoxes on target: (1, 3)\nPlayer on target: (1, 1)"
    rows = ("######", "#S_√_#", "#_X__#", "######")
    assert on_level(*rows, observation_format="coord").step("")[0] == coordinates
    both = f"Coordinates:\n{coordinates}\nGrid Map:\n" + "\n".join(rows)
    assert on_level(*rows, observation_format="grid_coord").step("")[0] == both


def test_inner_walls_are_named_where_no_grid_shows_them():
    rows = ("######", "#P#_##", "#_XO_#", "######")
    text = on_level(*rows, observation_format="coord").step("")[0]
    assert text.endswith("Targets: (2, 3)\nBoxes: (2, 2)\nPlayer: (1, 1)\nInner walls: (1, 2), (1, 4)")
    assert on_level(*rows, observation_format="compact").step("")[0] == "P1,1 B2,2 G2,3 W1,2 W1,4"


def test_compact_lists_player_boxes_and_goals_in_reading_order():
    env = on_level("######", "#O_√_#", "#_X_P#", "######", observation_format="compact", layout="open")
    assert env.step("")[0] == "P2,4 B1,3 B2,2 G1,1 G1,3"


@pytest.mark.parametrize(
    ("observation_format", "shown", "hidden"),
    [
        ("grid", ["√ box on a target"], ["Coordinates", "W inner"]),
        ("coord", ["(0, 0) at the top left to (6, 8) at the bottom right"], ["√", "W inner"]),
        ("grid_coord", ["√ box on a target", "to (6, 8)"], ["W inner"]),
        ("compact", ["B box", "W inner wall", "to (6, 8)"], ["√"]),
    ],
)
def test_instruction_explains_the_format_in_use(observation_format, shown, hidden):
    instruction = make_env("Sokoban-v0", size=(7, 9), observation_format=observation_format).instruction
    assert all(text in instruction for text in [*shown, "Up, Down, Left, Right"])
    assert not any(text in instruction for text in hidden)
    assert "W inner" not in make_env("Sokoban-v0", observation_format="compact", layout="open").instruction


def test_symbols_can_be_chosen_and_are_the_ones_explained():
    # Those of the reference's second vocabulary.
    letters = dict(zip(MEANINGS, "W.GBCA@", strict=True))
    env = on_level("######", "#P_√_#", "#_XO_#", "######", observation_format="grid", symbols=letters)
    assert env.step("")[0] == "WWWWWW\nWA.C.W\nW.BG.W\nWWWWWW"
    assert "W wall, . floor, G target, B box, C box on a target, A you, @ you on a target." in env.instruction
    assert on_level("#####", "#S_X#", "#####", observation_format="grid", symbols=letters).step("")[0][7:10] == "@.B"
    # Some may be left as they are; the problems stay the same.
    some = make_env("Sokoban-v0", observation_format="grid", symbols={"floor": "."})
    plain = make_env("Sokoban-v0", observation_format="grid")
    assert some.reset(seed=4)[0] == plain.reset(seed=4)[0].replace("_", ".")
    assert "# wall, . floor, O target" in some.instruction


@pytest.mark.parametrize(
    ("symbols", "message"),
    [
        ({"lava": "L"}, "some of the names wall, floor, target, box, box_on_target"),
        ("WFGB", "give a mapping"),
        ({"wall": "##"}, "'wall'.*one visible character"),
        ({"wall": " "}, "one visible character"),
        ({"wall": "\u200b"}, "one visible character"),
        ({"wall": 1}, "one visible character"),
        ({"wall": "X"}, "uses a character twice"),
    ],
)
def test_symbols_that_cannot_be_told_apart_are_refused(symbols, message):
    with pytest.raises(ValueError, match=message):
        make_env("Sokoban-v0", symbols=symbols)


@pytest.mark.parametrize(
    "kwargs",
    [
        {"layout": "open", "observation_format": "compact"},
        {"size": (5, 5), "layout": "open", "max_solution_length": 4},
        {"size": [8, 8], "num_boxes": 2},
        {"size": (7, 5), "observation_format": "coord"},
        {"max_solution_length": 14},
        {"min_solution_length": 6, "max_solution_length": 8},
        {"generation": "reverse"},
        {
            "generation": "reverse",
            "size": (8, 8),
            "num_boxes": 3,
            "min_solution_length": 12,
            "max_solution_length": 15,
        },
        {"generation": "reverse", "size": (12, 12), "num_boxes": 4},
        {"generation": "reverse", "layout": "open", "size": (5, 7), "split": "validation"},
    ],
)
def test_variants_keep_the_contract_and_their_promises(kwargs):
    env = make_env("Sokoban-v0", **kwargs)
    check_env(env)
    for seed in range(20):
        env.reset(seed=seed)
        level = env._level
        assert (level.rows, level.cols) == tuple(kwargs.get("size", (6, 6)))
        assert len(level.boxes) == len(level.targets) == kwargs.get("num_boxes", 1)
        assert not level.boxes & level.targets
        least, most = kwargs.get("min_solution_length", 1), kwargs.get("max_solution_length", 10)
        assert least <= len(shortest_plan(level)) == len(env._plan) <= most
        inner = {row * level.cols + col for row in range(1, level.rows - 1) for col in range(1, level.cols - 1)}
        assert set(range(level.rows * level.cols)) - inner <= level.walls
        if kwargs.get("layout") == "open":
            assert not inner & level.walls


def test_limits_grow_with_the_longest_solution():
    assert make_env("Sokoban-v0").limits.max_actions == 10
    limits = make_env("Sokoban-v0", max_solution_length=15).limits
    assert (limits.max_actions, limits.max_turns) == (15, 8)


def test_solutions_are_shortest():
    # Counted by hand: walk round below the box (Down, Left, Left, Up), then two pushes.
    level = parse("######", "#_XP_O", "#____#", "######")
    assert shortest_plan(level) == ["Down", "Left", "Left", "Up", "Right", "Right", "Right"]
    assert shortest_plan(level, max_length=6) is None
    assert shortest_plan(replace(level, boxes=level.targets)) == []


def test_lost_positions_have_no_oracle():
    # The box is in a corner, and then along a wall without a target.
    assert on_level("#####", "#X_P#", "#__O#", "#####").oracle_action() is None
    assert on_level("#####", "#_X_#", "#P__#", "#_O_#", "#####").oracle_action() is None


def test_oracle_recovers_from_detours():
    env = make_env("Sokoban-v0")
    for seed in range(20):
        env.reset(seed=seed)
        env.step("Up")
        moves = 0
        while (action := env.oracle_action()) is not None and moves < 40:
            env.step(action)
            moves += 1
        assert env._level.solved or shortest_plan(env._level) is None


def test_push_moves_player_and_box_together():
    level = parse("#####", "#PX_#", "#####")
    assert push(level.walls, level.boxes, level.player, 1) == (7, frozenset({8}))


def test_default_levels_are_cheap():
    env = make_env("Sokoban-v0")
    start = time.perf_counter()
    for seed in range(128):
        env.reset(seed=seed)
    assert time.perf_counter() - start < 3


@pytest.mark.parametrize(
    ("kwargs", "message"),
    [
        ({"size": (2, 6)}, r"size=\(2, 6\).*from 3 to 12"),
        ({"size": 6}, "size=6 "),
        ({"size": (6, 6, 6)}, "size="),
        ({"size": (6, 6.0)}, "size="),
        ({"size": (4, 4)}, "no room for a push"),
        ({"size": (3, 5), "num_boxes": 2}, "num_boxes=2 does not fit.*fewer boxes"),
        ({"num_boxes": 0}, "num_boxes=0.*from 1 to 4"),
        ({"layout": "maze"}, "layout='maze'.*'carved', 'open'"),
        ({"observation_format": "image"}, "observation_format='image'.*'compact'"),
        ({"max_solution_length": 0}, "max_solution_length=0"),
        ({"min_solution_length": 11}, "min_solution_length=11.*from 1 to 10"),
        ({"generation": "hard"}, "generation='hard'.*'placed', 'reverse'"),
    ],
)
def test_impossible_settings_are_refused(kwargs, message):
    with pytest.raises(ValueError, match=message):
        make_env("Sokoban-v0", **kwargs)


def test_settings_without_a_level_end_with_an_error():
    env = make_env("Sokoban-v0", size=(12, 12), num_boxes=4, layout="open", max_solution_length=1)
    with pytest.raises(
        ValueError, match="size=.*num_boxes=4, .*max_solution_length=1, .*split='train'.*; use another"
    ):
        env.reset(seed=0)


def test_search_for_a_level_is_bounded_as_a_whole(monkeypatch):
    # Some hundred levels are drawn for these settings, and up to 200,000 positions searched for each.
    monkeypatch.setattr(sokoban, "_MAX_POSITIONS_PER_RESET", 50_000)
    env = make_env("Sokoban-v0", size=(12, 12), num_boxes=4, layout="open", max_solution_length=50)
    settings = r"size=\(12, 12\), num_boxes=4, layout='open', .*max_solution_length=50"
    with pytest.raises(ValueError, match=f"{settings}.*; use a smaller board, fewer boxes or generation='reverse'"):
        env.reset(seed=0)


def test_each_reset_has_the_whole_search_to_itself(monkeypatch):
    monkeypatch.setattr(sokoban, "_MAX_POSITIONS_PER_RESET", 1000)
    env = make_env("Sokoban-v0")
    for seed in range(200):
        env.reset(seed=seed)


def test_playing_backwards_gives_long_solutions_in_equal_shares():
    env = make_env("Sokoban-v0", generation="reverse")
    lengths = Counter()
    for seed in range(300):
        env.reset(seed=seed)
        lengths[len(env._plan)] += 1
    assert set(lengths) == set(range(1, 11))
    again = make_env("Sokoban-v0", generation="reverse")
    assert [env.reset(seed=seed)[0] for seed in range(20)] == [again.reset(seed=seed)[0] for seed in range(20)]


def test_large_boards_are_played_backwards_in_time():
    # Placed at random, not one of five thousand such levels is solved in ten moves.
    env = make_env("Sokoban-v0", size=(12, 12), num_boxes=4, generation="reverse")
    start = time.perf_counter()
    for seed in range(10):
        env.reset(seed=seed)
    assert time.perf_counter() - start < 10


def test_levels_of_a_seed_stay_what_they_were():
    # The shipped agent was trained on these: of each setting the first rows of a hundred levels and their solutions.
    digests = {}
    for name, kwargs in {
        "default": {},
        "shipped": {"layout": "open", "observation_format": "compact"},
        "two boxes": {"size": (8, 8), "num_boxes": 2},
    }.items():
        env, digest = make_env("Sokoban-v0", **kwargs), hashlib.sha256()
        for seed in range(100):
            digest.update(env.reset(seed=seed)[0].encode())
            digest.update(" ".join(env._plan).encode())
        digests[name] = digest.hexdigest()[:12]
    assert digests == {"default": "e514e5a02654", "shipped": "ad722ef98b68", "two boxes": "4bd7c989f5c1"}
