"""The command `ragen-trl`."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from rich.console import Console
from rich.progress import track
from rich.table import Table

from ragen_envs import TextEnv, env_ids, make_env


@dataclass(frozen=True)
class _Game:
    success: bool
    reward: float
    actions: int
    invalid: int


def main(argv: Sequence[str] | None = None) -> None:
    """
    Entry point of `ragen-trl`.

    Args:
        argv (`Sequence[str]`, *optional*):
            Arguments. Defaults to those of the process.
    """
    parser = argparse.ArgumentParser(prog="ragen-trl", description="Multi-turn agent RL on TRL.")
    commands = parser.add_subparsers(dest="command", required=True)
    play = commands.add_parser(
        "play",
        help="play environments without a model",
        description="Play environments with a random player and, where there is one, with the oracle.",
    )
    play.add_argument(
        "env_id", nargs="*", help="environments, e.g. ragen_envs/Sokoban-v0; all shipped ones by default"
    )
    play.add_argument("--episodes", type=int, default=100, help="episodes of each player (default: 100)")
    play.add_argument("--seed", type=int, default=0, help="seed of the first problem (default: 0)")
    play.add_argument("--env_kwargs", type=_mapping, default={}, help="arguments of the environments, as JSON")
    arguments = parser.parse_args(argv)
    for name, least in (("episodes", 1), ("seed", 0)):
        if getattr(arguments, name) < least:
            parser.error(f"--{name} must be at least {least}, got {getattr(arguments, name)}")
    try:
        envs = {name: make_env(name, **arguments.env_kwargs) for name in arguments.env_id or env_ids()}
    except (ValueError, TypeError) as error:
        parser.error(str(error))
    Console().print(play_table(envs, arguments.episodes, arguments.seed))


def _mapping(text: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except ValueError:
        value = None
    if not isinstance(value, dict):
        raise argparse.ArgumentTypeError(f"{text!r} is no JSON object")
    return value


def play_table(envs: dict[str, TextEnv], episodes: int, seed: int) -> Table:
    """
    How a random player and the oracle fare.

    Args:
        envs (`dict[str, TextEnv]`):
            Environments by name.
        episodes (`int`):
            Episodes of each player.
        seed (`int`):
            Seed of the first problem.
    """
    table = Table("environment", "player", "success", "return", "actions", "invalid actions")
    for name, env in envs.items():
        env.reset(seed=seed)
        players = ["random"] if env.oracle_action() is None else ["random", "oracle"]
        for player in players:
            env.action_space.seed(seed)
            games = [
                _play(env, seed + i, player == "oracle")
                for i in track(range(episodes), description=f"{name}, {player}", transient=True)
            ]
            actions = sum(game.actions for game in games)
            table.add_row(
                name.removeprefix("ragen_envs/"),
                player,
                f"{fmean(game.success for game in games):.3f}",
                f"{fmean(game.reward for game in games):.3f}",
                f"{actions / episodes:.2f}",
                f"{sum(game.invalid for game in games) / max(actions, 1):.3f}",
            )
    return table


def _play(env: TextEnv, seed: int, with_oracle: bool) -> _Game:
    env.reset(seed=seed)
    total, taken, invalid, success = 0.0, 0, 0, False
    while taken < env.limits.max_actions:
        action = env.oracle_action() if with_oracle else None
        _, reward, terminated, truncated, info = env.step(env.action_space.sample() if action is None else action)
        total += float(reward)
        taken += 1
        invalid += not info["action_is_valid"]
        success = bool(info["success"])
        if terminated or truncated:
            break
    return _Game(success, total, taken, invalid)
