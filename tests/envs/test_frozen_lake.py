"""FrozenLake: rewards, edges, slips and formats on maps small enough to follow by hand."""

from collections import Counter

import numpy as np
import pytest
from gymnasium.envs.toy_text.frozen_lake import FrozenLakeEnv

from ragen_envs import check_env, make_env
from ragen_envs.frozen_lake import MOVES, SUCCESS_RATES, cells_of, safest_move, shortest_path


MAP = ("SFF", "FHF", "FFG")


def on_map(rows=MAP, *, noise_seed=0, **kwargs):
    """Environment that stands at the start of the given map."""
    env = make_env("FrozenLake-v0", size=len(rows), **kwargs)
    env.reset(seed=0)
    env._map = rows
    env._places = {letter: cells_of(rows, letter) for letter in "SGH"}
    env._lake = FrozenLakeEnv(desc=list(rows), success_rate=env.success_rate)
    env._lake.np_random = np.random.default_rng(noise_seed)
    env._lake.reset()
    return env


def play(env, *actions):
    return [env.step(action)[1:3] for action in actions]


def test_goal_pays_one_and_ends():
    env = on_map()
    assert play(env, "Right", "Right", "Down") == [(0.0, False)] * 3
    observation, reward, terminated, truncated, info = env.step("Down")
    assert (reward, terminated, truncated) == (1.0, True, False)
    assert info == {"success": True, "action_is_valid": True, "action_is_effective": True}
    assert observation.endswith("___\n_O_\n__√") and "Player on goal: (2, 2)" in observation


def test_hole_pays_nothing_and_ends_without_success():
    env = on_map()
    env.step("Right")
    observation, reward, terminated, truncated, info = env.step("Down")
    assert (reward, terminated, truncated) == (0.0, True, False)
    assert info == {"success": False, "action_is_valid": True, "action_is_effective": True}
    assert observation.endswith("___\n_X_\n__G") and "Player in hole: (1, 1)" in observation
    assert env.oracle_action() is None
    assert env.step("Right")[1:] == (
        0.0,
        True,
        False,
        {"success": False, "action_is_valid": False, "action_is_effective": False},
    )


def test_moving_off_the_board_is_valid_and_changes_nothing():
    observation, reward, terminated, _, info = on_map().step("Left")
    assert (reward, terminated) == (0.0, False)
    assert info == {"success": False, "action_is_valid": True, "action_is_effective": False}
    assert "Player: (0, 0)" in observation


@pytest.mark.parametrize(
    ("action", "cell"),
    [("Right", (0, 1)), ("right", (0, 1)), ("RIGHT", (0, 1)), (" Down\n", (1, 0)), ("down", (1, 0))],
)
def test_names_count_in_any_case(action, cell):
    env = on_map()
    assert env.step(action)[4]["action_is_effective"]
    assert env._player() == cell


@pytest.mark.parametrize("action", ["4", "0", "2", "-1", "Right2", "2. Right", "Right.", "", "Right || Down", "東"])
def test_everything_else_is_invalid(action):
    env = on_map()
    _, reward, terminated, _, info = env.step(action)
    assert (reward, terminated, info["action_is_valid"]) == (0.0, False, False)
    assert env._player() == (0, 0)


def test_without_slips_every_move_is_carried_out():
    env = on_map(("SFF", "FFF", "FFG"))
    for _ in range(5):
        for action, cell in (("Right", (0, 1)), ("Down", (1, 1)), ("Left", (1, 0)), ("Up", (0, 0))):
            env.step(action)
            assert env._player() == cell


def test_slips_go_to_either_side_and_never_back():
    # From the middle of a 5x5 board, "Up" leads up with 0.5 and left or right with 0.25 each.
    rows = ("FFFFF", "FFFFF", "FFSFF", "FFFFF", "FFFFG")
    seen = Counter()
    for noise_seed in range(400):
        env = on_map(rows, noise_seed=noise_seed, success_rate=0.5)
        env.step("Up")
        seen[env._player()] += 1
    assert set(seen) == {(1, 2), (2, 1), (2, 3)}
    assert 160 < seen[1, 2] < 240 and 60 < seen[2, 1] < 140


def walk(env, noise_seed=None, seed=11):
    options = {} if noise_seed is None else {"noise_seed": noise_seed}
    start, _ = env.reset(seed=seed, options=options)
    cells = []
    for action in ["Up", "Left", "Down", "Right"] * 6:
        env.step(action)
        cells.append(env._player())
    return start, tuple(cells)


def test_noise_seed_separates_luck_from_the_start():
    env = make_env("FrozenLake-v0", size=8, frozen_probability=1.0, success_rate=0.5)
    walks = [walk(env, noise_seed) for noise_seed in range(8)]
    assert len({start for start, _ in walks}) == 1
    assert len({cells for _, cells in walks}) > 4
    # The same noise seed brings the same luck, also as a sequence; without one the luck follows from the seed.
    assert walk(env, 3) == walks[3]
    assert walk(env, (11, 0, 4)) == walk(env, (11, 0, 4)) != walk(env, (11, 1, 4))
    assert walk(env) == walk(make_env("FrozenLake-v0", size=8, frozen_probability=1.0, success_rate=0.5))


def test_rollouts_of_a_group_share_their_luck_on_request():
    settings = {"size": 8, "frozen_probability": 1.0, "success_rate": 0.5}
    env = make_env("FrozenLake-v0", **settings, shared_noise=True)
    assert len({walk(env, noise_seed) for noise_seed in (None, 0, 3, (11, 1, 4))}) == 1
    # That luck follows from the seed, as it does where no noise seed is given.
    assert walk(env, 3) == walk(make_env("FrozenLake-v0", **settings))
    assert walk(env, 3, seed=12) != walk(env, 3, seed=11)


@pytest.mark.parametrize(
    ("name", "rate", "sentence"),
    [
        ("deterministic", 1.0, "Every move is carried out"),
        ("slip_0", 1.0, "Every move is carried out"),
        ("paper", 0.98, "with probability 0.02 "),
        ("slip_2", 0.98, "with probability 0.02 "),
        ("slip_5", 0.95, "with probability 0.05 "),
        ("slip_10", 0.9, "with probability 0.1 "),
        ("slippery", 0.8, "with probability 0.2 "),
        ("slip_20", 0.8, "with probability 0.2 "),
        ("slip_50", 0.5, "with probability 0.5 "),
        ("slip_100", 0.0, "with probability 1 "),
    ],
)
def test_settings_of_the_paper_have_names(name, rate, sentence):
    env = make_env("FrozenLake-v0", success_rate=name)
    assert env.success_rate == pytest.approx(rate) and name in SUCCESS_RATES
    assert sentence in env.instruction
    env = on_map(success_rate=name)
    assert env._lake.P[0][0][1][0] == pytest.approx(rate)


def test_noise_seed_changes_nothing_without_slips():
    env = make_env("FrozenLake-v0")
    assert len({walk(env, noise_seed) for noise_seed in range(8)}) == 1


def test_formats():
    assert on_map(observation_format="grid").step("")[0] == "P__\n_O_\n__G"
    coordinates = "Board size: 3 x 3, zero-indexed\nStart: (0, 0)\nGoal: (2, 2)\nPlayer: (0, 0)\nHoles: (1, 1)"
    assert on_map(observation_format="coord").step("")[0] == coordinates
    both = f"Coordinates:\n{coordinates}\nGrid Map:\nP__\n_O_\n__G"
    assert on_map(observation_format="grid_coord").step("")[0] == both
    compact = on_map(("FFS", "HFF", "GHF"), observation_format="compact")
    assert compact.step("")[0] == "P0,2 G2,0 H1,0 H2,1"
    assert compact.step("Left")[0] == "P0,1 G2,0 H1,0 H2,1"


@pytest.mark.parametrize(
    ("observation_format", "shown", "hidden"),
    [
        ("grid", ["X you in a hole"], ["Coordinates", "H hole"]),
        ("coord", ["to (4, 4)"], ["√"]),
        ("grid_coord", ["X you in a hole", "(0, 0) at the top left to (4, 4) at the bottom right"], ["H hole"]),
        ("compact", ["H hole", "to (4, 4)"], ["√"]),
    ],
)
def test_instruction_fits_format_and_board(observation_format, shown, hidden):
    instruction = make_env("FrozenLake-v0", size=5, observation_format=observation_format).instruction
    assert all(text in instruction for text in shown)
    assert not any(text in instruction for text in hidden)


def test_instruction_states_the_slip_rate():
    assert "slippery" not in make_env("FrozenLake-v0").instruction
    assert "with probability 0.2 " in make_env("FrozenLake-v0", success_rate=0.8).instruction


@pytest.mark.parametrize("kwargs", [{}, {"size": 8, "frozen_probability": 0.7}, {"size": 2}, {"size": 16}])
def test_maps_have_a_path_within_the_limits(kwargs):
    env = make_env("FrozenLake-v0", **kwargs)
    check_env(env)
    for seed in range(30):
        env.reset(seed=seed)
        assert len(cells_of(env._map, "S")) == len(cells_of(env._map, "G")) == 1
        assert len(shortest_path(env._map, env._player())) <= env.limits.max_actions


def test_shortest_path():
    assert len(shortest_path(MAP, (0, 0))) == 4
    assert shortest_path(MAP, (2, 0)) == ["Right", "Right"]
    assert shortest_path(("SH", "HG"), (0, 0)) is None


def test_oracle_replans_after_slips():
    env = make_env("FrozenLake-v0", success_rate=0.5, frozen_probability=1.0)
    for seed in range(20):
        env.reset(seed=seed)
        for _ in range(200):
            action = env.oracle_action()
            if action is None:
                break
            env.step(action)
        assert env._tile(env._player()) == "G"


def test_oracle_weighs_the_slips():
    # The only way is down, between two holes. A move that never succeeds goes to its sides: Left and Right lead there.
    rows = ("SFFF", "HHFH", "FGFF", "FFFF")
    moves = {rate: safest_move(rows, (0, 2), rate, 10, ["Down", "Down", "Left"]) for rate in (1.0, 0.0)}
    assert moves[1.0] == "Down" and moves[0.0] in ("Left", "Right")


def test_oracle_is_as_good_as_can_be_on_slippery_ice():
    env = on_map(("SG", "HH"), success_rate=0.8)
    # Right: 0.8 goal, 0.1 hole below, 0.1 stays. Up: 0.8 stays, 0.1 goal, 0.1 stays: slow, but never into the hole.
    assert env.oracle_action() == "Up"
    assert safest_move(("SG", "HH"), (0, 0), 0.8, 1, ["Right"]) == "Right"


def solved_share(player, success_rate):
    env = make_env("FrozenLake-v0", success_rate=success_rate)
    solved = 0
    for seed in range(300):
        env.reset(seed=seed, options={"noise_seed": seed})
        for _ in range(env.limits.max_actions):
            action = player(env)
            if action is None:
                break
            env.step(action)
        solved += env._tile(env._player()) == "G"
    return solved / 300


def test_oracle_beats_the_shortest_path_where_it_slips():
    def follow(env):
        path = shortest_path(env._map, env._player())
        return path[0] if path and env._tile(env._player()) not in "GH" else None

    assert solved_share(lambda env: env.oracle_action(), 0.5) > solved_share(follow, 0.5) + 0.05
    assert solved_share(lambda env: env.oracle_action(), 0.98) > 0.98


def test_symbols_can_be_chosen():
    env = on_map(observation_format="grid", symbols={"ice": ".", "player": "@", "player_in_hole": "!"})
    assert env.step("Right")[0] == ".@.\n.O.\n..G"
    assert env.step("Down")[0] == "...\n.!.\n..G"
    assert "@ you, . ice, O hole, G goal, ! you in a hole, √ you on the goal." in env.instruction


def test_moves_follow_gymnasium_action_numbers():
    assert list(MOVES) == ["Left", "Down", "Right", "Up"]


@pytest.mark.parametrize(
    ("kwargs", "message"),
    [
        ({"size": 1}, "size=1.*from 2 to 16"),
        ({"size": (10, 12)}, r"size=\(10, 12\)"),
        ({"frozen_probability": 0}, "frozen_probability=0.*above 0"),
        ({"success_rate": 1.2}, "success_rate=1.2.*from 0 to 1"),
        ({"success_rate": True}, "success_rate=True"),
        ({"success_rate": "high"}, "success_rate='high'.*'deterministic', 'paper', 'slippery', 'slip_0'"),
        ({"shared_noise": "yes"}, "shared_noise='yes'"),
        ({"symbols": {"ice": "O"}}, "uses a character twice"),
        ({"symbols": {"floor": "."}}, "some of the names player, ice, hole"),
        ({"observation_format": "ansi"}, "observation_format='ansi'"),
    ],
)
def test_impossible_settings_are_refused(kwargs, message):
    with pytest.raises(ValueError, match=message):
        make_env("FrozenLake-v0", **kwargs)
