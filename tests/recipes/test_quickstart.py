"""The quickstarts learn, and the recipes take real data and other models."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from ragen_trl.report import evaluations


ROOT = Path(__file__).parents[2]
REAL_DATA = ROOT.parent / "shared" / "data" / "math" / "gsm8k_train_metamath_schema.jsonl"


def launch(recipe, config, output_dir, *argv, accelerate_config="cpu", timeout=900):
    command = [sys.executable, "-m", "accelerate.commands.accelerate_cli", "launch"]
    command += ["--config_file", f"accelerate_configs/{accelerate_config}.yaml", f"recipes/{recipe}.py"]
    command += ["--config", f"recipes/configs/{config}.yaml", "--output_dir", str(output_dir), *argv]
    done = subprocess.run(
        command, cwd=ROOT, env={**os.environ, "OMP_NUM_THREADS": "1"}, capture_output=True, text=True, timeout=timeout
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads((output_dir / "trainer_state.json").read_text())["log_history"], done.stdout


def success_rates(history):
    first, *_, last = evaluations(history)
    key = next(name for name in first if name.endswith("/success_rate"))
    return first[key], last[key]


# docs/tiny_agent.md has the spread over seeds.
@pytest.mark.slow
@pytest.mark.parametrize(
    ("recipe", "config"), [("grpo_metamath", "quickstart_math"), ("grpo_sokoban", "quickstart_sokoban")]
)
def test_success_on_256_held_out_problems_rises(recipe, config, tmp_path):
    history, printed = launch(recipe, config, tmp_path, "--num_eval_problems", "256", "--seed", "0")
    before, after = success_rates(history)
    assert after - before >= 0.15, (before, after)
    assert "success_rate" in printed and str(tmp_path / "learning_curve.png") in printed.replace("\n", "")
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
def test_two_processes_share_the_work(tmp_path):
    history, printed = launch(
        "grpo_sokoban", "quickstart_sokoban", tmp_path, *FEW_STEPS, accelerate_config="cpu_2proc", timeout=300
    )
    assert printed.count("Held-out problems") == 1, "one table, not one a rank"
    # The batch of the configuration is per process, and TRL counts the tokens of all ranks.
    alone, _ = launch("grpo_sokoban", "quickstart_sokoban", tmp_path / "alone", *FEW_STEPS)
    tokens, tokens_alone = ([row["num_tokens"] for row in h if "loss" in row][0] for h in (history, alone))
    assert tokens > 1.5 * tokens_alone
