"""Without rows that name an environment the trainer is TRL's, to the last bit."""

import copy
import random
from pathlib import Path

import pytest
import trl
from datasets import Dataset
from helpers import build_model
from kit import assert_same, config, moved, parameters
from trl import GRPOConfig, GRPOTrainer

from ragen_trl import RagenGRPOConfig, RagenGRPOTrainer


QUESTIONS = Dataset.from_dict(
    {
        "prompt": [[{"role": "user", "content": f"{a} and {a + 1}?"}] for a in range(8)],
        "seed": list(range(8)),
        "answer": [str(a) for a in range(8)],
    }
)


def length_reward(completions, answer=None, **kwargs):
    random.random()
    return [len(c[0]["content"]) / 10 for c in completions]


def multiply(a: int, b: int) -> int:
    """
    Multiplies two integers.

    Args:
        a: The first integer.
        b: The second integer.

    Returns:
        The product of the two integers.
    """
    return a * b


class Board:
    """One environment of TRL's kind."""

    def reset(self, **kwargs):
        self.calls = 0
        return f" Seed {kwargs['seed']}."

    def move(self, step: int) -> str:
        """
        Moves.

        Args:
            step: How far to go.

        Returns:
            What is there.
        """
        self.calls += 1
        return "moved"

    def get_reward(self) -> float:
        return random.Random(self.calls).random() + random.random()


@pytest.fixture
def tool_tokenizer(tokenizer):
    """Qwen3's template, as TRL ships it: it can render tools."""
    tokenizer.chat_template = (Path(trl.__file__).parent / "chat_templates" / "qwen3.jinja").read_text()
    return tokenizer


def run(folder, tokenizer, trainer_class, config_class, settings=None, **kwargs):
    model = build_model(tokenizer)
    model.config._name_or_path = kwargs.pop("path", model.config._name_or_path)
    before = parameters(model)
    args = config(folder, config_class, **({"max_steps": 3, "max_completion_length": 24} | (settings or {})))
    random.seed(0)
    trainer = trainer_class(
        model=model, args=args, train_dataset=QUESTIONS, processing_class=copy.deepcopy(tokenizer), **kwargs
    )
    trainer.train()
    assert moved(before, parameters(model))
    lines = [
        {k: v for k, v in line.items() if "time" not in k and "per_second" not in k}
        for line in trainer.state.log_history
    ]
    return parameters(trainer.accelerator.unwrap_model(trainer.model)), lines, trainer


def assert_same_run(tmp_path, tokenizer, **kwargs):
    expected, lines, _ = run(tmp_path / "trl", tokenizer, GRPOTrainer, GRPOConfig, **kwargs)
    for config_class in (RagenGRPOConfig, GRPOConfig):
        values, own_lines, trainer = run(tmp_path / "ours", tokenizer, RagenGRPOTrainer, config_class, **kwargs)
        assert_same(values, expected)
        assert own_lines == lines
    return trainer


def test_reward_function(tmp_path, tokenizer):
    trainer = assert_same_run(tmp_path, tokenizer, reward_funcs=length_reward)
    assert trainer.rollout_func is None and trainer._engine is None


def test_columns_are_removed_as_trl_does(tmp_path, tokenizer):
    """A column that only means something to episodes must not reach the reward functions of a plain run."""
    seen = set()

    def reward(completions, **kwargs):
        seen.update(kwargs)
        return length_reward(completions)

    settings = {"remove_unused_columns": True, "max_steps": 1}
    run(tmp_path / "trl", tokenizer, GRPOTrainer, GRPOConfig, settings, reward_funcs=reward)
    expected = set(seen)
    seen.clear()
    run(tmp_path / "ours", tokenizer, RagenGRPOTrainer, RagenGRPOConfig, settings, reward_funcs=reward)
    assert seen == expected and "seed" not in expected


def test_several_reward_functions_weights_kl_and_reuse(tmp_path, tokenizer, model):
    def other(completions, **kwargs):
        return [float(c[0]["content"].count("a")) for c in completions]

    settings = {"reward_weights": [0.5, 2.0], "beta": 0.1, "num_iterations": 2, "loss_type": "grpo"}
    path = model.config._name_or_path
    assert_same_run(tmp_path, tokenizer, reward_funcs=[length_reward, other], settings=settings, path=path)


def test_tools(tmp_path, tool_tokenizer):
    assert_same_run(tmp_path, tool_tokenizer, reward_funcs=length_reward, tools=[multiply])


def test_environment_factory(tmp_path, tool_tokenizer):
    trainer = assert_same_run(tmp_path, tool_tokenizer, environment_factory=Board)
    assert any("rewards/Board/mean" in line for line in trainer.state.log_history)


def test_rollout_function_of_the_users_own(tmp_path, tokenizer):
    def rollout(prompts, trainer):
        completions = [[10 + i % 3] * (1 + i % 4) + [tokenizer.eos_token_id] for i in range(len(prompts))]
        return {"prompt_ids": [[3, 4]] * len(prompts), "completion_ids": completions, "logprobs": None}

    assert_same_run(tmp_path, tokenizer, reward_funcs=length_reward, rollout_func=rollout)


def test_evaluation(tmp_path, tokenizer):
    metrics = []
    for kind, config_class in ((GRPOTrainer, GRPOConfig), (RagenGRPOTrainer, RagenGRPOConfig)):
        trainer = kind(
            model=build_model(tokenizer),
            reward_funcs=length_reward,
            args=config(tmp_path, config_class, max_completion_length=16),
            train_dataset=QUESTIONS,
            eval_dataset=QUESTIONS.select(range(3)),
            processing_class=tokenizer,
        )
        result = trainer.evaluate()
        metrics.append({k: v for k, v in result.items() if "time" not in k and "per_second" not in k})
    assert metrics[0] == metrics[1]


def test_every_default_of_trl_is_kept(tmp_path):
    ours, theirs = (kind(str(tmp_path), use_cpu=True, bf16=False).to_dict() for kind in (RagenGRPOConfig, GRPOConfig))
    changed = {name for name, value in theirs.items() if ours[name] != value} - {"logging_dir"}
    assert changed == set()
