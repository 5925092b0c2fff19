"""The turn loop: many episodes advance together, one answer and one environment step at a time."""

from __future__ import annotations

import json
import logging
import math
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import gymnasium

from ragen_envs import Limits, make_env

from .chat import ChatFormat
from .generation import Completion, Generator
from .protocol import (
    ANSWER_CLOSE,
    ANSWER_OPEN,
    PROMPT_STYLES,
    THINK_OPEN,
    parse_response,
    system_message,
    turn_message,
)
from .trajectory import EpisodeSpec, StopReason, Trajectory, Turn
from .workers import DeadlineExceeded, WorkerPool


logger = logging.getLogger(__name__)

# Rewards are compared in float32, where the variance of larger ones overflows; written so that NaN is out too.
_REWARD_BOUND = 1e18
# Where every row has arguments of its own its instance is not met again, and keeping them all would fill the memory.
_MOST_IDLE_KINDS = 256


@dataclass(frozen=True)
class RolloutSettings:
    """
    How episodes are played. The fields are those of [`~ragen_trl.RagenGRPOConfig`]; `None` leaves a limit to the
    environment.

    Args:
        max_completion_length (`int`, *optional*, defaults to `256`):
            Tokens that an episode may hold after its first prompt, observations included.
        max_turns, max_actions, max_actions_per_turn, max_tokens_per_turn (`int`, *optional*):
            Limits that replace those of the environment.
        episode_timeout (`float`, *optional*, defaults to `600.0`):
            Seconds that the environment of one episode may take in all.
        format_penalty (`float`, *optional*, defaults to `-0.1`):
            Added to the return for each turn that is malformed, without an action, or with an invalid one.
        enable_think (`bool`, *optional*, defaults to `True`):
            Whether a thinking block is asked for and required.
        force_tag (`bool`, *optional*, defaults to `True`):
            Whether the opening tag is put before every turn, so that the model need not produce it.
        stop_at_answer (`bool`, *optional*, defaults to `True`):
            Whether a turn ends at `</answer>`.
        prompt_style (`str`, *optional*, defaults to `"instruct"`):
            Texts around an observation, one of `"instruct"` and `"compact"`.
        context (`str`, *optional*, defaults to `"full"`):
            What the model sees of earlier turns. Only `"full"`: all of them.
        env_workers (`int`, *optional*, defaults to `32`):
            Threads that step environments. More than cores, as environments wait for services.

    Raises:
        ValueError: If a value is out of range.
    """

    max_completion_length: int | None = 256
    max_turns: int | None = None
    max_actions: int | None = None
    max_actions_per_turn: int | None = None
    max_tokens_per_turn: int | None = None
    episode_timeout: float | None = 600.0
    format_penalty: float = -0.1
    enable_think: bool = True
    force_tag: bool = True
    stop_at_answer: bool = True
    prompt_style: str = "instruct"
    context: Literal["full"] = "full"
    env_workers: int = 32

    def __post_init__(self) -> None:
        limits = ("max_turns", "max_actions", "max_actions_per_turn", "max_tokens_per_turn", "env_workers")
        for name in ("max_completion_length", *limits):
            value = getattr(self, name)
            if value is not None and (not isinstance(value, int) or value < 1):
                raise ValueError(f"`{name}` must be a whole number of at least 1, got {value!r}.")
        timeout, penalty = self.episode_timeout, self.format_penalty
        if timeout is not None and not (isinstance(timeout, int | float) and timeout > 0):
            raise ValueError(f"`episode_timeout` must be positive or `None`, got {timeout!r}.")
        if not (isinstance(penalty, int | float) and -math.inf < penalty <= 0):
            raise ValueError(f"`format_penalty` must be zero or negative, got {penalty!r}.")
        if self.prompt_style not in PROMPT_STYLES:
            raise ValueError(f"`prompt_style` must be one of {sorted(PROMPT_STYLES)}, got {self.prompt_style!r}.")
        if self.context != "full":
            raise ValueError(f"`context` must be 'full', got {self.context!r}: other contexts are not available yet.")

    @property
    def opening_tag(self) -> str:
        """Tag put before every turn, empty if none is forced."""
        if not self.force_tag:
            return ""
        return THINK_OPEN if self.enable_think else ANSWER_OPEN

    @property
    def stop_string(self) -> str:
        """Text that ends a turn, empty if none does."""
        return ANSWER_CLOSE if self.stop_at_answer else ""

    def limits_for(self, env: gymnasium.Env) -> Limits:
        """
        Limits of an episode: the environment's, with the settings' in their place where given.

        Raises:
            ValueError: If not even one turn fits into the token budget.
        """
        given = {
            name: getattr(self, name)
            for name in ("max_turns", "max_actions", "max_actions_per_turn", "max_tokens_per_turn")
            if getattr(self, name) is not None
        }
        limits: Limits = replace(env.get_wrapper_attr("limits"), **given)
        if self.max_completion_length is None or limits.max_tokens_per_turn > self.max_completion_length:
            raise ValueError(
                f"`max_completion_length={self.max_completion_length}` leaves no room for an answer: a turn of "
                f"{type(env).__name__} may take {limits.max_tokens_per_turn} tokens, and only whole turns are played. "
                "Raise `max_completion_length`, or lower `max_tokens_per_turn`."
            )
        return limits


@dataclass
class _Episode:
    """A trajectory being played, with what is needed to go on."""

    trajectory: Trajectory
    env: gymnasium.Env | None = None
    limits: Limits | None = None
    seconds: float = 0.0  # spent in the environment

    @property
    def running(self) -> bool:
        return self.trajectory.stop_reason is None

    def stop(self, reason: StopReason, error: str | None = None) -> None:
        self.trajectory.stop_reason = reason
        self.trajectory.error = error


@dataclass
class _TurnOutcome:
    """What the environment made of one turn's actions."""

    observation: str | None = None
    reward: float = 0.0
    invalid: int = 0
    taken: int = 0
    success: bool = False
    ended: StopReason | None = None


class RolloutEngine:
    """
    Plays episodes with a model.

    All live episodes advance together: sample a turn for each, parse, step the environments in threads, append the
    observations. An episode ends when its environment says so, at the turn or action limit, when the next turn would
    not fit the token budget whole, at its time limit, or on a failure; which of these is recorded. A failing
    environment ends its own episode only.

    Args:
        settings ([`RolloutSettings`]):
            How episodes are played.
        chat ([`ChatFormat`]):
            Renders messages as ids.
        generator ([`Generator`]):
            Samples turns.
        context_length (`int`, *optional*):
            Tokens that the model can attend to. An episode whose prompt leaves no room for a turn fails; later turns
            that would not fit are not played.
        agree (`Callable[[bool], bool]`, *optional*):
            Tells whether any rank still plays, asked once a turn. Sharded models need it: their ranks must make the
            same number of forward calls. Defaults to this rank's own answer.
    """

    def __init__(
        self,
        settings: RolloutSettings,
        chat: ChatFormat,
        generator: Generator,
        context_length: int | None = None,
        agree: Callable[[bool], bool] | None = None,
    ) -> None:
        self.settings = settings
        self.chat = chat
        self._generator = generator
        self.context_length = math.inf if context_length is None else context_length
        self._agree = agree or (lambda playing: playing)
        self._workers = WorkerPool(settings.env_workers)
        # Constructing an environment may cost more than an episode, so instances are kept for the next rollout.
        self._idle: dict[str, list[gymnasium.Env]] = defaultdict(list)

    def run(self, specs: Sequence[EpisodeSpec]) -> list[Trajectory]:
        """
        Play one episode for each spec.

        Args:
            specs (`Sequence[EpisodeSpec]`):
                What to play.

        Returns:
            `list[Trajectory]`: Finished episodes in the order of `specs`.
        """
        episodes = [_Episode(Trajectory(spec)) for spec in specs]
        self._start(episodes)
        while self._agree(any(episode.running for episode in episodes)):
            live = [episode for episode in episodes if episode.running]
            limits = [episode.limits.max_tokens_per_turn for episode in live if episode.limits]
            completions = self._generator.generate([episode.trajectory for episode in live], limits)
            self._advance(live, completions)
        for episode in episodes:
            self._finish(episode)
        if len(self._idle) > _MOST_IDLE_KINDS:
            met = {_pool_key(spec) for spec in specs}
            self._idle = defaultdict(list, {key: envs for key, envs in self._idle.items() if key in met})
        trajectories = [episode.trajectory for episode in episodes]
        _warn_of_failures(trajectories)
        return trajectories

    def _start(self, episodes: list[_Episode]) -> None:
        for episode, first in zip(episodes, self._in_threads(episodes, self._reset), strict=True):
            if first is None or episode.env is None:
                continue
            try:
                episode.limits = self.settings.limits_for(episode.env)
                self._open_first_turn(episode, first)
            except Exception as error:
                episode.stop("error", _describe(error))

    def _reset(self, episode: _Episode) -> str:
        spec = episode.trajectory.spec
        try:
            env = self._idle[_pool_key(spec)].pop()
        except IndexError:  # asked for forgiveness: another thread may take the last one in between
            env = make_env(spec.env_id, **spec.env_kwargs)
        options = None if spec.noise_seed is None else {"noise_seed": spec.noise_seed}
        observation, _ = env.reset(seed=spec.seed, options=options)
        episode.env = env  # only now: an environment that failed to reset is not used again
        return _text(observation)

    def _open_first_turn(self, episode: _Episode, observation: str) -> None:
        trajectory, limits = episode.trajectory, episode.limits
        assert limits is not None and episode.env is not None
        style = PROMPT_STYLES[self.settings.prompt_style]
        leading = list(trajectory.spec.prompt)
        systems = [m["content"] for m in leading if m["role"] == "system"]
        systems.append(
            system_message(style, episode.env.get_wrapper_attr("instruction"), limits, self.settings.enable_think)
        )
        trajectory.system = "\n\n".join(text for text in systems if text)
        message = self._turn_message(episode, observation)
        message = "\n\n".join([*(m["content"] for m in leading if m["role"] == "user"), message])
        trajectory.turns.append(Turn([], message, observation))
        trajectory.turns[0].context_ids = self.chat.prompt_ids(trajectory.prompt_messages)
        if self._tokens_left(trajectory) < limits.max_tokens_per_turn:
            raise ValueError(
                f"a prompt of {len(trajectory.prompt_ids)} tokens leaves no room for a turn of "
                f"{limits.max_tokens_per_turn} in the model's context of {self.context_length} tokens; shorten the "
                "instruction or the problem, or lower `max_tokens_per_turn`"
            )

    def _tokens_left(self, trajectory: Trajectory) -> float:
        used = len(trajectory.completion_ids)
        budget = min(self.settings.max_completion_length or 0, self.context_length - len(trajectory.prompt_ids))
        return budget - used

    def _turn_message(self, episode: _Episode, observation: str) -> str:
        assert episode.limits is not None
        trajectory = episode.trajectory
        last = trajectory.turns[-1] if trajectory.turns else None
        return turn_message(
            PROMPT_STYLES[self.settings.prompt_style],
            observation,
            episode.limits,
            turn=len(trajectory.turns) + 1,
            actions_left=episode.limits.max_actions - trajectory.num_actions,
            enable_think=self.settings.enable_think,
            last_reward=last.reward if last else None,
            last_was_invalid=last is not None and len(last.actions) == last.invalid_actions,
        )

    def _advance(self, live: list[_Episode], completions: list[Completion]) -> None:
        for episode, completion in zip(live, completions, strict=True):
            self._read_turn(episode, completion)
        for episode, outcome in zip(live, self._in_threads(live, self._act), strict=True):
            if outcome is None:
                continue
            try:
                self._record(episode, outcome)
            except Exception as error:  # e.g. a chat template that refuses the observation
                episode.stop("error", _describe(error))

    def _read_turn(self, episode: _Episode, completion: Completion) -> None:
        assert episode.limits is not None
        turn = episode.trajectory.turns[-1]
        turn.token_ids, turn.logprobs = completion.token_ids, completion.logprobs
        turn.text = self.chat.opening + self.chat.decode(completion.token_ids)
        response = parse_response(
            turn.text,
            enable_think=self.settings.enable_think,
            max_actions=episode.limits.max_actions_per_turn,
        )
        turn.well_formed, turn.reasoning, turn.actions = response.well_formed, response.reasoning, response.actions
        ended = response.well_formed or self.chat.ends_turn(completion.token_ids)
        turn.cut = not ended and len(completion.token_ids) >= episode.limits.max_tokens_per_turn

    def _act(self, episode: _Episode) -> _TurnOutcome:
        assert episode.env is not None and episode.limits is not None
        trajectory = episode.trajectory
        actions = trajectory.turns[-1].actions
        # Those of the open turn count as taken until it is recorded.
        left = episode.limits.max_actions - trajectory.num_actions + len(actions)
        outcome = _TurnOutcome()
        for action in actions:
            if outcome.taken - outcome.invalid >= left or outcome.ended:
                break
            observation, reward, terminated, truncated, info = episode.env.step(action)
            if not abs(float(reward)) < _REWARD_BOUND:
                raise ValueError(f"the environment gave the reward {reward}")
            outcome.observation = _text(observation)
            outcome.taken += 1
            outcome.invalid += not info["action_is_valid"]
            outcome.reward += float(reward)
            outcome.success = bool(info["success"])
            if terminated or truncated:
                outcome.ended = "terminated" if terminated else "truncated"
        return outcome

    def _record(self, episode: _Episode, outcome: _TurnOutcome) -> None:
        assert episode.limits is not None
        trajectory, limits = episode.trajectory, episode.limits
        turn = trajectory.turns[-1]
        turn.actions = turn.actions[: outcome.taken]
        turn.invalid_actions = outcome.invalid
        turn.reward, turn.success = outcome.reward, outcome.success
        if not turn.well_formed or not turn.actions or outcome.invalid:
            turn.format_penalty = self.settings.format_penalty
        if outcome.ended:
            episode.stop(outcome.ended)
        elif trajectory.num_actions >= limits.max_actions:
            episode.stop("max_actions")
        elif len(trajectory.turns) >= limits.max_turns:
            episode.stop("max_turns")
        else:
            self._open_next_turn(episode, outcome.observation)

    def _open_next_turn(self, episode: _Episode, observation: str | None) -> None:
        assert episode.limits is not None
        trajectory = episode.trajectory
        if observation is None:  # nothing was done, so the state to show is the one last shown
            observation = trajectory.turns[-1].observation
        message = self._turn_message(episode, observation)
        last_id = trajectory.turns[-1].token_ids[-1] if trajectory.turns[-1].token_ids else None
        context_ids = self.chat.observation_ids(message, last_id)
        if len(context_ids) + episode.limits.max_tokens_per_turn > self._tokens_left(trajectory):
            episode.stop("token_budget")
        else:
            trajectory.turns.append(Turn(context_ids, message, observation))

    def _finish(self, episode: _Episode) -> None:
        trajectory = episode.trajectory
        if episode.env is not None and not trajectory.failed:
            self._idle[_pool_key(trajectory.spec)].append(episode.env)
        if not trajectory.turns:
            return
        turn = trajectory.turns[-1]
        # A turn cut at its limit stays open, so that it counts as truncated.
        if turn.token_ids and not turn.cut:
            closing_ids = self.chat.closing_ids(turn.token_ids[-1])
            if len(closing_ids) <= self._tokens_left(trajectory):
                trajectory.closing_ids = closing_ids

    def _in_threads(self, episodes: list[_Episode], step: Callable[[_Episode], Any]) -> list[Any]:
        """Run `step` for each episode. An episode whose step fails or takes too long is stopped and gives `None`."""
        timeout = self.settings.episode_timeout
        timeouts = [None if timeout is None else max(timeout - episode.seconds, 0.0) for episode in episodes]
        tasks = [lambda episode=episode: step(episode) for episode in episodes]
        results: list[Any] = []
        for episode, (result, seconds) in zip(episodes, self._workers.run(tasks, timeouts), strict=True):
            episode.seconds += seconds
            if isinstance(result, KeyboardInterrupt):
                raise result
            if isinstance(result, DeadlineExceeded):
                episode.stop("timeout", f"the environment took longer than `episode_timeout={timeout:g}` s")
            elif isinstance(result, BaseException):
                episode.stop("error", _describe(result))
            results.append(None if isinstance(result, BaseException) else result)
        return results


def _describe(error: BaseException) -> str:
    try:
        return f"{type(error).__name__}: {error}"
    except Exception:  # an exception need not be able to say what it is about
        return type(error).__name__


def _warn_of_failures(trajectories: Sequence[Trajectory]) -> None:
    failed = [trajectory for trajectory in trajectories if trajectory.failed]
    if failed:
        spec = failed[0].spec
        logger.warning(
            f"{len(failed)} of {len(trajectories)} episodes failed and are left out of training. The first: "
            f"{spec.env_id}, seed {spec.seed}: {failed[0].error}"
        )


def _pool_key(spec: EpisodeSpec) -> str:
    return f"{spec.env_id} {json.dumps(spec.env_kwargs, sort_keys=True, default=str)}"


def _text(observation: Any) -> str:
    if not isinstance(observation, str):
        raise TypeError(f"the environment gave an observation of type {type(observation).__name__}, not str")
    return observation
