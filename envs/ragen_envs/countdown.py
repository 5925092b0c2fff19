"""Countdown: combine the given numbers with + - * / into a formula that equals the target."""

from __future__ import annotations

import itertools
import logging
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache, lru_cache
from pathlib import Path
from threading import Lock
from typing import Any, Literal, TypeGuard, get_args

import numpy as np

from .core import AnyText, Limits, Split, TextEnv, check_choice, step_info
from .expressions import Expression, parse_expression
from .rows import DatasetError, by_split, read_rows


logger = logging.getLogger(__name__)

Operators = Literal["+-*/", "+-"]

RIGHT = "Correct."
PARTIAL_CREDIT = 0.1

_COUNTS = (3, 4)
_MAX_NUMBER = 99
_TARGETS = range(10, 100)
# Of a data set. The exact solver needs a hundred times longer for each number more.
_ROW_COUNTS = range(2, 5)
_ROW_BOUND = 1_000_000
_COLUMNS = ("nums", "target")
_REMEDY = (
    "Leave `dataset` unset for generated problems, or give a local .json, .jsonl or .parquet file (or a folder of "
    "them) with the columns 'nums' and 'target', or the id of such a data set on the Hub."
)


@dataclass(frozen=True, slots=True)
class Puzzle:
    """
    One problem.

    Args:
        numbers (`tuple[int, ...]`):
            Numbers in the order shown.
        target (`int`):
            Value to reach.
    """

    numbers: tuple[int, ...]
    target: int

    @property
    def key(self) -> str:
        """Canonical text, the same for every order of the numbers."""
        return f"{' '.join(map(str, sorted(self.numbers)))} = {self.target}"


_loaded: dict[str, dict[Split, tuple[Puzzle, ...]]] = {}
_loading = Lock()


class Countdown(TextEnv):
    """
    Combine the given numbers into a formula that equals the target.

    **Actions.** One formula; [`parse_expression`] says what is understood. Anything else is malformed, which makes it
    invalid: powers, decimals, several formulas and surrounding text among it. The formula is calculated exactly, and
    only if its numbers are the given ones: `24` is not made of 2 and 4, and 5/2 does not equal 2.

    **Observation.** Target and numbers in one line; after an answer, what was wrong with it.

    **Start.** A problem drawn by the seed. Generated ones have three or four numbers from 1 to 99, as often the one as
    the other, and a target from 10 to 99 that is none of them; they are made by taking the target apart, so each can
    be solved. Of a data set, problems that cannot be solved are passed over.

    **Rewards.** 1 for the right formula; 0.1 for one of the right numbers with another value or none (division by
    zero), or followed by `=` and a number that is not the target; 0 for wrong numbers and malformed answers.

    **End.** After one formula, success if it is right. A malformed answer does not end the episode by itself.

    Args:
        operators (`str`, *optional*, defaults to `"+-*/"`):
            What the problems can be solved with: all four operations, or `"+-"` for the paper's choice, problems that
            some signs before all numbers solve. Answers may use all four in either case.
        use_all_numbers (`bool`, *optional*, defaults to `True`):
            Whether each number must be used exactly once. Otherwise at most once.
        dataset (`str`, *optional*):
            Problems to use instead of generated ones: a local `.json`, `.jsonl` or `.parquet` file, a folder with such
            files, or the id of a data set on the Hub (split `train`), in the format of
            `Jiayi-Pan/Countdown-Tasks-3to4`: `nums` and `target`. Rows that do not hold two to four whole numbers from
            0 to a million and a target of that size are left out.
        split (`str`, *optional*, defaults to `"train"`):
            `"train"` or `"validation"`; disjoint, also if the numbers stand in another order.

    Raises:
        `ValueError`: A setting is not possible, or the data cannot be had.
    """

    limits = Limits(max_turns=1, max_actions_per_turn=1, max_actions=1, max_tokens_per_turn=400, max_words=100)

    def __init__(
        self,
        *,
        operators: Operators = "+-*/",
        use_all_numbers: bool = True,
        dataset: str | None = None,
        split: Split = "train",
    ) -> None:
        super().__init__(split=split)
        check_choice("operators", operators, get_args(Operators))
        if not isinstance(use_all_numbers, bool):
            raise ValueError(f"use_all_numbers={use_all_numbers!r} is not possible; give True or False.")
        self.operators: Operators = operators
        self.use_all_numbers = use_all_numbers
        self.dataset = dataset
        self.puzzles = None if dataset is None else load_puzzles(dataset)[split]
        if self.puzzles is not None and not self.puzzles:
            raise DatasetError(f"dataset={dataset!r} has no problem in the split {split!r}; use a larger data set.")
        self._once = "exactly once" if use_all_numbers else "at most once"
        self.instruction = (
            "You are given a target and some numbers. Write one formula that equals the target, with the operations "
            f"+ - * / and brackets. Use each of the numbers {self._once}, and no others. For example, the formula "
            "(3 + 4) * 2 is right for the numbers 2, 3, 4 and the target 14. Answer with the formula alone."
        )
        self._guesses = AnyText()
        self.action_space = self._guesses
        self._puzzle: Puzzle | None = None
        self._observation = ""
        self._ended = False
        self._solved = False

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        """Draw a problem; see [`TextEnv`]."""
        super().reset(seed=seed, options=options)
        self._puzzle = puzzle = self._generate() if self.puzzles is None else self._pick(self.puzzles)
        self._guesses.samples = tuple(_chains(puzzle.numbers))
        self._observation = f"Target: {puzzle.target}. Numbers: {', '.join(map(str, puzzle.numbers))}."
        self._ended = self._solved = False
        return self._observation, {}

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """Judge a formula; see [`TextEnv`]."""
        puzzle = self._current()
        formula = None if self._ended else parse_expression(action)
        if formula is None:
            info = step_info(success=self._solved, valid=False, effective=False)
            return self._observation, 0.0, self._ended, False, info
        reward, self._observation = self._judge(puzzle, formula)
        self._ended, self._solved = True, reward == 1.0
        return self._observation, reward, True, False, step_info(success=self._solved, valid=True, effective=True)

    def oracle_action(self) -> str | None:
        """Formula that an exact solver finds; `None` once an answer was given."""
        puzzle = self._current()
        return None if self._ended else solve(puzzle.numbers, puzzle.target, self.operators, self.use_all_numbers)

    def _current(self) -> Puzzle:
        if self._puzzle is None:
            raise self.needs_reset()
        return self._puzzle

    def _generate(self) -> Puzzle:
        # Chosen before the draws, of which some are refused, so that both counts are as frequent.
        count = _COUNTS[int(self.np_random.integers(len(_COUNTS)))]
        return self.draw_problem(
            lambda rng: draw_puzzle(rng, count, self.operators), lambda puzzle: puzzle.key, lambda puzzle: True
        )

    def _pick(self, puzzles: tuple[Puzzle, ...]) -> Puzzle:
        try:
            return self.draw_problem(
                lambda rng: puzzles[int(rng.integers(len(puzzles)))], lambda puzzle: puzzle.key, self._solvable
            )
        except ValueError as error:
            raise DatasetError(
                f"dataset={self.dataset!r}: none of the problems drawn in the split {self.split!r} can be solved with "
                f"operators={self.operators!r} and use_all_numbers={self.use_all_numbers!r}. {_REMEDY}"
            ) from error

    def _solvable(self, puzzle: Puzzle) -> bool:
        return solve(puzzle.numbers, puzzle.target, self.operators, self.use_all_numbers) is not None

    def _judge(self, puzzle: Puzzle, formula: Expression) -> tuple[float, str]:
        # Compared first: with any other numbers the value would have no bound, and does not matter.
        used, given = Counter(formula.numbers), Counter(puzzle.numbers)
        if not used <= given or (self.use_all_numbers and used != given):
            return 0.0, f"Incorrect: use each of {', '.join(map(str, puzzle.numbers))} {self._once}, and no others."
        value = formula.value()
        if value is None:
            return PARTIAL_CREDIT, "Incorrect: the formula divides by zero."
        if value != puzzle.target:
            return PARTIAL_CREDIT, f"Incorrect: the formula equals {value}, not {puzzle.target}."
        if formula.stated not in (None, puzzle.target):
            return PARTIAL_CREDIT, f"Incorrect: the formula equals {value}, not {formula.stated}."
        return 1.0, RIGHT


def draw_puzzle(rng: np.random.Generator, count: int, operators: Operators) -> Puzzle | None:
    """
    Draw a target and take it apart into numbers.

    Args:
        rng (`np.random.Generator`):
            Source of all randomness.
        count (`int`):
            How many numbers.
        operators (`str`):
            Operations to take it apart with, `"+-*/"` or `"+-"`.

    Returns:
        [`Puzzle`] or `None`: A problem that can be solved with all numbers; `None` when the target is one of them.
    """
    target = int(rng.integers(_TARGETS.start, _TARGETS.stop))
    values = [target]
    for which, operation, pair in rng.random((count - 1, 3)).tolist():
        value = values.pop(int(which * len(values)))
        splits = [found for operator in operators if (found := _splits(value, operator))]
        pairs = splits[int(operation * len(splits))]
        values += pairs[int(pair * len(pairs))]
    numbers = tuple(rng.permutation(values).tolist())
    return None if target in numbers else Puzzle(numbers, target)


@cache
def _splits(value: int, operator: str) -> tuple[tuple[int, int], ...]:
    # Products and quotients with 1 are left out: the 1 would be for nothing.
    others = range(1, _MAX_NUMBER + 1)
    pairs = {
        "+": [(value - b, b) for b in others if b < value],
        "-": [(value + b, b) for b in others],
        "*": [(value // b, b) for b in others if value % b == 0 and 1 < b < value],
        "/": [(value * b, b) for b in others if b > 1],
    }[operator]
    return tuple(pair for pair in pairs if max(pair) <= _MAX_NUMBER)


@lru_cache(maxsize=4096)
def solve(numbers: tuple[int, ...], target: int, operators: Operators, use_all: bool) -> str | None:
    """
    Exact solution of a problem by exhaustive search.

    Args:
        numbers (`tuple[int, ...]`):
            Numbers to use.
        target (`int`):
            Value to reach.
        operators (`str`):
            `"+-*/"` for any formula, `"+-"` for signs before the numbers.
        use_all (`bool`):
            Whether each number must be used, or else at most once.

    Returns:
        `str` or `None`: A formula; `None` when there is none.
    """
    if operators == "+-":
        return _signed_sum(numbers, target, use_all)
    tree = _search(tuple((number, 1, number) for number in numbers), target, use_all)
    return None if tree is None else _text(tree)[0]


# Numerator, denominator (not in lowest terms: cheaper than Fraction) and how the value came about: a number, or an
# operator with the trees of its two sides.
_Tree = int | tuple[str, Any, Any]
_Value = tuple[int, int, _Tree]
_BINDING = {"+": 1, "-": 1, "*": 2, "/": 2}


def _search(values: tuple[_Value, ...], target: int, use_all: bool) -> _Tree | None:
    if len(values) == 1 or not use_all:
        for above, below, tree in values:
            if above == target * below:
                return tree
    for i, j in itertools.combinations(range(len(values)), 2):
        rest = tuple(value for k, value in enumerate(values) if k not in (i, j))
        for combined in _combined(values[i], values[j]):
            found = _search((combined, *rest), target, use_all)
            if found is not None:
                return found
    return None


def _combined(left: _Value, right: _Value) -> list[_Value]:
    (a, b, x), (c, d, y) = left, right
    ad, bc, bd = a * d, b * c, b * d
    found: list[_Value] = [
        (ad + bc, bd, ("+", x, y)),
        (ad - bc, bd, ("-", x, y)),
        (bc - ad, bd, ("-", y, x)),
        (a * c, bd, ("*", x, y)),
    ]
    if c:
        found.append((ad, bc, ("/", x, y)))
    if a:
        found.append((bc, ad, ("/", y, x)))
    return found


def _text(tree: _Tree) -> tuple[str, int]:
    """A tree as text, and how tightly its outermost sign binds."""
    if isinstance(tree, int):
        return str(tree), 3
    sign, *sides = tree
    binding = _BINDING[sign]
    (left, left_binding), (right, right_binding) = map(_text, sides)
    if left_binding < binding:
        left = f"({left})"
    if right_binding < binding or (right_binding == binding and sign in "-/"):
        right = f"({right})"
    return f"{left} {sign} {right}", binding


def _signed_sum(numbers: tuple[int, ...], target: int, use_all: bool) -> str | None:
    for factors in itertools.product((1, -1) if use_all else (1, -1, 0), repeat=len(numbers)):
        if any(factors) and sum(map(int.__mul__, factors, numbers)) == target:
            plus = [str(number) for number, factor in zip(numbers, factors, strict=True) if factor == 1]
            minus = [f"- {number}" for number, factor in zip(numbers, factors, strict=True) if factor == -1]
            return " ".join([" + ".join(plus), *minus]).strip()
    return None


def _chains(numbers: tuple[int, ...]) -> Iterator[str]:
    """What a player without a clue would try: the numbers as they stand, with any signs between them."""
    for signs in itertools.product("+-*/", repeat=len(numbers) - 1):
        yield str(numbers[0]) + "".join(f" {sign} {number}" for sign, number in zip(signs, numbers[1:], strict=True))


def load_puzzles(dataset: str) -> dict[Split, tuple[Puzzle, ...]]:
    """
    Problems of a data set by split, loaded once in a process and shared from then on.

    Args:
        dataset (`str`):
            As for [`Countdown`].

    Returns:
        `dict[str, tuple[Puzzle, ...]]`: Problems of `"train"` and of `"validation"`.

    Raises:
        `DatasetError`: The data cannot be read or has no row that can be used.
    """
    if not isinstance(dataset, str) or not dataset.strip():
        raise DatasetError(f"dataset={dataset!r} is not a path or an id. {_REMEDY}")
    key = str(Path(dataset).resolve()) if Path(dataset).exists() else dataset
    # Environments are made in threads; the second must wait for the first rather than load everything again.
    with _loading:
        if key not in _loaded:
            _loaded[key] = _read_puzzles(dataset)
        return _loaded[key]


def _read_puzzles(dataset: str) -> dict[Split, tuple[Puzzle, ...]]:
    found, left_out = by_split(read_rows(dataset, _COLUMNS, _REMEDY), _usable)
    kept = sum(map(len, found.values()))
    if not kept:
        raise DatasetError(
            f"dataset={dataset!r} has no row that can be used ({left_out} read); 'nums' must be a list of "
            f"{_ROW_COUNTS[0]} to {_ROW_COUNTS[-1]} whole numbers and 'target' a whole number. {_REMEDY}"
        )
    logger.info(f"{dataset}: {kept} problems, {left_out} rows that cannot be used left out")
    return found


def _usable(row: Mapping[str, Any]) -> tuple[str, Puzzle] | None:
    numbers, target = row.get("nums"), row.get("target")
    if not isinstance(numbers, list) or len(numbers) not in _ROW_COUNTS or not all(map(_whole, numbers)):
        return None
    if min(numbers) < 0 or not _whole(target):
        return None
    puzzle = Puzzle(tuple(numbers), target)
    return puzzle.key, puzzle


def _whole(value: Any) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool) and abs(value) <= _ROW_BOUND
