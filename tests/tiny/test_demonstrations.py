from __future__ import annotations

import dataclasses
from statistics import fmean

import pytest

from ragen_envs import make_env
from ragen_envs.word_problems import find_word_problem
from ragen_trl.rollout import Trajectory
from ragen_trl.tiny.demonstrations import TASKS, demonstrations, play
from ragen_trl.tiny.tokenizer import build_tokenizer


TOKENIZER = build_tokenizer()


@pytest.fixture(scope="module", params=TASKS)
def episodes(request: pytest.FixtureRequest) -> list[Trajectory]:
    return play(TASKS[request.param], TOKENIZER, 60)


def test_demonstrations_never_use_the_validation_split(episodes: list[Trajectory]) -> None:
    assert {t.spec.env_kwargs["split"] for t in episodes} == {"train"}
    held_out = make_env(episodes[0].spec.env_id, **{**episodes[0].spec.env_kwargs, "split": "validation"})
    unseen = {held_out.reset(seed=seed)[0] for seed in range(60)}
    assert unseen.isdisjoint(t.turns[0].observation for t in episodes)


def test_turns_are_whole_and_within_their_limits(episodes: list[Trajectory]) -> None:
    for t in episodes:
        assert t.stop_reason in ("terminated", "max_turns", "max_actions")
        assert all(turn.well_formed and not turn.invalid_actions and not turn.cut for turn in t.turns)
        assert all(TOKENIZER.decode(turn.token_ids[-1]) == "<|im_end|>" for turn in t.turns)


def test_reasoning_names_what_the_turn_depends_on(episodes: list[Trajectory]) -> None:
    for t in episodes:
        if problem := find_word_problem(t.turns[0].observation):
            words = [turn.reasoning.split() for turn in t.turns]
            assert all((first, last) == (str(problem.a), str(problem.b)) for first, _, last in words)
        else:
            assert all(turn.reasoning.split()[0] in turn.observation.split() for turn in t.turns)
            assert all(turn.reasoning.startswith("P") for turn in t.turns)


def test_players_err_but_not_always(episodes: list[Trajectory]) -> None:
    assert 0.1 < fmean(t.success for t in episodes) < 0.9


@pytest.mark.parametrize("name", TASKS)
def test_players_without_noise_always_win(name: str) -> None:
    episodes = play(dataclasses.replace(TASKS[name], noise=0.0), TOKENIZER, 20)
    assert all(t.success for t in episodes)


def test_same_seed_same_demonstrations() -> None:
    first, again, other = (demonstrations(TOKENIZER, 10, seed)["input_ids"] for seed in (1, 1, 2))
    assert first[:] == again[:] != other[:]


def test_only_what_players_wrote_is_trained() -> None:
    for row in demonstrations(TOKENIZER, 10):
        assert len(row["input_ids"]) == len(row["assistant_masks"])
        kept = [i for i, keep in zip(row["input_ids"], row["assistant_masks"], strict=True) if keep]
        turns = TOKENIZER.decode(kept).split("<|im_end|>")
        assert turns.pop() == ""
        assert all(turn.startswith(" ") and turn.endswith("</answer>") for turn in turns)
