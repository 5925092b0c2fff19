"""The tokenizer of the embedded agent: whole words where it knows them, bytes everywhere else."""

from __future__ import annotations

import itertools
from collections.abc import Iterable

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from ragen_envs.frozen_lake import MOVES
from ragen_envs.metamathqa import RIGHT, WRONG
from ragen_envs.word_problems import word_problems

from ..rollout.protocol import ANSWER_CLOSE, ANSWER_OPEN, THINK_CLOSE, THINK_OPEN


PAD, START, END = "<|endoftext|>", "<|im_start|>", "<|im_end|>"
TAGS = (THINK_OPEN, THINK_CLOSE, ANSWER_OPEN, ANSWER_CLOSE)
MAX_LENGTH = 4096

# Every character falls under one alternative. A role with its line break and an object with its cell stay whole.
_PIECES = (
    r"(?:system|user|assistant)\n"
    r"| ?[A-Z][0-9],[0-9](?![0-9])"
    r"| ?\p{L}+"
    r"| ?\p{N}+"
    r"| ?[^\s\p{L}\p{N}]+"
    r"|\s+"
)
_OBJECTS = "PBGH"
_BOARD_SIDE = 6
_LARGEST_NUMBER = 18

# ChatML without the line break between messages, so that a message costs three tokens besides its content.
CHAT_TEMPLATE = (
    "{%- for message in messages -%}"
    "{{- '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' -}}"
    "{%- endfor -%}"
    "{%- if add_generation_prompt -%}{{- '<|im_start|>assistant\\n' -}}{%- endif -%}"
)


def known_words() -> list[str]:
    """
    Pieces of text that are one token each: objects with their cells, actions, numbers and the words of the problems.

    Returns:
        `list[str]`: Roles, and every word once as it stands and once with a blank before it; sorted, so that the ids
        never depend on the order of anything else.
    """
    objects = [
        f"{letter}{row},{col}" for letter in _OBJECTS for row, col in itertools.product(range(_BOARD_SIDE), repeat=2)
    ]
    numbers = [str(number) for number in range(_LARGEST_NUMBER + 1)]
    texts = [*(problem.question for problem in word_problems()), RIGHT, WRONG, "plus minus and"]
    words = sorted({*_words_of(texts), *MOVES, *numbers, *objects, "||"})
    return ["system\n", "user\n", "assistant\n", *words, *(f" {word}" for word in words)]


def build_tokenizer() -> PreTrainedTokenizerFast:
    """
    Build the tokenizer from nothing.

    Returns:
        [`~transformers.PreTrainedTokenizerFast`]: Decodes the ids of any text to exactly that text.
    """
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    pieces = [PAD, START, END, *TAGS, *alphabet, *map(_in_byte_level, known_words())]
    vocabulary = {piece: i for i, piece in enumerate(dict.fromkeys(pieces))}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[], ignore_merges=True))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(_PIECES), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(text, normalized=False, special=True) for text in (PAD, START, END)])
    # Not special: a decoder that leaves special tokens out must keep the tags of an answer.
    tokenizer.add_tokens([AddedToken(tag, normalized=False, special=False) for tag in TAGS])
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token=PAD,
        eos_token=END,
        additional_special_tokens=[START],
        model_max_length=MAX_LENGTH,
        padding_side="left",
        clean_up_tokenization_spaces=False,
    )
    fast.chat_template = CHAT_TEMPLATE
    return fast


def _words_of(texts: Iterable[str]) -> set[str]:
    return {word for text in texts for word in text.replace(".", " ").replace("?", " ").split()}


def _in_byte_level(text: str) -> str:
    """Text as the byte-level vocabulary spells it. Known words are ASCII, of which only these two are respelt."""
    return text.replace(" ", "Ġ").replace("\n", "Ċ")
