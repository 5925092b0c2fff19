"""The command `ragen-trl`."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.text import Text

from ragen_envs import env_ids, make_env

from . import play


_LIMITS = ("max_turns", "max_actions", "max_actions_per_turn", "max_tokens_per_turn")


def main(argv: Sequence[str] | None = None) -> None:
    """
    Entry point of `ragen-trl`.

    Args:
        argv (`Sequence[str]`, *optional*):
            Arguments. Defaults to those of the process.
    """
    parser = argparse.ArgumentParser(prog="ragen-trl", description="Multi-turn agent RL on TRL.")
    commands = parser.add_subparsers(dest="command", required=True)
    _add_play(commands)
    _add_diagnose(commands)
    arguments = parser.parse_args(argv)
    {"play": _play, "diagnose": _diagnose}[arguments.command](parser, arguments)


def _add_play(commands: Any) -> None:
    parser = commands.add_parser(
        "play",
        help="play environments without a model",
        description="Play environments: by hand, with a random player, with the oracle.",
    )
    parser.add_argument(
        "names", nargs="*", help="environments, e.g. ragen_envs/Sokoban-v0; all shipped ones by default"
    )
    parser.add_argument("--env_id", action="append", default=[], help="the same, as an option")
    parser.add_argument("--player", choices=play.PLAYERS, help="who plays (default: random and oracle)")
    parser.add_argument("--episodes", type=int, default=100, help="episodes of each player (default: 100)")
    parser.add_argument("--transcript", action="store_true", help="show the first episode of each")
    parser.add_argument("--seed", type=int, default=0, help="seed of the first problem (default: 0)")
    parser.add_argument("--env_kwargs", type=_mapping, default={}, help="arguments of the environments, as JSON")


def _play(parser: argparse.ArgumentParser, arguments: argparse.Namespace) -> None:
    for name, least in (("episodes", 1), ("seed", 0)):
        if getattr(arguments, name) < least:
            parser.error(f"--{name} must be at least {least}, got {getattr(arguments, name)}")
    names = [*arguments.names, *arguments.env_id]
    if arguments.player == "human" and len(names) != 1:
        parser.error(f"--player human plays one environment, got {names or 'none'}; name it by --env_id")
    try:
        envs = {name: make_env(name, **arguments.env_kwargs) for name in names or env_ids()}
    except (ValueError, TypeError) as error:
        parser.error(str(error))
    console = Console()
    if arguments.player == "human":
        ((name, env),) = envs.items()
        games = play.play_by_hand(env, arguments.episodes, arguments.seed, console)
        if games:
            table = play.new_table()
            play.add_row(table, name, "human", games)
            console.print(table)
        return
    if arguments.transcript:
        player = play.random_player if arguments.player == "random" else play.oracle_player
        for name, env in envs.items():
            game = play.play_game(env, arguments.seed, player)
            console.print(
                Text("\n".join([f"--- {name}, seed {game.seed}", env.instruction, "", *game.transcript, ""]))
            )
    players = (arguments.player,) if arguments.player else ()
    console.print(play.play_table(envs, arguments.episodes, arguments.seed, players))


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
