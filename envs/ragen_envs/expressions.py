"""Reading an arithmetic formula that a model wrote. Pure, exact, without recursion and in bounded time."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from fractions import Fraction


MAX_FORMULA_LENGTH = 10_000
MAX_DIGITS = 18

_WRAPPER_ROUNDS = 8
_WRAPPERS = (("$", "$"), ("\\(", "\\)"), ("\\[", "\\]"), ("\\boxed{", "}"), ("**", "**"), ("`", "`"))
_LEAD_IN = re.compile(
    r"(?:the )?(?:final )?(?:answer|equation|expression|formula|solution)(?: is)?\b\s*[:=]?", re.IGNORECASE
)

# Other ways of writing a sign. Superscripts, fractions such as ½ and digits of other scripts are none: 5² is not 52.
_OTHER_SIGNS = {"*": "×✕✖⨯·⋅∙∗", "/": "÷➗∕⁄", "-": "−﹣‐‑‒–➖", "+": "➕", "": "\ufe0f"}
_FULL_WIDTH = {0xFEE0 + ord(sign): sign for sign in "0123456789+-*/()[]{}="}
_SIGNS = {ord(sign): plain for plain, signs in _OTHER_SIGNS.items() for sign in signs} | _FULL_WIDTH
_WORDS = {"x": "*", "X": "*", "\\times": "*", "\\cdot": "*", "\\ast": "*", "\\div": "/"}
_WORDS |= dict.fromkeys(("\\left", "\\right", "\\,", "\\;", "\\:", "\\!", "\\ "), "")

# "\frac{" and "}{" are single tokens, so that a fraction is two more kinds of brackets.
_TOKEN = re.compile(r"\\[dt]?frac\s*\{|\}\s*\{|\\[A-Za-z]+|\\[,;:! ]|[0-9]+|\S")
_ABOVE, _BELOW, _BETWEEN = "\\frac{", "\\below{", "}{"
_CLOSES = {")": ("(",), "]": ("[",), "}": ("{", _BELOW)}
_OPENS = frozenset(("(", "[", "{", _ABOVE))
_NEGATIVE = "negative"
_PRECEDENCE = {"+": 1, "-": 1, "*": 2, "/": 2, _NEGATIVE: 3}
_OPERATIONS: dict[str, Callable[[Fraction, Fraction], Fraction]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "/": operator.truediv,
}
_STATED = re.compile(r"([+-]?)\s*([0-9]{1,18})(?:\.([0-9]{1,18}))?(?:/([0-9]{1,18}))?")


@dataclass(frozen=True)
class Expression:
    """
    A formula that was understood, not calculated yet.

    Args:
        postfix (`tuple[int | str, ...]`):
            Numbers and signs, each sign after what it is applied to.
        stated (`Fraction`, *optional*):
            What the text says that the formula equals; `None` when it does not say.
    """

    postfix: tuple[int | str, ...]
    stated: Fraction | None = None

    @property
    def numbers(self) -> tuple[int, ...]:
        """Numbers of the formula as they were written, each as often as it was used."""
        return tuple(item for item in self.postfix if isinstance(item, int))

    def value(self) -> Fraction | None:
        """Exact value of the formula; `None` when it divides by zero."""
        values: list[Fraction] = []
        for item in self.postfix:
            if isinstance(item, int):
                values.append(Fraction(item))
            elif item == _NEGATIVE:
                values.append(-values.pop())
            else:
                right, left = values.pop(), values.pop()
                if item == "/" and not right:
                    return None
                values.append(_OPERATIONS[item](left, right))
        return values[0]


def parse_expression(text: str) -> Expression | None:
    """
    Read a formula of whole numbers, `+ - * /`, signs and brackets.

    - **Numbers** are plain digits, as `24`; at most 18 of them and no leading zeros. Decimals, exponents (`2e1`),
      thousands commas and powers (`**`, `^`) are not understood; neither are `//`, `%`, `!`, functions, and products
      without a sign (`2(3 + 4)`). Blanks never join digits.
    - **Signs**: also `× ✕ ✖ ⨯ · ⋅ ∙ ∗ x X` for `*`, `÷ ➗ ∕ ⁄` for `/`, `− ﹣ ‐ ‑ ‒ – ➖` for `-`, `➕` for `+`, and
      the full-width forms of digits, signs and brackets. A `-` or `+` may stand before any operand: `10 + - 5` is 5.
    - **Brackets**: `( )`, `[ ]` and `{ }`, to any depth.
    - **Equality**: the formula may be followed by `=` and one number, as in `6 * 4 = 24`, `5 / 2 = 2.5` or
      `2 / 6 = 1/3`, which is kept apart as what the text states. Nothing else may follow, and a formula must stand
      before it: `= 24`, `24 = 6 * 4` and `6 * 4 = 20 + 4 = 24` are not understood.
    - **LaTeX**: `\\times`, `\\cdot`, `\\ast`, `\\div`, `\\frac{}{}`, `\\left`, `\\right` and spacing commands.
    - **Around the whole**: `$`, `\\( \\)`, `\\[ \\]`, `\\boxed{}`, `**` and backticks, a trailing dot, and a lead-in
      such as "The answer is" or "Expression:". Any other text is not understood: it is not clear which formula counts.

    Args:
        text (`str`):
            What the model wrote. Longer than 10,000 characters is not understood.

    Returns:
        [`Expression`] or `None`: The formula; `None` when the text is not understood.
    """
    if len(text) > MAX_FORMULA_LENGTH:
        return None
    formula, *sides = _unwrapped(text.translate(_SIGNS)).split("=")
    stated = _stated(sides[0]) if sides else None
    if len(sides) > 1 or (sides and stated is None):
        return None
    reader = _Reader()
    understood = all(map(reader.take, _tokens(formula))) and reader.finish()
    return Expression(tuple(reader.postfix), stated) if understood else None


def _unwrapped(text: str) -> str:
    for _ in range(_WRAPPER_ROUNDS):
        before = text
        text = text.strip().rstrip(".").rstrip()
        for opening, closing in _WRAPPERS:
            if len(text) > len(opening + closing) and text.startswith(opening) and text.endswith(closing):
                text = text[len(opening) : -len(closing)]
        lead_in = _LEAD_IN.match(text)
        text = text[lead_in.end() :] if lead_in else text
        if text == before:
            break
    return text


def _stated(text: str) -> Fraction | None:
    match = _STATED.fullmatch(text.strip())
    if match is None or not int(match[4] or 1):
        return None
    value = Fraction(f"{match[2]}.{match[3] or 0}") / int(match[4] or 1)
    return -value if match[1] == "-" else value


def _tokens(text: str) -> Iterator[str]:
    for match in _TOKEN.finditer(text):
        token = match[0]
        if len(token) > 1 and token.endswith("{"):
            yield _ABOVE if token.startswith("\\") else _BETWEEN
        elif plain := _WORDS.get(token, token):
            yield plain


class _Reader:
    """Turns tokens into postfix, one at a time (Dijkstra's shunting yard). `take` refuses what cannot come next."""

    def __init__(self) -> None:
        self.postfix: list[int | str] = []
        self._waiting: list[str] = []  # signs and open brackets
        self._operand_next = True

    def take(self, token: str) -> bool:
        return self._take_operand(token) if self._operand_next else self._take_sign(token)

    def finish(self) -> bool:
        return not self._operand_next and self._settle(0) is None

    def _take_operand(self, token: str) -> bool:
        if token.isascii() and token.isdigit():
            if len(token) > MAX_DIGITS or (token[0] == "0" and token != "0"):
                return False
            self.postfix.append(int(token))
            self._operand_next = False
        elif token in _OPENS:
            self._waiting.append(token)
        elif token == "-":
            self._waiting.append(_NEGATIVE)
        else:
            return token == "+"
        return True

    def _take_sign(self, token: str) -> bool:
        if token in _CLOSES:
            opened = self._settle(0)
            if opened not in _CLOSES[token]:
                return False
            self._waiting.pop()
            if opened == _BELOW:
                self.postfix.append("/")
            return True
        self._operand_next = True
        if token == _BETWEEN:
            if self._settle(0) != _ABOVE:
                return False
            self._waiting[-1] = _BELOW
            return True
        if token not in _OPERATIONS:
            return False
        self._settle(_PRECEDENCE[token])
        self._waiting.append(token)
        return True

    def _settle(self, precedence: int) -> str | None:
        """Apply the waiting signs that bind at least as tightly; the open bracket they stand in, `None` outside."""
        while self._waiting and _PRECEDENCE.get(self._waiting[-1], -1) >= precedence:
            self.postfix.append(self._waiting.pop())
        return self._waiting[-1] if self._waiting else None
