"""Comparing a short mathematical answer with the right one. Pure, exact and bounded."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from itertools import accumulate

from .extraction import extract_answer, last_boxed
from .quantities import Quantity, normalise, only_quantity, quantity


MAX_ANSWER_LENGTH = 1000
MAX_ITEMS = 32

ExpressionRule = Callable[[str, str], bool]

_BLANK = re.compile(r"(?<![0-9,]) | (?![0-9])")
_CHOICE = re.compile(r"\(([a-z])\)")
_COMMA = r",(?![0-9]{3}(?![0-9]))|(?<![0-9]),"  # but none that separates thousands
_SEPARATOR = re.compile(rf"(?:{_COMMA}|;| (?:and|or) )")
_CLOSING = {"(": ")", "[": "]", "{": "}"}
_VARIABLE = re.compile(r"[a-z](?:_\{?[a-z0-9]\}?)?|[a-z]\([a-z0-9]\)")
_NAME = re.compile(r"[a-z]{2,}(?: [a-z]+){0,5}")
_CALCULATION = re.compile(r"(?:[0-9.,+*/×÷() %-]|\\times|\\cdot|\\div)+")
# What math-verify reads in a way of its own: relations, lists, bases, derivatives, and words, as products of letters.
_NO_EXPRESSION = re.compile(
    r"[=<>≤≥≠≈,;|'\u2019]|[0-9}]_|(?<![\\a-z])[a-z]{2}"
    r"|\\(?:le|ge|leq|geq|neq|ne|lt|gt|approx|cong|pm|mp|in|cup|cap|text)(?![a-z])"
)
_LETTER_OR_DIGIT = re.compile(r"[a-z0-9]")


def answers_match(answer: str, gold: str, expressions_match: ExpressionRule | None = None) -> bool:
    r"""
    Whether an answer says the same as the right one.

    The answer is first found in the text by [`extract_answer`]: the last `\boxed{}`, else what follows "answer is",
    else the last line. Mark-up is removed from both by [`normalise`]. Then they match if

    - they are the same text, whatever the case and blanks (a blank between two digits counts: `7 3` is not `73`);
    - or both are numbers of the same value ([`quantity`]): integers, decimals, fractions and mixed numbers, with or
      without thousands commas, compared exactly, without any tolerance (`0.5` is `1/2`, `0.33` is not `1/3`). Where
      the right one has a unit or a percent sign, the answer needs the same; where it is bare, the answer may have one
      (`73 apples`, `$73`, `5 cm`, `20%`). A percent sign is never converted: `7.41%` is not `0.0741`;
    - or the right one is no equation and the answer ends in the right one after an equals sign, before which there is
      a variable, a name or a calculation with numbers (`x = 5`, `total: 5`, `2 + 3 = 5`, but not `2x = 5`). The
      calculation is not checked. The other way round, `5` is right where `x = 5` is asked for;
    - or the right one is a number and the answer a sentence with this number and no other ([`only_quantity`]);
    - or both are lists with items that match one by one: in any order where they stand alone, with "and", with "or" or
      in braces, in their order in parentheses or brackets, which must be the same. `3` is not `2, 3`;
    - or `expressions_match` says so of two expressions that are neither numbers nor equations.

    Args:
        answer (`str`):
            Answer to judge. If what is found in it has more than 1,000 characters, it is never right.
        gold (`str`):
            Right answer.
        expressions_match (`Callable[[str, str], bool]`, *optional*):
            Compares two expressions, such as `2\sqrt{3}` and `\sqrt{12}`, which by default match as texts only.

    Returns:
        `bool`: Whether they match.
    """
    if answer.strip() and answer.strip() == gold.strip():
        return len(gold) <= MAX_ANSWER_LENGTH
    boxed = last_boxed(gold)
    found, right = extract_answer(answer), gold if boxed is None else boxed
    if len(found) > MAX_ANSWER_LENGTH or len(right) > MAX_ANSWER_LENGTH:
        return False
    given, wanted = normalise(found), normalise(right)
    if not _LETTER_OR_DIGIT.search(given) or not wanted:
        return False
    if _items_match(given, wanted, expressions_match):
        return True
    ours, theirs = _list(given), _list(wanted)
    if ours is not None and theirs is not None:
        return _lists_match(ours, theirs, expressions_match)
    number = quantity(wanted)
    return number is not None and _same_number(only_quantity(given), number)


@dataclass(frozen=True)
class _List:
    brackets: str  # empty where the order does not matter
    items: list[str]


def _items_match(given: str, wanted: str, expressions_match: ExpressionRule | None) -> bool:
    if _bare(given) == _bare(wanted):
        return True
    number, own = quantity(wanted), quantity(given)
    if number is not None and _same_number(own, number):
        return True
    for sign, lefts in (("=", (_VARIABLE, _NAME, _CALCULATION)), (":", (_NAME,))):
        if sign in given and sign not in wanted:
            right = _right_side(given, sign, lefts)
            return right is not None and _items_match(right, wanted, expressions_match)
    value = quantity(_right_side(wanted, "=", (_VARIABLE,)) or "")
    if value is not None:
        left, _, right = given.rpartition("=")
        return _same_number(quantity(right.strip()), value) and left.strip() in ("", wanted.partition("=")[0].strip())
    if expressions_match is None or number is not None or own is not None:
        return False
    return not _NO_EXPRESSION.search(f"{given} {wanted}") and expressions_match(given, wanted)


def _right_side(text: str, sign: str, lefts: tuple[re.Pattern[str], ...]) -> str | None:
    *before, right = (part.strip() for part in text.split(sign))
    if not before or not all(any(left.fullmatch(part) for left in lefts) for part in before):
        return None
    return right


def _same_number(given: Quantity | None, wanted: Quantity) -> bool:
    return given is not None and given.value == wanted.value and wanted.unit in ("", given.unit)


def _bare(text: str) -> str:
    choice = _CHOICE.fullmatch(text)
    return choice[1] if choice else _BLANK.sub("", text)


def _list(text: str) -> _List | None:
    if text.startswith("\\{"):
        text = text.replace("\\{", "{").replace("\\}", "}")
    # How many brackets are open before each character.
    depths = [0, *accumulate((symbol in _CLOSING) - (symbol in _CLOSING.values()) for symbol in text)]
    brackets, level = "", 0
    # Of "(1, 2), (3, 4)" the first bracket closes before the end. Those of an interval may differ.
    if text[:1] in _CLOSING and depths[-1] == 0 and min(depths[1:-1], default=0) > 0:
        brackets, level = text[0] + text[-1], 1
    items, start = [], level
    for separator in _SEPARATOR.finditer(text):
        if depths[separator.start()] == level:
            items.append(text[start : separator.start()].strip())
            start = separator.end()
    items.append(text[start : len(text) - level].strip())
    items = [item for item in items if item]
    if not 2 <= len(items) <= MAX_ITEMS:
        return None
    return _List("" if brackets == "{}" else brackets, items)


def _lists_match(given: _List, wanted: _List, expressions_match: ExpressionRule | None, nested: bool = True) -> bool:
    def match(own: str, item: str) -> bool:
        if _items_match(own, item, expressions_match):
            return True
        ours, theirs = (_list(own), _list(item)) if nested else (None, None)
        # Pairs in a list are looked into, but no deeper.
        return ours is not None and theirs is not None and _lists_match(ours, theirs, expressions_match, False)

    if given.brackets != wanted.brackets or len(given.items) != len(wanted.items):
        return False
    left = list(given.items)
    for item in wanted.items:
        candidates = left[:1] if wanted.brackets else left
        found = next((own for own in candidates if match(own, item)), None)
        if found is None:
            return False
        left.remove(found)
    return True
