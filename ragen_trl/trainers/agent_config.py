"""Settings of episodes, shared by the configurations of all trainers."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Literal

from ..rollout.engine import RolloutSettings
from .filter_config import setting as setting


@dataclass
class AgentConfig:
    """
    Settings of episodes, shared by the configurations of all trainers. They matter only for dataset rows that name an
    environment.

    Parameters:
        max_turns (`int`, *optional*):
            Turns of the model in an episode. Defaults to the environment's limit.
        max_actions (`int`, *optional*):
            Valid actions in an episode. Defaults to the environment's limit.
        max_actions_per_turn (`int`, *optional*):
            Actions in one answer, separated by `||`; more are dropped. Defaults to the environment's limit.
        max_tokens_per_turn (`int`, *optional*):
            Sampled tokens in a turn. Defaults to the environment's limit. `max_completion_length` bounds the whole
            episode after its first prompt, observations included; only whole turns are played.
        episode_timeout (`float`, *optional*, defaults to `600.0`):
            Seconds that the environment of one episode may take in all.
        format_penalty (`float`, *optional*, defaults to `-0.1`):
            Added to the return for each turn that is malformed, without an action, or with an invalid one.
        enable_think (`bool`, *optional*, defaults to `True`):
            Whether a `<think>` block is asked for and required.
        force_tag (`bool`, *optional*, defaults to `True`):
            Whether the opening tag is put before every turn, so that the model need not produce it.
        stop_at_answer (`bool`, *optional*, defaults to `True`):
            Whether a turn ends at `</answer>`.
        prompt_style (`str`, *optional*, defaults to `"instruct"`):
            Texts around an observation: `"instruct"` explains the task and the form of an answer, `"compact"` shows
            the observation alone, for agents that know both.
        context (`str`, *optional*, defaults to `"full"`):
            What the model sees of earlier turns. Only `"full"`: all of them.
        env_workers (`int`, *optional*, defaults to `32`):
            Threads that step environments. More than cores, as environments wait for services.
        max_failure_rate (`float`, *optional*, defaults to `0.5`):
            Share of failed episodes in a batch above which training stops. `1.0` never stops it.
    """

    max_turns: int | None = setting(None, "Turns of the model in an episode. Defaults to the environment's limit.")
    max_actions: int | None = setting(None, "Valid actions in an episode. Defaults to the environment's limit.")
    max_actions_per_turn: int | None = setting(None, "Actions in one answer. Defaults to the environment's limit.")
    max_tokens_per_turn: int | None = setting(None, "Sampled tokens in a turn. Defaults to the environment's limit.")
    episode_timeout: float | None = setting(600.0, "Seconds that the environment of one episode may take in all.")
    format_penalty: float = setting(-0.1, "Added to the return for each bad turn.")
    enable_think: bool = setting(True, "Whether a <think> block is asked for and required.")
    force_tag: bool = setting(True, "Whether the opening tag is put before every turn.")
    stop_at_answer: bool = setting(True, "Whether a turn ends at </answer>.")
    prompt_style: str = setting("instruct", "Texts around an observation: 'instruct' or 'compact'.")
    context: Literal["full"] = setting("full", "What the model sees of earlier turns. Only 'full': all of them.")
    env_workers: int = setting(32, "Threads that step environments.")
    max_failure_rate: float = setting(0.5, "Share of failed episodes in a batch above which training stops.")

    def check_agent_settings(self) -> RolloutSettings:
        """The settings of episodes, checked. Raises `ValueError` if one is out of range."""
        if not 0 <= self.max_failure_rate <= 1:
            raise ValueError(f"`max_failure_rate` must lie between 0 and 1, got {self.max_failure_rate}.")
        return RolloutSettings(**{f.name: getattr(self, f.name) for f in fields(RolloutSettings)})
