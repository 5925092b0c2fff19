"""PPO on two ranks of one machine: one launch, many cases."""

import json

import pytest


pytest.importorskip("trl.experimental.ppo", reason="this TRL has no PPO")

from kit import launch  # noqa: E402


pytestmark = pytest.mark.slow
CASES = ["plain", "in two micro-steps", "checkpointing", "rollouts", "penalty in reward", "filtered",
         "filtered in two micro-steps"]  # fmt: skip


@pytest.fixture(scope="module")
def ranks(tmp_path_factory):
    out = tmp_path_factory.mktemp("ppo")
    launch("ppo_two_processes.py", out)
    return [json.loads((out / f"rank{rank}.json").read_text()) for rank in range(2)]


@pytest.mark.parametrize("name", CASES)
def test_the_gradient_is_that_of_one_process(ranks, name):
    for rank in ranks:
        assert rank[name]["difference"] < 1e-5 * max(rank[name]["largest"], 1.0)
        assert rank[name]["largest"] > 1e-3
    assert ranks[0][name] == ranks[1][name]


@pytest.mark.parametrize("fault", ["uneven", "a rank fails", "filtered training"])
def test_ranks_stay_together(ranks, fault):
    assert ranks[0][fault] == ranks[1][fault]
    assert ranks[0][fault]["steps"] == 4
