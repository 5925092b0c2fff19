"""Settings of the filter, shared by the configurations of all trainers."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from ..filtering import check_filter_settings


LOSS_SCALINGS = ("none", "linear", "sqrt")
RANKED_REWARDS = ("total", "without_format_penalty", "success")


def setting(default: Any, text: str) -> Any:
    """A field of a configuration, with the text that a command line shows for it."""
    return field(default=default, metadata={"help": text})


@dataclass
class SNRFilterConfig:
    """
    Settings of SNR-aware filtering (RAGEN-2, arXiv 2604.06268): update only on prompt groups whose rewards vary. The
    rules are those of [`~ragen_trl.filtering.select_groups`].

    Parameters:
        reward_variance_filtering (`str`, *optional*):
            `"top_p"`, `"top_k"`, `"top_k_fraction"` or `"min_p"`. Defaults to no filter.
        reward_variance_top_p (`float`, *optional*, defaults to `0.9`):
            Share of the summed scores that the groups kept by `"top_p"` hold.
        reward_variance_top_k (`int`, *optional*):
            Groups that `"top_k"` keeps.
        reward_variance_top_k_fraction (`float`, *optional*):
            Share of the groups that `"top_k_fraction"` keeps.
        reward_variance_min_p (`float`, *optional*):
            Share of the best score that a group kept by `"min_p"` has.
        reward_variance_filtering_reward (`str`, *optional*, defaults to `"total"`):
            What is ranked: the `"total"` reward as it enters the advantages before any scaling, the total
            `"without_format_penalty"`, or `"success"` of the episodes. The last two need environments.
        reward_variance_filtering_score (`str`, *optional*, defaults to `"variance"`):
            Score of a group: `"variance"`, `"std"`, `"mean"`, `"sum"`, `"entropy"`, `"entropy_variance"`, `"length"`.
        reward_variance_filtering_mode (`str`, *optional*, defaults to `"linear"`):
            What `"top_p"` adds up: scores (`"linear"`) or their `"softmax"`.
        reward_variance_filtering_keep (`str`, *optional*, defaults to `"largest"`):
            End of the ranking that is kept, `"largest"` or `"smallest"`.
        reward_variance_filtering_include_zero (`bool`, *optional*, defaults to `False`):
            Whether groups with score zero may be kept.
        reward_variance_filtering_selection_eps (`float`, *optional*, defaults to `0.01`):
            Taken off the sum that linear `"top_p"` has to reach.
        reward_variance_filtering_zero_rtol (`float`, *optional*, defaults to `1e-6`):
            Spread that counts as none, relative to the largest magnitude in the group.
        reward_variance_filtering_loss_scaling (`str`, *optional*, defaults to `"none"`):
            Factor on the advantages, and so on the task term only: `"none"`, the kept share of the groups
            (`"linear"`), or its square root (`"sqrt"`).
        reward_variance_filtering_max_empty_steps (`int`, *optional*, defaults to `5`):
            Steps in a row in which nothing is kept after which training stops with an error. `0` never stops it.
    """

    reward_variance_filtering: str | None = setting(
        None, "Update only on groups whose rewards vary: 'top_p', 'top_k', 'top_k_fraction' or 'min_p'."
    )
    reward_variance_top_p: float = setting(0.9, "Share of the summed scores that groups kept by 'top_p' hold.")
    reward_variance_top_k: int | None = setting(None, "Groups that 'top_k' keeps.")
    reward_variance_top_k_fraction: float | None = setting(None, "Share of the groups that 'top_k_fraction' keeps.")
    reward_variance_min_p: float | None = setting(None, "Share of the best score that groups kept by 'min_p' have.")
    reward_variance_filtering_reward: str = setting(
        "total", "What is ranked: 'total', 'without_format_penalty' or 'success'."
    )
    reward_variance_filtering_score: str = setting(
        "variance", "Score of a group: 'variance', 'std', 'mean', 'sum', 'entropy', 'entropy_variance' or 'length'."
    )
    reward_variance_filtering_mode: str = setting("linear", "What 'top_p' adds up: 'linear' or 'softmax'.")
    reward_variance_filtering_keep: str = setting("largest", "End of the ranking kept: 'largest' or 'smallest'.")
    reward_variance_filtering_include_zero: bool = setting(False, "Whether groups with score zero may be kept.")
    reward_variance_filtering_selection_eps: float = setting(0.01, "Taken off the sum that 'top_p' has to reach.")
    reward_variance_filtering_zero_rtol: float = setting(1e-6, "Relative spread that counts as none.")
    reward_variance_filtering_loss_scaling: str = setting(
        "none", "Factor on the advantages by the kept share: 'none', 'linear' or 'sqrt'."
    )
    reward_variance_filtering_max_empty_steps: int = setting(
        5, "Steps in a row without a kept group after which training stops. 0 never stops it."
    )

    def selection_settings(self) -> dict[str, Any]:
        """Arguments of [`~ragen_trl.filtering.select_groups`]."""
        strategy = self.reward_variance_filtering
        return {
            "strategy": strategy,
            "value": getattr(self, f"reward_variance_{strategy}", None),
            "score": self.reward_variance_filtering_score,
            "mode": self.reward_variance_filtering_mode,
            "keep": self.reward_variance_filtering_keep,
            "include_zero": self.reward_variance_filtering_include_zero,
            "eps": self.reward_variance_filtering_selection_eps,
            "zero_rtol": self.reward_variance_filtering_zero_rtol,
        }

    def check_filter(self, num_groups: int, group_size: int) -> None:
        """
        Refuse settings of the filter that are out of range; nothing if it is off.

        Args:
            num_groups (`int`):
                Groups in a batch.
            group_size (`int`):
                Rollouts in a group.

        Raises:
            ValueError: With the value, what is allowed, and what to do.
        """
        if self.reward_variance_filtering is None:
            values = ("reward_variance_top_k", "reward_variance_top_k_fraction", "reward_variance_min_p")
            for name in values:
                if getattr(self, name) is not None:
                    raise ValueError(
                        f"`{name}={getattr(self, name)}` is of no effect without a filter. Set "
                        f"`reward_variance_filtering={name.removeprefix('reward_variance_')!r}` too, or leave it out."
                    )
            return
        settings = self.selection_settings()
        del settings["include_zero"]
        try:
            check_filter_settings(**settings, num_groups=num_groups, group_size=group_size)
        except ValueError as error:
            name = f"reward_variance_filtering={self.reward_variance_filtering!r}"
            raise ValueError(f"{name} and the settings that belong to it: {error}") from error
        for name, allowed in (("loss_scaling", LOSS_SCALINGS), ("reward", RANKED_REWARDS)):
            value = getattr(self, f"reward_variance_filtering_{name}")
            if value not in allowed:
                raise ValueError(f"`reward_variance_filtering_{name}` must be one of {list(allowed)}, got {value!r}.")
        most = self.reward_variance_filtering_max_empty_steps
        if not isinstance(most, int) or most < 0:
            raise ValueError(
                f"`reward_variance_filtering_max_empty_steps` must be a whole number of at least 0, got {most!r}."
            )
