"""What every environment is made of: limits, splits and the base class of text environments."""

from __future__ import annotations

import inspect
import string
import zlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, fields
from typing import Any, ClassVar, Literal, TypeVar, get_args

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.error import ResetNeeded


Split = Literal["train", "validation"]
Problem = TypeVar("Problem")

# One problem in five is kept for validation.
_SPLIT_BUCKETS = 5
# Redraws before a generator is declared unable to make the problems asked for; the shipped defaults need a few dozen.
_MAX_DRAWS = 5000


def check_choice(name: str, value: object, allowed: Iterable[str]) -> None:
    """
    Refuse a setting that is not one of the names allowed.

    Args:
        name (`str`):
            Setting as the user wrote it.
        value (`object`):
            Value given.
        allowed (`Iterable[str]`):
            Names that are allowed.

    Raises:
        `ValueError`: `value` is none of `allowed`.
    """
    options = list(allowed)
    if value not in options:
        raise ValueError(f"{name}={value!r} is not available; choose one of {', '.join(map(repr, options))}.")


def check_int(name: str, value: object, low: int, high: int) -> None:
    """
    Refuse a setting that is not a whole number in a range.

    Args:
        name (`str`):
            Setting as the user wrote it.
        value (`object`):
            Value given.
        low (`int`):
            Smallest value allowed.
        high (`int`):
            Largest value allowed.

    Raises:
        `ValueError`: `value` is not an integer from `low` to `high`.
    """
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise ValueError(f"{name}={value!r} is not possible; give a whole number from {low} to {high}.")


@dataclass(frozen=True)
class Limits:
    """
    How much an episode may use. Counting is the job of the rollout engine, not of the environment.

    Args:
        max_turns (`int`):
            Model turns an episode may take.
        max_actions_per_turn (`int`):
            Actions a turn may hold. With 1 the whole answer is one action and is never split.
        max_actions (`int`):
            Valid actions an episode may take.
        max_tokens_per_turn (`int`):
            Sampled tokens a turn may take.
        max_words (`int`, *optional*, defaults to `100`):
            Length of a turn stated to the model in the prompt.

    Raises:
        `ValueError`: One of the values is not a whole number of at least 1.
    """

    max_turns: int
    max_actions_per_turn: int
    max_actions: int
    max_tokens_per_turn: int
    max_words: int = 100

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise ValueError(f"{field.name}={value!r} is not possible; give a whole number of at least 1.")


def problem_split(key: str) -> Split:
    """
    Split a problem belongs to, the same in every process and Python version.

    Args:
        key (`str`):
            Canonical text of the problem.

    Returns:
        `str`: `"validation"` for about one text in five, else `"train"`.
    """
    return "validation" if zlib.crc32(key.encode("utf-8", "surrogatepass")) % _SPLIT_BUCKETS == 0 else "train"


def step_info(*, success: bool, valid: bool, effective: bool) -> dict[str, Any]:
    """
    Info dictionary that every step returns.

    Args:
        success (`bool`):
            Whether the problem is solved.
        valid (`bool`):
            Whether the action was understood.
        effective (`bool`):
            Whether the action changed the state.

    Returns:
        `dict[str, Any]`: Keys `success`, `action_is_valid` and `action_is_effective`.
    """
    return {"success": success, "action_is_valid": valid, "action_is_effective": effective}


def settings_text(env: object) -> str:
    """
    Arguments of an environment's constructor with their values, for messages.

    Args:
        env (`object`):
            Environment; arguments that it does not keep under their own name are left out.

    Returns:
        `str`: Such as `"size=4, split='train'"`.
    """
    names = inspect.signature(type(env)).parameters
    return ", ".join(f"{name}={getattr(env, name)!r}" for name in names if hasattr(env, name))


class AnyText(spaces.Text):
    """
    Space of every string. Model output can hold any character, so membership looks at the type alone.

    Args:
        samples (`Sequence[str]`, *optional*, defaults to `()`):
            What `sample` picks from. Without any it makes up letters and digits.
    """

    def __init__(self, samples: Sequence[str] = ()) -> None:
        super().__init__(max_length=64, min_length=0, charset=string.ascii_letters + string.digits + " ")
        self.samples = tuple(samples)

    def sample(self, *args: Any, **kwargs: Any) -> str:
        """One of `samples`, or made-up text."""
        if self.samples:
            return self.samples[int(self.np_random.integers(len(self.samples)))]
        return super().sample(*args, **kwargs)

    def contains(self, x: Any) -> bool:
        """Whether `x` is a string."""
        return isinstance(x, str)


class TextEnv(gymnasium.Env[str, str]):
    """
    Base class of text environments: a text observation, one action string a step.

    A subclass sets `instruction` and `limits` (class attributes, or instance attributes where its options change
    them), calls `super().reset(seed=seed, options=options)` first in `reset`, draws its problem from `self.np_random`
    and all randomness *inside* the episode from `self.noise`, and returns [`step_info`] from `step`. An action that is
    not understood never raises: same observation, reward 0, state unchanged. The same holds for a step after the end
    of an episode, except that `terminated` stays true.

    Args:
        split (`str`, *optional*, defaults to `"train"`):
            Which of the two disjoint sets of problems to draw from, `"train"` or `"validation"`.

    Raises:
        `ValueError`: `split` is neither.
    """

    instruction: str
    limits: Limits
    sample_actions: ClassVar[Sequence[str]] = ()  # what a player without a clue would try
    noise: np.random.Generator

    def __init__(self, *, split: Split = "train") -> None:
        check_choice("split", split, get_args(Split))
        self.split: Split = split
        self.observation_space: spaces.Space[str] = AnyText()
        self.action_space: spaces.Space[str] = AnyText(self.sample_actions)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        """
        Seed both generators; subclasses draw their problem afterwards and return its observation.

        Args:
            seed (`int`, *optional*):
                Seed of the problem. Without it the next problem comes from the instance's own generator.
            options (`dict[str, Any]`, *optional*):
                `noise_seed` (an integer or a sequence of integers) seeds the randomness inside the episode, so that
                episodes with the same start need not share their luck. Without it that randomness follows from `seed`.

        Returns:
            `tuple[str, dict[str, Any]]`: Observation and info; empty here.

        Raises:
            `ValueError`: `noise_seed` is not a seed.
        """
        super().reset(seed=seed)
        # Always drawn, so that giving a noise seed does not change which problems follow.
        derived = int(self.np_random.integers(2**32))
        noise_seed = (options or {}).get("noise_seed")
        try:
            self.noise = np.random.default_rng(derived if noise_seed is None else noise_seed)
        except (TypeError, ValueError) as error:
            raise ValueError(
                f"options['noise_seed']={noise_seed!r} is not a seed; give a non-negative integer or several."
            ) from error
        return "", {}

    def draw_problem(
        self,
        draw: Callable[[np.random.Generator], Problem | None],
        key: Callable[[Problem], str],
        accept: Callable[[Problem], bool],
    ) -> Problem:
        """
        Draw from the instance's generator until a problem belongs to the split and is accepted.

        Args:
            draw (`Callable`):
                Makes a candidate from the generator, or `None` when the draw led nowhere.
            key (`Callable`):
                Canonical text of a candidate, for [`problem_split`].
            accept (`Callable`):
                Whether a candidate can be used; asked last, so it may be the costly part.

        Returns:
            `Problem`: First candidate that fits.

        Raises:
            `ValueError`: None did within the number of draws allowed.
        """
        for _ in range(_MAX_DRAWS):
            problem = draw(self.np_random)
            if problem is not None and problem_split(key(problem)) == self.split and accept(problem):
                return problem
        raise ValueError(
            f"{type(self).__name__} found no problem in {_MAX_DRAWS} draws with {settings_text(self)}; use another "
            "board size, fewer obstacles, or fewer boxes or a longer solution where the environment has them."
        )

    def needs_reset(self) -> ResetNeeded:
        """Error to raise when `step` comes before `reset`."""
        return ResetNeeded(f"{type(self).__name__} has no problem yet; call reset(seed=...) first.")

    def oracle_action(self) -> str | None:
        """
        Next action of a player that solves the problem from the current state.

        Returns:
            `str` or `None`: The action; `None` where there is no oracle or no way to win any more.
        """
        return None
