"""Every registered environment, in both splits, keeps the contract the rollout engine relies on."""

import json
import os
import subprocess
import sys
from pathlib import Path

import gymnasium
import pytest
from gymnasium.error import ResetNeeded

import ragen_envs
from ragen_envs import check_env, env_ids, make_env, problem_split


CASES = [(env_id, split) for env_id in env_ids() for split in ("train", "validation")]
MANY_SEEDS = range(200)
# Fewer problems than others have; a prompt more than these would be a fault.
ALL_PROBLEMS = {"ragen_envs/Bandit-v0": (24, 16)}
# What makes the course of an episode a matter of luck.
SLIPPERY = {"ragen_envs/FrozenLake-v0": {"success_rate": 0.7}}
# What the right action pays is luck.
LUCKY = {"ragen_envs/Bandit-v0"}

every_env = pytest.mark.parametrize("env_id", env_ids())
every_case = pytest.mark.parametrize(("env_id", "split"), CASES)


def first_observations(env_id, seeds, **kwargs):
    env = make_env(env_id, **kwargs)
    return [env.reset(seed=seed)[0] for seed in seeds]


def courses(env_id, seeds):
    """Episodes of the oracle, with a move at random now and then; where moves may slip, they do."""
    env = make_env(env_id, **SLIPPERY.get(env_id, {}))
    env.action_space.seed(0)
    played = []
    for seed in seeds:
        env.reset(seed=seed, options={"noise_seed": (seed, 1)})
        terminated, number = False, 0
        while not terminated and number < env.limits.max_actions:
            action = env.action_space.sample() if number % 3 == 2 else env.oracle_action()
            result = env.step(action or "")
            played.append(list(result))
            terminated, number = result[2], number + 1
    return played


@every_case
def test_keeps_the_contract(env_id, split):
    env = make_env(env_id, split=split)
    check_env(env)
    assert env.split == split
    assert env.observation_space.contains("√ ß") and env.action_space.contains("")


@every_case
def test_passes_the_thorough_check(env_id, split):
    check_env(make_env(env_id, split=split), thorough=True)


@every_env
def test_is_registered_with_gymnasium(env_id):
    assert env_id.startswith("ragen_envs/") and env_id.endswith("-v0")
    assert env_id in gymnasium.registry
    assert not isinstance(make_env(env_id), gymnasium.Wrapper)


@every_case
def test_oracle_solves_every_problem_within_the_limits(env_id, split):
    env = make_env(env_id, split=split)
    budget = min(env.limits.max_actions, env.limits.max_turns * env.limits.max_actions_per_turn)
    for seed in range(100):
        env.reset(seed=seed)
        total, actions, terminated = 0.0, 0, False
        while not terminated:
            _, reward, terminated, _, info = env.step(env.oracle_action())
            assert info["action_is_valid"]
            total += reward
            actions += 1
            assert actions <= budget
        assert info["success"] and (total > 0 or env_id in LUCKY)
        assert env.oracle_action() is None


def test_same_seed_gives_the_same_problem_in_another_process():
    seeds = list(range(20))
    code = (
        "import json, ragen_envs, test_contract as t\n"
        f"played = {{i: t.first_observations(i, {seeds}) + t.courses(i, {seeds}) for i in ragen_envs.env_ids()}}\n"
        "print(json.dumps(played))"
    )
    folders = os.pathsep.join([str(Path(ragen_envs.__file__).parents[1]), str(Path(__file__).parent)])
    # A different hash seed: nothing may depend on the order of a set or on hash().
    environ = {**os.environ, "PYTHONHASHSEED": "4242", "PYTHONPATH": folders, "PYTHONIOENCODING": "utf-8"}
    result = subprocess.run([sys.executable, "-c", code], env=environ, capture_output=True, encoding="utf-8")
    assert result.returncode == 0, result.stderr
    ours = {env_id: first_observations(env_id, seeds) + courses(env_id, seeds) for env_id in env_ids()}
    assert json.loads(result.stdout) == json.loads(json.dumps(ours))


@every_env
def test_splits_are_disjoint(env_id):
    train = set(first_observations(env_id, MANY_SEEDS, split="train"))
    validation = set(first_observations(env_id, MANY_SEEDS, split="validation"))
    if env_id in ALL_PROBLEMS:
        assert (len(train), len(validation)) == ALL_PROBLEMS[env_id]
    else:
        assert len(train) > 100 and len(validation) > 50
    assert not train & validation


@every_env
def test_resets_without_seed_go_on_to_new_problems(env_id):
    env = make_env(env_id)
    first = env.reset(seed=3)[0]
    following = [env.reset()[0] for _ in range(5)]
    assert len({first, *following}) == 6
    # The whole sequence follows from the one seed.
    again = make_env(env_id)
    assert [again.reset(seed=3)[0], *(again.reset()[0] for _ in range(5))] == [first, *following]


@every_env
def test_noise_seed_leaves_the_problems_alone(env_id):
    env = make_env(env_id)
    plain = [env.reset(seed=8)[0], env.reset()[0]]
    noisy = [env.reset(seed=8, options={"noise_seed": (1, 2, 3)})[0], env.reset(options={"noise_seed": 5})[0]]
    assert plain == noisy


@every_env
@pytest.mark.parametrize("noise_seed", ["seven", -1, 0.5])
def test_noise_seed_must_be_a_seed(env_id, noise_seed):
    with pytest.raises(ValueError, match="noise_seed.*non-negative integer"):
        make_env(env_id).reset(seed=0, options={"noise_seed": noise_seed})


@every_env
@pytest.mark.parametrize("action", ["", "  ", "\n"])
def test_empty_action_is_invalid(env_id, action):
    env = make_env(env_id)
    observation, _ = env.reset(seed=0)
    *rest, info = env.step(action)
    assert rest == [observation, 0.0, False, False]
    # An environment may add to these.
    assert info == info | {"success": False, "action_is_valid": False, "action_is_effective": False}


@every_env
def test_nothing_happens_after_the_end(env_id):
    env = make_env(env_id)
    env.reset(seed=0)
    terminated = False
    while not terminated:
        action = env.oracle_action()
        observation, _, terminated, _, _ = env.step(action)
    *rest, info = env.step(action)
    assert rest == [observation, 0.0, True, False]
    assert info == info | {"success": True, "action_is_valid": False, "action_is_effective": False}


@every_env
def test_step_before_reset_says_what_to_do(env_id):
    env = make_env(env_id)
    with pytest.raises(ResetNeeded, match="reset"):
        env.step("Up")
    with pytest.raises(ResetNeeded, match="reset"):
        env.oracle_action()


@every_env
def test_unknown_split_is_refused(env_id):
    with pytest.raises(ValueError, match="split='test' is not available.*'train', 'validation'"):
        make_env(env_id, split="test")


@every_env
def test_may_be_closed_twice_and_before_any_episode(env_id):
    env = make_env(env_id)
    env.close()
    env.close()


@every_env
def test_instances_do_not_share_anything(env_id):
    first, second = make_env(env_id), make_env(env_id)
    start = first.reset(seed=1)[0]
    second.reset(seed=2)
    second.step(second.oracle_action())
    assert first.step("")[0] == start
    assert make_env(env_id).reset(seed=1)[0] == start


def test_problem_split_is_stable_and_about_one_in_five():
    # By hand: crc32 of "a" is 0xE8B7BE43 = 3904355907, which leaves 2 after division by 5; of "" it is 0.
    assert problem_split("a") == "train"
    assert problem_split("") == "validation"
    share = sum(problem_split(f"problem {n}") == "validation" for n in range(5000)) / 5000
    assert 0.18 < share < 0.22
