"""Playing an environment without a model: a person, a random player, the oracle."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from statistics import fmean

from rich.console import Console
from rich.progress import track
from rich.table import Table
from rich.text import Text

from ragen_envs import TextEnv


PLAYERS = ("random", "oracle", "human")


@dataclass
class Game:
    """
    An episode that was played.

    Args:
        seed (`int`):
            Seed of the problem.
        transcript (`list[str]`):
            First observation, then each action with its reward and what it led to.
    """

    seed: int
    success: bool = False
    reward: float = 0.0
    actions: int = 0
    invalid: int = 0
    transcript: list[str] = field(default_factory=list)


# Given the environment and the game so far; `None` ends the game.
Player = Callable[[TextEnv, Game], str | None]


def play_game(env: TextEnv, seed: int, player: Player) -> Game:
    """
    Play one episode, within the environment's limit on actions.

    Args:
        env ([`~ragen_envs.TextEnv`]):
            Environment.
        seed (`int`):
            Seed of the problem.
        player (`Callable[[TextEnv, Game], str or None]`):
            Says what to do.
    """
    observation, _ = env.reset(seed=seed)
    game = Game(seed, transcript=[str(observation)])
    while game.actions < env.limits.max_actions:
        action = player(env, game)
        if action is None:
            break
        observation, reward, terminated, truncated, info = env.step(action)
        game.reward += float(reward)
        game.actions += 1
        game.invalid += not info["action_is_valid"]
        game.success = bool(info["success"])
        refused = "" if info["action_is_valid"] else ", invalid"
        game.transcript.append(f"> {action}   (reward {reward:g}{refused})\n{observation}")
        if terminated or truncated:
            break
    return game


def random_player(env: TextEnv, game: Game) -> str:
    """Any action of the environment's space."""
    return env.action_space.sample()


def oracle_player(env: TextEnv, game: Game) -> str:
    """What the oracle says, or any action where it says nothing."""
    return env.oracle_action() or env.action_space.sample()


def human_player(console: Console) -> Player:
    """
    A person at a terminal. An empty line shows the rules again; `quit` or the end of the input ends the game.

    Args:
        console ([`~rich.console.Console`]):
            Where to show and ask.
    """

    def ask(env: TextEnv, game: Game) -> str | None:
        console.print(Text(game.transcript[-1]))
        while True:
            try:
                line = console.input(Text("> ", style="bold")).strip()
            except EOFError:
                return None
            if line:
                return None if line == "quit" else line
            console.print(Text(env.instruction, style="dim"))

    return ask


def play_by_hand(env: TextEnv, episodes: int, seed: int, console: Console) -> list[Game]:
    """
    Let a person play.

    Args:
        env ([`~ragen_envs.TextEnv`]):
            Environment.
        episodes (`int`):
            Most episodes.
        seed (`int`):
            Seed of the first problem.
        console ([`~rich.console.Console`]):
            Where to show and ask.

    Returns:
        `list[Game]`: Games that were begun.
    """
    games: list[Game] = []
    ended = False
    asked = human_player(console)

    def player(env: TextEnv, game: Game) -> str | None:
        nonlocal ended
        action = asked(env, game)
        ended = action is None
        return action

    console.print(Text(env.instruction))
    console.print(f"One action a line, at most {env.limits.max_actions}. `quit` ends the game.", style="dim")
    for i in range(episodes):
        game = play_game(env, seed + i, player)
        if game.actions:
            games.append(game)
            if not ended:  # else it was shown before the question that had no answer
                console.print(Text(game.transcript[-1]))
            console.print("Solved." if game.success else "Not solved.", style="bold")
        if ended:
            break
    return games


def play_table(envs: dict[str, TextEnv], episodes: int, seed: int, players: tuple[str, ...] = ()) -> Table:
    """
    How players fare.

    Args:
        envs (`dict[str, TextEnv]`):
            Environments by name.
        episodes (`int`):
            Episodes of each player.
        seed (`int`):
            Seed of the first problem.
        players (`tuple[str, ...]`, *optional*):
            Of `"random"` and `"oracle"`. Defaults to both, where there is an oracle.
    """
    table = new_table()
    for name, env in envs.items():
        env.reset(seed=seed)
        for player in players or (("random",) if env.oracle_action() is None else ("random", "oracle")):
            env.action_space.seed(seed)
            choose = oracle_player if player == "oracle" else random_player
            steps = track(range(episodes), description=f"{name}, {player}", transient=True)
            add_row(table, name, player, [play_game(env, seed + i, choose) for i in steps])
    return table


def new_table() -> Table:
    """Head of a table of players."""
    return Table("environment", "player", "success", "return", "actions", "invalid actions")


def add_row(table: Table, name: str, player: str, games: list[Game]) -> None:
    """
    Add the statistics of some games.

    Args:
        table ([`~rich.table.Table`]):
            Of [`new_table`].
        name (`str`):
            Environment.
        player (`str`):
            Who played.
        games (`list[Game]`):
            At least one.
    """
    actions = sum(game.actions for game in games)
    table.add_row(
        name.removeprefix("ragen_envs/"),
        player,
        f"{fmean(game.success for game in games):.3f}",
        f"{fmean(game.reward for game in games):.3f}",
        f"{actions / len(games):.2f}",
        f"{sum(game.invalid for game in games) / max(actions, 1):.3f}",
    )
