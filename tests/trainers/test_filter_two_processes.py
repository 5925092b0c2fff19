"""The filter on two ranks: one launch, many cases."""

import json

import pytest
import torch
from kit import launch
from transformers import AutoModelForCausalLM


pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def ranks(_model, tmp_path_factory):
    out = tmp_path_factory.mktemp("ranks")
    launch("filter_two_processes.py", out, _model.config._name_or_path)
    return [json.loads((out / f"rank{rank}.json").read_text()) for rank in range(2)]


def test_gradients_are_those_of_the_kept_groups(ranks):
    checked = 0
    for rank in ranks:
        for name, case in rank.items():
            if "difference" in case:
                assert case["largest"] > 1e-3, name
                assert case["difference"] < 1e-6 * max(1.0, case["largest"]), (name, case)
                checked += 1
    assert checked == 2 * (5 * 4 + 2 * 4)


def test_rows_are_spread_evenly_and_each_is_used_once(ranks):
    for name in ranks[0]:
        sizes = [[len(step) for step in rank[name]["rows"]] for rank in ranks]
        totals = [sum(steps) for steps in sizes]
        assert abs(totals[0] - totals[1]) <= 1, name
        rows = [row for rank in ranks for step in rank[name]["rows"] for row in step]
        assert len(rows) == len(set(rows))
    assert [sum(map(len, rank["one rank has none | grpo | 1"]["rows"])) for rank in ranks] == [4, 4]
    assert sorted(sum(map(len, rank["an odd number of rows | dapo | 1"]["rows"])) for rank in ranks) == [1, 2]


def test_nothing_kept_means_no_update(ranks):
    for rank in ranks:
        for name, case in rank.items():
            if name.startswith("none"):
                assert case["gradients"] == [] and case["empty_steps"] == [1.0] and case["kept_groups"] == [0.0]
    assert any(name.startswith("none") for name in ranks[0])


def test_episodes(ranks):
    first, second = (rank["episodes"] for rank in ranks)
    assert first["scores"] == second["scores"] and any(first["scores"])
    assert first["collapse"] == second["collapse"], "the diagnostics are the same on all ranks"
    assert first["collapse"]["collapse/first_turn/num_reasonings"] > 6, "more than one rank's"
    assert "collapse/first_turn/mi_estimate" in first["collapse"] and first["scores_differ_by"] < 1e-4
    assert any(first["kept_groups"]) and any(norm > 0 for norm in first["norm"])


def test_ranks_agree(ranks):
    for name, case in ranks[0].items():
        assert case["norm"] == ranks[1][name]["norm"] and case["checksum"] == ranks[1][name]["checksum"], name


@pytest.mark.parametrize("algorithm", ["grpo", "ppo"])
@pytest.mark.parametrize("stage", [2, 3])
def test_sharded_training_is_as_unsharded(stage, algorithm, _model, tmp_path):
    """ZeRO steps its optimizer inside `backward`; an empty step leaves weights alone there too."""
    pytest.importorskip("deepspeed", reason="deepspeed is not installed: pip install ragen-trl[deepspeed]")
    if algorithm == "ppo":
        pytest.importorskip("trl.experimental.ppo", reason="this TRL has no PPO")
    for number in (0, stage):
        launch("filter_deepspeed.py", tmp_path, _model.config._name_or_path, number, algorithm)
    plain, sharded = (torch.load(tmp_path / f"stage{number}.pt") for number in (0, stage))
    assert (plain[0] - plain[2]).abs().max() > 1e-5
    for first, second in zip(plain, sharded, strict=True):
        torch.testing.assert_close(first, second, atol=1e-6, rtol=0)
    assert torch.equal(sharded[0], sharded[1])
    if algorithm == "ppo":
        names = [
            set(AutoModelForCausalLM.from_pretrained(tmp_path / f"final{number}", output_loading_info=True)[1][key])
            for number in (0, stage)
            for key in ("missing_keys", "unexpected_keys")
        ]
        assert not set().union(*names)
