"""ragen-trl: multi-turn agent RL on TRL, after RAGEN-2 (arXiv 2604.06268)."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any


# Importing trl takes seconds, so names are looked up when they are first used.
_WHERE = {
    "AgentConfig": "ragen_trl.trainers.agent_config",
    "AgentMixin": "ragen_trl.trainers.agent_mixin",
    "EarlyStopOnCollapseCallback": "ragen_trl.callbacks",
    "MutualInformationCallback": "ragen_trl.callbacks",
    "RagenGRPOConfig": "ragen_trl.trainers.grpo_config",
    "RagenGRPOTrainer": "ragen_trl.trainers.grpo_trainer",
    "RagenPPOConfig": "ragen_trl.trainers.ppo_config",
    "RagenPPOTrainer": "ragen_trl.trainers.ppo_trainer",
    "RolloutCallback": "ragen_trl.callbacks",
    "SNRFilterConfig": "ragen_trl.trainers.filter_config",
    "SNRFilterMixin": "ragen_trl.trainers.filter_mixin",
    "gae": "ragen_trl.advantages",
    "group_advantages": "ragen_trl.advantages",
    "turn_level_gae": "ragen_trl.advantages",
    "env_dataset": "ragen_trl.rollout.dataset",
    "select_groups": "ragen_trl.filtering",
}
__all__ = sorted(_WHERE)

if TYPE_CHECKING:
    from .advantages import gae as gae
    from .advantages import group_advantages as group_advantages
    from .advantages import turn_level_gae as turn_level_gae
    from .callbacks import EarlyStopOnCollapseCallback as EarlyStopOnCollapseCallback
    from .callbacks import MutualInformationCallback as MutualInformationCallback
    from .callbacks import RolloutCallback as RolloutCallback
    from .filtering import select_groups as select_groups
    from .rollout.dataset import env_dataset as env_dataset
    from .trainers.agent_config import AgentConfig as AgentConfig
    from .trainers.agent_mixin import AgentMixin as AgentMixin
    from .trainers.filter_config import SNRFilterConfig as SNRFilterConfig
    from .trainers.filter_mixin import SNRFilterMixin as SNRFilterMixin
    from .trainers.grpo_config import RagenGRPOConfig as RagenGRPOConfig
    from .trainers.grpo_trainer import RagenGRPOTrainer as RagenGRPOTrainer
    from .trainers.ppo_config import RagenPPOConfig as RagenPPOConfig
    from .trainers.ppo_trainer import RagenPPOTrainer as RagenPPOTrainer


def __getattr__(name: str) -> Any:
    if name not in _WHERE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}; it has {', '.join(__all__)}")
    return getattr(importlib.import_module(_WHERE[name]), name)


def __dir__() -> list[str]:
    return __all__
