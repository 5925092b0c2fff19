from __future__ import annotations

import random
import sys

import pytest
from transformers import AutoTokenizer, PreTrainedTokenizerBase

from ragen_envs.metamathqa import RIGHT, WRONG
from ragen_envs.word_problems import word_problems
from ragen_trl import tiny
from ragen_trl.rollout import ChatFormat
from ragen_trl.tiny.tokenizer import build_tokenizer


AWKWARD = [
    "",
    " ",
    "\n\n  \t\r\n ",
    "user\nuser\n user\n",
    "naïve café ŒΩж 漢字 ǅ",
    "family 👨‍👩‍👧‍👦, flag 🇫🇷, skin 👍🏽",
    "e\u0301 and é, \u200b\u200d\ufeff\u2028\u00a0",
    "\x00\x01\x07\x1b[31m\x7f\x85",
    "\U0010ffff\ud7ff\ue000\ufffd",
    "Ġwords and Ċ, spelt like the byte alphabet",
    "<|im_end|> <|im_start|>user\n<|endoftext|>",
    " <think>  </think> <answer> a || b</answer> <answer",
    "P1,2 P1,23 P12,3 P9,9 xP1,2 p1,2,3",
    "don't, 12,345.67 - 3/4 = 0019",
]


@pytest.fixture(scope="module", params=["built", "shipped"])
def tokenizer(request: pytest.FixtureRequest) -> PreTrainedTokenizerBase:
    return build_tokenizer() if request.param == "built" else AutoTokenizer.from_pretrained(tiny.path())


def encode(tokenizer: PreTrainedTokenizerBase, text: str) -> list[int]:
    return tokenizer(text, add_special_tokens=False)["input_ids"]


def there_and_back(tokenizer: PreTrainedTokenizerBase, text: str) -> str:
    return tokenizer.decode(encode(tokenizer, text), skip_special_tokens=False, clean_up_tokenization_spaces=False)


@pytest.mark.parametrize("text", AWKWARD)
def test_awkward_texts_survive(tokenizer: PreTrainedTokenizerBase, text: str) -> None:
    assert there_and_back(tokenizer, text) == text


def test_random_texts_survive(tokenizer: PreTrainedTokenizerBase) -> None:
    rng = random.Random(0)
    for _ in range(300):
        as_bytes = rng.randbytes(40).decode("latin-1")
        anything = "".join(map(chr, rng.sample(range(0xD800), 20) + rng.sample(range(0xE000, sys.maxunicode), 20)))
        for text in (as_bytes, anything):
            assert there_and_back(tokenizer, text) == text


@pytest.mark.parametrize("text", ["P0,2", "B2,3", "G5,5", "H3,0", "||", "Down", "18", "0", "plus", "minus", "Tom"])
def test_known_words_are_one_token(tokenizer: PreTrainedTokenizerBase, text: str) -> None:
    assert len(encode(tokenizer, text)) == len(encode(tokenizer, f" {text}")) == 1


def test_every_word_of_every_problem_is_one_token(tokenizer: PreTrainedTokenizerBase) -> None:
    for text in {problem.question for problem in word_problems()[::37]} | {RIGHT, WRONG}:
        marks = sum(text.count(mark) for mark in ".?")
        assert len(encode(tokenizer, text)) == len(text.split()) + marks


def test_turn_costs_a_token_a_word(tokenizer: PreTrainedTokenizerBase) -> None:
    turn = " P1,2 B2,3 G4,3</think><answer>Down || Right</answer><|im_end|>"
    assert [tokenizer.decode([i]) for i in encode(tokenizer, turn)] == [
        *(" P1,2", " B2,3", " G4,3", "</think>", "<answer>", "Down", " ||", " Right", "</answer>", "<|im_end|>")
    ]


def test_tags_are_not_special(tokenizer: PreTrainedTokenizerBase) -> None:
    text = "<think> 3</think><answer>4</answer>"
    assert tokenizer.decode(encode(tokenizer, text + "<|im_end|>"), skip_special_tokens=True) == text
    assert (tokenizer.pad_token, tokenizer.eos_token) == ("<|endoftext|>", "<|im_end|>")


def test_chat_format_takes_the_template(tokenizer: PreTrainedTokenizerBase) -> None:
    chat = ChatFormat(tokenizer, "<think>")
    end = tokenizer.convert_tokens_to_ids("<|im_end|>")
    assert chat.end_of_turn_id == end
    # start, role, text, end; start, role, tag
    assert len(chat.prompt_ids([{"role": "user", "content": "Down"}])) == 7
    assert chat.observation_ids("Down", last_id=end) == chat.observation_ids("Down", last_id=None)[1:]
    messages = [{"role": "user", "content": "P0,1"}, {"role": "assistant", "content": "<think> P0,1</think>"}]
    ids = chat.prompt_ids(messages[:1]) + encode(tokenizer, " P0,1</think><|im_end|>")
    assert not chat.drifted(messages, ids)


def test_shipped_tokenizer_is_the_one_that_is_built() -> None:
    built, shipped = build_tokenizer(), AutoTokenizer.from_pretrained(tiny.path())
    assert shipped.get_vocab() == built.get_vocab()
    assert shipped.chat_template == built.chat_template
