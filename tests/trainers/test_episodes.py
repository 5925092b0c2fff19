"""Training on episodes: tensors, rewards, metrics, failures."""

import math
from statistics import fmean

import pytest
import torch
from datasets import concatenate_datasets
from kit import Recording, logs, moved, parameters, trainer

from ragen_trl import RagenGRPOTrainer, env_dataset


def episodes_of(recording):
    return [trajectory for batch in recording.batches for trajectory in batch]


def faulty(number, fault, members, seed=0):
    return env_dataset("helpers:Faulty-v0", number, seed=seed, env_kwargs={"fault": fault, "members": members})


def one_batch(recording):
    """Generate and score one training batch, without an update."""
    recording.model.train()
    inputs = next(iter(recording.get_train_dataloader()))
    output = recording._generate_and_score_completions(inputs)
    return recording.batches[-1], output


@pytest.fixture(scope="module")
def trained(_tokenizer, _model, tmp_path_factory):
    """A run of two steps with an additional reward function."""
    calls = []

    def words(prompts, completions, trajectory, env_id, seed, completion_ids, **kwargs):
        calls.append((prompts, completions, trajectory, env_id, seed, completion_ids))
        return [float(len(t.turns)) for t in trajectory]

    settings = {"reward_weights": [0.25], "logging_steps": 1, "max_steps": 2}
    recording = trainer(
        tmp_path_factory.mktemp("out"), _model, _tokenizer, kind=Recording, settings=settings, reward_funcs=words
    )
    before = parameters(recording.model)
    recording.train()
    return recording, before, calls


def test_parameters_move_and_losses_are_finite(trained):
    recording, before, _ = trained
    assert moved(before, parameters(recording.model))
    assert len(logs(recording, "loss")) == 2
    assert all(math.isfinite(value) for value in logs(recording, "loss") + logs(recording, "grad_norm"))
    assert any(value > 0 for value in logs(recording, "grad_norm"))


def test_metrics_are_those_of_the_episodes(trained):
    recording, _, _ = trained
    assert len(recording.batches) == 2
    for step, batch in enumerate(recording.batches):
        line = recording.state.log_history[step]
        returns = [t.reward for t in batch]
        turns = [turn for t in batch for turn in t.turns]
        expected = {
            "rewards/environment/mean": fmean(returns),
            "rewards/words/mean": fmean(len(t.turns) for t in batch),
            "reward": fmean(r + 0.25 * len(t.turns) for r, t in zip(returns, batch, strict=True)),
            "env/Counter-v0/return": fmean(returns),
            "env/Counter-v0/success_rate": fmean(t.success for t in batch),
            "env/Counter-v0/turns": fmean(len(t.turns) for t in batch),
            "env/Counter-v0/failure_rate": 0.0,
            "rollout/failure_rate": 0.0,
            "rollout/tokens_per_turn": fmean(len(turn.token_ids) for turn in turns),
            "rollout/well_formed_rate": fmean(turn.well_formed for turn in turns),
            "rollout/cut_turn_rate": fmean(turn.cut for turn in turns),
            "completions/mean_length": fmean(sum(t.env_mask) for t in batch),
            "completions/max_length": max(sum(t.env_mask) for t in batch),
        }
        assert {name: line[name] for name in expected} == pytest.approx(expected, rel=1e-5)
        drifted = 0
        for trajectory in batch:
            messages = trajectory.prompt_messages + trajectory.completion_messages
            text = recording.processing_class.apply_chat_template(messages, tokenize=False)
            again = recording.processing_class(text)["input_ids"]
            drifted += again[: len(trajectory.context_ids)] != trajectory.context_ids
        assert line["rollout/retokenization_drift"] == pytest.approx(drifted / len(batch)) and drifted > 0
        reasons = {name: value for name, value in line.items() if name.startswith("rollout/stop/")}
        assert sum(reasons.values()) == pytest.approx(1.0) and len(reasons) == 7
        assert 0 < line["rollout/well_formed_rate"] < 1, "the sample is too simple to show anything"


def test_reward_functions_see_the_episode(trained):
    recording, _, calls = trained
    assert len(calls) == 2
    for (prompts, completions, trajectories, env_id, seed, completion_ids), batch in zip(
        calls, recording.batches, strict=True
    ):
        assert trajectories == batch
        assert set(env_id) == {"helpers:Counter-v0"}
        assert seed == [t.spec.seed for t in batch]
        assert completion_ids == [t.completion_ids for t in batch]
        for prompt, completion, trajectory in zip(prompts, completions, batch, strict=True):
            assert prompt[-1]["role"] == "user" and prompt[-1]["content"] == trajectory.turns[0].message
            roles = [message["role"] for message in completion]
            assert roles == (["assistant", "user"] * len(trajectory.turns))[:-1]
            assert [m["content"] for m in completion if m["role"] == "assistant"] == [
                turn.text for turn in trajectory.turns
            ]


def test_groups_share_their_start_and_differ_afterwards(trained):
    recording, _, _ = trained
    for batch in recording.batches:
        for group in (batch[:4], batch[4:]):
            assert len({tuple(t.prompt_ids) for t in group}) == 1
            assert len({t.spec.seed for t in group}) == 1
            assert len({t.spec.noise_seed for t in group}) == 4
            assert len({tuple(t.completion_ids) for t in group}) > 1
        assert batch[0].spec.seed != batch[4].spec.seed


def test_a_problem_met_again_has_other_luck(model, tokenizer, tmp_path):
    recording = trainer(tmp_path, model, tokenizer, env_dataset("helpers:Counter-v0", 2), kind=Recording)
    recording.train()
    first, second = ({t.spec.noise_seed for t in batch} for batch in recording.batches)
    assert {seed for seed, *_ in first} == {seed for seed, *_ in second} == {0, 1}
    assert len(first) == len(second) == 8 and not first & second


def rows_of(output, i):
    """Prompt, completion, loss mask of row i without padding."""
    prompt = output["prompt_ids"][i][output["prompt_mask"][i].bool()]
    kept = output["completion_mask"][i].bool()
    return prompt.tolist(), output["completion_ids"][i][kept].tolist(), output["tool_mask"][i][kept].tolist()


def test_tensors_hold_the_episodes(model, tokenizer, tmp_path):
    recording = trainer(tmp_path, model, tokenizer, env_dataset("helpers:Awkward-v0", 8), kind=Recording,
                        settings={"temperature": 0.7, "top_k": 50})  # fmt: skip
    batch, output = one_batch(recording)
    assert len({len(t.completion_ids) for t in batch}) > 1
    for i, trajectory in enumerate(batch):
        assert rows_of(output, i) == (trajectory.prompt_ids, trajectory.completion_ids, trajectory.env_mask)
        sampled = [token for turn in trajectory.turns for token in turn.token_ids]
        trained = [token for token, flag in zip(trajectory.completion_ids, trajectory.env_mask, strict=True) if flag]
        assert trained == sampled and sampled
    mask = output["completion_mask"] * output["tool_mask"]
    assert mask.sum() == sum(len(turn.token_ids) for t in batch for turn in t.turns) == output["num_items_in_batch"]
    # The trainer's own forward pass finds the log-probabilities that the sampler noted.
    ids = torch.cat([output["prompt_ids"], output["completion_ids"]], dim=1)
    attention = torch.cat([output["prompt_mask"], output["completion_mask"]], dim=1)
    with torch.no_grad():
        values, *_ = recording._get_per_token_logps_and_entropies(
            recording.model, ids, attention, output["completion_ids"].size(1), batch_size=8
        )
    difference = (values - output["sampling_per_token_logps"]) * mask
    assert difference.abs().max() < 1e-4
    assert (output["sampling_per_token_logps"] * (1 - mask) == 0).all()


@pytest.mark.parametrize("loss_type", ["dapo", "grpo"])
def test_observations_get_no_gradient(model, tokenizer, tmp_path, loss_type):
    settings = {"loss_type": loss_type, "beta": 0.1}
    recording = trainer(
        tmp_path, model, tokenizer, env_dataset("helpers:Awkward-v0", 8), kind=Recording, settings=settings
    )
    _, output = one_batch(recording)
    kept = []

    def keep(module, args, result):
        # The last hidden states: one position of them decides one next token, also where logits are never built.
        if result.requires_grad:
            result.retain_grad()
            kept.append(result)

    handle = recording.model.model.norm.register_forward_hook(keep)
    recording.current_gradient_accumulation_steps = 1
    recording._compute_loss(recording.model, output).backward()
    handle.remove()
    (states,) = kept
    gradient = states.grad.abs().sum(-1)  # (B, P + C): position t predicts token t + 1
    mask = torch.cat([torch.zeros_like(output["prompt_mask"]), output["completion_mask"] * output["tool_mask"]], dim=1)
    predicts_sampled = torch.zeros_like(mask)
    predicts_sampled[:, -gradient.size(1) :][:, :-1] = mask[:, 1:]
    assert (gradient[predicts_sampled == 0] == 0).all()
    # With a KL term every sampled token has a gradient, whatever the advantage: at the first step KL is zero,
    # so only rows with an advantage count.
    with_advantage = (output["advantages"].abs() > 1e-3).unsqueeze(1) * predicts_sampled
    assert with_advantage.sum() > 20
    assert (gradient[with_advantage == 1] > 0).float().mean() > 0.99
    assert ((output["completion_mask"] == 1) & (output["tool_mask"] == 0)).sum() > 50, "there were no observations"


def test_failed_episodes_leave_loss_and_group_statistics(model, tokenizer, tmp_path):
    def first_word(completions, **kwargs):
        return [float(len(completion[0]["content"])) for completion in completions]  # as users write it

    recording = trainer(
        tmp_path, model, tokenizer, faulty(8, "reset", [1]), kind=Recording, reward_funcs=first_word,
        settings={"scale_rewards": "group"},
    )  # fmt: skip
    batch, output = one_batch(recording)
    assert [t.failed for t in batch] == [False, True, False, False] * 2
    mask = output["completion_mask"] * output["tool_mask"]
    for start in (0, 4):
        live = [start, start + 2, start + 3]
        rewards = torch.tensor([batch[i].reward + len(batch[i].turns[0].text) for i in live])
        expected = (rewards - rewards.mean()) / (rewards.std() + 1e-4)
        torch.testing.assert_close(output["advantages"][live], expected, atol=1e-3, rtol=1e-3)
        assert output["advantages"][start + 1] == 0
        assert mask[start + 1].sum() == 0 and (mask[live].sum(1) > 0).all()
    assert not torch.isnan(output["advantages"]).any()
    metrics = recording._metrics["train"]
    live_returns = [t.reward for t in batch if not t.failed]
    assert metrics["rewards/environment/mean"][-1] == pytest.approx(fmean(live_returns), rel=1e-5)


def test_training_goes_on_with_failures_and_counts_them(model, tokenizer, tmp_path, caplog):
    data = concatenate_datasets([faulty(4, "step", [1, 2]), faulty(4, "reset", [0], seed=50)])
    recording = trainer(
        tmp_path, model, tokenizer, data, kind=Recording, settings={"max_steps": 4, "log_completions": True}
    )
    before = parameters(recording.model)
    recording.train()
    assert moved(before, parameters(recording.model))
    assert all(torch.isfinite(p).all() for p in recording.model.parameters())
    for step, batch in enumerate(recording.batches):
        line = recording.state.log_history[step]
        rate = fmean(t.failed for t in batch)
        assert line["env/Faulty-v0/failure_rate"] == line["rollout/failure_rate"] == pytest.approx(rate)
        assert line["rollout/stop/error"] == pytest.approx(rate)
    assert sum(t.failed for t in episodes_of(recording)) >= 4
    sampled_and_lost = 0
    for output, batch in zip(recording.outputs, recording.batches, strict=True):
        trained = (output["completion_mask"] * output["tool_mask"]).sum(1).tolist()
        for count, trajectory in zip(trained, batch, strict=True):
            sampled = sum(len(turn.token_ids) for turn in trajectory.turns)
            assert count == (0 if trajectory.failed else sampled)
            sampled_and_lost += sampled if trajectory.failed else 0
    assert sampled_and_lost > 0, "no episode failed after its first turn"
    assert "episodes failed and are left out of training" in caplog.text


def test_a_group_of_failures_only(model, tokenizer, tmp_path):
    data = concatenate_datasets([faulty(1, "reset", [0, 1, 2, 3]), faulty(1, "reset", [], seed=9)])
    recording = trainer(
        tmp_path, model, tokenizer, data, kind=Recording, settings={"max_steps": 2, "max_failure_rate": 0.5}
    )
    recording.train()
    assert all(sum(t.failed for t in batch) == 4 for batch in recording.batches)
    for output in recording.outputs:
        assert torch.isfinite(output["advantages"]).all()
    assert all(math.isfinite(value) for value in logs(recording, "loss") + logs(recording, "grad_norm"))
    assert all(torch.isfinite(p).all() for p in recording.model.parameters())


def test_nothing_but_failures(model, tokenizer, tmp_path):
    data = faulty(8, "reset", [0, 1, 2, 3])
    recording = trainer(
        tmp_path, model, tokenizer, data, kind=Recording,
        settings={"max_steps": 1, "max_failure_rate": 1.0, "weight_decay": 0.0},
    )  # fmt: skip
    before = parameters(recording.model)
    recording.train()
    assert logs(recording, "rollout/failure_rate") == [1.0]
    assert not moved(before, parameters(recording.model))


def test_too_many_failures_stop_with_the_remedy(model, tokenizer, tmp_path):
    stopped = trainer(tmp_path, model, tokenizer, faulty(8, "reset", [0, 2, 3]), settings={"max_failure_rate": 0.5})
    with pytest.raises(RuntimeError) as error:
        stopped.train()
    for part in ("6 of 8 episodes failed", "max_failure_rate=0.5", "helpers:Faulty-v0", "no service", "resume"):
        assert part in str(error.value)
    exact = trainer(
        tmp_path, model, tokenizer, faulty(8, "reset", [0, 2]), settings={"max_failure_rate": 0.5, "max_steps": 1}
    )
    exact.train()  # as many as are allowed


def test_interrupts_end_training(model, tokenizer, tmp_path):
    interrupted = trainer(tmp_path, model, tokenizer, faulty(8, "interrupt", [0, 1, 2, 3]), settings={"max_steps": 20})
    with pytest.raises(KeyboardInterrupt):
        interrupted.train()


def test_most_turns_cut_warns(model, tokenizer, tmp_path, caplog):
    """Field report 49: all answers cut, nothing learned, without a word."""
    short = trainer(tmp_path, model, tokenizer, settings={"max_tokens_per_turn": 1, "max_steps": 1})
    short.train()
    assert logs(short, "rollout/cut_turn_rate")[0] > 0.9
    assert "max_tokens_per_turn" in caplog.text and "raise the limit" in caplog.text


def test_truncated_episodes_are_masked_whole_on_request(model, tokenizer, tmp_path):
    """Field report 39: both masks agree on rollouts that were cut."""
    recording = trainer(
        tmp_path, model, tokenizer, kind=Recording, settings={"mask_truncated_completions": True, "temperature": 1.2}
    )
    batch, output = one_batch(recording)
    cut = [t.completion_ids[-1] != tokenizer.eos_token_id for t in batch]
    assert cut == [t.turns[-1].cut for t in batch]
    assert 0 < sum(cut) < len(batch), "both kinds are needed"
    for i, was_cut in enumerate(cut):
        assert (output["completion_mask"][i].sum() == 0) == was_cut
        assert ((output["completion_mask"][i] * output["tool_mask"][i]).sum() == 0) == was_cut


def test_turns_end_at_the_templates_own_end_token(model, tokenizer, tmp_path):
    """Llama 3 style: the end of a turn is not the tokenizer's end token, and the model stops at either."""
    tokenizer.add_special_tokens({"additional_special_tokens": ["<|im_start|>", "<|eot|>"]})
    model.resize_token_embeddings(len(tokenizer))
    end = tokenizer.convert_tokens_to_ids("<|eot|>")
    with torch.no_grad():  # likely, so that it is sampled
        model.get_input_embeddings().weight[end] = 1.5 * model.get_input_embeddings().weight[tokenizer.eos_token_id]
    tokenizer.chat_template = tokenizer.chat_template.replace("<|im_end|>", "<|eot|>")
    recording = trainer(tmp_path, model, tokenizer, kind=Recording, settings={"mask_truncated_completions": True})
    recording.train()
    turns = [turn for t in episodes_of(recording) for turn in t.turns]
    ended = [turn for turn in turns if end in turn.token_ids]
    assert ended and all(turn.token_ids.index(end) == len(turn.token_ids) - 1 and not turn.cut for turn in ended)
    # Finished episodes are not taken for cut ones.
    for line, batch in zip(recording.state.log_history, recording.batches, strict=False):
        assert line["completions/clipped_ratio"] == pytest.approx(fmean(t.turns[-1].cut for t in batch))


def test_the_callers_arguments_are_left_alone(model, tokenizer, tmp_path):
    from kit import config

    args = config(tmp_path, reward_weights=[0.5])
    funcs = [lambda completions, **kwargs: [0.0] * len(completions)]
    made = trainer(tmp_path, model, tokenizer, args=args, reward_funcs=funcs)
    assert args.reward_weights == [0.5] and len(funcs) == 1
    assert made.reward_weights.tolist() == [0.5, 1.0]
    assert made.reward_func_names[-1] == "environment"
    single = trainer(tmp_path, model, tokenizer, reward_funcs=funcs[0], reward_processing_classes=None)
    assert len(single.reward_funcs) == 2
    assert isinstance(single, RagenGRPOTrainer)


def test_several_environments_in_one_run(model, tokenizer, tmp_path):
    data = concatenate_datasets(
        [env_dataset("helpers:Counter-v0", 2), env_dataset("helpers:Lottery-v0", 2), env_dataset("FrozenLake-v0", 2)]
    )
    recording = trainer(
        tmp_path, model, tokenizer, data, kind=Recording,
        settings={"per_device_train_batch_size": 24, "max_steps": 1},
    )  # fmt: skip
    recording.train()
    line = recording.state.log_history[0]
    for name in ("Counter-v0", "Lottery-v0", "FrozenLake-v0"):
        assert 0 <= line[f"env/{name}/success_rate"] <= 1
        assert f"env/{name}/pass@4" in line
