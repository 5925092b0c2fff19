"""A run that goes on from a checkpoint is, to the last bit, the run that was not interrupted."""

import copy
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from kit import assert_same, config, parameters, trainer
from transformers import TrainerCallback

from ragen_trl import MutualInformationCallback, RagenGRPOConfig, RagenGRPOTrainer, env_dataset


STEPS = {"max_steps": 7, "save_strategy": "steps", "save_steps": 1, "per_device_train_batch_size": 4,
         "gradient_accumulation_steps": 2, "logging_steps": 2, "enable_think": True}  # fmt: skip
# Four optimizer steps for each generation, so that most checkpoints lie within one.
GRPO = STEPS | {"steps_per_generation": 4, "num_iterations": 2}
PPO = STEPS | {"num_mini_batches": 2, "num_ppo_epochs": 2, "num_generations": 4, "kl_coef": 0.05}
FILTER = {"reward_variance_filtering": "top_p"}
CASES = {"grpo": GRPO, "grpo filtered": GRPO | FILTER, "ppo": PPO, "ppo filtered": PPO | FILTER}


def make(case, folder, model, tokenizer, callbacks=()):
    kind, args = RagenGRPOTrainer, RagenGRPOConfig
    if case.startswith("ppo"):
        pytest.importorskip("trl.experimental.ppo", reason="this TRL has no PPO")
        from ragen_trl import RagenPPOConfig, RagenPPOTrainer

        kind, args = RagenPPOTrainer, RagenPPOConfig
    callbacks = [MutualInformationCallback(num_samples=8), *callbacks]
    return trainer(
        folder, model, tokenizer, env_dataset("helpers:Awkward-v0", 8), kind=kind,
        args=config(folder, args, **CASES[case]), callbacks=callbacks,
    )  # fmt: skip


def lines(made, after):
    """Everything logged after a step, but for what depends on the clock."""
    clock = ("time", "per_second", "runtime")
    found = [line for line in made.state.log_history if line["step"] > after and "train_loss" not in line]
    return [{k: v for k, v in line.items() if not any(word in k for word in clock)} for line in found]


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_from_any_step(case, model, tokenizer, tmp_path):
    whole = make(case, tmp_path / "whole", model, tokenizer)
    whole.train()
    for step in (2, 3, 4, 5):
        again = make(case, tmp_path / "again", other(case, model), tokenizer)
        again.train(resume_from_checkpoint=str(tmp_path / "whole" / f"checkpoint-{step}"))
        assert_same(parameters(whole.model), parameters(again.model))
        # Transformers takes the loss of a log line over the steps since it was started.
        mine = [{k: v for k, v in line.items() if k != "loss" or step % 2 == 0} for line in lines(again, step)]
        theirs = [{k: v for k, v in line.items() if k != "loss" or step % 2 == 0} for line in lines(whole, step)]
        for left, right in zip(mine, theirs, strict=True):
            assert left.keys() == right.keys()
            assert {k: (v, right[k]) for k, v in left.items() if json.dumps(v) != json.dumps(right[k])} == {}


def other(case, model):
    """What was in memory before must not matter, but as the reference of PPO, which is where the run began."""
    model = copy.deepcopy(model)
    if case.startswith("ppo"):
        return model
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.1
    return model


class Kill(TrainerCallback):
    """Ends the process in the middle of a step, without a chance to clean up."""

    def on_pre_optimizer_step(self, args, state, control, **kwargs):
        if state.global_step == 5:
            os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.slow
@pytest.mark.parametrize("case", ["grpo filtered", "ppo"])
def test_after_a_kill(case, model, tokenizer, tmp_path):
    whole = make(case, tmp_path / "whole", model, tokenizer)
    whole.train()
    model.save_pretrained(tmp_path / "model")
    command = [sys.executable, __file__, case, str(tmp_path / "killed"), str(tmp_path / "model")]
    paths = os.pathsep.join(path for path in sys.path if path)
    done = subprocess.run(command, env={**os.environ, "PYTHONPATH": paths}, capture_output=True, timeout=300)
    assert done.returncode == -signal.SIGKILL, done.stderr[-3000:]
    assert not (tmp_path / "killed" / "checkpoint-6").exists()
    again = make(case, tmp_path / "killed", other(case, model), tokenizer)
    again.train(resume_from_checkpoint=True)
    assert_same(parameters(whole.model), parameters(again.model))


def test_another_trainers_checkpoint_is_told_of(model, tokenizer, tmp_path, caplog):
    made = make("grpo", tmp_path, model, tokenizer)
    made.args.max_steps = 1
    made.train()
    (tmp_path / "checkpoint-1" / "rollouts_0_of_1.pt").unlink()
    again = make("grpo", tmp_path, model, tokenizer)
    again.args.max_steps = 2
    again.train(resume_from_checkpoint=True)
    assert "generated anew" in caplog.text and again.state.global_step == 2


if __name__ == "__main__":
    import conftest  # noqa: F401  (environment and threads)
    from helpers import build_tokenizer
    from transformers import AutoModelForCausalLM

    CASE, FOLDER, MODEL = sys.argv[1:]
    make(CASE, Path(FOLDER), AutoModelForCausalLM.from_pretrained(MODEL), build_tokenizer(), [Kill()]).train()
