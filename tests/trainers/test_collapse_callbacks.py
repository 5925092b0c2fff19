"""The diagnostics in a trainer: what is logged, that nothing else changes, resuming, the end of a collapsed run."""

import math

import pytest
import torch
from filter_kit import Plain, spreads
from kit import Recording, assert_same, logs, parameters, trainer
from test_plain_trl import length_reward

from ragen_trl import EarlyStopOnCollapseCallback, MutualInformationCallback, env_dataset
from ragen_trl.callbacks import RolloutCallback
from ragen_trl.diagnostics import CollapseRules, RegimeTracker
from ragen_trl.rollout import PolicyGenerator


THINKING = {"enable_think": True, "max_tokens_per_turn": 24, "max_completion_length": 300}


def thinker(trajectory):
    row = trajectory.spec.group * 4 + trajectory.spec.noise_seed[1]
    return f"{'Up ' * (1 + row % 3)}here</think><answer>{'a' if row % 2 else 'win'}</answer>"


def measured(folder, model, tokenizer, data=None, policy=thinker, callback=None, **settings):
    callback = callback or MutualInformationCallback()
    made = trainer(
        folder, model, tokenizer, data, kind=Recording, callbacks=[callback],
        settings=THINKING | {"max_turns": 3} | settings,
    )  # fmt: skip
    if policy:
        made._engine._generator = PolicyGenerator(tokenizer, policy)
    return made, callback


def test_what_is_logged(model, tokenizer, tmp_path):
    made, _ = measured(tmp_path, model, tokenizer, max_steps=1)
    made.train()
    (line,) = [line for line in made.state.log_history if "loss" in line]
    for variant in ("first_turn", "trajectory"):
        for key in ("mi_estimate", "mi_zscore_ema", "retrieval_accuracy", "retrieval_accuracy@4", "gap_per_token",
                    "conditional_entropy_est", "retrieval_chance_level", "num_prompts", "num_reasonings"):  # fmt: skip
            assert math.isfinite(line[f"collapse/{variant}/{key}"]), key
    assert line["collapse/first_turn/num_reasonings"] == 8 and line["collapse/first_turn/num_prompts"] == 2
    assert line["collapse/first_turn/retrieval_chance_level"] == 0.5
    assert line["collapse/valid_thinking_rate"] == line["collapse/first_turn/valid_rate"] == 1.0
    assert line["collapse/trajectory/num_reasonings"] == sum(len(t.turns) for t in made.batches[0]) > 8
    assert 0 < line["collapse/time_s"] and 0 < line["collapse/time_share"] < 1
    assert line["collapse/regime"] == 0 and line["collapse/regime_name"] == "measuring baseline"


def test_scores_are_those_of_the_policy(model, tokenizer, tmp_path):
    """Conditional entropy is minus the mean log-probability that the trainer itself computes for the reasoning."""
    made, _ = measured(tmp_path, model, tokenizer, max_steps=1, max_turns=1, learning_rate=0.0,
                       callback=MutualInformationCallback(trajectory=False))  # fmt: skip
    made.train()
    (output,), (batch,) = made.outputs, made.batches
    ids = torch.cat([output["prompt_ids"], output["completion_ids"]], dim=1)
    attention = torch.cat([output["prompt_mask"], output["completion_mask"]], dim=1)
    with torch.no_grad():
        logps, *_ = made._get_per_token_logps_and_entropies(
            made.model, ids, attention, output["completion_ids"].size(1)
        )
    values = []
    for row, trajectory in zip(logps, batch, strict=True):
        # `here</think>` is not one token of this tokenizer, so the reasoning ends where the tag begins.
        number = len(tokenizer(trajectory.turns[0].reasoning, add_special_tokens=False)["input_ids"])
        values.append(float(row[:number].mean()))
    expected = -sum(values) / len(values)
    assert logs(made, "collapse/first_turn/conditional_entropy_est")[0] == pytest.approx(expected, rel=1e-4)


def test_nothing_else_changes(model, tokenizer, tmp_path):
    def run(folder, callback):
        made, _ = measured(folder, model, tokenizer, policy=None, callback=callback, max_steps=3)
        made.train()
        return made

    with_it = run(tmp_path / "a", MutualInformationCallback())
    without = run(tmp_path / "b", RolloutCallback())
    assert_same(parameters(with_it.model), parameters(without.model))
    assert logs(with_it, "loss") == logs(without, "loss")


def test_a_resumed_run_goes_on_with_the_same_series(model, tokenizer, tmp_path):
    settings = {"save_strategy": "steps", "save_steps": 2, "max_steps": 4}
    whole, _ = measured(tmp_path / "a", model, tokenizer, **settings)
    whole.train()
    for restore in (False, True):
        torch.manual_seed(99)
        resumed, _ = measured(tmp_path / f"b{restore}", model, tokenizer, **settings,
                              restore_callback_states_from_checkpoint=restore)  # fmt: skip
        resumed.train(resume_from_checkpoint=str(tmp_path / "a" / "checkpoint-2"))
        for variant in ("first_turn", "trajectory"):
            for key in ("mi_zscore_ema", "marginal_std_ema", "mi_estimate"):
                name = f"collapse/{variant}/{key}"
                assert logs(whole, name)[2:] == pytest.approx(logs(resumed, name)[-2:], rel=1e-9), name


def test_nothing_is_switched_off_by_resuming(model, tokenizer, tmp_path):
    """transformers may set the attributes that a checkpoint names; there were none to keep before thinking began."""

    def late(trajectory):
        return thinker(trajectory) if trajectory.spec.noise_seed[2] >= 2 else "nothing closed"

    settings = {"save_strategy": "steps", "save_steps": 2, "max_steps": 4}
    whole, _ = measured(tmp_path / "a", model, tokenizer, policy=late, **settings)
    whole.train()
    resumed, callback = measured(tmp_path / "b", model, tokenizer, policy=late, **settings,
                                 restore_callback_states_from_checkpoint=True)  # fmt: skip
    resumed.train(resume_from_checkpoint=str(tmp_path / "a" / "checkpoint-2"))
    assert callback.first_turn is True and callback.trajectory is True
    name = "collapse/first_turn/mi_estimate"
    assert logs(resumed, name)[-2:] == pytest.approx(logs(whole, name)[-2:]) and len(logs(whole, name)) == 2


def test_one_callback_of_a_kind(model, tokenizer, tmp_path):
    made, _ = measured(tmp_path, model, tokenizer)
    made.add_callback(MutualInformationCallback(seed=1))
    with pytest.raises(ValueError, match="2 callbacks of the kind MutualInformationCallback"):
        made.train()


def test_measurements_are_as_far_apart_as_asked(model, tokenizer, tmp_path):
    """Also where generations do not fall on multiples of the number of steps."""
    made, _ = measured(
        tmp_path, model, tokenizer, callback=MutualInformationCallback(3), num_iterations=2, max_steps=12
    )
    made.train()
    steps = [line["step"] - 1 for line in made.state.log_history if "collapse/first_turn/mi_estimate" in line]
    assert steps == [0, 4, 8]


def test_a_rule_counts_a_measurement_once(model, tokenizer, tmp_path, monkeypatch):
    fed = []

    class Watched(CollapseRules):
        def update_step(self, *, reward_spread=None, mi=None):
            fed.append(mi)
            return super().update_step(reward_spread=reward_spread, mi=mi)

    monkeypatch.setattr("ragen_trl.callbacks.CollapseRules", Watched)
    callback = EarlyStopOnCollapseCallback("mark", mi_share=0.5)
    made, _ = measured(tmp_path, model, tokenizer, callback=MutualInformationCallback(2), max_steps=4)
    made.add_callback(callback)
    made.train()
    assert [mi is None for mi in fed] == [False, True, False, True]
    assert all(mi is None or -1 < mi <= 1 for mi in fed), "a share of what is possible"


def test_form_that_is_lost_is_no_health(model, tokenizer, tmp_path):
    """Field report 174: whole completions do not become reasoning once there were tags."""
    texts = ["<think>here it is</think>now", "here it is now"]

    def rollout(prompts, trainer):
        ids = [tokenizer(texts[min(trainer.state.global_step, 1)], add_special_tokens=False)["input_ids"]] * len(
            prompts
        )
        prompts = [tokenizer(p[0]["content"], add_special_tokens=False)["input_ids"] for p in prompts]
        return {"prompt_ids": prompts, "completion_ids": ids, "logprobs": None}

    made = trainer(
        tmp_path, model, tokenizer, spreads([1, 2]), kind=Plain, reward_funcs=length_reward,
        callbacks=[MutualInformationCallback()], rollout_func=rollout, settings={"max_steps": 2},
    )  # fmt: skip
    made.train()
    assert logs(made, "collapse/valid_thinking_rate") == [1.0, 0.0]


def test_what_is_sampled_before_the_tag_makes_no_other_prompt(model, tokenizer, tmp_path):
    def rollout(prompts, trainer):
        texts = [f"{'so ' * i}<think>here it is</think>" for i in range(len(prompts))]
        ids = [tokenizer(text, add_special_tokens=False)["input_ids"] for text in texts]
        prompts = [tokenizer(p[0]["content"], add_special_tokens=False)["input_ids"] for p in prompts]
        return {"prompt_ids": prompts, "completion_ids": ids, "logprobs": None}

    made = trainer(
        tmp_path, model, tokenizer, spreads([1, 2]), kind=Plain, reward_funcs=length_reward,
        callbacks=[MutualInformationCallback()], rollout_func=rollout,
        settings={"max_steps": 1, "shuffle_dataset": False},
    )  # fmt: skip
    made.train()
    assert logs(made, "collapse/first_turn/num_prompts") == [2.0]
    assert logs(made, "collapse/first_turn/mi_upper_bound")[0] == pytest.approx(math.log(2))


def test_turns_that_are_masked_because_they_were_cut_count(model, tokenizer, tmp_path):
    rates = []
    for masked in (False, True):
        made, _ = measured(
            tmp_path, model, tokenizer, max_steps=1, max_turns=1, mask_truncated_completions=masked,
            policy=lambda t: thinker(t) if t.spec.noise_seed[1] % 2 else "on and on " * 40,
        )  # fmt: skip
        made.train()
        rates += logs(made, "collapse/valid_thinking_rate")
    assert rates == [0.5, 0.5]


def test_too_little_to_measure_is_said(model, tokenizer, tmp_path, caplog):
    made, _ = measured(tmp_path, model, tokenizer, policy=lambda t: "nothing closed", max_steps=1)
    made.train()
    assert "fewer than two distinct prompts" in caplog.text
    assert logs(made, "collapse/valid_thinking_rate") == [0.0]
    assert logs(made, "collapse/first_turn/num_reasonings") == [0.0] == logs(made, "collapse/first_turn/num_prompts")
    assert not logs(made, "collapse/first_turn/mi_estimate")


def test_contexts_that_leave_no_room_are_left_out(model, tokenizer, tmp_path, caplog):
    made, _ = measured(tmp_path, model, tokenizer, max_steps=1)
    longest = max(len(encoded) for encoded in tokenizer(["Up Up Up here"], add_special_tokens=False)["input_ids"])
    made.model.config.max_position_embeddings = 20 + longest
    made.train()
    (line,) = [line for line in made.state.log_history if "loss" in line]
    assert "leave no room for the longest reasoning" in caplog.text
    assert line["collapse/trajectory/num_reasonings"] < sum(len(t.turns) for t in made.batches[0])


def test_failed_episodes_are_no_reasoning(model, tokenizer, tmp_path):
    data = env_dataset("helpers:Faulty-v0", 8, env_kwargs={"fault": "step", "members": [1]})
    made, _ = measured(tmp_path, model, tokenizer, data, max_steps=1)
    made.train()
    assert logs(made, "collapse/first_turn/num_reasonings") == [6.0]


@pytest.mark.parametrize("tags", [False, True])
def test_plain_trl(model, tokenizer, tmp_path, tags):
    """Reasoning is what stands between the tags, or the whole completion where there are none."""

    def rollout(prompts, trainer):
        text = "<think>here it is</think>now" if tags else "here it is now"
        ids = [tokenizer(text + "!" * (i % 3), add_special_tokens=False)["input_ids"] for i in range(len(prompts))]
        prompts = [tokenizer(p[0]["content"], add_special_tokens=False)["input_ids"] for p in prompts]
        return {"prompt_ids": prompts, "completion_ids": ids, "logprobs": None}

    callback = MutualInformationCallback()
    seen = []
    score = callback._score
    callback._score = lambda made, name, thoughts: seen.append((name, thoughts)) or score(made, name, thoughts)
    made = trainer(
        tmp_path, model, tokenizer, spreads([1, 2]), kind=Plain, reward_funcs=length_reward, callbacks=[callback],
        rollout_func=rollout, settings={"max_steps": 1, "shuffle_dataset": False},
    )  # fmt: skip
    made.train()
    assert logs(made, "collapse/first_turn/num_prompts") == [2.0]
    texts = {tokenizer.decode(list(thought.reasoning_ids)) for _, thoughts in seen for thought in thoughts}
    assert texts == ({"here it is"} if tags else {"here it is now" + "!" * i for i in range(3)})


def test_a_second_training_begins_anew(model, tokenizer, tmp_path):
    made, callback = measured(tmp_path, model, tokenizer, max_steps=3)
    for _ in range(2):
        made.train()
        assert callback._memory.measurements == 3


def test_a_collapse_is_warned_of_once(model, tokenizer, tmp_path, caplog, monkeypatch):
    monkeypatch.setattr("ragen_trl.callbacks.RegimeTracker", lambda: RegimeTracker(baseline_steps=1, window=1))
    callback = MutualInformationCallback()
    made, _ = measured(tmp_path, model, tokenizer, callback=callback, max_steps=4)
    score = callback._score
    callback._score = lambda made, name, thoughts: score(made, name, thoughts) | (
        {"mi_seq_estimate": 3.0, "retrieval_accuracy": 1.0} if made.state.global_step == 0 else
        {"mi_seq_estimate": 0.01, "retrieval_accuracy": 0.5, "conditional_entropy_est": 5.0}
    )  # fmt: skip
    made.train()
    assert caplog.text.count("The run has entered template collapse") == 1
    assert logs(made, "collapse/regime_name")[-1] == "template collapse" and logs(made, "collapse/regime")[-1] == 3.0


def test_early_stop_on_rewards_that_do_not_vary(model, tokenizer, tmp_path, caplog):
    def policy(trajectory):  # from the third step on all earn the same
        step = trajectory.spec.noise_seed[2]
        return "x</think><answer>win</answer>" if step >= 2 or trajectory.spec.noise_seed[1] % 2 else "nonsense"

    for action, last in (("stop", 5), ("mark", 8)):
        callback = EarlyStopOnCollapseCallback(action, baseline_steps=2, variance_window=3)
        made, _ = measured(tmp_path / action, model, tokenizer, policy=policy, callback=callback, max_steps=8,
                           save_strategy="steps", save_steps=100)  # fmt: skip
        made.train()
        assert made.state.global_step == last
        assert logs(made, "collapse/rule/reward_variance_collapse")[-1] == 1.0
        assert (tmp_path / action / f"checkpoint-{last}").is_dir()
    assert "reward_variance_collapse" in caplog.text


def test_early_stop_on_evaluations_without_success(model, tokenizer, tmp_path, caplog):
    callback = EarlyStopOnCollapseCallback(success_window=2)
    made = trainer(
        tmp_path, model, tokenizer, eval_dataset=env_dataset("helpers:Counter-v0", 2), callbacks=[callback],
        settings=THINKING | {"max_steps": 8, "eval_strategy": "steps", "eval_steps": 1,
                             "save_strategy": "steps", "save_steps": 100},
    )  # fmt: skip
    made._engine._generator = PolicyGenerator(tokenizer, lambda t: "x</think><answer>lose</answer>")
    made.train()
    assert made.state.global_step == 2 and (tmp_path / "checkpoint-2").is_dir()
    assert "low_validation_success" in caplog.text


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: MutualInformationCallback(every_n_steps=0), "every_n_steps.*at least 1, got 0"),
        (lambda: MutualInformationCallback(num_samples=1), "num_samples.*at least 2, got 1"),
        (lambda: MutualInformationCallback(length_normalization="no"), "'after_mix' or 'before_mix', got 'no'"),
        (lambda: EarlyStopOnCollapseCallback("pause"), "'stop', 'mark'.*got 'pause'"),
        (lambda: EarlyStopOnCollapseCallback(spread="range"), "'variance', 'std'.*got 'range'"),
    ],
)
def test_settings_out_of_range(build, message):
    with pytest.raises(ValueError, match=message):
        build()
