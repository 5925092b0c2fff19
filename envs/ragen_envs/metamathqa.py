"""MetaMathQA: answer a maths question, with more tries for a smaller reward."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from threading import Lock
from typing import Any, Literal, get_args

from . import symbolic
from .answers import MAX_ANSWER_LENGTH, answers_match
from .core import Limits, Split, TextEnv, check_choice, check_int, step_info
from .rows import DatasetError, by_split, read_rows
from .word_problems import word_problems


logger = logging.getLogger(__name__)

Comparison = Literal["exact", "math_verify"]

RIGHT = "Correct."
WRONG = "Incorrect. Try again."
WRONG_AT_LAST = "Incorrect."
ANSWER_PHRASE = "The answer is: "

_COLUMNS = ("query", "response")
_REMEDY = (
    "Leave `dataset` unset for the built-in word problems, or give a local .json, .jsonl or .parquet file (or a "
    "folder of them) with the columns 'query' and 'response', or the id of such a data set on the Hub."
)


@dataclass(frozen=True)
class Question:
    """
    One question of a data set.

    Args:
        query (`str`):
            Text shown to the model.
        gold (`str`):
            Right answer.
    """

    query: str
    gold: str


_loaded: dict[str | None, dict[Split, tuple[Question, ...]]] = {}
_loading = Lock()


class MetaMathQA(TextEnv):
    """
    Answer a maths question.

    **Actions.** The answer, as text: alone, in a box, after "The answer is", or as the last line. See
    [`~ragen_envs.extraction.extract_answer`] for how it is found and [`~ragen_envs.answers.answers_match`] for how it
    is compared. An empty answer is invalid.

    **Observation.** The question; after a wrong answer a short request to try again.

    **Start.** A question drawn uniformly from the split by the seed.

    **Rewards.** `1 / 2**n` for the right answer after `n` wrong ones, 0 for a wrong one.

    **End.** With the right answer, which is success, or with the last attempt.

    Args:
        dataset (`str`, *optional*):
            Questions to use: by default the built-in one-digit word problems. Else a local `.json`, `.jsonl` or
            `.parquet` file, a folder with such files, or the id of a data set on the Hub (split `train`), in
            MetaMathQA's format: `query` and `response`, with `original_question` where it is known. Rows whose
            response does not state its answer are left out.
        max_attempts (`int`, *optional*, defaults to `5`):
            Answers that may be given, one a turn; the limits on turns and actions follow.
        comparison (`str`, *optional*, defaults to `"exact"`):
            `"exact"` compares numbers, units and lists exactly and expressions as texts. `"math_verify"` then asks
            math-verify about expressions, such as `2\\sqrt{3}` for `\\sqrt{12}`, in a process of its own with a limit
            on its time; it needs `pip install "ragen-trl[math]"`.
        split (`str`, *optional*, defaults to `"train"`):
            `"train"` or `"validation"`; disjoint, and all wordings of one original question are in the same.

    Raises:
        `ValueError`: A setting is not possible, or the data cannot be had.
    """

    instruction = "You are solving maths problems. Answer with the result alone, such as a number."
    limits = Limits(max_turns=5, max_actions_per_turn=1, max_actions=5, max_tokens_per_turn=400, max_words=100)
    sample_actions = tuple(str(number) for number in range(20))

    def __init__(
        self,
        *,
        dataset: str | None = None,
        max_attempts: int = 5,
        comparison: Comparison = "exact",
        split: Split = "train",
    ) -> None:
        super().__init__(split=split)
        check_int("max_attempts", max_attempts, 1, 100)
        check_choice("comparison", comparison, get_args(Comparison))
        if comparison == "math_verify" and not symbolic.available():
            raise ValueError(
                'comparison="math_verify" needs a package that is missing: pip install "ragen-trl[math]".'
            )
        self.dataset = dataset
        self.max_attempts = max_attempts
        self.comparison: Comparison = comparison
        self.limits = replace(type(self).limits, max_turns=max_attempts, max_actions=max_attempts)
        self.questions = load_questions(dataset)[split]
        if not self.questions:
            raise DatasetError(f"dataset={dataset!r} has no question in the split {split!r}; use a larger data set.")
        self._question: Question | None = None
        self._observation = ""
        self._wrong = 0
        self._solved = False

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        """Draw a question; see [`TextEnv`]."""
        super().reset(seed=seed, options=options)
        self._question = self.questions[int(self.np_random.integers(len(self.questions)))]
        self._observation = self._question.query
        self._wrong = 0
        self._solved = False
        return self._observation, {}

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """Judge an answer; see [`TextEnv`]."""
        question = self._current()
        if self._over or not action.strip():
            info = step_info(success=self._solved, valid=False, effective=False)
            return self._observation, 0.0, self._over, False, info
        rule = symbolic.expressions_match if self.comparison == "math_verify" else None
        self._solved = answers_match(action, question.gold, rule)
        reward = 0.5**self._wrong if self._solved else 0.0
        self._wrong += not self._solved
        self._observation = RIGHT if self._solved else WRONG_AT_LAST if self._over else WRONG
        info = step_info(success=self._solved, valid=True, effective=True)
        return self._observation, reward, self._over, False, info

    def oracle_action(self) -> str | None:
        """Right answer; `None` at the end of the episode."""
        question = self._current()
        return None if self._over else question.gold

    @property
    def _over(self) -> bool:
        return self._solved or self._wrong >= self.max_attempts

    def _current(self) -> Question:
        if self._question is None:
            raise self.needs_reset()
        return self._question


def gold_answer(response: str) -> str | None:
    """
    Answer that a response states.

    Args:
        response (`str`):
            Worked solution of MetaMathQA.

    Returns:
        `str` or `None`: What follows the last "The answer is: "; `None` when nothing does.
    """
    _, phrase, answer = response.rpartition(ANSWER_PHRASE)
    return answer.strip() or None if phrase else None


def load_questions(dataset: str | None) -> dict[Split, tuple[Question, ...]]:
    """
    Questions of a data set by split, loaded once in a process and shared from then on.

    Args:
        dataset (`str` or `None`):
            As for [`MetaMathQA`].

    Returns:
        `dict[str, tuple[Question, ...]]`: Questions of `"train"` and of `"validation"`.

    Raises:
        `DatasetError`: The data cannot be read or has no row that can be used.
    """
    if dataset is not None and (not isinstance(dataset, str) or not dataset.strip()):
        raise DatasetError(f"dataset={dataset!r} is not a path or an id. {_REMEDY}")
    key = dataset if dataset is None or not Path(dataset).exists() else str(Path(dataset).resolve())
    # Environments are made in threads; the second must wait for the first rather than load everything again.
    with _loading:
        if key not in _loaded:
            _loaded[key] = _split_questions(dataset)
        return _loaded[key]


def _split_questions(dataset: str | None) -> dict[Split, tuple[Question, ...]]:
    rows: Iterable[Mapping[str, Any]]
    if dataset is None:
        rows = (problem.row() for problem in word_problems())
    else:
        rows = read_rows(dataset, _COLUMNS, _REMEDY)
    found, left_out = by_split(rows, _usable)
    kept = sum(map(len, found.values()))
    if not kept:
        raise DatasetError(
            f"dataset={dataset!r} has no row that can be used ({left_out} read); a response must end with "
            f"{ANSWER_PHRASE + 'X'!r}. {_REMEDY}"
        )
    logger.info(f"{dataset or 'built-in word problems'}: {kept} questions, {left_out} rows without an answer left out")
    return found


def _usable(row: Mapping[str, Any]) -> tuple[str, Question] | None:
    query, response = row.get("query"), row.get("response")
    if not isinstance(query, str) or not query.strip() or not isinstance(response, str):
        return None
    gold = gold_answer(response)
    # An over-long answer could never be given, and one without a letter or digit is none.
    if gold is None or len(gold) > MAX_ANSWER_LENGTH or not any(map(str.isalnum, gold)):
        return None
    return _origin(row, query), Question(query, gold)


def _origin(row: Mapping[str, Any], query: str) -> str:
    original = row.get("original_question")
    return " ".join((original if isinstance(original, str) and original.strip() else query).split())
