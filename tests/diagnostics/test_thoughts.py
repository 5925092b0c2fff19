"""Where the reasoning is, in tokens, and how samples of it are drawn."""

import random
from collections import Counter

import pytest
from helpers import AWKWARD

from ragen_trl.diagnostics.thoughts import (
    Thought,
    draw_first_turns,
    draw_turns,
    find_reasoning,
    fitting,
    sampled_spans,
)


TAGS = ("<think>", "</think>")


def encode(tokenizer, text):
    return tokenizer(text, add_special_tokens=False)["input_ids"]


def found(tokenizer, opened, text, tags=TAGS):
    ids = encode(tokenizer, text)
    span = find_reasoning(tokenizer, encode(tokenizer, opened), ids, tags)
    return None if span is None else tokenizer.decode(ids[slice(*span)])


def test_turns_are_runs_of_sampled_tokens():
    assert sampled_spans([1, 1, 0, 0, 1, 0, 1]) == [(0, 2), (4, 5), (6, 7)]
    assert sampled_spans([0, 1, 1]) == [(1, 3)] and sampled_spans([0, 0]) == [] == sampled_spans([])


@pytest.mark.parametrize(
    ("opened", "text", "expected"),
    [
        ("question<think>", "go there</think><answer>Up</answer>", "go there"),
        ("question<think>\n", "here</think>", "here"),
        ("question", "<think>go there</think><answer>Up</answer>", "go there"),
        ("question", "well, <think>go</think>", "go"),
        ("question<think>", "a<think>b</think>c", "a<think>b"),
        ("question<think>", "no end", None),
        ("question", "no start</think>", None),
        ("question", "</think><think>", None),
        ("question<think>", " \n</think>", None),
        ("question<think>", "</think>", None),
        ("question", "", None),
    ],
)
def test_reasoning_is_what_lies_between_the_tags(tokenizer, opened, text, expected):
    assert found(tokenizer, opened, text) == expected


@pytest.mark.parametrize("piece", [piece for piece in AWKWARD if piece.strip() and "</" not in piece])
def test_awkward_reasoning_is_found_whole(tokenizer, piece):
    assert found(tokenizer, "x<think>", f"{piece} here</think><answer>Up</answer>") == f"{piece} here"


def test_a_token_that_holds_part_of_a_tag_is_no_reasoning(tokenizer):
    """`Up</think><answer>` is one token of this tokenizer."""
    ids = encode(tokenizer, "go Up</think><answer>Up</answer>")
    assert tokenizer.decode(ids[-2:]) == "Up</think><answer>Up</answer>" or len(ids) > 2
    assert "Up" not in (found(tokenizer, "<think>", "go Up</think><answer>Up</answer>") or "")


def test_without_tags_the_turn_is_the_reasoning(tokenizer):
    assert found(tokenizer, "question", "go there", tags=None) == "go there"
    assert find_reasoning(tokenizer, [1], [], None) is None


def test_as_many_thoughts_as_fit_each_other():
    thoughts = [Thought((1,) * 100, (2,) * 10)] * 5 + [Thought((1,) * 100, (2,) * 960)]
    assert fitting(thoughts, 1024) == thoughts[:5] and fitting(thoughts, None) == thoughts
    assert fitting(thoughts, 1060) == thoughts and fitting([], 10) == [] == fitting(thoughts, 50)


class Bytes:
    """Decodes as tokenizers with bytes for what they do not know: each byte of an unfinished character is a mark."""

    def decode(self, ids, **kwargs):
        data, text = bytes(ids), ""
        while data:
            for length in range(1, 5):
                try:
                    text, data = text + data[:length].decode(), data[length:]
                    break
                except UnicodeDecodeError:
                    continue
            else:
                text, data = text + "\ufffd", data[1:]
        return text


@pytest.mark.parametrize("reasoning", ["🙂", "a🙂🙂b", "日本", "é"])
def test_characters_of_several_tokens_stay_whole(reasoning):
    ids = list(f"{reasoning}</think>x".encode())
    span = find_reasoning(Bytes(), list(b"q<think>"), ids, TAGS)
    assert bytes(ids[slice(*span)]).decode() == reasoning


VALID = [[0, 1], [], [1], [0], [0, 1, 2]]


def test_first_turns_are_distinct_rollouts():
    for number, expected in ((2, 2), (3, 3), (64, 3)):
        drawn = draw_first_turns(VALID, number, random.Random(0))
        assert len(set(drawn)) == len(drawn) == expected
        assert all(turn == 0 and row in (0, 3, 4) for row, turn in drawn)
    seen = Counter(draw_first_turns(VALID, 1, random.Random(i))[0][0] for i in range(3000))
    assert all(900 < count < 1100 for count in seen.values()) and len(seen) == 3


def test_turns_are_drawn_by_rollout_and_then_by_turn():
    drawn = Counter(pair for i in range(2000) for pair in draw_turns(VALID, 2, random.Random(i)))
    assert set(drawn) == {(0, 0), (0, 1), (2, 1), (3, 0), (4, 0), (4, 1), (4, 2)}
    rows = Counter()
    for (row, _), count in drawn.items():
        rows[row] += count
    assert all(abs(count - 1000) < 120 for count in rows.values())
    assert abs(drawn[4, 2] - 1000 / 3) < 80
    assert len(draw_turns(VALID, 64, random.Random(0))) == 7, "no more than there are"
    assert draw_turns([[], []], 64, random.Random(0)) == [] == draw_first_turns([[1]], 64, random.Random(0))
