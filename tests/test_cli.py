"""The command line, without a model."""

import pytest

from ragen_envs import make_env
from ragen_trl.cli import main
from ragen_trl.play import play_table


def rows(table):
    return [list(cells) for cells in zip(*(column.cells for column in table.columns), strict=True)]


def test_the_oracle_solves_what_a_random_player_does_not():
    table = play_table({"Sokoban-v0": make_env("ragen_envs/Sokoban-v0")}, episodes=20, seed=0)
    (_, player, random_success, *_), (_, _, oracle_success, *_, invalid) = rows(table)
    assert player == "random" and float(random_success) < 0.5
    assert float(oracle_success) == 1.0 and float(invalid) == 0.0


def test_play_prints_every_environment(capsys):
    main(["play", "--episodes", "2"])
    printed = capsys.readouterr().out
    assert all(name in printed for name in ("Sokoban-v0", "FrozenLake-v0", "MetaMathQA-v0"))


def test_a_person_plays(capsys, monkeypatch):
    env = make_env("ragen_envs/Sokoban-v0")
    env.reset(seed=0)
    moves = []
    while (action := env.oracle_action()) is not None:
        moves.append(action)
        env.step(action)
    typed = iter(["", "fly", *moves, "quit"])
    monkeypatch.setattr("builtins.input", lambda *args: next(typed))
    main(["play", "--env_id", "ragen_envs/Sokoban-v0", "--player", "human"])
    printed = capsys.readouterr().out
    assert "Solved." in printed and "human" in printed and "1.000" in printed
    assert printed.count(env.instruction[:40]) == 2, "an empty line shows the rules again"


def test_the_end_of_the_input_ends_the_game(capsys, monkeypatch):
    def nothing(*args):
        raise EOFError

    monkeypatch.setattr("builtins.input", nothing)
    main(["play", "--env_id", "ragen_envs/Countdown-v0", "--player", "human"])
    assert "Target" in capsys.readouterr().out


@pytest.mark.parametrize(("player", "success"), [("oracle", "1.000"), ("random", "0.000")])
def test_a_transcript_shows_an_episode(player, success, capsys):
    main(["play", "--env_id", "ragen_envs/Countdown-v0", "--player", player, "--episodes", "1", "--transcript"])
    printed = capsys.readouterr().out
    assert "Target: " in printed and "> " in printed and success in printed and printed.count("│ Countdown-v0") == 1


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["play", "sokobann"], "Sokoban-v0"),
        (["play", "--episodes", "0"], "at least 1"),
        (["play", "--env_kwargs", '{"x": 1}'], "x"),
        (["play", "--env_kwargs", "3"], "'3' is no JSON object"),
        (["play", "--env_kwargs", "{"], "'{' is no JSON object"),
        (["play", "--seed", "-1"], "at least 0, got -1"),
        (["play", "--player", "human"], "one environment, got none"),
    ],
)
def test_bad_arguments_are_named(argv, message, capsys):
    with pytest.raises(SystemExit):
        main(argv)
    assert message in capsys.readouterr().err
