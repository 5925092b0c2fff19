"""Any text at all as an action: five things come back in bounded time, and nothing is raised."""

import math
import time

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ragen_envs import env_ids, make_env
from ragen_envs.answers import answers_match
from ragen_envs.extraction import extract_answer
from ragen_envs.rows import DatasetError
from ragen_envs.sokoban_files import load_levels


SECONDS = 2.0  # on a busy machine; a step takes some microseconds
FRAGMENTS = (
    *(
        "Up",
        "Down",
        "left",
        "RIGHT",
        " ",
        "\n",
        "||",
        "0",
        "1",
        "7",
        "73",
        "9" * 300,
        "1,234",
        ".5",
        "-",
        "\u2212",
        "+",
    ),
    *("*", "/", "\u00d7", "\u00f7", "^", "**", "(", ")", "((((", "))))", "[", "]", "{", "}", "=", ",", ";", " and "),
    *(
        r"\boxed{",
        r"\boxed",
        r"\frac{",
        r"\frac",
        r"\text{",
        r"\sqrt",
        r"\left(",
        "$",
        "%",
        "\u00b0",
        "The answer is ",
    ),
    *(
        "answer:",
        "x",
        "apples",
        "dozen",
        "e",
        "inf",
        "nan",
        "\u221a",
        "\ud800",
        "\x00",
        "\u0663",
        "<answer>",
        "</think>",
    ),
)
any_text = st.one_of(
    st.text(),
    st.text(alphabet="0123456789+-*/()., ^", max_size=200),
    st.lists(st.sampled_from(FRAGMENTS), max_size=40).map("".join),
    st.builds(lambda fragment, times: fragment * times, st.sampled_from(FRAGMENTS), st.integers(0, 5000)),
    st.text(st.characters(codec=None, categories=None), max_size=50),
)
quickly = settings(deadline=None, database=None, max_examples=150, suppress_health_check=[HealthCheck.too_slow])


@pytest.mark.parametrize("env_id", env_ids())
@quickly
@given(actions=st.lists(any_text, min_size=1, max_size=4), seed=st.integers(0, 2**63 - 1))
def test_any_text_is_an_action(env_id, actions, seed):
    env = make_env(env_id)
    shown, info = env.reset(seed=seed)
    assert isinstance(shown, str) and isinstance(info, dict)
    for action in actions:
        start = time.perf_counter()
        observation, reward, terminated, truncated, info = env.step(action)
        assert time.perf_counter() - start < SECONDS
        assert isinstance(observation, str) and observation
        assert type(reward) is float and math.isfinite(reward)
        assert type(terminated) is bool and truncated is False
        assert {type(info[key]) for key in ("success", "action_is_valid", "action_is_effective")} == {bool}
        if not info["action_is_valid"]:
            assert (observation, reward) == (shown, 0.0) and not info["action_is_effective"]
        shown = observation


@quickly
@given(answer=any_text, gold=any_text)
def test_any_two_texts_can_be_compared(answer, gold):
    start = time.perf_counter()
    assert type(answers_match(answer, gold)) is bool
    assert answers_match(gold, gold) is (0 < len(gold.strip()) and len(gold) <= 1000)
    assert isinstance(extract_answer(answer), str)
    assert time.perf_counter() - start < SECONDS


@quickly
@given(value=st.fractions(max_denominator=1000), other=st.fractions(max_denominator=1000))
def test_numbers_match_exactly_when_they_are_equal(value, other):
    sign = "-" if value < 0 else ""
    written = [
        f"{value}",
        rf"\boxed{{{sign}\frac{{{abs(value.numerator)}}}{{{value.denominator}}}}}",
        f"The answer is {value * 2}/2." if value.denominator == 1 else f"The answer is {value}.",
        f"{value} apples",
    ]
    for answer in written:
        assert answers_match(answer, str(value))
        assert answers_match(answer, str(other)) is (value == other)


@settings(deadline=None, database=None, max_examples=100, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(text=st.one_of(st.text(), st.text(alphabet="#.$*@+ _-\n", max_size=300)))
def test_any_text_is_a_file_of_levels_or_refused(text, tmp_path):
    path = tmp_path / f"{abs(hash(text))}.txt"
    path.write_text(text, encoding="utf-8", errors="replace")
    try:
        assert any(load_levels(str(path)).values())
    except DatasetError as error:
        assert "XSB notation" in str(error)
