"""Names: near misses are named, users' own environments are found, and nothing is wrapped."""

import sys

import gymnasium
import pytest

from ragen_envs import ContractError, UnknownEnvError, env_ids, make_env


OWN_MODULE = '''
"""A package of a user."""
import gymnasium
import ragen_envs


class Echo(ragen_envs.TextEnv):
    """Say hello."""

    instruction = "Say hello."
    limits = ragen_envs.Limits(max_turns=1, max_actions_per_turn=1, max_actions=1, max_tokens_per_turn=8)

    def __init__(self, *, word="hello", split="train"):
        super().__init__(split=split)
        self.word = word

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed, options=options)
        return "Well?", {}

    def step(self, action):
        right = action == self.word
        return "Well?", float(right), right, False, ragen_envs.step_info(success=right, valid=right, effective=right)


class Any(Echo):
    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.word = "" + self.word


class Bare(gymnasium.Env):
    pass


gymnasium.register("Echo-v0", entry_point=Echo)
gymnasium.register("Any-v0", entry_point="own_package:Any")
gymnasium.register("Bare-v0", entry_point=Bare)
'''


@pytest.fixture
def own_package(tmp_path, monkeypatch):
    (tmp_path / "own_package.py").write_text(OWN_MODULE, encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    yield "own_package"
    for env_id in ("Echo-v0", "Any-v0", "Bare-v0"):
        gymnasium.registry.pop(env_id, None)
    sys.modules.pop("own_package", None)


@pytest.mark.parametrize(
    ("env_id", "nearest"),
    [
        ("sokobann", "ragen_envs/Sokoban-v0"),
        ("Sokoban", "ragen_envs/Sokoban-v0"),
        ("Sokoban-v7", "ragen_envs/Sokoban-v0"),
        ("ragen_envs/Frozenlake-v0", "ragen_envs/FrozenLake-v0"),
        ("metamath", "ragen_envs/MetaMathQA-v0"),
    ],
)
def test_unknown_id_names_the_nearest_and_all_valid_ones(env_id, nearest):
    with pytest.raises(UnknownEnvError) as error:
        make_env(env_id)
    assert f"Did you mean {nearest!r}?" in str(error.value)
    assert all(valid in str(error.value) for valid in env_ids())


@pytest.mark.parametrize("env_id", ["", "zzzz", None, 3])
def test_unknown_id_without_a_near_name_lists_the_valid_ones(env_id):
    with pytest.raises(UnknownEnvError) as error:
        make_env(env_id)
    assert "Did you mean" not in str(error.value)
    assert all(valid in str(error.value) for valid in env_ids())


def test_environments_of_gymnasium_that_are_no_text_games_are_refused():
    with pytest.raises(ContractError, match="instruction"):
        make_env("CartPole-v1")


@pytest.mark.parametrize("env_id", env_ids())
def test_namespace_may_be_left_out(env_id):
    short = make_env(env_id.partition("/")[2])
    assert type(short) is type(make_env(env_id))


@pytest.mark.parametrize(
    ("name", "hint"), [("num_boxs", " Did you mean 'num_boxes'?"), ("colour", ""), ("max_episode_steps", "")]
)
def test_unknown_argument_names_the_nearest_and_all_that_are_allowed(name, hint):
    with pytest.raises(ValueError) as error:
        make_env("Sokoban-v0", **{name: 3})
    assert str(error.value) == (
        f"ragen_envs/Sokoban-v0 takes no argument {name!r}.{hint} "
        "Allowed: size, num_boxes, layout, generation, min_solution_length, max_solution_length, dataset, "
        "observation_format, symbols, render_mode, split."
    )


def test_other_errors_of_a_constructor_pass_through(own_package):
    with pytest.raises(ValueError, match="Allowed: word, split"):
        make_env(f"{own_package}:Echo-v0", wrod="hi")
    # Takes everything, so that only the constructor itself can tell.
    with pytest.raises(TypeError, match="'colour'"):
        make_env(f"{own_package}:Any-v0", colour="red")
    with pytest.raises(TypeError, match="can only concatenate str"):
        make_env(f"{own_package}:Any-v0", word=3)


def test_own_environment_is_imported_and_made(own_package):
    env = make_env(f"{own_package}:Echo-v0", word="hi", split="validation")
    assert (env.word, env.split) == ("hi", "validation")
    assert env.step("hi")[1] == 1.0
    # A second time, when the module is in memory already.
    assert make_env(f"{own_package}:Echo-v0").word == "hello"


def test_own_environment_without_declaration_is_refused(own_package):
    with pytest.raises(ContractError, match="instruction"):
        make_env(f"{own_package}:Bare-v0")


def test_own_module_that_lacks_the_id_names_the_nearest(own_package):
    with pytest.raises(UnknownEnvError, match="does not register 'Ecko-v0'. Did you mean 'Echo-v0'"):
        make_env(f"{own_package}:Ecko-v0")


@pytest.mark.parametrize("module", ["no_such_package_of_mine", ""])
def test_missing_module_says_how_to_install(module):
    with pytest.raises(UnknownEnvError, match="cannot be imported.*PYTHONPATH"):
        make_env(f"{module}:MyEnv-v0")
