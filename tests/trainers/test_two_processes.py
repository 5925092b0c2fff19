"""Two ranks on one machine: one launch, many cases."""

import json
from math import comb
from statistics import fmean, stdev

import pytest
from kit import launch


pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def ranks(tmp_path_factory):
    out = tmp_path_factory.mktemp("ranks")
    launch("two_processes.py", out, timeout=300)
    return [json.loads((out / f"rank{rank}.json").read_text()) for rank in range(2)]


def both(ranks, case):
    return [rank[case] for rank in ranks]


def without_nan(history):
    return json.loads(json.dumps(history).replace("NaN", "null"))


@pytest.mark.parametrize("case", ["straddling", "one_rank_idle", "evaluation"])
def test_ranks_stay_together(ranks, case):
    first, second = both(ranks, case)
    assert first["after"] == second["after"], "the ranks trained apart"
    assert without_nan(first["history"]) == without_nan(second["history"])
    assert first["trained_tokens"] == second["trained_tokens"]
    for total, a, b in zip(first["trained_tokens"], first["local_tokens"], second["local_tokens"], strict=True):
        assert total == a + b


def expected_advantages(episodes, group_size):
    values = []
    for start in range(0, len(episodes), group_size):
        group = episodes[start : start + group_size]
        live = [e["reward"] for e in group if not e["failed"]]
        spread = stdev(live) if len(live) > 1 else 0.0
        values += [0.0 if e["failed"] else (e["reward"] - fmean(live)) / (spread + 1e-4) for e in group]
    return values


@pytest.mark.parametrize(("case", "group_size"), [("straddling", 2), ("one_rank_idle", 6)])
def test_groups_that_straddle_ranks_are_groups(ranks, case, group_size):
    first, second = both(ranks, case)
    spread = 0.0
    for batch, (a, b) in enumerate(zip(first["batches"], second["batches"], strict=True)):
        everything = a + b
        assert [e["group"] for e in everything] == [i // group_size for i in range(6)]
        for start in range(0, 6, group_size):
            group = everything[start : start + group_size]
            assert len({e["seed"] for e in group}) == 1
            assert len({tuple(e["prompt"]) for e in group if not e["failed"]}) == 1
            assert [e["noise"][1] for e in group] == list(range(group_size))
        advantages = first["advantages"][batch] + second["advantages"][batch]
        assert advantages == pytest.approx(expected_advantages(everything, group_size), abs=2e-3)
        spread += sum(abs(value) for value in advantages)
        line = first["history"][batch]
        live = [e["reward"] for e in everything if not e["failed"]]
        name = "Counter-v0" if case == "straddling" else "Faulty-v0"
        assert line[f"env/{name}/return"] == pytest.approx(fmean(live))
        assert line["rewards/environment/mean"] == pytest.approx(fmean(live), rel=1e-5)
        assert line["rollout/failure_rate"] == pytest.approx(1 - len(live) / 6)
    assert spread > 0, "no advantages, so nothing was shown"


def test_ranks_play_different_numbers_of_turns(ranks):
    first, second = both(ranks, "one_rank_idle")
    assert all(e["turns"] == 0 for batch in second["batches"] for e in batch)
    assert any(e["turns"] > 1 for batch in first["batches"] for e in batch)


def test_all_ranks_stop_when_one_has_too_many_failures(ranks):
    for message in both(ranks, "too_many_failures"):
        assert "3 of 6 episodes failed" in message and "no service" in message


def test_evaluation_counts_each_episode_once(ranks):
    """Six episodes in batches of four: what fills the last batch is played but not counted."""
    result = ranks[0]["evaluation"]
    evaluations = [played for played in result["played"] if played[0]["noise"][2] == 0 and len(played) == 4]
    lines = [line for line in result["history"] if "eval_env/Lottery-v0/return" in line]
    assert len(lines) == 2 and len(evaluations) == 4
    for line, played in zip(lines, (evaluations[:2], evaluations[2:]), strict=True):
        episodes = (played[0] + played[1])[:6]
        assert sorted(e["seed"] for e in episodes) == [0, 0, 1, 1, 2, 2]
        assert line["eval_env/Lottery-v0/return"] == pytest.approx(fmean(e["reward"] for e in episodes))
        groups = [[e["reward"] > 0 for e in episodes[i : i + 2]] for i in (0, 2, 4)]
        pass_at_2 = fmean(1 - comb(2 - sum(g), 2) / comb(2, 2) for g in groups)
        assert line["eval_env/Lottery-v0/pass@2"] == pytest.approx(pass_at_2)


def test_evaluating_before_training_is_refused(ranks):
    """accelerate would leave DDP out and the ranks would train apart."""
    for message in both(ranks, "evaluation_first"):
        assert "eval_on_start" in message


def test_a_shared_vllm_gets_equal_numbers_and_gives_each_rank_its_own(ranks):
    first, second = both(ranks, "shared_vllm")
    assert first["right"] and second["right"]
    assert first["asked"] == second["asked"]
    assert all(a == b for a, b in first["asked"])
    assert first["turns"] == [2, 1, 1] and second["turns"] == [4, 4, 4, 1, 1]
    assert len(first["asked"]) == 4


def test_training_with_a_shared_vllm(ranks):
    first, second = both(ranks, "vllm_training")
    turns = [max(e["turns"] for e in rank["batches"][0]) for rank in (first, second)]
    assert turns[0] < turns[1], "the ranks were to need different numbers of turns"
    assert first["asked"] == second["asked"] and len(first["asked"]) == turns[1]
    assert all(a == b for a, b in first["asked"])
    assert first["after"] == second["after"]


def test_sharded_models_run_as_often_on_all_ranks(ranks):
    first, second = both(ranks, "sharded")
    assert first["turns"] == [1] and second["turns"] == [4]
    assert first["calls"] == second["calls"] == 4
