"""Multi-turn rollouts: token-exact, with any text environment."""

from .batch import RolloutBatch
from .chat import ChatFormat
from .dataset import env_dataset, episode_spec
from .engine import RolloutEngine, RolloutSettings
from .generation import Completion, Generator, PolicyGenerator, TransformersGenerator, VLLMGenerator
from .metrics import EpisodeSummary, episode_metrics, pass_at_k, summarize
from .protocol import PROMPT_STYLES, PromptStyle, Response, parse_response
from .trajectory import EpisodeSpec, StopReason, Trajectory, Turn


__all__ = [
    "PROMPT_STYLES",
    "ChatFormat",
    "Completion",
    "EpisodeSpec",
    "EpisodeSummary",
    "Generator",
    "PolicyGenerator",
    "PromptStyle",
    "Response",
    "RolloutBatch",
    "RolloutEngine",
    "RolloutSettings",
    "StopReason",
    "Trajectory",
    "TransformersGenerator",
    "Turn",
    "VLLMGenerator",
    "env_dataset",
    "episode_metrics",
    "episode_spec",
    "parse_response",
    "pass_at_k",
    "summarize",
]
