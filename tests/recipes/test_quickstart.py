"""The quickstarts learn, and the recipes take real data and other models."""

from pathlib import Path

import pytest
from quickstart_seeds import launch, success_rates


ROOT = Path(__file__).parents[2]
REAL_DATA = ROOT.parent / "shared" / "data" / "math" / "gsm8k_train_metamath_schema.jsonl"


# docs/tiny_agent.md has the spread over seeds.
@pytest.mark.slow
@pytest.mark.parametrize(
    ("recipe", "config"), [("grpo_metamath", "quickstart_math"), ("grpo_sokoban", "quickstart_sokoban")]
)
def test_success_on_256_held_out_problems_rises(recipe, config, tmp_path):
    history, printed = launch(recipe, config, tmp_path, "--num_eval_problems", "256", "--seed", "0")
    before, after = success_rates(history)
    assert after - before >= 0.15, (before, after)
    assert "success_rate" in printed and str(tmp_path / "learning_curve.png") in printed
    assert (tmp_path / "learning_curve.png").is_file() and (tmp_path / "model.safetensors").is_file()


FEW_STEPS = ["--max_steps", "2", "--num_train_problems", "64", "--num_eval_problems", "16", "--logging_steps", "1"]


@pytest.mark.slow
@pytest.mark.skipif(not REAL_DATA.is_file(), reason=f"no real problems at {REAL_DATA}")
def test_real_problems_and_another_model(tmp_path, model):
    data = ["--dataset_path", str(REAL_DATA)]
    for name, argv in (("embedded", []), ("other", ["--model_name_or_path", model.config._name_or_path])):
        history, _ = launch("grpo_metamath", "quickstart_math", tmp_path / name, *data, *FEW_STEPS, *argv)
        steps = [row for row in history if "loss" in row]
        assert len(steps) == 2
        for row in steps:
            assert abs(row["loss"]) < 10 and 0 <= row["env/MetaMathQA-v0/success_rate"] <= 1
            assert row["rollout/failure_rate"] == 0 and 0 < row["rollout/tokens_per_turn"] <= 24
            assert row["completions/max_length"] <= 3 * 24


@pytest.mark.slow
def test_ppo_runs_from_its_command(tmp_path):
    pytest.importorskip("trl.experimental.ppo", reason="this TRL has no PPO")
    history, printed = launch("ppo", "quickstart_ppo", tmp_path, *FEW_STEPS)
    assert "Held-out problems" in printed and len([row for row in history if "value/loss" in row]) == 2


@pytest.mark.slow
def test_two_processes_share_the_work(tmp_path):
    history, printed = launch(
        "grpo_sokoban", "quickstart_sokoban", tmp_path, *FEW_STEPS, accelerate_config="cpu_2proc", timeout=300
    )
    assert printed.count("Held-out problems") == 1, "one table, not one a rank"
    # The batch of the configuration is per process, and TRL counts the tokens of all ranks.
    alone, _ = launch("grpo_sokoban", "quickstart_sokoban", tmp_path / "alone", *FEW_STEPS)
    tokens, tokens_alone = ([row["num_tokens"] for row in h if "loss" in row][0] for h in (history, alone))
    assert tokens > 1.5 * tokens_alone
