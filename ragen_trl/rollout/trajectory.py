"""What an episode was: the tokens the model saw, the tokens it sampled, and what the environment made of them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal


StopReason = Literal["terminated", "truncated", "max_turns", "max_actions", "token_budget", "timeout", "error"]

# An outage is not a wrong answer: these episodes leave the loss and the group statistics.
FAILURES: frozenset[str] = frozenset({"timeout", "error"})


@dataclass(frozen=True)
class EpisodeSpec:
    """
    Which episode to play.

    Args:
        env_id (`str`):
            Environment, e.g. `"ragen_envs/Sokoban-v0"`.
        seed (`int`):
            Seed of the problem. Members of a group share it and so start alike.
        env_kwargs (`dict[str, Any]`, *optional*):
            Arguments of the environment's constructor.
        prompt (`list[dict[str, str]]`, *optional*):
            Leading messages of the dataset row. A system message is put before the environment's instruction, a last
            user message before the first observation.
        group (`int`, *optional*, defaults to `0`):
            Group within the batch: rollouts of one dataset row.
        noise_seed (`tuple[int, ...]`, *optional*):
            Seed of the randomness inside the episode, e.g. slips.
    """

    env_id: str
    seed: int
    env_kwargs: dict[str, Any] = field(default_factory=dict)
    prompt: list[dict[str, str]] = field(default_factory=list)
    group: int = 0
    noise_seed: tuple[int, ...] | None = None


@dataclass
class Turn:
    """
    One turn of the model.

    Args:
        context_ids (`list[int]`):
            Tokens between the previous turn and this one, not sampled: for the first turn the whole prompt, afterwards
            the observation as the chat template renders it; the generation prompt and a forced tag included.
        message (`str`):
            User message that `context_ids` renders.
        observation (`str`):
            The environment's part of `message`.
        token_ids (`list[int]`):
            Sampled tokens, the end-of-turn token included if it was sampled.
        logprobs (`list[float]`):
            Log-probability of each sampled token at the sampling temperature, in nats.
        text (`str`):
            Forced tag and sampled tokens as text, special tokens left out.
        reasoning (`str`, *optional*):
            Text of the thinking block, `None` without a closed one.
        actions (`tuple[str, ...]`):
            Actions handed to the environment, `invalid_actions` of them refused by it.
        well_formed (`bool`):
            Whether the required tags were found.
        cut (`bool`):
            Whether the turn ran into its token limit before it was finished.
        reward (`float`):
            Sum of the environment's rewards in this turn.
        format_penalty (`float`):
            Penalty for a bad turn, zero or negative.
        success (`bool`):
            What the environment said of the last action.
    """

    context_ids: list[int]
    message: str
    observation: str = ""
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    text: str = ""
    reasoning: str | None = None
    actions: tuple[str, ...] = ()
    well_formed: bool = False
    invalid_actions: int = 0
    cut: bool = False
    reward: float = 0.0
    format_penalty: float = 0.0
    success: bool = False


@dataclass
class Trajectory:
    """
    One episode, token-exact.

    `context_ids` is the one place that says what the model sees before a turn, and `prompt_ids`, `completion_ids`,
    `env_mask` and `logprobs` the one place that says what is trained. Both read the same turns, so they cannot differ.
    A windowed context would replace these properties and nothing else.

    Args:
        spec ([`EpisodeSpec`]):
            What was played.
        system (`str`):
            System message, empty if there was none.
        turns (`list[Turn]`):
            Turns in order; the last one is open while the model is to answer it.
        closing_ids (`list[int]`):
            End tokens put after a finished last turn where the model did not sample them. Not trained.
        stop_reason (`str`, *optional*):
            Why the episode ended; `None` while it is running.
        error (`str`, *optional*):
            What went wrong in a failed episode.
    """

    spec: EpisodeSpec
    system: str = ""
    turns: list[Turn] = field(default_factory=list)
    closing_ids: list[int] = field(default_factory=list)
    stop_reason: StopReason | None = None
    error: str | None = None

    @property
    def context_ids(self) -> list[int]:
        """Everything before the next token: all turns so far and what followed them."""
        return [token for turn in self.turns for token in turn.context_ids + turn.token_ids]

    @property
    def prompt_ids(self) -> list[int]:
        return self.turns[0].context_ids if self.turns else []

    @property
    def completion_ids(self) -> list[int]:
        ids = [token for turn in self.turns for token in turn.context_ids + turn.token_ids]
        return ids[len(self.prompt_ids) :] + self.closing_ids

    @property
    def env_mask(self) -> list[int]:
        """1 for sampled tokens, else 0; zero everywhere in a failed episode. Aligned to `completion_ids`."""
        sampled = int(not self.failed)
        mask = [flag for turn in self.turns for flag in [0] * len(turn.context_ids) + [sampled] * len(turn.token_ids)]
        return mask[len(self.prompt_ids) :] + [0] * len(self.closing_ids)

    @property
    def logprobs(self) -> list[float]:
        """Log-probabilities of the sampled tokens, 0.0 at all others. Aligned to `completion_ids`."""
        values = [value for turn in self.turns for value in [0.0] * len(turn.context_ids) + turn.logprobs]
        return values[len(self.prompt_ids) :] + [0.0] * len(self.closing_ids)

    @property
    def turn_numbers(self) -> list[int]:
        """Number of the turn that each of `completion_ids` belongs to; what precedes a turn belongs to it."""
        numbers = [i for i, turn in enumerate(self.turns) for _ in turn.context_ids + turn.token_ids]
        return numbers[len(self.prompt_ids) :] + [max(len(self.turns) - 1, 0)] * len(self.closing_ids)

    @property
    def failed(self) -> bool:
        return self.stop_reason in FAILURES

    @property
    def success(self) -> bool:
        return bool(self.turns) and self.turns[-1].success and not self.failed

    @property
    def reward(self) -> float:
        """Return of the episode: sum over turns of the environment's rewards and the format penalties."""
        return sum(turn.reward + turn.format_penalty for turn in self.turns)

    @property
    def num_actions(self) -> int:
        """Valid actions taken."""
        return sum(len(turn.actions) - turn.invalid_actions for turn in self.turns)

    @property
    def completion_messages(self) -> list[dict[str, str]]:
        """The dialogue from the first answer on, as messages."""
        messages = []
        for i, turn in enumerate(self.turns):
            if i > 0:
                messages.append({"role": "user", "content": turn.message})
            messages.append({"role": "assistant", "content": turn.text})
        return messages

    @property
    def prompt_messages(self) -> list[dict[str, str]]:
        """System message, if any, and the first user message."""
        messages = [{"role": "system", "content": self.system}] if self.system else []
        if self.turns:
            messages.append({"role": "user", "content": self.turns[0].message})
        return messages
