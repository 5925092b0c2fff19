"""One checker for every environment: ours, and those that users write."""

from __future__ import annotations

import inspect
import pickle
from collections.abc import Iterator
from itertools import islice
from typing import Any

import gymnasium
from gymnasium import spaces

from .core import Limits


_ORACLE_SEEDS = 5
# Of these many the oracle must solve all but one in a hundred, where it is looked at closely.
_MANY_SEEDS = 500
_UNSOLVED_SHARE = 0.01
_LARGE_SEEDS = (2**31 - 1, 2**32, 2**63 - 1)
# Luck inside an episode may defeat even a perfect player, so a problem counts against an environment only if all tries
# at it go the same way. Where luck decides, one success is asked for, among more problems if need be.
_TRIES = 16
_LUCKY_SEEDS = 100
_NONSENSE = "§ no such action \n\t <answer> ß 0 ||"
_INFO_KEYS = ("success", "action_is_valid", "action_is_effective")


class ContractError(ValueError):
    """An environment does not keep to what the rollout engine relies on."""


def check_env(env: Any, *, thorough: bool = False) -> None:
    """
    Check that an environment can be trained on.

    Looks at its type, docstring, instruction and limits, at what `reset` and `step` return, at determinism, at a
    nonsense action and, where there is an oracle, at whether it solves problems within the environment's own limits.
    Leaves the environment in the middle of an episode: reset it before use.

    Args:
        env (`gymnasium.Env`):
            Environment to check.
        thorough (`bool`, *optional*, defaults to `False`):
            Whether to look closer, as the tests of this package do at every shipped environment: at its spaces, at
            large seeds, at whether resets without a seed go on to other problems, at whether a pickled copy plays on
            in the same way, at 500 problems for the oracle, of which it may fail at one in a hundred, and at closing
            twice. Leaves the environment closed.

    Raises:
        `ContractError`: It does not keep the contract; the message says what was found, what is required and how to
            mend it.
    """
    check_declaration(env)
    if not (type(env).__doc__ or "").strip():
        _refuse(env, "its class has no docstring", "a card that describes the environment", "write the docstring")
    _check_reset(env)
    _check_step(env)
    _check_oracle(env)
    if thorough:
        _check_spaces(env)
        _check_seeds(env)
        _check_copy(env)
        _check_many_problems(env)
        _check_close(env)


def check_declaration(env: Any) -> None:
    """
    The cheap part of [`check_env`]: what an environment declares, without playing it.

    Args:
        env (`gymnasium.Env`):
            Environment to check.

    Raises:
        `ContractError`: It is no environment, or its instruction or limits are missing.
    """
    if not isinstance(env, gymnasium.Env):
        _refuse(env, f"it is a {type(env).__name__}", "a gymnasium.Env", "derive the class from ragen_envs.TextEnv")
    instruction = getattr(env, "instruction", None)
    if not isinstance(instruction, str) or not instruction.strip():
        _refuse(env, f"instruction={instruction!r}", "a text", "set the class attribute `instruction`")
    limits = getattr(env, "limits", None)
    if not isinstance(limits, Limits):
        _refuse(env, f"limits={limits!r}", "a ragen_envs.Limits", "set the class attribute `limits`")


def _refuse(env: Any, found: str, required: str, remedy: str) -> None:
    raise ContractError(f"{type(env).__name__}: {found}; required: {required}; to mend it, {remedy}.")


def _check_reset(env: Any) -> None:
    observations = [_observation_of_reset(env) for _ in range(2)]
    if observations[0] != observations[1]:
        _refuse(
            env,
            f"two resets with seed 0 gave {observations[0]!r} and {observations[1]!r}",
            "the same observation",
            "call super().reset(seed=seed) first and draw everything from self.np_random",
        )


def _observation_of_reset(env: Any, seed: int = 0, noise_seed: int = 0) -> str:
    try:
        result = env.reset(seed=seed, options={"noise_seed": noise_seed})
    except Exception as error:
        required, remedy = "a problem for every non-negative seed", "change what this error names"
        if not _takes_seed_and_options(env.reset):
            required, remedy = "seed and options as arguments", "declare reset(self, *, seed=None, options=None)"
        raise ContractError(
            f"{type(env).__name__}: reset(seed={seed}, options={{'noise_seed': {noise_seed}}}) raised "
            f"{type(error).__name__}: {str(error).rstrip('.')}; required: {required}; to mend it, {remedy}."
        ) from error
    is_pair = isinstance(result, tuple) and len(result) == 2
    if not is_pair or not isinstance(result[0], str) or not result[0] or not isinstance(result[1], dict):
        _refuse(
            env, f"reset(seed={seed}) returned {result!r}", "(non-empty text, dict)", "return observation and info"
        )
    observation: str = result[0]
    return observation


def _takes_seed_and_options(reset: Any) -> bool:
    try:
        inspect.signature(reset).bind(seed=0, options={})
    except TypeError:
        return False
    except ValueError:
        # Has no signature to look at.
        return True
    return True


def _check_step(env: Any) -> None:
    before = _observation_of_reset(env)
    for action in (_NONSENSE, ""):
        observation, reward, terminated, truncated, info = _checked_step(env, action)
        if info["action_is_valid"]:
            before = observation
        elif reward != 0 or terminated or observation != before:
            _refuse(
                env,
                f"the invalid action {action!r} gave reward={reward!r}, terminated={terminated!r} and {observation!r}",
                f"reward 0, no end and the same observation {before!r}",
                "leave the state unchanged when action_is_valid is False",
            )
        if terminated or truncated:
            before = _observation_of_reset(env)


def _checked_step(env: Any, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
    try:
        result = env.step(action)
    except Exception as error:
        raise ContractError(
            f"{type(env).__name__}: step({action!r}) raised {type(error).__name__}: {error}; required: model "
            "output never raises; to mend it, return the same observation, reward 0 and action_is_valid False."
        ) from error
    found = f"step({action!r}) returned {result!r}"
    if not isinstance(result, tuple) or len(result) != 5:
        _refuse(env, found, "(observation, reward, terminated, truncated, info)", "return these five")
    observation, reward, terminated, truncated, info = result
    if not isinstance(observation, str) or not observation:
        _refuse(env, found, "a non-empty text first", "return a text observation")
    if isinstance(reward, bool) or not isinstance(reward, (int, float)) or not abs(reward) < float("inf"):
        _refuse(env, found, "a finite number as reward", "return float(reward)")
    if not isinstance(terminated, bool) or not isinstance(truncated, bool):
        _refuse(env, found, "terminated and truncated as bool", "return bool(terminated), bool(truncated)")
    if not isinstance(info, dict) or not all(isinstance(info.get(key), bool) for key in _INFO_KEYS):
        _refuse(env, found, f"bools {', '.join(_INFO_KEYS)} in info", "build info with ragen_envs.step_info")
    return observation, float(reward), terminated, truncated, info


def _check_oracle(env: Any) -> None:
    oracle = getattr(env, "oracle_action", None)
    _observation_of_reset(env)
    if oracle is None or oracle() is None:
        return
    solved = False
    for seed in range(_LUCKY_SEEDS):
        if solved and seed >= _ORACLE_SEEDS:
            return
        solves = _oracle_solves(env, seed)
        if solves is False:
            _refuse_oracle(env, f"its oracle does not solve seed {seed}")
        solved = solved or solves is True
    if not solved:
        _refuse_oracle(env, f"its oracle solves none of {_LUCKY_SEEDS} seeds, whatever the luck of {_TRIES} tries,")


def _refuse_oracle(env: Any, found: str) -> None:
    _refuse(
        env,
        f"{found} in {env.limits.max_actions} actions",
        "problems that can be solved within the limits, and success reported in info",
        "raise limits.max_actions, draw easier problems, or correct oracle_action or success",
    )


def _oracle_solves(env: Any, seed: int) -> bool | None:
    # None: tries that differ all failed, so luck decides here and nothing is known of the problem.
    courses = set()
    for noise_seed in range(_TRIES):
        solved, course = _oracle_episode(env, seed, noise_seed)
        if solved:
            return True
        courses.add(course)
    return None if len(courses) > 1 else False


def _oracle_episode(env: Any, seed: int, noise_seed: int) -> tuple[bool, tuple[str, ...]]:
    observations = [_observation_of_reset(env, seed, noise_seed)]
    actions = min(env.limits.max_actions, env.limits.max_turns * env.limits.max_actions_per_turn)
    for _ in range(actions):
        action = env.oracle_action()
        if action is None:
            break
        observation, _, terminated, truncated, info = _checked_step(env, action)
        observations.append(observation)
        if terminated or truncated:
            return info["success"], tuple(observations)
    return False, tuple(observations)


def _check_spaces(env: Any) -> None:
    for name in ("observation_space", "action_space"):
        if not isinstance(getattr(env, name, None), spaces.Space):
            _refuse(
                env, f"{name}={getattr(env, name, None)!r}", "a gymnasium space", "set it to gymnasium.spaces.Text"
            )
    observations = [_observation_of_reset(env), _checked_step(env, _NONSENSE)[0]]
    for observation in observations:
        if not env.observation_space.contains(observation):
            _refuse(env, f"observation {observation!r}", "a member of observation_space", "widen the space")
    for action in (_NONSENSE, env.action_space.sample()):
        if not env.action_space.contains(action):
            _refuse(env, f"action {action!r}", "every text in action_space", "widen the space")


def _check_seeds(env: Any) -> None:
    for seed in _LARGE_SEEDS:
        _observation_of_reset(env, seed)
    first = _observation_of_reset(env)
    following = [env.reset()[0] for _ in range(5)]
    if set(following) == {first}:
        _refuse(
            env,
            f"five resets without a seed all gave {first!r}",
            "the next problems of the sequence that the last seed began",
            "seed only in super().reset(seed=seed)",
        )


def _check_copy(env: Any) -> None:
    _observation_of_reset(env)
    actions = list(islice(_suggestions(env), 6))
    if actions:
        _checked_step(env, actions[0])
    try:
        copy = pickle.loads(pickle.dumps(env))
    except Exception as error:
        raise ContractError(
            f"{type(env).__name__}: pickling it raised {type(error).__name__}: {error}; required: a copy that plays "
            "on; to mend it, keep connections and open files out of __getstate__."
        ) from error
    for action in [*actions[1:], _NONSENSE]:
        ours, theirs = _checked_step(env, action), _checked_step(copy, action)
        if ours != theirs:
            _refuse(
                env,
                f"step({action!r}) gave {ours!r}, and {theirs!r} of a pickled copy",
                "the same",
                "draw what happens in an episode from self.noise, and keep no state outside the instance",
            )


def _suggestions(env: Any) -> Iterator[str]:
    # What a player might do, without knowing whether it is wise.
    env.action_space.seed(0)
    while True:
        yield env.action_space.sample()


def _check_many_problems(env: Any) -> None:
    oracle = getattr(env, "oracle_action", None)
    _observation_of_reset(env)
    if oracle is None or oracle() is None:
        return
    unsolved = [seed for seed in range(_MANY_SEEDS) if _oracle_solves(env, seed) is False]
    if len(unsolved) > _UNSOLVED_SHARE * _MANY_SEEDS:
        _refuse_oracle(
            env, f"its oracle does not solve {len(unsolved)} of {_MANY_SEEDS} seeds, such as {unsolved[:3]},"
        )


def _check_close(env: Any) -> None:
    for count in ("", "a second time "):
        try:
            env.close()
        except Exception as error:
            raise ContractError(
                f"{type(env).__name__}: closing it {count}raised {type(error).__name__}: {error}; required: close() "
                "that may be called at any time; to mend it, let it do nothing when there is nothing to close."
            ) from error
