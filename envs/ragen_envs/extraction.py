"""Finding the answer in what a model wrote, by one stated rule. Pure and bounded."""

from __future__ import annotations

import re


# Of a longer text the end is read: that is where an answer stands that is meant to be found.
MAX_TEXT_LENGTH = 20_000

_BOXES = ("\\boxed", "\\fbox")
_PHRASE = re.compile(r"\banswer\b(?: to [^.:=\n]{1,100}?)?[*_]*(?:\s+(?:is|was|would be)\b|\s*[:=])[*_]*:?", re.I)
_LEAD_IN = re.compile(r"^(?:the )?(?:final )?answer\s+", re.I)
_SENTENCE_END = re.compile(r"[.!?](?=\s)|,? (?:because|since)\b", re.I)


def extract_answer(text: str) -> str:
    r"""
    Answer that a text gives.

    It is, by the first of these that applies,

    1. the content of the last `\boxed{}` (or `\fbox{}`);
    2. what follows the last "answer is", "answer:" or "answer =", up to the end of the sentence or line, or to a
       "because";
    3. the last line that is not empty, without a `#` in front (GSM8K's `#### 72`);
    4. the text as it stands, where it is one line.

    Args:
        text (`str`):
            What the model wrote.

    Returns:
        `str`: The answer, still with its mark-up; empty when there is none.
    """
    text = text[-MAX_TEXT_LENGTH:]
    boxed = last_boxed(text)
    if boxed is not None:
        return boxed.strip()
    phrases = list(_PHRASE.finditer(text))
    if phrases:
        following = text[phrases[-1].end() :].lstrip().partition("\n")[0]
        return _SENTENCE_END.split(following, maxsplit=1)[0].strip()
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return _LEAD_IN.sub("", lines[-1].lstrip("# ")) if lines else ""


def last_boxed(text: str) -> str | None:
    r"""
    Content of the last box.

    Args:
        text (`str`):
            Text that may hold `\boxed{}` or `\fbox{}`.

    Returns:
        `str` or `None`: What is in its braces, up to the end where they are not closed, or the word after `\boxed`
        where there are none; `None` without a box.
    """
    opening, command = max((text.rfind(command), command) for command in _BOXES)
    if opening < 0:
        return None
    content = text[opening + len(command) :].lstrip()
    if not content.startswith("{"):
        return content.split(maxsplit=1)[0] if content else ""
    depth = 0
    for position, symbol in enumerate(content):
        depth += {"{": 1, "}": -1}.get(symbol, 0)
        if depth == 0:
            return content[1:position]
    return content[1:]
