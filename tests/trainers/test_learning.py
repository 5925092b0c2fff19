"""Every algorithm of the paper learns: a bandit for the shipped agent; its arms are first tokens."""

from pathlib import Path
from statistics import fmean

import pytest
import torch
from datasets import Dataset
from kit import config, logs
from transformers import AutoModelForCausalLM, AutoTokenizer

import ragen_trl
from ragen_trl import RagenGRPOConfig, RagenGRPOTrainer


WEIGHTS = Path(ragen_trl.__file__).parent / "tiny" / "weights"
GRPO = {
    "grpo": {"loss_type": "grpo"},
    "dapo": {"loss_type": "dapo", "epsilon_high": 0.28},
    "dr_grpo": {"loss_type": "dr_grpo", "scale_rewards": "none"},
}
BUDGET = {"max_steps": 20, "per_device_train_batch_size": 32, "num_generations": 8, "max_completion_length": 4,
          "learning_rate": 2e-4, "temperature": 1.0, "reward_variance_filtering_max_empty_steps": 0}  # fmt: skip


def arm(tokenizer):
    """A token that the agent says first about one time in ten."""
    model = AutoModelForCausalLM.from_pretrained(WEIGHTS)
    ids = tokenizer.apply_chat_template(PROMPT, add_generation_prompt=True, return_dict=True)["input_ids"]
    chances = model(torch.tensor([ids])).logits[0, -1].softmax(-1)
    return int((chances - 0.1).abs().argmin())


PROMPT = [{"role": "user", "content": "seed"}]


@pytest.mark.parametrize("filtering", [None, "top_p"])
@pytest.mark.parametrize("algorithm", [*GRPO, "ppo"])
def test_the_return_rises(algorithm, filtering, tmp_path):
    tokenizer = AutoTokenizer.from_pretrained(WEIGHTS)
    model = AutoModelForCausalLM.from_pretrained(WEIGHTS, dtype=torch.float32)
    wanted = arm(tokenizer)

    def pull(completion_ids, **kwargs):
        return [float(ids[0] == wanted) for ids in completion_ids]

    data = Dataset.from_list([{"prompt": PROMPT}] * 8)
    kwargs = {"model": model, "processing_class": tokenizer, "train_dataset": data, "reward_funcs": pull}
    settings = BUDGET | {"reward_variance_filtering": filtering}
    if algorithm == "ppo":
        pytest.importorskip("trl.experimental.ppo", reason="this TRL has no PPO")
        from ragen_trl import RagenPPOConfig, RagenPPOTrainer

        settings |= {"num_ppo_epochs": 1, "kl_coef": 0.0, "cliprange_value": 10.0, "vf_coef": 0.5}
        made = RagenPPOTrainer(config(tmp_path, RagenPPOConfig, **settings), **kwargs)
    else:
        made = RagenGRPOTrainer(args=config(tmp_path, RagenGRPOConfig, **settings | GRPO[algorithm]), **kwargs)
    made.train()
    returns = logs(made, "reward")
    assert returns[0] < 0.3 and fmean(returns[-3:]) > 0.7, returns
