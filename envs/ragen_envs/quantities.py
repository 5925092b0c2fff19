"""
Short mathematical texts: one spelling for what can be written in several ways, and exact numbers with their units.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache


MAX_NUMBER_LENGTH = 64

_ROUNDS = 8
_WRAPPER = re.compile(r"\\(?:text(?:bf|it|rm|tt)?|math(?:rm|bf|it|sf)|mbox|boldsymbol|operatorname) ?\{([^{}]*)\}")
_VULGAR_FRACTIONS = str.maketrans(
    {"½": " 1/2", "⅓": " 1/3", "⅔": " 2/3", "¼": " 1/4", "¾": " 3/4", "⅕": " 1/5", "⅛": " 1/8", "⅜": " 3/8"}
)
_THIN = "\u2009\u202f"
_INTEGER = r"(?:[0-9]{1,3}(?:,[0-9]{3})+|[0-9]+)"
_DECIMAL = rf"(?:{_INTEGER}(?:\.[0-9]+)?|\.[0-9]+)"

# In this order. What is mark-up becomes a blank rather than nothing, so that "2**3" does not become 23.
_SPELLINGS: tuple[tuple[re.Pattern[str], str], ...] = tuple(
    (re.compile(pattern, re.I), replacement)
    for pattern, replacement in (
        (r"[\u2212\u2013\ufe63\uff0d]", "-"),
        # Between groups of three digits these separate thousands.
        (rf"(?<=[0-9])(?:\{{,\}}|,?\\!|\\,|[{_THIN}])(?=[0-9]{{3}}(?![0-9]))", ","),
        (r"\\left(?![a-z])|\\right(?![a-z])|\\!|\\displaystyle(?![a-z])", ""),
        (r"\^ ?(?:\{ ?\\circ ?\}|\\circ(?![a-z]))|\\degree(?![a-z])|\bdegrees?\b", "\u00b0"),
        (r"\\%|\bper ?cent\b", "%"),
        (rf"\*\*|__|`|\\?\$|\\[()\[\],;: ]|\\q?quad(?![a-z])|(?<=\S)~(?=\S)|[\u00a0{_THIN}]", " "),
        (r"\\[dtc]frac(?![a-z])", r"\\frac"),
        (r"\\frac ?([0-9]) ?(?=[0-9{])", r"\\frac{\1}"),
        (r"(\\frac ?\{[^{}]*\}) ?([0-9])", r"\1{\2}"),
        (r"\\sqrt ?([0-9a-z])", r"\\sqrt{\1}"),
        (r"\u00b2", "^2"),
        (r"\u00b3", "^3"),
    )
)
# A fraction of two numbers that stands alone or after a whole number, which it then adds to.
_LATEX_FRACTION = re.compile(
    rf"(?<![a-z^_}})\\])\\frac ?\{{ ?([+-]?{_DECIMAL}) ?\}} ?\{{ ?([+-]?{_DECIMAL}) ?\}}(?![a-z0-9^({{\\])"
)

_NUMBER = rf"[+-]? ?(?:{_INTEGER} +[0-9]+ ?/ ?[0-9]+|{_DECIMAL}(?: ?/ ?[+-]?{_DECIMAL})?)"
_MIXED = re.compile(r"([+-]?) ?([0-9,]+) +([0-9]+) ?/ ?([0-9]+)")
_WORD = r"[a-z]{2,}(?:-[a-z]+)*(?:/[a-z]+)?(?:\^[23])?"
# Abbreviations that may follow without a blank; other letters would be factors.
_GLUED = r"(?:mm|cm|dm|km|ft|yd|in|mi|mg|kg|lbs?|oz|ml|hrs?|mins?|secs?|mph)(?:\^[23])?(?![a-z])"
_QUANTITY = re.compile(
    rf"(?:[€£¥₹]|usd |us |eur |gbp )? ?({_NUMBER})"
    rf" ?(°(?: ?[cf])?|%(?: {_WORD}){{0,4}}|{_GLUED}|(?<= ){_WORD}(?: (?:a|an|{_WORD})){{0,3}})?"
)
_NUMBER_IN_TEXT = re.compile(rf"(?<![0-9a-z.,:/+*-])({_NUMBER})(?![0-9a-z!*/]|[.,:-][0-9])( ?[%°])?")
_LETTERS = re.compile(r"[a-z]{2,}")
_FORMULA = re.compile(r"[\\^_=<>≤≥{}|]")
_FEWEST_WORDS = 2
# Words that change the value of a number, or leave it open what is meant.
_TELLING = frozenset(
    "dozen dozens hundred hundreds thousand thousands million millions billion billions trillion trillions half "
    "halves third thirds quarter quarters fourth fourths fifth fifths sixth sixths eighth eighths tenth tenths "
    "hundredth hundredths thousandth thousandths pi mod squared cubed root power log ln sin cos tan sqrt "
    "factorial reciprocal inverse times plus minus negative twice double triple "
    "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen seventeen "
    "eighteen nineteen twenty thirty forty fifty sixty seventy eighty ninety "
    "bn mil lakh crore tens dz couple quadrillion zillion gazillion myriad multiple multiples divisible raised "
    "up close far ish something instead unlikely doubt lacks not no never nor neither cannot isn aren doesn don "
    "wasn won except unless without than least most below above under over about around roughly almost nearly "
    "approximately maybe perhaps either wrong incorrect".split()
)
_JOINING = frozenset(("and", "or", "to"))
_CONTRACTION = re.compile(r"n['\u2019]t\b")


@dataclass(frozen=True)
class Quantity:
    """
    Number, perhaps of something.

    Args:
        value (`Fraction`):
            The number, exact.
        unit (`str`):
            What follows it, or the sign of a currency before it; empty for a bare number.
    """

    value: Fraction
    unit: str


@lru_cache(maxsize=1024)
def normalise(text: str) -> str:
    r"""
    Text in one spelling: mark-up such as `$`, `**`, `\left` and `\text{}` removed, lower case, single blanks, one kind
    of minus, thousands comma, percent and degree sign, and `\frac{1}{2}` of numbers as `1/2`.

    Args:
        text (`str`):
            Short text, with or without LaTeX.

    Returns:
        `str`: The same in one spelling; empty when nothing is left.
    """
    text = text.translate(_VULGAR_FRACTIONS)
    for pattern, replacement in _SPELLINGS:
        text = pattern.sub(replacement, text)
    for _ in range(_ROUNDS):
        before = text
        text = _WRAPPER.sub(r" \1 ", text).strip()
        if text == before:
            break
    text = _LATEX_FRACTION.sub(r" \1/\2 ", " ".join(text.lower().split()))
    return " ".join(text.split()).replace(" ^", "^").lstrip("= ").rstrip(". ")


@lru_cache(maxsize=1024)
def quantity(text: str) -> Quantity | None:
    """
    Number that a normalised text is, with its unit.

    Integers, decimals, fractions `a/b` and mixed numbers `1 1/2`; thousands commas are allowed, exponents are not, and
    nothing is calculated. A unit is `%`, `°`, one of a few abbreviations, or up to four words none of which changes
    the value, as "dozen" would.

    Args:
        text (`str`):
            Normalised text.

    Returns:
        `Quantity` or `None`: The number; `None` when the text is none, or one of more than 64 characters.
    """
    match = _QUANTITY.fullmatch(text)
    if match is None or len(match[1]) > MAX_NUMBER_LENGTH:
        return None
    unit = match[2] or text[: match.start(1)].strip()
    if not (_TELLING | _JOINING).isdisjoint(_LETTERS.findall(unit)):
        return None
    value = _value(match[1])
    return None if value is None else Quantity(value, "%" if unit.startswith("%") else unit.replace(" ", ""))


def only_quantity(text: str) -> Quantity | None:
    """
    The one number of a normalised sentence.

    Args:
        text (`str`):
            Normalised text.

    Returns:
        `Quantity` or `None`: The number; `None` when there are several, when the text is a formula or holds a word
        that changes the value or leaves it open ("dozen", "not", "than", "about", "seven"), or when it has fewer than
        two words.
    """
    words = _LETTERS.findall(text)
    if len(words) < _FEWEST_WORDS or not (_TELLING | {"or"}).isdisjoint(words):
        return None
    if _FORMULA.search(text) or _CONTRACTION.search(text):
        return None
    numbers = list(_NUMBER_IN_TEXT.finditer(text))
    digits = sum(symbol.isdigit() for symbol in text)
    if len(numbers) != 1 or digits != sum(symbol.isdigit() for symbol in numbers[0][1]):
        return None
    value = _value(numbers[0][1]) if len(numbers[0][1]) <= MAX_NUMBER_LENGTH else None
    return None if value is None else Quantity(value, (numbers[0][2] or "").strip())


def _value(text: str) -> Fraction | None:
    text = text.replace(",", "").strip()
    mixed = _MIXED.fullmatch(text)
    if mixed:
        sign, whole, above, below = mixed.groups()
        part = _ratio(above, below)
        return None if part is None else (-1 if sign == "-" else 1) * (int(whole) + part)
    above, _, below = text.replace(" ", "").partition("/")
    return _ratio(above, below or "1")


def _ratio(above: str, below: str) -> Fraction | None:
    divisor = Fraction(below)
    return Fraction(above) / divisor if divisor else None
