"""Reading answers, and the texts around observations."""

import string
import time
from dataclasses import replace

import pytest

from ragen_envs import Limits
from ragen_trl.rollout import PROMPT_STYLES, Response, parse_response
from ragen_trl.rollout.protocol import system_message, turn_message


GOOD = "<think>go</think><answer>Up</answer>"

# text, most actions in a turn, well-formed, reasoning, actions
WITH_THINKING = [
    (GOOD, 1, True, "go", ("Up",)),
    (f"Sure!\n{GOOD}\nBye <answer>Down</answer>", 1, True, "go", ("Up",)),
    ("<think> a\n b </think> \n\t<answer> Up \n</answer>", 1, True, "a\n b", ("Up",)),
    ("<think></think><answer>Up</answer>", 1, True, "", ("Up",)),
    ("<think>go</think><answer></answer>", 3, True, "go", ()),
    ("<think>go</think><answer>  \n </answer>", 1, True, "go", ()),
    ("<think>go</think><answer>Up || Left||Down</answer>", 3, True, "go", ("Up", "Left", "Down")),
    ("<think>go</think><answer>Up || Left || Down</answer>", 2, True, "go", ("Up", "Left")),
    ("<think>go</think><answer>|| Up |||| Left ||</answer>", 3, True, "go", ("Up", "Left")),
    ("<think>go</think><answer>||||</answer>", 3, True, "go", ()),
    ("<think>go</think><answer>Up | Left</answer>", 3, True, "go", ("Up | Left",)),
    ("<think>go</think><answer>a || b</answer>", 1, True, "go", ("a || b",)),
    ("<think>go</think><answer>||</answer>", 1, True, "go", ("||",)),
    # Two thinking blocks: up to the one that the answer follows.
    ("<think>a</think><think>b</think><answer>Up</answer>", 1, True, "a</think><think>b", ("Up",)),
    ("<think>a</think> so <think>b</think> <answer>Up</answer>", 1, True, "a</think> so <think>b", ("Up",)),
    # An answer inside the thinking is not the answer.
    (
        "<think>maybe <answer>Down</answer> no</think><answer>Up</answer>",
        1,
        True,
        "maybe <answer>Down</answer> no",
        ("Up",),
    ),
    ("<think><think>go</think><answer>Up</answer>", 1, True, "<think>go", ("Up",)),
    ("<think>go</think><answer><answer>Up</answer></answer>", 1, True, "go", ("Up",)),
    ("<think>go</think><answer>Up<think></answer>", 1, True, "go", ("Up",)),
    ("<think>日本</think><answer>→ 🙂</answer>", 1, True, "日本", ("→ 🙂",)),
    # Malformed.
    ("", 1, False, None, ()),
    ("Up", 1, False, None, ()),
    ("<answer>Up</answer>", 1, False, None, ()),
    ("<think>go<answer>Up</answer>", 1, False, None, ()),
    ("go</think><answer>Up</answer>", 1, False, None, ()),
    ("<think>go</think>", 1, False, "go", ()),
    ("<think>go</think>Up", 1, False, "go", ()),
    ("<think>go</think><answer>Up", 1, False, "go", ()),
    ("<think>go</think> so <answer>Up</answer>", 1, False, "go", ()),
    ("<think>go</think></answer>Up<answer>", 1, False, "go", ()),
    ("<answer>Up</answer><think>go</think>", 1, False, "go", ()),
    ("</think><think>go<answer>Up</answer>", 1, False, None, ()),
    # Tags are case-sensitive and exact.
    (GOOD.upper(), 1, False, None, ()),
    ("<Think>go</Think><Answer>Up</Answer>", 1, False, None, ()),
    ("< think>go</think><answer>Up</answer>", 1, False, None, ()),
    ("<think>go</think><answer >Up</answer>", 1, False, "go", ()),
]
WITHOUT_THINKING = [
    ("<answer>Up</answer>", 1, True, None, ("Up",)),
    (f"text {GOOD}", 1, True, None, ("Up",)),
    ("<think>no end <answer>Up || Down</answer>", 2, True, None, ("Up", "Down")),
    ("<answer>a</answer><answer>b</answer>", 1, True, None, ("a",)),
    ("<answer>a", 1, False, None, ()),
    ("a</answer>", 1, False, None, ()),
]


@pytest.mark.parametrize(("text", "most", "well_formed", "reasoning", "actions"), WITH_THINKING)
def test_with_thinking(text, most, well_formed, reasoning, actions):
    assert parse_response(text, max_actions=most) == Response(well_formed, reasoning, actions)


@pytest.mark.parametrize(("text", "most", "well_formed", "reasoning", "actions"), WITHOUT_THINKING)
def test_without_thinking(text, most, well_formed, reasoning, actions):
    assert parse_response(text, enable_think=False, max_actions=most) == Response(well_formed, reasoning, actions)


HOSTILE = {
    "open tags": "<think>",
    "close tags": "</think>",
    "open and close": "<think></think>",
    "blanks after closing": "</think>  \n\t ",
    "blanks": " ",
    "answers": "<answer>",
    "almost answers": "</think> <answer",
    "half tags": "<",
    "separators": "||",
    "nested": "<think><answer>",
}


@pytest.mark.parametrize("enable_think", [True, False])
@pytest.mark.parametrize("piece", HOSTILE.values(), ids=HOSTILE.keys())
@pytest.mark.parametrize("end", ["", "</think><answer>Up</answer>"])
def test_hostile_text_takes_linear_time(piece, end, enable_think):
    text = "<think>" + piece * (1_000_000 // len(piece)) + end
    start = time.perf_counter()
    parse_response(text, enable_think=enable_think, max_actions=3)
    # Quadratic work would take minutes; linear work takes milliseconds, also on a busy machine.
    assert time.perf_counter() - start < 2


def test_a_million_actions_in_one_answer():
    text = "<think>x</think><answer>" + "a||" * 300_000 + "</answer>"
    start = time.perf_counter()
    assert parse_response(text, max_actions=2).actions == ("a", "a")
    assert time.perf_counter() - start < 2


LIMITS = Limits(max_turns=3, max_actions_per_turn=2, max_actions=6, max_tokens_per_turn=50, max_words=40)


def test_instruct_messages_hold_what_the_model_must_know():
    style = PROMPT_STYLES["instruct"]
    system = system_message(style, "Push {boxes}.", LIMITS, enable_think=True)
    assert "Push {boxes}." in system and "at most 2 actions, separated by ||" in system
    single = system_message(style, "Sum.", replace(LIMITS, max_actions_per_turn=1), enable_think=True)
    assert "one action in an answer" in single and "||" not in single
    first = turn_message(style, "#_P {0}", LIMITS, turn=1, actions_left=6, enable_think=True)
    assert "Turn 1" in first and "#_P {0}" in first and "6 action(s) left" in first and "40 words" in first
    assert "<think>...</think><answer>...</answer>" in first
    assert "Reward" not in first
    later = turn_message(
        style, "x", LIMITS, turn=2, actions_left=4, enable_think=False, last_reward=-0.25, last_was_invalid=True
    )
    assert later.startswith("Reward: -0.25\n\n") and "no valid action" in later
    assert "<think>" not in later and "<answer>...</answer>" in later


def test_compact_message_is_the_observation_alone():
    style = PROMPT_STYLES["compact"]
    assert system_message(style, "Push.", LIMITS, enable_think=True) == ""
    message = turn_message(
        style, " {a} %s ", LIMITS, turn=2, actions_left=4, enable_think=True, last_reward=1.0, last_was_invalid=True
    )
    assert message == " {a} %s "


def test_styles_use_known_fields_only():
    known = {
        "system": {"instruction", "pattern", "max_words", "number_of_actions"},
        "turn": {"observation", "turn", "actions_left", "pattern", "max_words", "feedback"},
        "reward": {"reward"},
        "warning": set(),
    }
    for style in PROMPT_STYLES.values():
        for name, fields in known.items():
            used = {field for _, field, _, _ in string.Formatter().parse(getattr(style, name)) if field}
            assert used <= fields
