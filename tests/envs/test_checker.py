"""The checker refuses environments that are broken, and says in which way."""

import random

import gymnasium
import pytest

from ragen_envs import ContractError, Limits, TextEnv, check_env, make_env, step_info


class Guess(TextEnv):
    """Name a number from 0 to 999."""

    instruction = "Name the number."
    limits = Limits(max_turns=1, max_actions_per_turn=1, max_actions=1, max_tokens_per_turn=8)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed, options=options)
        self.number = int(self.np_random.integers(1000))
        return f"Name {self.number}", {}

    def step(self, action):
        valid, right = action.isdecimal(), action == str(self.number)
        info = step_info(success=right, valid=valid, effective=valid)
        return f"Name {self.number}", float(right), right, False, info

    def oracle_action(self):
        return str(self.number)


def broken(**members):
    return type("Broken", (Guess,), {"__doc__": "A broken game.", **members})()


def raising_step(self, action):
    return self.step_results[action]


def with_result(position, value):
    def step(self, action):
        result = list(Guess.step(self, action))
        result[position] = value
        return tuple(result)

    return step


def unseeded_reset(self, *, seed=None, options=None):
    Guess.reset(self, seed=seed, options=options)
    return f"Name {random.random()}", {}


# What seed 0 draws: a player who knows this one answer gets no further than the first problem.
FIRST = int(Guess().reset(seed=0)[0].split()[1])


def test_sound_environment_passes():
    check_env(Guess())
    check_env(broken(oracle_action=lambda self: None))


@pytest.mark.parametrize(
    ("env", "found"),
    [
        (broken(__doc__=None), "docstring"),
        (broken(instruction=None), "instruction=None"),
        (broken(instruction="  "), "instruction='  '"),
        (broken(limits={"max_turns": 1}), r"limits=\{'max_turns': 1\}"),
        (broken(reset=lambda self, *, seed=None, options=None: "Name 3"), "reset.*returned 'Name 3'"),
        (broken(reset=lambda self, *, seed=None, options=None: ("", {})), "non-empty text"),
        (broken(reset=lambda self, *, seed=None, options=None: ("Name 3", None)), "non-empty text, dict"),
        (broken(reset=lambda self: ("Name 3", {})), r"reset\(seed=0, .*raised TypeError"),
        (
            broken(reset=lambda self, *, seed=None: ("Name 3", {})),
            r"declare reset\(self, \*, seed=None, options=None\)",
        ),
        (broken(reset=unseeded_reset), "two resets with seed 0"),
        (broken(step=raising_step, step_results={}), r"step\(.*raised KeyError"),
        (broken(step=lambda self, action: ("Name 3", 0.0, False, {})), "required: .observation, reward"),
        (broken(step=with_result(0, 3)), "non-empty text first"),
        (broken(step=with_result(1, "0")), "finite number as reward"),
        (broken(step=with_result(1, float("nan"))), "finite number as reward"),
        (broken(step=with_result(2, 0)), "terminated and truncated as bool"),
        (broken(step=with_result(4, {})), "bools success, action_is_valid, action_is_effective"),
        (broken(step=with_result(4, {"success": 1, "action_is_valid": 0, "action_is_effective": 0})), "bools"),
        (broken(step=with_result(1, -0.1)), "invalid action .* gave reward=-0.1"),
        (broken(step=with_result(2, True)), "terminated=True"),
        (broken(step=with_result(0, "Something new")), "same observation"),
        (broken(oracle_action=lambda self: "1000"), "oracle does not solve seed 0"),
        (
            broken(oracle_action=lambda self: str(self.number) if self.number == FIRST else None),
            "does not solve seed 1",
        ),
    ],
)
def test_broken_environment_is_refused(env, found):
    with pytest.raises(ContractError, match=found) as error:
        check_env(env)
    assert "required: " in str(error.value) and "to mend it, " in str(error.value)


def test_sound_environment_passes_the_thorough_check():
    check_env(Guess(), thorough=True)
    # What is luck is not held against the oracle, however closely one looks.
    check_env(make_env("FrozenLake-v0", success_rate=0.8), thorough=True)


def fixed_reset(self, *, seed=None, options=None):
    return Guess.reset(self, seed=0, options=options)


def small_seeds_only(self, *, seed=None, options=None):
    return (
        Guess.reset(self, seed=None if seed is None else seed & 0xFF, options=options) if seed != 2**63 - 1 else 1 / 0
    )


def random_step(self, action):
    _, *rest = Guess.step(self, action)
    return f"{random.random()}" if rest[-1]["action_is_valid"] else f"Name {self.number}", *rest


def closes_once(self):
    self.closings = getattr(self, "closings", 0) + 1
    return 1 / (2 - self.closings)


def oracle_of_most(self):
    return str(self.number) if self.number < 960 else "1000"


@pytest.mark.parametrize(
    ("members", "found"),
    [
        ({"observation_space": None}, "observation_space=None"),
        ({"observation_space": gymnasium.spaces.Discrete(3)}, "observation 'Name .*member of observation_space"),
        ({"action_space": gymnasium.spaces.Discrete(3)}, "every text in action_space"),
        ({"reset": fixed_reset}, "five resets without a seed"),
        ({"reset": small_seeds_only}, "seed=9223372036854775807.*raised ZeroDivisionError"),
        ({"connection": property(lambda self: None), "__reduce__": lambda self: 1 / 0}, "pickling it raised"),
        ({"step": random_step, "sample_actions": tuple("123")}, "of a pickled copy"),
        ({"oracle_action": oracle_of_most}, r"does not solve \d+ of 500 seeds"),
        ({"close": closes_once}, "closing it a second time raised ZeroDivisionError"),
    ],
)
def test_thorough_check_finds_what_the_quick_one_does_not(members, found, monkeypatch):
    spaces = {name: members[name] for name in ("observation_space", "action_space") if name in members}
    Broken = type("Broken", (Guess,), {"__doc__": "A broken game.", "__module__": __name__, **members})
    monkeypatch.setitem(globals(), "Broken", Broken)  # a class must be found by its name to be pickled
    Broken.__init__ = lambda self: (Guess.__init__(self), self.__dict__.update(spaces))[0]
    check_env(Broken())
    with pytest.raises(ContractError, match=found) as error:
        check_env(Broken(), thorough=True)
    assert "required: " in str(error.value) and "to mend it, " in str(error.value)


@pytest.mark.parametrize("thing", [None, "ragen_envs/Sokoban-v0", Guess, object()])
def test_other_things_are_refused(thing):
    with pytest.raises(ContractError, match="gymnasium.Env"):
        check_env(thing)


def test_problems_beyond_the_limits_are_refused():
    env = make_env("Sokoban-v0")
    env.limits = Limits(max_turns=1, max_actions_per_turn=1, max_actions=1, max_tokens_per_turn=8)
    with pytest.raises(ContractError, match="in 1 actions"):
        check_env(env)


@pytest.mark.parametrize(
    "kwargs",
    [
        {"success_rate": 0.7},
        {"success_rate": 0.3},
        {"success_rate": 0.3, "split": "validation"},
        {"success_rate": 0.1, "size": 8, "frozen_probability": 0.6},
    ],
)
def test_bad_luck_is_not_held_against_an_oracle(kwargs):
    check_env(make_env("FrozenLake-v0", **kwargs))


def test_luck_is_no_excuse_for_an_oracle_that_never_wins():
    def step(self, action):
        _, *others = Guess.step(self, action)
        return (f"{self.noise.random()}" if others[-1]["action_is_valid"] else f"Name {self.number}"), *others

    env = broken(step=step, oracle_action=lambda self: "1000")
    with pytest.raises(ContractError, match="solves none of 100 seeds"):
        check_env(env)


def test_deterministic_environment_is_tried_once_on_each_problem():
    resets = []

    def reset(self, *, seed=None, options=None):
        resets.append(seed)
        return Guess.reset(self, seed=seed, options=options)

    check_env(broken(reset=reset))
    assert resets[-5:] == [0, 1, 2, 3, 4] and len(resets) < 10


@pytest.mark.parametrize("error", [ValueError("no problem in 5000 draws"), TypeError("can only concatenate str")])
def test_failure_inside_reset_is_not_blamed_on_its_arguments(error):
    def reset(self, *, seed=None, options=None):
        raise error

    with pytest.raises(ContractError, match=str(error)) as caught:
        check_env(broken(reset=reset))
    assert "declare reset" not in str(caught.value) and caught.value.__cause__ is error


def test_environment_may_truncate_an_episode_by_itself():
    def step(self, action):
        if self.over:
            raise RuntimeError("the episode is over")
        self.over = True
        return (*Guess.step(self, action)[:3], True, Guess.step(self, action)[4])

    def reset(self, *, seed=None, options=None):
        self.over = False
        return Guess.reset(self, seed=seed, options=options)

    check_env(broken(reset=reset, step=step))


def test_step_that_raises_for_the_action_of_the_oracle_is_refused():
    def step(self, action):
        return Guess.step(self, action) if action != str(self.number) else 1 / 0

    with pytest.raises(ContractError, match=r"step\(.*raised ZeroDivisionError"):
        check_env(broken(step=step))


def test_plain_gymnasium_environment_may_lack_an_oracle():
    class Plain(gymnasium.Env):
        """Nothing to do."""

        instruction = "Wait."
        limits = Guess.limits

        def reset(self, *, seed=None, options=None):
            return "Wait", {}

        def step(self, action):
            return "Wait", 0.0, False, False, step_info(success=False, valid=True, effective=False)

    check_env(Plain())


@pytest.mark.parametrize("value", [0, -1, 1.5, "3", True, None])
@pytest.mark.parametrize(
    "name", ["max_turns", "max_actions_per_turn", "max_actions", "max_tokens_per_turn", "max_words"]
)
def test_limits_are_positive_whole_numbers(name, value):
    good = {"max_turns": 1, "max_actions_per_turn": 1, "max_actions": 1, "max_tokens_per_turn": 1}
    with pytest.raises(ValueError, match=f"{name}={value!r}.*at least 1"):
        Limits(**{**good, name: value})
