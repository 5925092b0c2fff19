"""Text environments for multi-turn reinforcement learning of language-model agents."""

from .checker import ContractError, check_env
from .core import Limits, Split, TextEnv, problem_split, step_info
from .registry import UnknownEnvError, env_ids, make_env, register_all


__all__ = [
    "ContractError",
    "Limits",
    "Split",
    "TextEnv",
    "UnknownEnvError",
    "check_env",
    "env_ids",
    "make_env",
    "problem_split",
    "register_all",
    "step_info",
]

register_all()
