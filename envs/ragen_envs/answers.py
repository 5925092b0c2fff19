"""Comparing a short mathematical answer with the right one. Pure, exact and bounded."""

from __future__ import annotations

import re
from fractions import Fraction


MAX_ANSWER_LENGTH = 1000
MAX_NUMBER_LENGTH = 64

_ROUNDS = 8
_LEAD_IN = re.compile(r"^(?:the )?(?:final )?answer(?: is)?(?:\s*[:=]|\s)\s*", re.IGNORECASE)
_WRAPPER = re.compile(r"\\(?:text|textbf|mathrm|mathbf|mbox)\{([^{}]*)\}")
# Replaced by a blank rather than by nothing, so that "2**3" does not become 23.
_TO_BLANK = re.compile(r"\*\*|`|\\?\$|\\[()\[\],; ]")
_TO_NOTHING = re.compile(r"\\left(?![a-z])|\\right(?![a-z])|\\!")
_INTEGER = r"(?:[0-9]{1,3}(?:,[0-9]{3})+|[0-9]+)"
_DECIMAL = rf"(?:{_INTEGER}(?:\.[0-9]+)?|\.[0-9]+)"
_PLAIN = re.compile(rf"([+-]?{_DECIMAL})(?:/([+-]?{_INTEGER}))?")
_LATEX_FRACTION = re.compile(rf"([+-]?)\\[dt]?frac\{{([+-]?{_INTEGER})\}}\{{([+-]?{_INTEGER})\}}")
_WITH_UNIT = re.compile(rf"([+-]?{_DECIMAL}(?:/{_INTEGER})?)(?: ?%| ([a-z]{{2,}}))")
# Words after a number that change its value or are no unit.
_NOT_UNITS = frozenset(
    "dozen dozens hundred hundreds thousand thousands million millions billion billions trillion trillions half "
    "halves third thirds quarter quarters tenth tenths hundredth hundredths thousandth thousandths pi and or to mod "
    "squared cubed factorial times plus minus".split()
)


def answers_match(answer: str, gold: str) -> bool:
    """
    Whether an answer says the same as the right one.

    Mark-up is removed from both: `$`, `**`, backticks, `\\left` and `\\right`, `\\text{}` and its kin, a lead-in such
    as "Final answer:", a leading `=` and trailing dots. Where there is a `\\boxed{}`, only the last one counts. Then
    they match if

    - they are the same text, whatever the case and blanks (a blank between two digits counts: `1 1/2` is not `11/2`);
    - or both are plain numbers of the same value: integers, decimals or fractions `a/b` and `\\frac{a}{b}`, thousands
      commas allowed, at most 64 characters, compared exactly, without any tolerance (`0.5` is `1/2`, `0.33` is not
      `1/3`). There are no exponents and nothing is calculated;
    - or the right one is a bare number and the answer is that number followed by one unit word or `%` (`73 apples`,
      `5 cm`, `20%`). Words that change a value, such as "dozen" or "million", are not units, and a percent sign is
      never converted: `7.41%` is not `0.0741`. If the right answer has a unit, the answer needs it too.

    Lists and equations are compared as texts: `3` is not `2, 3`, and `x = 5` is not `5`.

    Args:
        answer (`str`):
            Answer to judge. Longer than 1,000 characters is never right.
        gold (`str`):
            Right answer.

    Returns:
        `bool`: Whether they match.
    """
    if len(answer) > MAX_ANSWER_LENGTH or len(gold) > MAX_ANSWER_LENGTH:
        return False
    if answer.strip() and answer.strip() == gold.strip():
        return True
    given, wanted = _stripped(answer), _stripped(gold)
    if not given or not wanted:
        return False
    if _without_blanks(given) == _without_blanks(wanted):
        return True
    number = _number(wanted)
    return number is not None and number in (_number(given), _number(_without_unit(given)))


def _stripped(text: str) -> str:
    text = _last_boxed(text.replace("\u2212", "-").replace("\\%", "%"))
    text = _TO_BLANK.sub(" ", _TO_NOTHING.sub("", text))
    for _ in range(_ROUNDS):
        before = text
        text = _WRAPPER.sub(r"\1", text).strip()
        text = _LEAD_IN.sub("", text).lstrip("= ").rstrip(". ")
        if text == before:
            break
    return " ".join(text.lower().split())


def _last_boxed(text: str) -> str:
    opening = text.rfind("\\boxed{")
    if opening < 0:
        return text
    start, depth = opening + len("\\boxed{"), 1
    for position in range(start, len(text)):
        depth += {"{": 1, "}": -1}.get(text[position], 0)
        if depth == 0:
            return text[start:position]
    return text


def _without_blanks(text: str) -> str:
    return re.sub(r"(?<![0-9]) | (?![0-9])", "", text)


def _without_unit(text: str) -> str:
    match = _WITH_UNIT.fullmatch(text)
    return match[1] if match and match[2] not in _NOT_UNITS else text


def _number(text: str) -> Fraction | None:
    text = _without_blanks(text)
    if len(text) > MAX_NUMBER_LENGTH:
        return None
    if latex := _LATEX_FRACTION.fullmatch(text):
        sign, above, below = latex.groups()
        value = _ratio(above, below)
        return -value if value is not None and sign == "-" else value
    plain = _PLAIN.fullmatch(text)
    return _ratio(plain[1], plain[2] or "1") if plain else None


def _ratio(above: str, below: str) -> Fraction | None:
    divisor = int(below.replace(",", ""))
    return Fraction(above.replace(",", "")) / divisor if divisor else None
