"""Dataset rows that name an episode instead of holding a prompt."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable, Mapping
from typing import Any, Literal

from datasets import Dataset, IterableDataset

from ragen_envs import Limits, check_env, make_env

from .engine import RolloutSettings
from .trajectory import EpisodeSpec


logger = logging.getLogger(__name__)

COLUMNS = ("prompt", "env_id", "seed", "env_kwargs")
# TRL looks at the first prompt to see whether the data are chats; an empty message is that and says nothing.
_EMPTY_PROMPT = [{"role": "user", "content": ""}]


def env_dataset(
    env_id: str,
    num_problems: int,
    *,
    seed: int = 0,
    split: Literal["train", "validation"] = "train",
    env_kwargs: Mapping[str, Any] | None = None,
    prompt: list[dict[str, str]] | None = None,
) -> Dataset:
    """
    Dataset of problems of one environment, for the trainers of this package.

    Args:
        env_id (`str`):
            Environment, e.g. `"ragen_envs/Sokoban-v0"` or `"my_package:MyEnv-v0"`.
        num_problems (`int`):
            Rows. Row `i` has the seed `seed + i`.
        seed (`int`, *optional*, defaults to `0`):
            First seed.
        split (`str`, *optional*, defaults to `"train"`):
            Problems to draw from, one of `"train"` and `"validation"`. They are disjoint whatever the seeds.
        env_kwargs (`Mapping[str, Any]`, *optional*):
            Arguments of the environment's constructor.
        prompt (`list[dict[str, str]]`, *optional*):
            Leading messages of every episode, e.g. a system message.

    Returns:
        [`~datasets.Dataset`] with the columns `prompt`, `env_id`, `seed`, `env_kwargs` (JSON, so that rows of
        different environments can be concatenated).

    Raises:
        ValueError: If `num_problems` is not positive, or a seed does not fit 64 bits.

    Example:

    ```python
    >>> env_dataset("ragen_envs/Sokoban-v0", 2, seed=10)["seed"]
    [10, 11]
    ```
    """
    if num_problems < 1:
        raise ValueError(f"`num_problems` must be at least 1, got {num_problems}.")
    if not 0 <= seed <= 2**63 - num_problems:
        raise ValueError(f"`seed` must be 0 or more, and the last one below 2**63, got {seed}.")
    kwargs = dict(env_kwargs or {})
    if split != "train":  # environments of a user's own need not know about splits
        kwargs["split"] = split
    return Dataset.from_dict(
        {
            "prompt": [prompt or _EMPTY_PROMPT] * num_problems,
            "env_id": [env_id] * num_problems,
            "seed": list(range(seed, seed + num_problems)),
            "env_kwargs": [json.dumps(kwargs)] * num_problems,
        }
    )


def uses_envs(dataset: Dataset | IterableDataset | None) -> bool:
    """Whether the rows of a dataset name environments."""
    if dataset is None:
        return False
    columns = dataset.column_names or list(next(iter(dataset), {}))
    return "env_id" in columns


def check_rows(dataset: Dataset | IterableDataset, name: str, settings: RolloutSettings) -> None:
    """
    Refuse data that could not be played: missing columns, unknown environments, environments that break the contract
    or leave no room for an answer. Each distinct environment of a map-style dataset is tried once.

    Args:
        dataset ([`~datasets.Dataset`] or [`~datasets.IterableDataset`]):
            Rows to check.
        name (`str`):
            What the dataset is called in messages.
        settings ([`RolloutSettings`]):
            Settings that the environments must fit.

    Raises:
        ValueError: With the value, what is allowed, and the remedy.
    """
    columns = dataset.column_names or list(next(iter(dataset), {}))
    missing = [column for column in ("prompt", "env_id", "seed") if column not in columns]
    if missing:
        raise ValueError(
            f"`{name}` lacks the column(s) {missing}; it has {sorted(columns)}. Rows that name environments need "
            "`prompt` (messages), `env_id`, `seed`, and optionally `env_kwargs`. `ragen_trl.env_dataset` makes them."
        )
    rows = list(_telling_rows(dataset))
    if not rows:
        raise ValueError(f"`{name}` is empty. Give at least one row.")
    if isinstance(dataset, Dataset):
        for prompt in dataset["prompt"]:
            _leading_messages(prompt)
    small: dict[str, Limits] = {}
    for row in rows:
        spec = episode_spec(row)
        env = make_env(spec.env_id, **spec.env_kwargs)
        check_env(env)
        limits = settings.limits_for(env)
        if limits.max_turns * limits.max_tokens_per_turn > (settings.max_completion_length or 0):
            small[spec.env_id] = limits
    for env_id, limits in small.items():
        _warn_of_a_small_budget(settings, limits, env_id)


def _warn_of_a_small_budget(settings: RolloutSettings, limits: Limits, env_id: str) -> None:
    logger.warning(
        f"{env_id}: {limits.max_turns} turns of up to {limits.max_tokens_per_turn} tokens take "
        f"{limits.max_turns * limits.max_tokens_per_turn} and more, but `max_completion_length="
        f"{settings.max_completion_length}`. Episodes of long turns will end early (`rollout/stop/token_budget`) and "
        "so pay fewer format penalties than short ones, which rewards length. Raise it, with room for observations, "
        "or lower `max_turns` or `max_tokens_per_turn`."
    )


def _telling_rows(dataset: Dataset | IterableDataset) -> Iterable[dict[str, Any]]:
    """One row of each environment, and one with an impossible seed if there is any; of a stream the first row."""
    if isinstance(dataset, IterableDataset):
        return [next(iter(dataset))]
    columns = [column for column in ("env_id", "env_kwargs") if column in dataset.column_names]
    table = dataset.select_columns([*columns, "seed"]).to_pandas()
    distinct = table[columns].astype(str).drop_duplicates().index  # str: dictionaries cannot be compared otherwise
    impossible = table.index[~table["seed"].map(_is_seed)][:1]
    return [{**dict.fromkeys(columns), **dataset[int(i)]} for i in [*distinct, *impossible]]


def episode_spec(row: Mapping[str, Any], group: int = 0, noise_seed: tuple[int, ...] | None = None) -> EpisodeSpec:
    """
    Read a dataset row.

    Args:
        row (`Mapping[str, Any]`):
            Row with `env_id`, `seed` and optionally `prompt` and `env_kwargs` (a mapping or JSON; of a mapping, the
            `None` that Arrow puts for keys of other rows is left out).
        group (`int`, *optional*, defaults to `0`):
            Group within the batch.
        noise_seed (`tuple[int, ...]`, *optional*):
            Seed of the randomness inside the episode.

    Raises:
        ValueError: If `env_id` or `seed` is missing in the row, or a value cannot be used.
    """
    if not row.get("env_id") or row.get("seed") is None:
        raise ValueError(
            f"A row has env_id={row.get('env_id')!r} and seed={row.get('seed')!r}. In a dataset with environments "
            "every row must name its own: rows with and without environments cannot be mixed."
        )
    if not _is_seed(row["seed"]):
        raise ValueError(f"A row has seed={row['seed']!r}; seeds are whole numbers of 0 or more.")
    return EpisodeSpec(
        env_id=row["env_id"],
        seed=int(row["seed"]),
        env_kwargs=_env_kwargs(row.get("env_kwargs") or {}),
        prompt=_leading_messages(_EMPTY_PROMPT if row.get("prompt") is None else row["prompt"]),
        group=group,
        noise_seed=noise_seed,
    )


def _is_seed(value: Any) -> bool:
    try:
        number = int(value)
    except (TypeError, ValueError, OverflowError):
        return False
    return number >= 0 and (isinstance(value, str) or bool(number == value))


def _env_kwargs(value: Any) -> dict[str, Any]:
    if isinstance(value, Mapping):
        return {key: item for key, item in value.items() if item is not None}
    try:
        kwargs = json.loads(value)
    except (TypeError, ValueError):
        kwargs = None
    if not isinstance(kwargs, dict):
        raise ValueError(f"A row has env_kwargs={value!r}; give a mapping or the text of a JSON object.")
    return kwargs


def _leading_messages(prompt: Any) -> list[dict[str, str]]:
    if isinstance(prompt, str) or not prompt or not all(m["role"] in ("system", "user") for m in prompt):
        raise ValueError(
            f"A row has prompt={prompt!r}. In a dataset with environments it holds the leading messages of the "
            "episode, a list of at least one message (its content may be empty) of the roles system and user: the "
            "model's own begin with its first turn."
        )
    return [message for message in prompt if message["content"]]
