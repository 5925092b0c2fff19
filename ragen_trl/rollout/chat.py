"""Chat templates, token-exact: a dialogue grows by appending ids, nothing is ever decoded and encoded again."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any

from transformers import PreTrainedTokenizerBase, ProcessorMixin

from .protocol import ANSWER_CLOSE, ANSWER_OPEN, THINK_CLOSE, THINK_OPEN


logger = logging.getLogger(__name__)

# Stand-ins whose place in a rendered dialogue shows what the template puts around real content.
_REPLY, _MESSAGE = "reply-stand-in", "message-stand-in"
_HINT = (
    "Set `processing_class.chat_template` to a template that keeps earlier messages (for example with "
    "`trl.clone_chat_template`), or start from a chat model."
)


class ChatFormat:
    """
    Renders the messages of an episode as token ids.

    The first prompt is what the chat template renders. From then on the dialogue is append-only: after a sampled turn
    comes the exact text that the template puts between that turn and the next answer. Templates that rewrite earlier
    turns (Qwen3 and R1 style, which drop old thinking) are therefore used in a fixed way: episodes keep their earlier
    thinking, in sampling and in training alike.

    Args:
        processing_class ([`~transformers.PreTrainedTokenizerBase`] or [`~transformers.ProcessorMixin`]):
            Tokenizer with a chat template, or a processor that holds one.
        forced_tag (`str`, *optional*, defaults to `""`):
            Opening tag put after every generation prompt, so that the model need not produce it. Left out where the
            template's own generation prompt already ends with it.
        chat_template_kwargs (`dict[str, Any]`, *optional*):
            Extra arguments of the chat template.

    Raises:
        ValueError: If the tokenizer has no chat template, or one without a generation prompt, or one that does not
            keep the content of messages.
    """

    def __init__(
        self,
        processing_class: PreTrainedTokenizerBase | ProcessorMixin,
        forced_tag: str = "",
        chat_template_kwargs: dict[str, Any] | None = None,
    ) -> None:
        self.tokenizer: PreTrainedTokenizerBase = getattr(processing_class, "tokenizer", processing_class)
        self._template_owner = processing_class
        self._kwargs = dict(chat_template_kwargs or {})
        if not getattr(processing_class, "chat_template", None):
            raise ValueError(f"{type(processing_class).__name__} has no chat template; episodes are chats. {_HINT}")
        self._supports_system = self._check_system()
        generation_prompt = self._check_generation_prompt()
        # The tag before the first sampled token of every turn, whether the template or we put it there.
        templated = generation_prompt.rstrip().endswith(THINK_OPEN)
        self.opening = THINK_OPEN if templated else forced_tag
        self._appended = "" if templated else forced_tag
        self._check_history()
        self._end_of_turn = self._find_end_of_turn()
        tags = self.tokenizer.convert_tokens_to_ids([THINK_OPEN, THINK_CLOSE, ANSWER_OPEN, ANSWER_CLOSE])
        self._hidden_ids = {*self.tokenizer.all_special_ids, self._end_of_turn} - set(tags)

    @property
    def end_of_turn_id(self) -> int | None:
        """Token that the template puts after an answer, if it is a special token."""
        return self._end_of_turn

    def prompt_ids(self, messages: Sequence[dict[str, str]]) -> list[int]:
        """
        Ids of the first prompt, generation prompt and forced tag included.

        Args:
            messages (`Sequence[dict[str, str]]`):
                System message, if any, and what follows it, ending with a user message.
        """
        return self._encode(self._render(self._fold_system(messages), add_generation_prompt=True) + self._appended)

    def observation_ids(self, message: str, last_id: int | None) -> list[int]:
        """
        Ids between a sampled turn and the next one.

        Args:
            message (`str`):
                User message of the next turn.
            last_id (`int`, *optional*):
                Last sampled token. If it is the template's end-of-turn token it is not repeated.
        """
        ids = self._encode(self._between(message) + self._appended)
        return ids[1:] if ids and ids[0] == self._end_of_turn == last_id else ids

    def closing_ids(self, last_id: int | None) -> list[int]:
        """
        What a finished episode lacks at its end: the template's end-of-turn token, and the tokenizer's end token, by
        which TRL tells finished completions from those that were cut off.
        """
        if last_id == self.tokenizer.eos_token_id:
            return []
        ends = dict.fromkeys([self._end_of_turn, self.tokenizer.eos_token_id])
        return [token for token in ends if token is not None and token != last_id]

    def ends_turn(self, token_ids: Sequence[int]) -> bool:
        """Whether the last of the sampled tokens ends the turn by itself."""
        return bool(token_ids) and token_ids[-1] in {self._end_of_turn, self.tokenizer.eos_token_id}

    def decode(self, token_ids: Sequence[int]) -> str:
        """Text of a sampled turn without special tokens (but for our tags), and without any clean-up of blanks."""
        ids = [i for i in token_ids if i not in self._hidden_ids]
        return str(self.tokenizer.decode(ids, skip_special_tokens=False, clean_up_tokenization_spaces=False))

    def drifted(self, messages: Sequence[dict[str, str]], token_ids: Sequence[int]) -> bool:
        """
        Whether rendering and encoding the finished dialogue anew would give other ids than those trained.

        Args:
            messages (`Sequence[dict[str, str]]`):
                Whole dialogue, ending with an answer.
            token_ids (`Sequence[int]`):
                Ids of the episode, from the prompt to the last sampled token.
        """
        try:
            again = self._encode(self._render(self._fold_system(messages), add_generation_prompt=False))
        except Exception:  # some templates refuse e.g. an empty answer; a metric must not end the run
            return True
        # A template may put a line break after the last end-of-turn token, which an episode does not need.
        return again[: len(token_ids)] != list(token_ids)

    def _render(self, messages: Sequence[dict[str, str]], *, add_generation_prompt: bool) -> str:
        render: Callable[..., Any] = self._template_owner.apply_chat_template
        return str(render(list(messages), tokenize=False, add_generation_prompt=add_generation_prompt, **self._kwargs))

    def _encode(self, text: str) -> list[int]:
        return list(self.tokenizer(text, add_special_tokens=False)["input_ids"])

    def _between(self, message: str) -> str:
        """What the template puts between the end of an answer and the start of the next one."""
        return self._after_reply([{"role": "user", "content": message}], add_generation_prompt=True)

    def _after_reply(self, messages: Sequence[dict[str, str]], *, add_generation_prompt: bool) -> str:
        start = [{"role": "user", "content": "-"}, {"role": "assistant", "content": _REPLY}]
        text = self._render([*start, *messages], add_generation_prompt=add_generation_prompt)
        before, found, after = text.partition(_REPLY)
        if not found:
            raise ValueError(f"The chat template drops earlier answers, so a dialogue cannot grow. {_HINT}")
        return after

    def _find_end_of_turn(self) -> int | None:
        first_id = next(iter(self._encode(self._between(_MESSAGE))), None)
        added = self.tokenizer.added_tokens_decoder.get(first_id)
        return first_id if first_id in self.tokenizer.all_special_ids or (added and added.special) else None

    def _fold_system(self, messages: Sequence[dict[str, str]]) -> list[dict[str, str]]:
        if self._supports_system or not messages or messages[0]["role"] != "system":
            return list(messages)
        system, first, *rest = messages
        return [{**first, "content": f"{system['content']}\n\n{first['content']}"}, *rest]

    def _check_system(self) -> bool:
        messages = [{"role": "system", "content": _REPLY}, {"role": "user", "content": _MESSAGE}]
        try:
            return _REPLY in self._render(messages, add_generation_prompt=True)
        except Exception as error:  # templates refuse roles with whatever their author raised
            logger.info(f"The chat template takes no system message ({error}); it goes into the first user message.")
            return False

    def _check_generation_prompt(self) -> str:
        messages = [{"role": "user", "content": _MESSAGE}]
        # Phi-3 style templates end every dialogue with the end token, unless it is the model's turn.
        without = self._render(messages, add_generation_prompt=False).removesuffix(self.tokenizer.eos_token or "")
        with_prompt = self._render(messages, add_generation_prompt=True)
        # `[INST]` style templates end user messages with the mark after which the answer follows.
        answered = self._render([*messages, {"role": "assistant", "content": _REPLY}], add_generation_prompt=False)
        marked = answered.removeprefix(with_prompt).lstrip().startswith(_REPLY)
        if not (with_prompt != without or marked) or not with_prompt.startswith(without.rstrip()):
            raise ValueError(
                "The chat template has no generation prompt: `add_generation_prompt=True` renders "
                f"{with_prompt[-60:]!r} after a user message, so the model cannot know that it is its turn. {_HINT}"
            )
        if _MESSAGE not in with_prompt:
            raise ValueError(f"The chat template drops the content of user messages. {_HINT}")
        return with_prompt[len(without.rstrip()) :]

    def _check_history(self) -> None:
        if _MESSAGE not in self._between(_MESSAGE):
            raise ValueError(f"The chat template drops a user message that follows an answer. {_HINT}")
        answer = f"{THINK_OPEN}{_MESSAGE}{THINK_CLOSE}{ANSWER_OPEN}{_REPLY}{ANSWER_CLOSE}"
        start = [{"role": "user", "content": "-"}, {"role": "assistant", "content": answer}]
        if answer not in self._render([*start, {"role": "user", "content": "-"}], add_generation_prompt=True):
            logger.info(
                "The chat template rewrites earlier answers (it drops their thinking). Episodes keep them as sampled, "
                "in sampling and in training alike."
            )
