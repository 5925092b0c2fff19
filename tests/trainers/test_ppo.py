"""PPO through `train()`: TRL's constructor, sources of rewards, critic, saving, evaluation, what is refused."""

import copy
import warnings
from pathlib import Path

import pytest
import torch


pytest.importorskip("trl.experimental.ppo", reason="this TRL has no PPO")

from datasets import Dataset  # noqa: E402
from kit import assert_same, config, logs, moved, parameters  # noqa: E402
from peft import LoraConfig  # noqa: E402
from ppo_kit import RecordingPPO, noisy, ppo  # noqa: E402
from transformers import (  # noqa: E402
    AutoModelForCausalLM,
    AutoModelForSequenceClassification,
    LlamaConfig,
    LlamaForSequenceClassification,
    TrainerCallback,
)
from trl import ModelConfig, TrlParser  # noqa: E402
from trl.experimental.ppo import PPOConfig, PPOTrainer  # noqa: E402
from trl.experimental.ppo.ppo_trainer import get_reward  # noqa: E402

from ragen_trl import MutualInformationCallback, RagenPPOConfig, RagenPPOTrainer, env_dataset  # noqa: E402
from ragen_trl.trainers.critic import build_critic, token_scores  # noqa: E402


LEARNING = {"learning_rate": 1e-3, "num_ppo_epochs": 2, "max_steps": 2}


def scorer(tokenizer, seed=0, labels=1, extra=0):
    torch.manual_seed(seed)
    size = len(tokenizer) + extra
    settings = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
    return LlamaForSequenceClassification(
        LlamaConfig(vocab_size=size, pad_token_id=tokenizer.pad_token_id, num_labels=labels, **settings)
    )


def token_rows(tokenizer, number=8):
    return Dataset.from_dict({"input_ids": [tokenizer(f"{'go ' * i}question").input_ids for i in range(number)]})


def given(folder, **changes):
    """Settings of a script that was written for TRL's trainer."""
    settings = {"output_dir": str(folder), "use_cpu": True, "bf16": False, "gradient_checkpointing": False,
                "per_device_train_batch_size": 2, "gradient_accumulation_steps": 4, "num_mini_batches": 2,
                "total_episodes": 16, "response_length": 8, "learning_rate": 1e-3, "report_to": "none",
                "disable_tqdm": True, "logging_steps": 1, "save_strategy": "no", "seed": 3,
                "per_device_eval_batch_size": 4}  # fmt: skip
    return settings | changes


# --- Scripts of TRL's trainer ---


@pytest.mark.parametrize("kind", [PPOConfig, RagenPPOConfig])
def test_a_script_of_trls_runs_with_the_import_changed(kind, model, tokenizer, tmp_path, capsys):
    value_model, reward_model = scorer(tokenizer, 1), scorer(tokenizer, 2)
    before = parameters(value_model)
    args = kind(**given(tmp_path, stop_token="eos", missing_eos_penalty=1.0))
    made = RagenPPOTrainer(
        args, tokenizer, model, copy.deepcopy(model), reward_model, token_rows(tokenizer), value_model,
        eval_dataset=token_rows(tokenizer, 4),
    )  # fmt: skip
    assert isinstance(made, PPOTrainer)
    start = parameters(made.model)
    made.train()
    made.save_model(str(tmp_path / "final"))
    made.generate_completions()
    # 16 episodes in batches of 8, 4 epochs in 2 mini-batches each.
    assert made.state.global_step == 2 * 4 * 2 and made.args.gradient_accumulation_steps == 2
    assert moved(start, parameters(made.model)) and moved(before, parameters(made.critic))
    assert "completion" in capsys.readouterr().out
    assert args.gradient_accumulation_steps == (4 if kind is PPOConfig else 2), "the caller's settings were changed"
    assert len(logs(made, "rewards/reward_model/mean")) == 2 and logs(made, "rewards/missing_eos_penalty/mean")[0] <= 0


def test_prompts_of_token_ids_are_sampled_from_as_they_are(model, tokenizer, tmp_path):
    """Neither decoded nor encoded anew."""
    row = [token for letter in "the the" for token in tokenizer(letter).input_ids]
    assert row != tokenizer("the the").input_ids
    rows = [row] * 8
    seen = []

    def reward(prompts, completions, **kwargs):
        seen.extend(prompts)
        return [0.0] * len(prompts)

    args = config(tmp_path, RagenPPOConfig, max_completion_length=6, max_steps=1)
    made = RecordingPPO(
        args, tokenizer, model, train_dataset=Dataset.from_dict({"input_ids": rows}), reward_funcs=reward
    )
    made.train()
    assert made.outputs[0]["prompt_ids"].tolist() == rows
    assert set(seen) == {"the the"}


def test_the_reward_model_scores_the_sampled_tokens(model, tokenizer, tmp_path):
    """As TRL's own function does, at the last token, whatever the padding."""
    reward_model = scorer(tokenizer, 2)
    args = config(tmp_path, RagenPPOConfig, max_completion_length=9, max_steps=1, local_rollout_forward_batch_size=3)
    data = token_rows(tokenizer)
    made = RecordingPPO(args, tokenizer, model, reward_model=reward_model, train_dataset=data)
    made.train()
    output = made.outputs[0]
    totals = made._total_rewards()
    assert len({round(t, 4) for t in totals.tolist()}) > 4
    for i, total in enumerate(totals.tolist()):
        prompt = output["prompt_ids"][i][output["prompt_mask"][i].bool()]
        completion = output["completion_ids"][i][output["completion_mask"][i].bool()]
        _, score, _ = get_reward(
            reward_model, torch.cat([prompt, completion])[None], tokenizer.pad_token_id, len(prompt)
        )
        assert abs(score.item() - total) < 1e-5


def test_what_follows_a_stop_token_is_cut(model, tokenizer, tmp_path):
    def sampled(stop):
        settings = given(tmp_path, stop_token_id=stop, response_length=20, total_episodes=8, num_ppo_epochs=1)
        made = RecordingPPO(
            RagenPPOConfig(**settings), tokenizer, copy.deepcopy(model), train_dataset=token_rows(tokenizer),
            reward_funcs=lambda completion_ids, **kwargs: [float(len(ids)) for ids in completion_ids],
        )  # fmt: skip
        made.train()
        ids, mask = made.outputs[0]["completion_ids"], made.outputs[0]["completion_mask"]
        lengths = logs(made, "completions/mean_length")[0]
        return [row[m.bool()].tolist() for row, m in zip(ids, mask, strict=True)], lengths

    whole, _ = sampled(None)
    stop = next(row[2] for row in whole if len(row) > 5 and row[2] != tokenizer.eos_token_id)
    rows, mean_length = sampled(stop)
    assert rows == [row[: row.index(stop) + 1] if stop in row else row for row in whole] != whole
    assert mean_length == pytest.approx(sum(map(len, rows)) / 8)


def test_missing_end_costs(model, tokenizer, tmp_path):
    args = RagenPPOConfig(**given(tmp_path, missing_eos_penalty=2.5, response_length=12, total_episodes=8))
    made = RecordingPPO(
        args,
        tokenizer,
        model,
        train_dataset=token_rows(tokenizer),
        reward_funcs=lambda prompts, **k: [1.0] * len(prompts),
    )
    made.train()
    output = made.outputs[0]
    ended = (output["completion_ids"] == tokenizer.eos_token_id).any(dim=1)
    rewards = output["token_rewards"]
    assert rewards.sum(dim=1).tolist() == [1.0 if e else -1.5 for e in ended]
    last = output["completion_mask"].sum(dim=1) - 1  # on the end token where there is one, never on padding
    assert torch.equal(rewards.gather(1, last[:, None])[:, 0], rewards.sum(dim=1))


# --- Critic and reference ---


def test_the_critic_starts_as_the_policy_without_an_opinion(model, tokenizer, tmp_path):
    made = ppo(tmp_path, model, tokenizer, opinion=0)
    assert_same(parameters(made.critic.model), parameters(model.model))
    ids = torch.tensor([[5, 6, 7]])
    assert not token_scores(made.critic, ids, torch.ones_like(ids)).any()
    made.train()
    assert logs(made, "value/explained_variance") == [0.0]


@pytest.mark.parametrize("kind", ["llama", "gpt2", "qwen2", "qwen3"])
def test_values_do_not_depend_on_padding(kind):
    from transformers import AutoConfig

    small = {"llama": {}, "qwen2": {}, "qwen3": {"head_dim": 8}, "gpt2": {"n_embd": 32, "n_layer": 2, "n_head": 4}}
    common = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
              "num_key_value_heads": 2}  # fmt: skip
    settings = AutoConfig.for_model(kind, vocab_size=50, **({} if kind == "gpt2" else common), **small[kind])
    torch.manual_seed(0)
    critic = build_critic(AutoModelForCausalLM.from_config(settings)).eval()
    from ragen_trl.trainers.positions import count_positions_from_mask

    count_positions_from_mask(critic)
    torch.nn.init.normal_(critic.score.weight)
    rows = [[3, 4, 5], [6, 7, 8, 9, 10, 11], [12]]
    left = torch.tensor([[0] * (6 - len(row)) + row + [0] * 2 for row in rows])
    mask = torch.tensor([[0] * (6 - len(row)) + [1] * len(row) + [0] * 2 for row in rows])
    values = token_scores(critic, left, mask)
    for i, row in enumerate(rows):
        alone = token_scores(critic, torch.tensor([row]), torch.ones(1, len(row), dtype=torch.long))
        assert torch.allclose(values[i, 6 - len(row) : 6], alone[0], atol=1e-5)


def test_without_a_penalty_there_is_no_second_model(model, tokenizer, tmp_path):
    made = ppo(tmp_path, model, tokenizer, settings={"kl_coef": 0.0})
    assert made.ref_model is None
    made.train()
    assert "ref_per_token_logps" not in made.outputs[0]


def test_the_default_reference_is_the_policy_at_the_beginning(model, tokenizer, tmp_path):
    changed = noisy(model)  # and not what lies where it was loaded from
    made = ppo(tmp_path, changed, tokenizer, settings=LEARNING | {"kl_coef": 0.1})
    start = parameters(changed)
    made.train()
    assert_same(parameters(made.ref_model), start)
    assert logs(made, "kl") == [0.0]


def test_a_critic_of_its_own_learns_at_its_own_rate(model, tokenizer, tmp_path):
    made = ppo(tmp_path, model, tokenizer, settings=LEARNING | {"critic_learning_rate": 0.0, "weight_decay": 0.1})
    policy = {n: v for n, v in parameters(made.model).items() if not n.startswith("critic.")}
    critic = parameters(made.critic)
    made.train()
    assert_same(critic, parameters(made.critic))
    assert moved(policy, parameters(made.model))


@pytest.mark.parametrize("source", ["built", "given"])
def test_the_policy_waits_for_the_critic(source, model, tokenizer, tmp_path):
    settings = LEARNING | {"critic_warmup_steps": 2, "weight_decay": 0.5, "max_steps": 3}
    made = ppo(tmp_path, model, tokenizer, settings=settings)
    if source == "given":  # by somebody who knows of no critic
        made.optimizer = torch.optim.SGD([p for n, p in made.model.named_parameters() if "critic" not in n], lr=0.01)
    start = {n: v for n, v in parameters(made.model).items() if not n.startswith("critic.")}
    critic, steps = parameters(made.critic), []

    class Watch(TrainerCallback):
        def on_step_end(self, *args, **kwargs):
            steps.append((moved(start, parameters(made.model)), moved(critic, parameters(made.critic))))

    made.add_callback(Watch())
    made.train()
    assert steps == [(False, True), (False, True), (True, True)]


def test_the_critic_can_fit(model, tokenizer, tmp_path):
    """Over and over on one batch its errors fall; the policy stands still meanwhile."""
    settings = {
        "learning_rate": 0.0,
        "critic_learning_rate": 3e-3,
        "num_ppo_epochs": 30,
        "max_steps": 30,
        "vf_coef": 1.0,
    }
    made = ppo(tmp_path, model, tokenizer, opinion=0, settings=settings | {"cliprange_value": 100.0})
    made.train()
    losses = logs(made, "value/loss")
    assert losses[-1] < 0.3 * losses[0]


# --- A trainer like others ---


def test_the_saved_policy_is_a_model_like_any(model, tokenizer, tmp_path):
    made = ppo(tmp_path, model, tokenizer, settings=LEARNING | {"save_strategy": "steps", "save_steps": 2})
    made.train()
    made.save_model(str(tmp_path / "final"))
    for folder in ("final", "checkpoint-2"):
        loaded, info = AutoModelForCausalLM.from_pretrained(tmp_path / folder, output_loading_info=True)
        assert not info["unexpected_keys"] and not info["missing_keys"]
        own = {n: v for n, v in parameters(made.model).items() if not n.startswith("critic.")}
        assert_same(parameters(loaded), own)
    assert not (tmp_path / "final" / "critic").exists()
    critic = AutoModelForSequenceClassification.from_pretrained(tmp_path / "checkpoint-2" / "critic")
    assert_same(parameters(critic), parameters(made.critic))
    assert "critic" in dict(made.model.named_children()), "the critic has to be there after saving"


def test_evaluation_saving_and_the_best_model(model, tokenizer, tmp_path):
    best = {"load_best_model_at_end": True, "metric_for_best_model": "eval_reward", "greater_is_better": True}
    steps = {"eval_strategy": "steps", "eval_steps": 1, "save_strategy": "steps", "save_steps": 1, "max_steps": 3}
    made = ppo(
        tmp_path, model, tokenizer, settings=LEARNING | steps | best, eval_dataset=env_dataset("helpers:Awkward-v0", 4)
    )
    made.train()
    rewards = logs(made, "eval_reward")
    assert len(rewards) == 3 and len(logs(made, "eval_env/Awkward-v0/success_rate")) == 3
    winner = tmp_path / f"checkpoint-{1 + rewards.index(max(rewards))}"
    assert Path(made.state.best_model_checkpoint) == winner
    critic = AutoModelForSequenceClassification.from_pretrained(winner / "critic")
    assert_same(parameters(critic), parameters(made.critic))


def test_resuming_needs_a_critic(model, tokenizer, tmp_path):
    import shutil

    made = ppo(tmp_path, model, tokenizer, settings=LEARNING | {"save_strategy": "steps", "save_steps": 1})
    made.train()
    shutil.rmtree(tmp_path / "checkpoint-1" / "critic")
    again = ppo(tmp_path, model, tokenizer, settings=LEARNING | {"max_steps": 3})
    with pytest.raises(ValueError, match="no critic in"):
        again.train(resume_from_checkpoint=str(tmp_path / "checkpoint-1"))


def test_lora_trains_adapter_and_critic(model, tokenizer, tmp_path):
    settings = LEARNING | {"kl_coef": 0.1, "save_strategy": "steps", "save_steps": 2, "gradient_checkpointing": True}
    made = ppo(tmp_path, model, tokenizer, settings=settings, peft_config=LoraConfig(r=4, task_type="CAUSAL_LM"))
    assert made.ref_model is None
    start = parameters(made.model)
    made.train()
    changed = {n for n, v in parameters(made.model).items() if not torch.equal(v, start[n])}
    assert any(n.startswith("critic.") for n in changed) and any("lora_" in n for n in changed)
    assert all(n.startswith("critic.") or "lora_" in n for n in changed)
    names = {path.name for path in (tmp_path / "checkpoint-2").iterdir()}
    assert "adapter_model.safetensors" in names and "model.safetensors" not in names and "critic" in names
    assert logs(made, "kl")[0] == 0.0


def test_half_precision(model, tokenizer, tmp_path):
    made = ppo(tmp_path, model, tokenizer, settings=LEARNING | {"bf16": True})
    start = parameters(made.model)
    made.train()
    assert moved(start, parameters(made.model)) and all(torch.isfinite(p).all() for p in made.model.parameters())


def test_diagnostics_and_all_events(model, tokenizer, tmp_path):
    seen = []

    class Events(TrainerCallback):
        def on_rollout_end(self, args, state, control, trainer=None, rollouts=None, **kwargs):
            seen.append(("rollout", state.global_step, len(rollouts.groups)))

        def on_train_begin(self, *args, **kwargs):
            seen.append("begin")

        def on_epoch_begin(self, *args, **kwargs):
            seen.append("epoch")

        def on_step_end(self, *args, **kwargs):
            seen.append("step")

        def on_log(self, *args, **kwargs):
            seen.append("log")

        def on_train_end(self, *args, **kwargs):
            seen.append("end")

    settings = LEARNING | {"max_steps": 4, "enable_think": True}
    made = ppo(
        tmp_path, model, tokenizer, settings=settings, callbacks=[MutualInformationCallback(num_samples=8), Events()]
    )
    made.train()
    assert [event for event in seen if event[0] == "rollout"] == [("rollout", 0, 8), ("rollout", 2, 8)]
    assert {"begin", "epoch", "step", "log", "end"} <= set(seen)
    assert len(logs(made, "collapse/valid_thinking_rate")) == 2


def test_clipping_bounds_the_gradient(model, tokenizer, tmp_path):
    made = ppo(tmp_path, model, tokenizer, settings={"max_grad_norm": 1e-3})
    made.train()
    squares = sum(float(g.square().sum()) for g in made.gradients[0].values() if g is not None)
    assert logs(made, "grad_norm")[0] > 0.1 and squares**0.5 < 1.1e-3


# --- What scripts bring along ---


def test_positions_of_a_table_are_counted_without_episodes_too(tokenizer, tmp_path):
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(0)
    settings = GPT2Config(vocab_size=len(tokenizer), n_embd=32, n_layer=2, n_head=4, n_positions=64)
    made = ppo(
        tmp_path, GPT2LMHeadModel(settings), tokenizer, token_rows(tokenizer), opinion=0,
        settings={"kl_coef": 0.1, "max_completion_length": 8}, reward_funcs=lambda prompts, **k: [1.0] * len(prompts),
        kind=RecordingPPO,
    )  # fmt: skip
    made.train()
    output, batch = made.outputs[0], made._buffered_inputs[0]
    assert logs(made, "kl")[0] == pytest.approx(0.0, abs=1e-6)
    logps = made._logps_of(batch)
    for i in range(8):
        prompt = batch["prompt_ids"][i][batch["prompt_mask"][i].bool()]
        completion = batch["completion_ids"][i][batch["completion_mask"][i].bool()]
        logits = made.model(torch.cat([prompt, completion])[None]).logits[0, len(prompt) - 1 : -1]
        own = logits.log_softmax(-1).gather(1, completion[:, None])[:, 0]
        assert torch.allclose(logps[i, : len(own)], own, atol=1e-4)
    assert not output["prompt_mask"].all(), "no row is padded"


def test_optimizer_and_scheduler_of_the_users_own(model, tokenizer, tmp_path):
    def optimizers():
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
        return optimizer, torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 0.5)

    args = config(tmp_path, RagenPPOConfig, kl_coef=0.0)
    data = {"train_dataset": env_dataset("helpers:Awkward-v0", 8)}
    made = RagenPPOTrainer(args, tokenizer, model, optimizers=optimizers(), **data)
    critic = parameters(made.critic)
    made.train()
    assert moved(critic, parameters(made.critic))
    args = config(tmp_path, RagenPPOConfig, kl_coef=0.0, critic_learning_rate=1e-3)
    with pytest.raises(ValueError, match="scheduler that was given"):
        RagenPPOTrainer(args, tokenizer, copy.deepcopy(model), optimizers=optimizers(), **data).train()


def test_a_critic_with_an_adapter_comes_back(model, tokenizer, tmp_path):
    from peft import get_peft_model

    def critic(seed):
        return get_peft_model(scorer(tokenizer, seed), LoraConfig(r=2, task_type="SEQ_CLS"))

    settings = LEARNING | {"save_strategy": "steps", "save_steps": 2}
    made = ppo(tmp_path, model, tokenizer, opinion=0, settings=settings, value_model=critic(1))
    made.train()
    again = ppo(tmp_path, model, tokenizer, opinion=0, settings=LEARNING | {"max_steps": 2}, value_model=critic(2))
    again.train(resume_from_checkpoint=True)
    assert_same(parameters(made.critic), parameters(again.critic))


def test_a_penalty_alone_is_no_reward(model, tokenizer, tmp_path):
    made = ppo(
        tmp_path, model, tokenizer, token_rows(tokenizer), settings=LEARNING | {"missing_eos_penalty": 1.0},
        reward_funcs=lambda prompts, **kwargs: [None] * len(prompts),
    )  # fmt: skip
    before = parameters(made.model)
    made.train()
    assert not moved(before, parameters(made.model))


def test_an_infinite_reward_stops_training(model, tokenizer, tmp_path):
    made = ppo(
        tmp_path, model, tokenizer, token_rows(tokenizer), settings=LEARNING,
        reward_funcs=lambda prompts, **kwargs: [float("inf")] + [0.0] * (len(prompts) - 1),
    )  # fmt: skip
    before = parameters(made.model)
    with pytest.raises(FloatingPointError, match="last checkpoint"):
        made.train()
    assert not moved(before, parameters(made.model))


def test_a_table_of_completions_leaves_the_next_evaluation_alone(model, tokenizer, tmp_path):
    data = {name: env_dataset("helpers:Awkward-v0", 4) for name in ("one", "two")}
    made = ppo(tmp_path, model, tokenizer, eval_dataset=data)
    made.generate_completions(sampling=True)
    assert not made._summaries["eval"] and not made._metrics["eval"]


def test_padding_that_the_model_does_not_know(model, tokenizer, tmp_path):
    """TRL's example adds a padding token and leaves the model as it is; prompts may be padded with it."""
    tokenizer.add_special_tokens({"pad_token": "[PAD]"})
    assert tokenizer.pad_token_id >= model.get_input_embeddings().num_embeddings
    ids = tokenizer("question").input_ids
    data = Dataset.from_dict({"input_ids": [[tokenizer.pad_token_id] * i + ids for i in range(8)]})
    args = config(tmp_path, RagenPPOConfig, max_completion_length=6, max_steps=1)
    made = RecordingPPO(args, tokenizer, model, reward_model=scorer(tokenizer), train_dataset=data)
    made.train()
    output = made.outputs[0]
    assert output["prompt_ids"].tolist() == [ids] * 8 and output["prompt_mask"].all()
    assert tokenizer.pad_token == "[PAD]", "the caller's tokenizer was changed"


def test_a_copy_of_the_model_is_a_model(model, tokenizer, tmp_path):
    made = ppo(tmp_path, model, tokenizer, settings=LEARNING)
    made.train()
    twin = copy.deepcopy(made.model)
    ids = torch.tensor([[5, 6, 7]])
    assert torch.equal(twin(ids).logits, made.model(ids).logits)


# --- What is refused ---


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"advantage_estimator": "bi_level_gae"}, "bi_level_gae.*turn_level_gae"),
        ({"kl_estimator": "k4"}, "k4.*k1"),
        ({"kl_estimator": "k2"}, "kl_penalty='loss'"),
        ({"kl_penalty": "both"}, "both.*reward"),
        ({"loss_type": "sapo"}, "sapo.*dapo"),
        ({"reward_placement": "token"}, "token.*turn"),
        ({"gamma": 1.1}, "`gamma`.*1.1"),
        ({"lam": -0.1}, "`lam`.*-0.1"),
        ({"beta": 0.1}, "`beta`.*kl_coef"),
        ({"epsilon": 0.3}, "`epsilon=0.3`.*`cliprange=0.2`"),
        ({"num_iterations": 2}, "`num_iterations=2`.*`num_ppo_epochs=4`"),
        ({"num_mini_batches": 3}, "`num_mini_batches=3`.*8"),
        ({"num_generations": 3}, "`num_generations=3`.*8"),
        ({"num_generations": 1, "reward_variance_filtering": "top_p"}, "num_generations.*is 1"),
        ({"importance_sampling_level": "sequence"}, "importance_sampling_level"),
        ({"steps_per_generation": 3}, "`steps_per_generation=3`"),
        ({"per_device_train_batch_size": 1, "num_generations": 1}, "one rollout"),
        ({"critic_warmup_steps": -1}, "critic_warmup_steps"),
        ({"stop_token": "foo"}, "stop_token='foo'.*eos"),
        ({"stop_token": "eos", "stop_token_id": 3}, "both"),
        ({"ref_adapter_name": "x"}, "ref_adapter_name"),
        ({"cliprange": -0.2}, "cliprange"),
        (
            {"load_best_model_at_end": True, "eval_strategy": "steps", "save_strategy": "steps", "num_generations": 1},
            "eval_reward",
        ),
    ],
)
def test_settings_out_of_range(settings, message, tmp_path):
    with pytest.raises(ValueError, match=message):
        config(tmp_path, RagenPPOConfig, **settings)


def test_what_cannot_be_trained_is_refused(model, tokenizer, tmp_path):
    args, data = config(tmp_path, RagenPPOConfig), token_rows(tokenizer)
    reward, one = [lambda prompts, **kwargs: [0.0] * len(prompts)], scorer(tokenizer)
    cases = [
        ({"train_dataset": data}, "Nothing gives rewards"),
        ({"train_dataset": data, "reward_funcs": reward, "ref_model": model}, "same object"),
        ({"reward_funcs": reward}, "required"),
        (
            {"train_dataset": data, "reward_funcs": reward, "value_model": scorer(tokenizer, extra=-20)},
            "value_model.*share",
        ),
        (
            {"train_dataset": data, "reward_model": scorer(tokenizer, extra=-20)},
            "reward_model.*reward_processing_classes",
        ),
        ({"train_dataset": data, "reward_funcs": reward, "value_model": scorer(tokenizer, labels=2)}, "2 outputs"),
        ({"train_dataset": data, "reward_funcs": reward, "value_model": copy.deepcopy(model)}, "without a head"),
        ({"train_dataset": data, "reward_model": one, "value_model": one}, "same object.*Load it twice"),
        ({"train_dataset": data.select([0]), "reward_model": one}, "1 row"),
    ]
    for kwargs, message in cases:
        with pytest.raises(ValueError, match=message):
            RagenPPOTrainer(args, tokenizer, model, **kwargs)


def test_settings_from_a_command_line(tmp_path):
    parser = TrlParser((RagenPPOConfig, ModelConfig))
    argv = ["--output_dir", str(tmp_path), "--use_cpu", "true", "--bf16", "false", "--num_generations", "4"]
    args, _ = parser.parse_args_and_config(
        [*argv, "--advantage_estimator", "turn_level_gae", "--critic_learning_rate", "1e-4"]
    )
    assert (args.num_generations, args.advantage_estimator, args.critic_learning_rate) == (4, "turn_level_gae", 1e-4)
    assert args.world_size == 1 and args.batch_size == 8


def test_the_callers_settings_and_data_stay_as_they_are(model, tokenizer, tmp_path):
    args = config(tmp_path, RagenPPOConfig, missing_eos_penalty=1.0, reward_weights=[2.0])
    rewards = [lambda prompts, **kwargs: [0.0] * len(prompts)]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        RagenPPOTrainer(args, tokenizer, model, train_dataset=token_rows(tokenizer), reward_funcs=rewards)
    assert args.reward_weights == [2.0] and len(rewards) == 1
