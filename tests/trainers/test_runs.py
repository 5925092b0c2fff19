"""Whole runs: variants of the algorithm, evaluation, checkpoints, the model card."""

import inspect
import math
from math import comb
from statistics import fmean

import pytest
import torch
from datasets import Dataset, concatenate_datasets
from kit import Recording, assert_same, config, logs, moved, parameters, trainer
from trl.models import unwrap_model_for_generation

from ragen_trl import RagenGRPOTrainer, env_dataset
from ragen_trl.rollout import PolicyGenerator


VARIANTS = {
    "grpo": {"loss_type": "grpo"},
    "dr_grpo": {"loss_type": "dr_grpo", "scale_rewards": "none"},
    "dapo": {"loss_type": "dapo", "scale_rewards": "batch", "epsilon_high": 0.28},
    "bnpo": {"loss_type": "bnpo"},
    "kl": {"beta": 0.1},
    "reuse": {"num_iterations": 2, "max_steps": 4},
    "generate less often than accumulate": {
        "per_device_train_batch_size": 4,
        "gradient_accumulation_steps": 4,
        "steps_per_generation": 2,
    },
    "generate more often than update": {
        "per_device_train_batch_size": 4,
        "gradient_accumulation_steps": 2,
        "steps_per_generation": 4,
        "max_steps": 4,
    },
    "columns removed": {"remove_unused_columns": True},
    "cut ones masked": {"mask_truncated_completions": True, "max_steps": 4},
    "sequence ratios": {"importance_sampling_level": "sequence", "num_iterations": 2, "max_steps": 4},
    "checkpointing": {"gradient_checkpointing": True},
    "completions": {"log_completions": True},
    "padded": {"pad_to_multiple_of": 8},
    "reuse in slices": {
        "num_iterations": 2,
        "steps_per_generation": 2,
        "per_device_train_batch_size": 4,
        "max_steps": 8,
    },
}


@pytest.mark.parametrize("settings", VARIANTS.values(), ids=VARIANTS.keys())
def test_variants_of_the_algorithm(model, tokenizer, tmp_path, settings):
    recording = trainer(tmp_path, model, tokenizer, kind=Recording, settings=settings)
    before = parameters(recording.model)
    recording.train()
    assert moved(before, parameters(recording.model))
    assert all(torch.isfinite(p).all() for p in recording.model.parameters())
    steps = recording.args.max_steps
    assert len(logs(recording, "loss")) == steps
    assert all(math.isfinite(v) for v in logs(recording, "loss") + logs(recording, "grad_norm"))
    accumulated = steps * recording.args.gradient_accumulation_steps
    assert len(recording.batches) == accumulated / (recording.args.steps_per_generation * recording.num_iterations)
    returns = [fmean(t.reward for t in batch) for batch in recording.batches]
    # Lines without a rollout of their own say nothing of episodes.
    logged = logs(recording, "env/Counter-v0/return")
    if recording.args.gradient_accumulation_steps <= recording.args.steps_per_generation:
        assert logged == pytest.approx(returns)
    assert fmean(logged) == pytest.approx(fmean(returns))
    if settings.get("beta"):
        assert len(logs(recording, "kl")) == steps


def test_streamed_data(model, tokenizer, tmp_path):
    data = env_dataset("helpers:Counter-v0", 16).to_iterable_dataset()
    recording = trainer(tmp_path, model, tokenizer, data, kind=Recording, eval_dataset=data.take(3))
    recording.train()
    for batch in recording.batches:
        assert [len({t.spec.seed for t in batch[i : i + 4]}) for i in (0, 4)] == [1, 1]
        assert len({id(t) for t in batch}) == 8
    for output, batch in zip(recording.outputs, recording.batches, strict=True):
        lengths = output["completion_mask"].sum(1).tolist()
        assert lengths == [len(t.completion_ids) for t in batch]
    recording.batches.clear()
    metrics = recording.evaluate()
    assert [len(batch) for batch in recording.batches] == [8, 4]
    assert metrics["eval_env/Counter-v0/pass@4"] >= metrics["eval_env/Counter-v0/success_rate"]


def test_lora(model, tokenizer, tmp_path):
    peft = pytest.importorskip("peft", reason="the extra `peft` is not installed")
    lora = peft.LoraConfig(r=4, target_modules="all-linear", init_lora_weights="gaussian")
    recording = trainer(tmp_path, model, tokenizer, peft_config=lora, settings={"beta": 0.05, "learning_rate": 1e-2})
    before = parameters(recording.model)
    recording.train()
    after = parameters(recording.model)
    changed = {name for name, value in before.items() if not torch.equal(value, after[name])}
    assert changed and all("lora" in name for name in changed)


def expected_pass_at(k, groups):
    return fmean(1 - comb(len(g) - sum(g), k) / comb(len(g), k) for g in groups)


def test_evaluation_over_a_ragged_last_batch(model, tokenizer, tmp_path):
    settings = {"max_tokens_per_turn": 30, "num_generations_eval": 2, "per_device_eval_batch_size": 4}
    recording = trainer(
        tmp_path, model, tokenizer, kind=Recording, settings=settings,
        eval_dataset=env_dataset("helpers:Lottery-v0", 25, split="train"),
    )  # fmt: skip
    before = parameters(recording.model)
    metrics = recording.evaluate()
    assert_same(before, parameters(recording.model))
    assert [len(batch) for batch in recording.batches] == [4] * 12 + [2]
    episodes = [t for batch in recording.batches for t in batch]
    by_seed = {}
    for trajectory in episodes:
        by_seed.setdefault(trajectory.spec.seed, []).append(trajectory.success)
    assert sorted(by_seed) == list(range(25)) and all(len(group) == 2 for group in by_seed.values())
    name = "eval_env/Lottery-v0/"
    assert metrics[name + "success_rate"] == pytest.approx(fmean(t.success for t in episodes))
    assert metrics[name + "return"] == pytest.approx(fmean(t.reward for t in episodes))
    assert metrics[name + "pass@2"] == pytest.approx(expected_pass_at(2, by_seed.values()))
    assert 0 < metrics[name + "success_rate"] < metrics[name + "pass@2"] < 1, "the sample shows nothing"
    # Evaluation is the same problem with the same luck every time, whatever the step.
    recording.batches.clear()
    recording.state.global_step = 7
    recording.evaluate()
    assert [t.spec for batch in recording.batches for t in batch] == [t.spec for t in episodes]


def test_evaluation_during_training_keeps_the_two_apart(model, tokenizer, tmp_path):
    settings = {"eval_strategy": "steps", "eval_steps": 1, "max_steps": 2, "eval_on_start": True, "logging_steps": 2}
    recording = trainer(
        tmp_path, model, tokenizer, kind=Recording, settings=settings,
        eval_dataset=env_dataset("helpers:Lottery-v0", 2),
    )  # fmt: skip
    recording.train()
    kinds = [batch[0].spec.env_id.partition(":")[2][:-3] for batch in recording.batches]
    assert kinds == ["Lottery", "Counter", "Lottery", "Counter", "Lottery"]
    trained = [t for batch in recording.batches if "Counter" in batch[0].spec.env_id for t in batch]
    assert logs(recording, "env/Counter-v0/return") == [pytest.approx(fmean(t.reward for t in trained))]
    evaluations = [batch for batch in recording.batches if "Lottery" in batch[0].spec.env_id]
    assert logs(recording, "eval_env/Lottery-v0/return") == [
        pytest.approx(fmean(t.reward for t in batch)) for batch in evaluations
    ]
    assert not any("eval_env/Counter-v0/return" in line for line in recording.state.log_history)


def test_several_evaluation_sets(model, tokenizer, tmp_path):
    sets = {"short": env_dataset("helpers:Lottery-v0", 2), "long": env_dataset("helpers:Counter-v0", 3)}
    metrics = trainer(tmp_path, model, tokenizer, eval_dataset=sets).evaluate()
    assert "eval_short_loss" in metrics and "eval_long_loss" in metrics
    assert "eval_short_env/Lottery-v0/return" in metrics and "eval_long_env/Counter-v0/return" in metrics


def test_several_evaluation_sets_of_one_environment(model, tokenizer, tmp_path):
    sets = {
        name: env_dataset("helpers:Counter-v0", 2, env_kwargs={"pay": pay}) for name, pay in (("a", 1.0), ("b", -5.0))
    }
    made = trainer(tmp_path, model, tokenizer, eval_dataset=sets)
    made._engine._generator = PolicyGenerator(tokenizer, lambda t: "win</answer>")
    metrics = made.evaluate()
    assert metrics["eval_a_env/Counter-v0/return"] == 1.0 and metrics["eval_b_env/Counter-v0/return"] == -5.0
    assert "eval_env/Counter-v0/return" not in metrics
    assert made.evaluate(sets["b"])["eval_env/Counter-v0/return"] == -5.0


def test_an_evaluation_is_judged_by_all_of_it(model, tokenizer, tmp_path):
    """One failed episode alone in the last batch is one of nine, not one of one."""

    def data(*failing):
        kwargs = [{"fault": "reset", "members": [0] if i in failing else []} for i in range(9)]
        return concatenate_datasets(
            [env_dataset("helpers:Faulty-v0", 1, seed=i, env_kwargs=k) for i, k in enumerate(kwargs)]
        )

    settings = {"num_generations_eval": 1, "per_device_eval_batch_size": 8}
    loader = trainer(tmp_path, model, tokenizer, eval_dataset=data(), settings=settings).get_eval_dataloader()
    (last,) = [row["seed"] for row in list(loader)[-1]][:1]
    bad = data(last).filter(lambda row: row["seed"] == last)
    made = trainer(tmp_path, model, tokenizer, eval_dataset=data(last), settings=settings)
    metrics = made.evaluate()
    assert metrics["eval_env/Faulty-v0/failure_rate"] == pytest.approx(1 / 9)
    only = trainer(tmp_path, model, tokenizer, eval_dataset=bad, settings=settings)
    with pytest.raises(RuntimeError, match="1 of 1 episodes failed"):
        only.evaluate()


def test_other_data_given_to_evaluate(model, tokenizer, tmp_path):
    made = trainer(tmp_path, model, tokenizer)
    metrics = made.evaluate(env_dataset("helpers:Lottery-v0", 2))
    assert "eval_env/Lottery-v0/return" in metrics
    plain = env_dataset("helpers:Lottery-v0", 2).remove_columns(["env_id"])
    with pytest.raises(ValueError, match="every row must name its own"):
        made.evaluate(plain)


def test_episodes_for_a_trainer_built_without_them_are_refused(model, tokenizer, tmp_path):
    plain = Dataset.from_dict({"prompt": [[{"role": "user", "content": "x"}]] * 4})
    made = trainer(tmp_path, model, tokenizer, plain, reward_funcs=lambda completions, **kwargs: [0.0] * 8)
    with pytest.raises(ValueError, match="Give it as `train_dataset` or `eval_dataset`"):
        made.evaluate(env_dataset("helpers:Counter-v0", 2))


def test_settings_of_gradient_checkpointing_outlive_a_rollout(model, tokenizer, tmp_path):
    """As in plain TRL, which from 1.16 on hands them back after generation."""
    if "gradient_checkpointing_kwargs" not in inspect.signature(unwrap_model_for_generation).parameters:
        pytest.skip("this TRL drops them itself")
    settings = {"gradient_checkpointing": True, "gradient_checkpointing_kwargs": {"use_reentrant": True}}
    made = trainer(tmp_path, model, tokenizer, settings=settings | {"max_steps": 1})
    seen = []
    original = made.model.gradient_checkpointing_enable

    def note(gradient_checkpointing_kwargs=None, **others):
        seen.append(gradient_checkpointing_kwargs)
        return original(gradient_checkpointing_kwargs=gradient_checkpointing_kwargs, **others)

    made.model.gradient_checkpointing_enable = note
    made.train()
    assert seen and all(kwargs == {"use_reentrant": True} for kwargs in seen)


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"num_iterations": 2},
        {"reward_variance_filtering": "top_k", "reward_variance_top_k": 1, "per_device_train_batch_size": 4,
         "gradient_accumulation_steps": 2},
    ],
    ids=["plain", "reuse", "filter"],
)  # fmt: skip
def test_a_resumed_run_is_the_uninterrupted_one(model, tokenizer, tmp_path, settings):
    settings = {"max_steps": 4, "save_strategy": "steps", "save_steps": 2} | settings
    data = env_dataset("helpers:Counter-v0", 6)  # a new pass over the data lies in between
    whole = trainer(tmp_path / "a", model, tokenizer, data, kind=Recording, settings=settings)
    whole.train()
    torch.manual_seed(99)
    resumed = trainer(tmp_path / "b", model, tokenizer, data, kind=Recording, settings=settings)
    resumed.train(resume_from_checkpoint=str(tmp_path / "a" / "checkpoint-2"))
    half = len(resumed.batches)
    assert 0 < half < len(whole.batches)
    assert [t.spec for b in whole.batches[-half:] for t in b] == [t.spec for b in resumed.batches for t in b]
    assert_same(parameters(whole.model), parameters(resumed.model))
    assert logs(whole, "reward")[2:] == logs(resumed, "reward")[2:]


def test_checkpoints_hold_model_card_and_load_again(model, tokenizer, tmp_path):
    from transformers import AutoModelForCausalLM, AutoTokenizer

    made = trainer(tmp_path, model, tokenizer, settings={"save_strategy": "steps", "save_steps": 1, "max_steps": 1})
    made.train()
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path / "checkpoint-1")
    assert_same(parameters(made.model), parameters(loaded))
    text = "→ Up</answer>"
    assert AutoTokenizer.from_pretrained(tmp_path / "checkpoint-1")(text)["input_ids"] == tokenizer(text)["input_ids"]
    card = (tmp_path / "README.md").read_text()
    for part in ("ragen-trl", "RAGEN-2", "2604.06268", "wang2026ragen2", "grpo", "- trl"):
        assert part in card, part


def test_no_arguments_but_a_model_and_data(model, tokenizer, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    # The defaults ask for bf16, which a CPU has to be told.
    args = config(tmp_path / "x", max_steps=1)
    made = RagenGRPOTrainer(model.config._name_or_path, args=args, train_dataset=env_dataset("helpers:Counter-v0", 4))
    made.train()
    assert made.state.global_step == 1


def test_a_model_read_from_disk_without_a_pad_token(model, tokenizer, tmp_path):
    folder = tmp_path / "model"
    tokenizer.pad_token = None
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    args = config(tmp_path / "x", max_steps=1)
    made = RagenGRPOTrainer(str(folder), args=args, train_dataset=env_dataset("helpers:Counter-v0", 4))
    made.train()
    assert made.processing_class.pad_token == made.processing_class.eos_token
