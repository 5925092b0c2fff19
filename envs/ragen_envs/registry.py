"""Names of the environments and how one is made from its name."""

from __future__ import annotations

import difflib
import importlib
import inspect
from collections.abc import Iterable
from typing import Any, cast

import gymnasium
from gymnasium.envs.registration import load_env_creator

from .checker import check_declaration
from .core import TextEnv


NAMESPACE = "ragen_envs"

# The one table: name and class. Classes are imported when an environment is made.
_ENTRY_POINTS = {
    "Sokoban-v0": "ragen_envs.sokoban:Sokoban",
    "FrozenLake-v0": "ragen_envs.frozen_lake:FrozenLake",
    "Countdown-v0": "ragen_envs.countdown:Countdown",
    "MetaMathQA-v0": "ragen_envs.metamathqa:MetaMathQA",
    "Bandit-v0": "ragen_envs.bandit:Bandit",
}


class UnknownEnvError(ValueError):
    """No environment has the name asked for."""


def register_all() -> None:
    """Make the whole table known to gymnasium. May be called more than once."""
    for env_id, (_, entry_point) in zip(env_ids(), _ENTRY_POINTS.items(), strict=True):
        if env_id not in gymnasium.registry:
            # Turns, actions and errors are the engine's to handle, so gymnasium's wrappers stay off.
            gymnasium.register(env_id, entry_point=entry_point, disable_env_checker=True, order_enforce=False)


def env_ids() -> tuple[str, ...]:
    """
    Ids of the shipped environments.

    Returns:
        `tuple[str, ...]`: Ids as gymnasium knows them, such as `"ragen_envs/Sokoban-v0"`.
    """
    return tuple(f"{NAMESPACE}/{name}" for name in _ENTRY_POINTS)


def make_env(env_id: str, **env_kwargs: Any) -> TextEnv:
    """
    Make an environment, without gymnasium's wrappers.

    Args:
        env_id (`str`):
            One of [`env_ids`], with or without `ragen_envs/` in front, or a user's own: the id that it is registered
            under with gymnasium, or `my_package:MyEnv-v0` to have the module imported that registers it.
        **env_kwargs:
            Arguments of the environment.

    Returns:
        `TextEnv`: The environment, not reset yet.

    Raises:
        `UnknownEnvError`: No environment has that id.
        `ValueError`: The environment does not take one of the arguments, or not with that value.
        `ContractError`: The environment lacks an instruction or limits.
    """
    full_id = _resolve(env_id)
    _check_arguments(full_id, env_kwargs)
    env = gymnasium.make(full_id, disable_env_checker=True, **env_kwargs).unwrapped
    check_declaration(env)
    return cast(TextEnv, env)


def _check_arguments(env_id: str, names: Iterable[str]) -> None:
    # Compared beforehand: a TypeError of the constructor may have any other reason.
    entry_point = gymnasium.spec(env_id).entry_point
    try:
        creator = load_env_creator(entry_point) if isinstance(entry_point, str) else entry_point
        parameters = inspect.signature(cast(Any, creator)).parameters.values()
    except (TypeError, ValueError):
        return
    allowed = [p.name for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
    unknown = [name for name in names if name not in allowed]
    if unknown and not any(p.kind is p.VAR_KEYWORD for p in parameters):
        raise ValueError(
            f"{env_id} takes no argument {unknown[0]!r}.{_nearest(unknown[0], allowed)} "
            f"Allowed: {', '.join(allowed) or 'none'}."
        )


def _resolve(env_id: str) -> str:
    if not isinstance(env_id, str):
        raise UnknownEnvError(f"env_id={env_id!r} is not a text; give one of {', '.join(env_ids())}.")
    if env_id in gymnasium.registry:
        return env_id
    module, colon, name = env_id.rpartition(":")
    if colon:
        return _resolve_own(env_id, module, name)
    full_id = env_id if "/" in env_id else f"{NAMESPACE}/{env_id}"
    if full_id not in env_ids():
        raise UnknownEnvError(
            f"There is no environment {env_id!r}.{_nearest(env_id, env_ids())} Available: {', '.join(env_ids())}. "
            "For an environment of your own write 'my_package:MyEnv-v0'."
        )
    return full_id


def _resolve_own(env_id: str, module: str, name: str) -> str:
    known = set(gymnasium.registry)
    try:
        importlib.import_module(module)
    except (ModuleNotFoundError, ValueError) as error:
        raise UnknownEnvError(
            f"The module {module!r} of {env_id!r} cannot be imported ({error}); install it, or add its folder to "
            "PYTHONPATH."
        ) from error
    if name not in gymnasium.registry:
        added = sorted(set(gymnasium.registry) - known) or sorted(set(gymnasium.registry))
        raise UnknownEnvError(
            f"The module {module!r} of {env_id!r} does not register {name!r}.{_nearest(name, added)} Call "
            f"gymnasium.register({name!r}, entry_point=...) when it is imported."
        )
    return name


def _nearest(env_id: str, candidates: Iterable[str]) -> str:
    # Compared without namespace, version and case, so that "sokobann" finds "ragen_envs/Sokoban-v0".
    bare = {_bare(candidate): candidate for candidate in candidates}
    close = difflib.get_close_matches(_bare(env_id), bare, n=1, cutoff=0.6)
    return f" Did you mean {bare[close[0]]!r}?" if close else ""


def _bare(env_id: str) -> str:
    return env_id.rpartition("/")[2].partition("-v")[0].lower()
