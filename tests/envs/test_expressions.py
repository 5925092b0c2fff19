"""Formulas: what is understood and what it is worth, and that nothing hangs, overflows or raises."""

import operator
import time
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ragen_envs.expressions import MAX_DIGITS, MAX_FORMULA_LENGTH, parse_expression


property_test = settings(max_examples=300, deadline=None, derandomize=True, database=None)


def value(text):
    formula = parse_expression(text)
    assert formula is not None, f"{text!r} was not understood"
    return formula.value()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("24", 24),
        ("0", 0),
        ("1+2", 3),
        ("  1 +\n2\t", 3),
        ("1 + 2 * 3", 7),
        ("(1 + 2) * 3", 9),
        ("8 - 3 - 2", 3),
        ("8 - (3 - 2)", 7),
        ("8 / 4 / 2", 1),
        ("8 / (4 / 2)", 4),
        ("2 * 3 - 8 / 4 + 5", 9),
        ("5/2", Fraction(5, 2)),
        ("7/3*3", 7),
        ("1/3 + 1/3 + 1/3", 1),
        ("8 / (3 - 8 / 3)", 24),
        ("10 + - 5", 5),
        ("-(2 - 3)", 1),
        ("-2 * -3", 6),
        ("1 - -2", 3),
        ("- - 3", 3),
        ("+3 - +2", 1),
        ("2 / -4", Fraction(-1, 2)),
        ("[(1 + 2) * {3 - 1}]", 6),
    ],
)
def test_values_are_exact(text, expected):
    assert value(text) == expected


@pytest.mark.parametrize("text", ["1/0", "1/(2 - 2)", "0/0", "3 + 4/(5 - 5*1)"])
def test_division_by_zero_has_no_value(text):
    assert value(text) is None


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("6×4", 24),
        ("6✕4", 24),
        ("6✖\ufe0f4", 24),
        ("6·4", 24),
        ("6⋅4", 24),
        ("6∙4", 24),
        ("6∗4", 24),
        ("6 x 4", 24),
        ("6X4", 24),
        ("6÷2", 3),
        ("6∕2", 3),
        ("6⁄2", 3),
        ("6−2", 4),
        ("6–2", 4),
        ("6\u20112", 4),
        ("６×（４＋１）", 30),
        ("［６－４］＊２／１", 4),
        ("6\u00a0+\u20094", 10),
    ],
)
def test_other_signs(text, expected):
    assert value(text) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (r"6 \times 4", 24),
        (r"6 \cdot 4", 24),
        (r"6 \div 4", Fraction(3, 2)),
        (r"\frac{7}{3} \times 3", 7),
        (r"\dfrac{1 + 2}{3 - 1} / \tfrac {1} {2}", 3),
        (r"8 / \left(3 - \frac{8}{3}\right)", 24),
        (r"\frac{1}{\frac{1}{2} - 1}", -2),
        (r"6\,\times\;4", 24),
        (r"$6 \times 4$", 24),
        (r"$$6*4$$.", 24),
        (r"\(6*4\)", 24),
        (r"\[ 6*4 \]", 24),
        (r"\boxed{6*4}", 24),
        (r"$\boxed{6*4 = 24}$.", 24),
        ("**6 * 4**", 24),
        ("`6*4`", 24),
        ("```\n6*4\n```", 24),
        ("6*4.", 24),
        ("Answer: 6*4", 24),
        ("The final answer is **6 * 4**.", 24),
        ("expression = 6*4 = 24", 24),
        ("Formula:\n6*4", 24),
    ],
)
def test_markup_around_a_formula(text, expected):
    assert value(text) == expected


@pytest.mark.parametrize(
    ("text", "stated"),
    [
        ("6*4", None),
        ("6*4=24", 24),
        ("6*4 = 25", 25),
        ("1-3 = -2", -2),
        ("1-3 = −2.", -2),
        ("5/2 = 2.5", Fraction(5, 2)),
        ("2/6 = 1/3", Fraction(1, 3)),
        ("6*4＝２４", 24),
    ],
)
def test_what_is_stated_is_kept_apart(text, stated):
    formula = parse_expression(text)
    assert formula.stated == stated
    assert formula.numbers == parse_expression(text.replace("＝", "=").partition("=")[0]).numbers


def test_numbers_come_as_written_and_as_often():
    assert parse_expression("(3 + 10) * 3 - 0 = 39").numbers == (3, 10, 3, 0)
    assert parse_expression("10 + - 5").numbers == (10, 5)


@pytest.mark.parametrize(
    "text",
    [
        # nothing, or something left open
        "", " ", ".", "()", "{}", "+", "6*", "*6", "6 4", "((1+2)", "(1+2))", "(1]", "1 + (2", ")1(", "1 + * 2",
        # equalities that leave open which side is the formula
        "=24", "24 = 6*4", "6*4=", "6*4=20+4", "6*4=24=24", "(6*4=24)", "6*4=1/0", "6*4=about 24", "6*4 ≈ 24",
        # digits that would join, or numbers hidden in others
        "2 4", "2.4*10", "24.0", "2e1+4", "2E1", "1_0", "1,000+1", "007", "0x1F", "5²", "½", "٢+٢", "①", "9" * 19,
        # operators that are none
        "2**3", "2^3", "7//2", "7%2", "3!", "2(3+4)", "(1)(2)", "2{3}", "√4", "3:2", "1++", "1 & 2", "4 if 1 else 2",
        # text
        "six times four", "6*4 is right", "I use 6*4", "6*4, 3*8", "6*4 or 3*8", "6*4 || 3*8", "x = 6*4", "a + 1",
        "__import__('os').system('true')", "lambda: 0", "answers", "answer", "the answer is",
        # LaTeX that is none
        "\\", "\\\\", "\\frac{1}{2", "\\frac{1}+2", "\\frac12", "\\sqrt{4}", "{1}{2}", "}{", "\\boxed{3}+\\boxed{4}",
        "\\below{1}{2}", "1 }{ 2", "(1 }{ 2)", "**2**3**", "1 negative", "\ud800", "\x00",
    ],
)  # fmt: skip
def test_everything_else_is_not_understood(text):
    assert parse_expression(text) is None


def test_numbers_and_texts_have_a_greatest_length():
    assert value("9" * MAX_DIGITS) == 10**MAX_DIGITS - 1
    assert parse_expression("9" * (MAX_DIGITS + 1)) is None
    assert value("1".rjust(MAX_FORMULA_LENGTH)) == 1
    assert parse_expression("1".rjust(MAX_FORMULA_LENGTH + 1)) is None


def test_thousands_of_brackets_are_read():
    assert value("(" * 4000 + "6*4" + ")" * 4000) == 24
    assert value("-" * 4000 + "6") == 6
    assert parse_expression("(" * 4000 + "6*4" + ")" * 3999) is None


NASTY = {
    "open brackets": "(" * 9999,
    "a million brackets": "(" * 10**6 + "1" + ")" * 10**6,
    "fractions in fractions": "\\frac{1}{" * 1100 + "1" + "}" * 1100,
    "open fractions": "\\frac{" * 1600,
    "signs": "-" * 9999 + "1",
    "tower of powers": "9**" * 3000 + "9",
    "digits": "9" * 9999,
    "a great product": "*".join(["9" * 18] * 520),
    "a great quotient": "/".join(["9" * 18] * 520),
    "a great denominator": "+".join(f"1/{10**17 + 7919 * i}" for i in range(450)),
    "blanks between": "1" + " " * 9990 + "2",
    "blanks in an equality": "6*4=+" + " " * 9990,
    "blanks after a brace": "}" + " " * 9990 + "1",
    "wrappers": "$" * 9999,
    "backticks": "`" * 9999,
    "lead-ins": "answer " * 1400,
    "a long sum": "1" + "+1" * 4990,
    "ten million characters": "1+" * 5_000_000 + "1",
}


@pytest.mark.parametrize("text", NASTY.values(), ids=NASTY)
def test_nasty_texts_are_read_in_bounded_time(text):
    start = time.perf_counter()
    formula = parse_expression(text)
    if formula is not None:
        formula.value()
    assert time.perf_counter() - start < 2.0


@property_test
@given(st.text())
def test_any_text_is_read_or_not_without_an_error(text):
    formula = parse_expression(text)
    assert formula is None or isinstance(formula.value(), Fraction | None)


@property_test
@given(st.lists(st.sampled_from([*"0123456789+-*/()[]{}=.,x $`", "\\frac{", "}{", "\\times ", "**", "×", "−"])))
def test_texts_that_are_nearly_formulas_are_read_or_not_without_an_error(pieces):
    formula = parse_expression("".join(pieces))
    assert formula is None or isinstance(formula.value(), Fraction | None)


# A formula as a number, or as a sign with its two sides.
TREES = st.recursive(
    st.integers(0, 10**MAX_DIGITS - 1) | st.integers(0, 9),
    lambda sides: st.tuples(st.sampled_from("+-*/"), sides, sides),
    max_leaves=12,
)


def calculate(tree):
    if isinstance(tree, int):
        return Fraction(tree)
    sign, left, right = tree[0], calculate(tree[1]), calculate(tree[2])
    if left is None or right is None or (sign == "/" and right == 0):
        return None
    return {"+": operator.add, "-": operator.sub, "*": operator.mul, "/": operator.truediv}[sign](left, right)


def write(tree, draw):
    """The tree with a bracket around every operation and any of its spellings."""
    if isinstance(tree, int):
        return str(tree)
    sign, left, right = tree[0], write(tree[1], draw), write(tree[2], draw)
    if sign == "/" and draw(st.booleans()):
        return f"\\frac{{{left}}}{{{right}}}"
    opening, closing = draw(st.sampled_from(["()", "[]", "{}", "（）"]))
    spelling = draw(st.sampled_from({"+": "+＋", "-": "-−–", "*": "*×·x", "/": "/÷"}[sign]))
    blank = draw(st.sampled_from(["", " ", "  ", "\n"]))
    return f"{opening}{left}{blank}{spelling}{blank}{right}{closing}"


@property_test
@given(st.data(), TREES)
def test_every_spelling_of_a_formula_has_its_value(data, tree):
    text = write(tree, data.draw)
    assert value(text) == calculate(tree)


@property_test
@given(st.lists(st.tuples(st.sampled_from(["+", "-", "*", "/", "- -", "* -", "/ +"]), st.integers(1, 99)), min_size=1))
def test_signs_bind_as_in_python(pairs):
    text = "7 " + " ".join(f"{sign} {number}" for sign, number in pairs)
    words = [f"Fraction({word})" if word.isdecimal() else word for word in text.split()]
    assert value(text) == eval(" ".join(words), {"Fraction": Fraction})
