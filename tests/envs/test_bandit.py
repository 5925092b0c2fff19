"""Bandit: what the arms pay, one prompt for a group and luck of its own for each member."""

import pickle
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ragen_envs import check_env, make_env
from ragen_envs.bandit import ARM_NAMES


SPLITS = {"train": 12, "validation": 8}

every_split = pytest.mark.parametrize("split", SPLITS)


def arms(env, seed=0, noise_seed=None):
    """Reset; names of the low and of the high arm."""
    options = {} if noise_seed is None else {"noise_seed": noise_seed}
    observation, _ = env.reset(seed=seed, options=options)
    high = env.oracle_action()
    first, second = observation.removeprefix("Arms: ").removesuffix(".").split(", ")
    return (second, first) if first == high else (first, second)


def test_low_arm_always_pays_a_tenth():
    env = make_env("Bandit-v0")
    for noise_seed in range(50):
        low, _ = arms(env, noise_seed=noise_seed)
        assert env.step(low) == (
            f"{low} paid 0.1.",
            0.1,
            True,
            False,
            {"success": False, "action_is_valid": True, "action_is_effective": True},
        )


def test_high_arm_pays_one_in_a_quarter_of_all_pulls():
    env = make_env("Bandit-v0")
    paid = Counter()
    for noise_seed in range(2000):
        _, high = arms(env, noise_seed=(7, noise_seed))
        observation, reward, terminated, truncated, info = env.step(high)
        assert observation == f"{high} paid {reward:g}." and terminated and not truncated
        # Success is the choice, not the luck.
        assert info == {"success": True, "action_is_valid": True, "action_is_effective": True}
        paid[reward] += 1
    assert set(paid) == {0.0, 1.0}
    assert 0.21 < paid[1.0] / 2000 < 0.29


@every_split
def test_a_group_has_one_prompt_and_luck_of_its_own(split):
    seen, paid = set(), set()
    for member in range(16):
        env = make_env("Bandit-v0", split=split)
        observation, _ = env.reset(seed=5, options={"noise_seed": (5, member)})
        seen.add(observation)
        paid.add(env.step(env.oracle_action())[1])
    assert len(seen) == 1 and paid == {0.0, 1.0}


def test_luck_follows_from_the_noise_seed_or_else_from_the_seed():
    def luck(noise_seed):
        env = make_env("Bandit-v0")
        pulls = []
        for seed in range(40):
            _, high = arms(env, seed=seed, noise_seed=noise_seed)
            pulls.append(env.step(high)[1])
        return pulls

    assert luck(None) == luck(None) and len(set(luck(None))) == 2
    assert len(set(luck(3))) == 1


@every_split
def test_all_pairs_come_in_both_orders(split):
    env = make_env("Bandit-v0", split=split)
    shown = {env.reset(seed=seed)[0] for seed in range(400)}
    assert shown == {f"Arms: {first}, {second}." for pair in ARM_NAMES[split] for first, second in (pair, pair[::-1])}
    assert len(ARM_NAMES[split]) == SPLITS[split] and len(shown) == 2 * SPLITS[split]


@every_split
def test_resets_without_seed_deal_every_prompt_before_one_comes_again(split):
    env = make_env("Bandit-v0", split=split)
    many = 2 * SPLITS[split]
    rounds = [
        [env.reset(seed=3)[0], *(env.reset()[0] for _ in range(many - 1))],
        [env.reset()[0] for _ in range(many)],
    ]
    assert len(set(rounds[0])) == len(set(rounds[1])) == many
    assert rounds[0] != rounds[1]


def test_no_name_is_in_both_splits_or_twice_in_one():
    names = [name.lower() for pairs in ARM_NAMES.values() for pair in pairs for name in pair]
    assert len(set(names)) == len(names) == 2 * sum(SPLITS.values())


def test_first_observations_are_the_same_for_ever():
    env = make_env("Bandit-v0")
    assert [env.reset(seed=seed)[0] for seed in range(3)] == [
        "Arms: Speculator, Surveyor.",
        "Arms: Poker Player, Caretaker.",
        "Arms: Judge, Film Star.",
    ]


@pytest.mark.parametrize("change", [str.lower, str.upper, "  {}\n".format, lambda name: name.replace(" ", "   ")])
def test_names_count_in_any_case(change):
    env = make_env("Bandit-v0")
    for seed in range(24):
        low, _ = arms(env, seed)
        assert env.step(change(low))[1] == 0.1


@pytest.mark.parametrize(
    "action", ["", "1", "Arm 1", "0", "Dentist.", "Dentist, Novelist", "the Dentist", "x" * 10**7]
)
def test_everything_else_is_invalid(action):
    env = make_env("Bandit-v0")
    while "Dentist" not in (observation := env.reset()[0]):
        pass
    invalid = {"success": False, "action_is_valid": False, "action_is_effective": False}
    assert env.step(action) == (observation, 0.0, False, False, invalid)
    assert env.step("Dentist")[1] == 0.1


def test_there_is_one_pull():
    env = make_env("Bandit-v0")
    low, high = arms(env)
    observation = env.step(low)[0]
    assert env.oracle_action() is None
    invalid = {"success": False, "action_is_valid": False, "action_is_effective": False}
    assert env.step(high) == (observation, 0.0, True, False, invalid)


def test_names_of_the_other_problems_are_invalid():
    env = make_env("Bandit-v0")
    current = set(arms(env))
    others = [name for pairs in ARM_NAMES.values() for pair in pairs for name in pair if name not in current]
    assert not any(env.step(name)[4]["action_is_valid"] for name in others)


def test_a_random_player_pulls_both_arms():
    env = make_env("Bandit-v0")
    env.action_space.seed(0)
    chosen = Counter()
    for seed in range(200):
        env.reset(seed=seed)
        *_, info = env.step(env.action_space.sample())
        assert info["action_is_valid"]
        chosen[info["success"]] += 1
    assert min(chosen.values()) > 60


@every_split
def test_oracle_beats_the_low_arm_on_average(split):
    env = make_env("Bandit-v0", split=split)
    check_env(env)
    paid = []
    for seed in range(500):
        _, high = arms(env, seed)
        paid.append(env.step(high)[1])
    assert sum(paid) / len(paid) > 0.15


@settings(max_examples=200, deadline=None, derandomize=True, database=None)
@given(st.text() | st.sampled_from([name for pair in ARM_NAMES["train"] for name in pair]))
def test_any_text_is_an_action(action):
    env = make_env("Bandit-v0")
    env.reset(seed=0)
    for _ in range(2):
        observation, reward, terminated, truncated, info = env.step(action)
        assert isinstance(observation, str) and observation and reward in (0.0, 0.1, 1.0)
        assert isinstance(terminated, bool) and truncated is False
        assert set(info) == {"success", "action_is_valid", "action_is_effective"}


def test_copies_by_pickle_go_on_alike():
    env = make_env("Bandit-v0")
    env.action_space.seed(0)
    env.reset(seed=1)
    copy = pickle.loads(pickle.dumps(env))
    assert copy.step(copy.oracle_action()) == env.step(env.oracle_action())
    assert [copy.reset()[0] for _ in range(30)] == [env.reset()[0] for _ in range(30)]
    assert copy.action_space.sample() == env.action_space.sample()
