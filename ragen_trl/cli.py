"""The command `ragen-trl`."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from rich.console import Console
from rich.progress import track
from rich.table import Table

from ragen_envs import TextEnv, env_ids, make_env


_LIMITS = ("max_turns", "max_actions", "max_actions_per_turn", "max_tokens_per_turn")


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
    _add_diagnose(commands)
    arguments = parser.parse_args(argv)
    if arguments.command == "diagnose":
        _diagnose(parser, arguments)
        return
    for name, least in (("episodes", 1), ("seed", 0)):
        if getattr(arguments, name) < least:
            parser.error(f"--{name} must be at least {least}, got {getattr(arguments, name)}")
    try:
        envs = {name: make_env(name, **arguments.env_kwargs) for name in arguments.env_id or env_ids()}
    except (ValueError, TypeError) as error:
        parser.error(str(error))
    Console().print(play_table(envs, arguments.episodes, arguments.seed))


def _add_diagnose(commands: Any) -> None:
    diagnose = commands.add_parser(
        "diagnose",
        help="measure how much a model's reasoning depends on the input",
        description="Play episodes with a checkpoint, or read completions that TRL wrote, and measure it.",
    )
    diagnose.add_argument("--model", required=True, help="Hub id, folder, or package:<package>/<folder>")
    source = diagnose.add_mutually_exclusive_group(required=True)
    source.add_argument("--env_id", help="environment to play")
    source.add_argument("--completions", type=Path, help="parquet file of TRL's `log_completions`")
    for name, default in (("num_prompts", 64), ("group_size", 8), ("num_samples", 64), ("seed", 0)):
        diagnose.add_argument(f"--{name}", type=int, default=default, help=f"(default: {default})")
    for name in _LIMITS:
        diagnose.add_argument(f"--{name}", type=int, help="defaults to the environment's limit")
    diagnose.add_argument("--max_completion_length", type=int, default=4096, help="(default: 4096)")
    diagnose.add_argument("--prompt_style", default="instruct", help="'instruct' (default) or 'compact'")
    diagnose.add_argument("--temperature", type=float, default=1.0, help="(default: 1.0)")
    diagnose.add_argument("--env_kwargs", type=_mapping, default={}, help="arguments of the environment, as JSON")
    diagnose.add_argument("--output_dir", type=Path, default=Path("runs/diagnosis"), help="(default: runs/diagnosis)")


def _diagnose(parser: argparse.ArgumentParser, arguments: argparse.Namespace) -> None:
    from . import diagnose  # brings torch and transformers, which `play` does without
    from .rollout.engine import RolloutSettings

    for name, least in (("num_prompts", 2), ("group_size", 1), ("num_samples", 2), ("seed", 0)):
        if getattr(arguments, name) < least:
            parser.error(f"--{name} must be at least {least}, got {getattr(arguments, name)}")
    names = (*_LIMITS, "max_completion_length", "prompt_style")
    try:
        settings = RolloutSettings(**{name: getattr(arguments, name) for name in names})
        model, tokenizer = diagnose.load(arguments.model)
        metrics: dict[str, float] = {}
        if arguments.completions:
            rollouts = diagnose.read_completions(arguments.completions, tokenizer)
        else:
            rollouts, metrics = diagnose.play(
                model, tokenizer, arguments.env_id, num_prompts=arguments.num_prompts, seed=arguments.seed,
                group_size=arguments.group_size, env_kwargs=arguments.env_kwargs, settings=settings,
                temperature=arguments.temperature,
            )  # fmt: skip
    except (ValueError, OSError) as error:
        parser.error(str(error))
    result = diagnose.diagnose(
        model, tokenizer, rollouts, num_samples=arguments.num_samples, temperature=arguments.temperature,
        seed=arguments.seed,
    )  # fmt: skip
    result.metrics |= metrics
    console = Console()
    console.print(result.table())
    for what, where in zip(("data", "picture"), result.save(arguments.output_dir), strict=True):
        console.print(f"{what}: {where}", soft_wrap=True, highlight=False, markup=False)


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
