"""How the model is asked and how its answer is read: `<think>...</think><answer>A || B</answer>`."""

from __future__ import annotations

from dataclasses import dataclass

from ragen_envs import Limits


THINK_OPEN, THINK_CLOSE = "<think>", "</think>"
ANSWER_OPEN, ANSWER_CLOSE = "<answer>", "</answer>"
ACTION_SEPARATOR = "||"


@dataclass(frozen=True)
class Response:
    """
    A parsed turn.

    Args:
        well_formed (`bool`):
            Whether the required tags were found.
        reasoning (`str`, *optional*):
            Text between the thinking tags, `None` without a closed thinking block.
        actions (`tuple[str, ...]`):
            Actions in order, empty pieces left out, at most as many as one turn may hold.
    """

    well_formed: bool
    reasoning: str | None = None
    actions: tuple[str, ...] = ()


def parse_response(text: str, *, enable_think: bool = True, max_actions: int = 1) -> Response:
    """
    Read the actions out of a turn (paper's format; tags are case-sensitive, text around the blocks is ignored).

    The thinking block runs from the first opening tag to the first closing tag that an answer block follows, with
    nothing but white space between. Runs in time linear in `text`: model output is never trusted.

    Args:
        text (`str`):
            The turn, a forced opening tag included.
        enable_think (`bool`, *optional*, defaults to `True`):
            Whether the thinking block is required.
        max_actions (`int`, *optional*, defaults to `1`):
            Actions a turn may hold. With `1` the answer is one action and is not split; further actions are dropped.

    Returns:
        [`Response`]

    Example:

    ```python
    >>> parse_response("<think>go</think><answer>Up || Left</answer>", max_actions=2).actions
    ('Up', 'Left')
    ```
    """
    reasoning = None
    start = 0
    if enable_think:
        opened = text.find(THINK_OPEN)
        if opened < 0:
            return Response(well_formed=False)
        body = opened + len(THINK_OPEN)
        closed, start = _closing_before_answer(text, body)
        first_close = text.find(THINK_CLOSE, body)
        if first_close >= 0:
            reasoning = text[body : closed if closed >= 0 else first_close].strip()
        if closed < 0:
            return Response(well_formed=False, reasoning=reasoning)
    opened = text.find(ANSWER_OPEN, start)
    closed = text.find(ANSWER_CLOSE, opened + len(ANSWER_OPEN)) if opened >= 0 else -1
    if closed < 0:
        return Response(well_formed=False, reasoning=reasoning)
    answer = text[opened + len(ANSWER_OPEN) : closed]
    for tag in (THINK_OPEN, THINK_CLOSE, ANSWER_OPEN):
        answer = answer.replace(tag, "")
    pieces = answer.split(ACTION_SEPARATOR) if max_actions > 1 else [answer]
    actions = tuple(piece.strip() for piece in pieces if piece.strip())[:max_actions]
    return Response(well_formed=True, reasoning=reasoning, actions=actions)


def _closing_before_answer(text: str, start: int) -> tuple[int, int]:
    """Position of the first closing thinking tag followed by an answer block, and of that block; -1 without one."""
    while (closed := text.find(THINK_CLOSE, start)) >= 0:
        after = closed + len(THINK_CLOSE)
        while after < len(text) and text[after].isspace():
            after += 1
        if text.startswith(ANSWER_OPEN, after):
            return closed, after
        start = after
    return -1, -1


@dataclass(frozen=True)
class PromptStyle:
    """
    The texts around an observation: `str.format` patterns of our own. What is filled in is never parsed again.

    Args:
        system (`str`):
            System message. Fields: `instruction`, `pattern`, `max_words`, `number_of_actions`. Empty for none.
        turn (`str`):
            User message. Fields: `observation`, `turn`, `actions_left`, `pattern`, `max_words`, `feedback`.
        reward (`str`):
            Part of `feedback` after the first turn. Field: `reward`.
        warning (`str`):
            Part of `feedback` after a turn without a valid action.
    """

    system: str
    turn: str
    reward: str = ""
    warning: str = ""


PROMPT_STYLES = {
    # What the paper's agents see, in our words: instruction, turn number, state, actions left, required form, reward.
    "instruct": PromptStyle(
        system=(
            "You are a careful agent that solves tasks step by step.\n{instruction}\n"
            "Give {number_of_actions} in an answer."
        ),
        turn=(
            "{feedback}Turn {turn}:\nState:\n{observation}\n"
            "You have {actions_left} action(s) left. Reply in the form {pattern} and write nothing else. "
            "Use at most {max_words} words."
        ),
        reward="Reward: {reward:g}\n\n",
        warning="The last reply held no valid action, so the state is unchanged. Try again.\n\n",
    ),
    # The observation and nothing else, for agents that already know the task and the form of an answer.
    "compact": PromptStyle(system="", turn="{observation}"),
}


def answer_pattern(enable_think: bool) -> str:
    """The form an answer must have, as stated to the model."""
    answer = f"{ANSWER_OPEN}...{ANSWER_CLOSE}"
    return f"{THINK_OPEN}...{THINK_CLOSE}{answer}" if enable_think else answer


def system_message(style: PromptStyle, instruction: str, limits: Limits, enable_think: bool) -> str:
    """System message of an episode, empty if the style has none."""
    most = limits.max_actions_per_turn
    return style.system.format(
        instruction=instruction,
        pattern=answer_pattern(enable_think),
        max_words=limits.max_words,
        number_of_actions="one action" if most == 1 else f"at most {most} actions, separated by ||,",
    )


def turn_message(
    style: PromptStyle,
    observation: str,
    limits: Limits,
    *,
    turn: int,
    actions_left: int,
    enable_think: bool,
    last_reward: float | None = None,
    last_was_invalid: bool = False,
) -> str:
    """
    User message of a turn.

    Args:
        style ([`PromptStyle`]):
            Texts to use.
        observation (`str`):
            What the environment showed.
        limits ([`~ragen_envs.Limits`]):
            Limits of the episode.
        turn (`int`):
            Number of the turn, from 1.
        actions_left (`int`):
            Actions that the episode may still take.
        enable_think (`bool`):
            Whether a thinking block is asked for.
        last_reward (`float`, *optional*):
            Reward of the previous turn, `None` at the first one.
        last_was_invalid (`bool`, *optional*, defaults to `False`):
            Whether the previous turn had no valid action.
    """
    feedback = "" if last_reward is None else style.reward.format(reward=last_reward)
    if last_was_invalid:
        feedback += style.warning
    return style.turn.format(
        observation=observation,
        turn=turn,
        actions_left=actions_left,
        pattern=answer_pattern(enable_think),
        max_words=limits.max_words,
        feedback=feedback,
    )
