"""Imperfect players, and the episodes they play through the rollout engine: what the embedded agent learns first."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from datasets import Dataset
from transformers import PreTrainedTokenizerBase

from ragen_envs import TextEnv, make_env
from ragen_envs.word_problems import WordProblem, find_word_problem

from ..rollout.chat import ChatFormat
from ..rollout.engine import RolloutEngine, RolloutSettings
from ..rollout.generation import PolicyGenerator
from ..rollout.protocol import ACTION_SEPARATOR, ANSWER_CLOSE, ANSWER_OPEN, THINK_CLOSE
from ..rollout.trajectory import EpisodeSpec, Trajectory
from .tokenizer import END


class Player(Protocol):
    """Writes the next turn of an episode, as [`~ragen_trl.rollout.PolicyGenerator`] wants it."""

    def __call__(self, trajectory: Trajectory) -> str: ...


@dataclass(frozen=True)
class Task:
    """
    One of the tasks of the embedded agent.

    Args:
        env_id (`str`):
            Environment.
        env_kwargs (`Mapping[str, Any]`):
            Arguments of its constructor.
        noise (`float`):
            How often the player that demonstrates it errs.
        max_turns (`int`):
            Turns of an episode.
        share (`float`):
            Demonstrations, as a share of those of the task that is hardest to learn.
    """

    env_id: str
    noise: float
    max_turns: int
    share: float = 1.0
    env_kwargs: Mapping[str, Any] = field(default_factory=dict)

    def player(self, seed: int) -> Player:
        """The player that demonstrates the task."""
        return WordProblemPlayer(self.noise, seed) if "Math" in self.env_id else BoardPlayer(self.noise, seed)


TASKS: dict[str, Task] = {
    "sokoban": Task("ragen_envs/Sokoban-v0", 0.42, 5, 1.0, {"layout": "open", "observation_format": "compact"}),
    "frozenlake": Task("ragen_envs/FrozenLake-v0", 0.82, 5, 0.4, {"observation_format": "compact"}),
    "math": Task("ragen_envs/MetaMathQA-v0", 0.6, 3, 0.5),
}
# Tokens of a demonstration after its first prompt; the longest needs about 110.
_MAX_COMPLETION_LENGTH = 256
_MAX_TOKENS_PER_TURN = 24


class BoardPlayer:
    """
    Follows the oracle of a board game, but makes a random move every so often.

    It sees no more than an environment of its own shows that starts alike and is given the same moves, so it can plan
    the second move of a turn.

    Args:
        noise (`float`):
            Share of random moves.
        seed (`int`):
            Seed of the errors.
    """

    _moves = ("Down", "Left", "Right", "Up")
    # Player, box and target on one board, player and goal on the other; holes may be many.
    _named = frozenset("PBG")

    def __init__(self, noise: float, seed: int) -> None:
        self._noise = noise
        self._rng = random.Random(seed)
        self._boards: dict[int, TextEnv] = {}

    def __call__(self, trajectory: Trajectory) -> str:
        board = self._board(trajectory)
        reasoning = [word for word in trajectory.turns[-1].observation.split() if word[0] in self._named]
        moves: list[str] = []
        for _ in range(board.limits.max_actions_per_turn):
            move = self._move(board)
            moves.append(move)
            if board.step(move)[2]:
                break
        return turn_text(" ".join(reasoning), moves)

    def _board(self, trajectory: Trajectory) -> TextEnv:
        key, spec = id(trajectory), trajectory.spec
        if len(trajectory.turns) == 1:
            self._boards[key] = make_env(spec.env_id, **spec.env_kwargs)
            self._boards[key].reset(seed=spec.seed, options={"noise_seed": spec.noise_seed})
        return self._boards[key]

    def _move(self, board: TextEnv) -> str:
        planned = board.oracle_action()
        return self._rng.choice(self._moves) if planned is None or self._rng.random() < self._noise else planned


class WordProblemPlayer:
    """
    Finds the numbers of a word problem, but often misreads what to do with them, and miscounts. Told that it is wrong
    it counts again, yet never doubts its reading.

    Args:
        noise (`float`):
            Chance of a misreading. Half as often it miscounts by one.
        seed (`int`):
            Seed of the errors.
    """

    # "and" is for no operation at all: the larger number is the answer.
    _readings = ("plus", "minus", "and")

    def __init__(self, noise: float, seed: int) -> None:
        self._noise = noise
        self._rng = random.Random(seed)

    def __call__(self, trajectory: Trajectory) -> str:
        problem = find_word_problem(trajectory.turns[0].observation)
        if problem is None:
            raise ValueError(f"{trajectory.turns[0].observation!r} is none of the built-in word problems.")
        earlier = trajectory.turns[-2].reasoning if len(trajectory.turns) > 1 else None
        reading = earlier.split()[1] if earlier else self._read(problem)
        return turn_text(f"{problem.a} {reading} {problem.b}", [str(self._count(problem, reading))])

    def _read(self, problem: WordProblem) -> str:
        right = "plus" if problem.op == "+" else "minus"
        wrong = [reading for reading in self._readings if reading != right]
        return self._rng.choice(wrong) if self._rng.random() < self._noise else right

    def _count(self, problem: WordProblem, reading: str) -> int:
        a, b = problem.a, problem.b
        result = {"plus": a + b, "minus": abs(a - b), "and": max(a, b)}[reading]
        miscount = self._rng.choice((-1, 1)) if self._rng.random() < self._noise / 2 else 0
        return min(max(result + miscount, 0), 18)


def turn_text(reasoning: str, actions: list[str]) -> str:
    """
    A turn after its forced opening tag.

    Args:
        reasoning (`str`):
            What to think.
        actions (`list[str]`):
            What to do.

    Returns:
        `str`: The turn, end-of-turn token included.
    """
    answer = f" {ACTION_SEPARATOR} ".join(actions)
    return f" {reasoning}{THINK_CLOSE}{ANSWER_OPEN}{answer}{ANSWER_CLOSE}{END}"


def play(task: Task, tokenizer: PreTrainedTokenizerBase, num_episodes: int, seed: int = 0) -> list[Trajectory]:
    """
    Let a task's player play problems of the train split.

    Args:
        task ([`Task`]):
            What to play.
        tokenizer ([`~transformers.PreTrainedTokenizerBase`]):
            Tokenizer of the agent.
        num_episodes (`int`):
            Episodes, each with a problem of its own.
        seed (`int`, *optional*, defaults to `0`):
            Seed of the player and of the first problem.

    Returns:
        `list[`[`~ragen_trl.rollout.Trajectory`]`]`: The episodes.
    """
    settings = RolloutSettings(
        max_completion_length=_MAX_COMPLETION_LENGTH,
        max_tokens_per_turn=_MAX_TOKENS_PER_TURN,
        max_turns=task.max_turns,
        prompt_style="compact",
        env_workers=1,
    )
    chat = ChatFormat(tokenizer, settings.opening_tag)
    engine = RolloutEngine(settings, chat, PolicyGenerator(tokenizer, task.player(seed)))
    kwargs = {**task.env_kwargs, "split": "train"}
    return engine.run([EpisodeSpec(task.env_id, seed + i, kwargs, group=i) for i in range(num_episodes)])


def demonstrations(tokenizer: PreTrainedTokenizerBase, num_episodes: int, seed: int = 0) -> Dataset:
    """
    Demonstrations of all tasks, tokenized exactly as the trainer will see episodes.

    Args:
        tokenizer ([`~transformers.PreTrainedTokenizerBase`]):
            Tokenizer of the agent.
        num_episodes (`int`):
            Episodes of the task with the largest share.
        seed (`int`, *optional*, defaults to `0`):
            Seed of players and problems.

    Returns:
        [`~datasets.Dataset`] with the columns `input_ids` and `assistant_masks` (1 for what the player wrote).
    """
    trajectories = [t for task in TASKS.values() for t in play(task, tokenizer, int(num_episodes * task.share), seed)]
    return Dataset.from_dict(
        {
            "input_ids": [t.prompt_ids + t.completion_ids for t in trajectories],
            "assistant_masks": [[0] * len(t.prompt_ids) + t.env_mask for t in trajectories],
        }
    )
