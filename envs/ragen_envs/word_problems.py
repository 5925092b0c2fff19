"""Built-in one-digit word problems in MetaMathQA's schema, so that the maths environment needs no download."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Literal


_NAMES = ("Tom", "Amy", "Ben", "Mia", "Sam", "Zoe")
_OBJECTS = (
    ("apple", "apples"),
    ("book", "books"),
    ("coin", "coins"),
    ("egg", "eggs"),
    ("pen", "pens"),
    ("toy", "toys"),
)

# {a} and {b} stand for a number with its object, {x} and {y} for two names, {things} for the object in the plural.
_TEMPLATES: tuple[tuple[Literal["+", "-"], str], ...] = (
    ("+", "{x} has {a}. {y} gives {x} {b}. How many {things} does {x} have?"),
    ("+", "{x} has {a} and {y} has {b}. How many {things} do they have in all?"),
    ("+", "{x} finds {a}. Then {x} finds {b}. How many {things} does {x} find in all?"),
    ("+", "There are {a} in a box. {x} puts in {b}. How many {things} are in the box?"),
    ("-", "{x} has {a}. {x} gives {y} {b}. How many {things} does {x} have?"),
    ("-", "{x} has {a}. {y} has {b}. How many more {things} does {x} have than {y}?"),
    ("-", "{x} had {a} and lost {b}. How many {things} does {x} have?"),
    ("-", "There are {a} in a box. {x} takes out {b}. How many {things} are in the box?"),
)


@dataclass(frozen=True)
class WordProblem:
    """
    One problem, parsed.

    Args:
        question (`str`):
            Text of the problem.
        a (`int`):
            First number, 1 to 9.
        b (`int`):
            Second number, 1 to 9.
        op (`str`):
            `"+"` or `"-"`.
    """

    question: str
    a: int
    b: int
    op: Literal["+", "-"]

    @property
    def result(self) -> int:
        """Answer of the problem, 0 to 18."""
        return self.a + self.b if self.op == "+" else self.a - self.b

    def row(self) -> dict[str, str]:
        """Problem as a row of MetaMathQA: `query`, `response`, `original_question` and `type`."""
        solution = f"{self.a} {self.op} {self.b} = {self.result}."
        return {
            "query": self.question,
            "response": f"{solution}\nThe answer is: {self.result}",
            "original_question": self.question,
            "type": "one_digit",
        }


@lru_cache(maxsize=1)
def word_problems() -> tuple[WordProblem, ...]:
    """
    Every built-in problem, always in the same order.

    Returns:
        `tuple[WordProblem, ...]`: About 18,000 problems with different texts.
    """
    return tuple(
        WordProblem(_question(template, name, thing, a, b), a, b, op)
        for op, template in _TEMPLATES
        for name in range(len(_NAMES))
        for thing in _OBJECTS
        for a in range(1, 10)
        for b in range(1, 10)
        if op == "+" or a >= b
    )


@lru_cache(maxsize=1)
def _by_question() -> dict[str, WordProblem]:
    return {problem.question: problem for problem in word_problems()}


def find_word_problem(question: str) -> WordProblem | None:
    """
    Built-in problem with a given text.

    Args:
        question (`str`):
            Text of the problem, as the environment shows it.

    Returns:
        `WordProblem` or `None`: The problem; `None` when no built-in problem has that text.
    """
    return _by_question().get(question)


def _question(template: str, name: int, thing: tuple[str, str], a: int, b: int) -> str:
    # Each name has one partner: all pairs would make the set five times as large without making it more varied.
    x, y = _NAMES[name], _NAMES[(name + 1) % len(_NAMES)]
    text = template.format(x=x, y=y, a=_counted(a, thing), b=_counted(b, thing), things=thing[1])
    return text.replace("There are 1 ", "There is 1 ")


def _counted(number: int, thing: tuple[str, str]) -> str:
    return f"{number} {thing[0] if number == 1 else thing[1]}"
