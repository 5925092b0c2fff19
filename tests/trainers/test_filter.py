"""Filtered groups leave the update: gradients, empty steps, settings, metrics."""

import copy
import functools

import pytest
import torch
from datasets import Dataset
from filter_kit import alternating, difference, filtered, gradient_of, largest, members, spreads
from kit import Recording, assert_same, config, logs, moved, parameters, trainer
from peft import LoraConfig
from test_plain_trl import QUESTIONS, Board, length_reward, multiply, tool_tokenizer  # noqa: F401
from transformers import Qwen3MoeConfig, Qwen3MoeForCausalLM
from trl import GRPOConfig, GRPOTrainer

from ragen_trl import RagenGRPOConfig, SNRFilterMixin, env_dataset
from ragen_trl.rollout.generation import PolicyGenerator


# Groups of 4; one micro-batch of 16 rows, or four of 4.
SHAPES = {"one": (16, 1), "four": (4, 4)}
PATTERNS = {"half": [0, 1, 0, 2], "one": [0, 0, 3, 0], "three": [1, 2, 0, 3]}


def close(made, expected, step=0, tolerance=1e-6):
    """Equal but for rounding: 1e-6, of the largest component where that is above one."""
    assert largest(expected) > 1e-3
    assert difference(made.gradients[step], expected) < tolerance * max(1.0, largest(expected))


@pytest.mark.parametrize("loss_type", ["grpo", "bnpo", "dapo", "dr_grpo"])
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("pattern", PATTERNS)
def test_the_gradient_is_that_of_the_kept_groups_alone(model, tokenizer, tmp_path, loss_type, shape, pattern):
    values, (size, steps) = PATTERNS[pattern], SHAPES[shape]
    made = filtered(
        tmp_path, model, tokenizer, values, loss_type=loss_type, beta=0.1, entropy_coef=0.02,
        per_device_train_batch_size=size, gradient_accumulation_steps=steps,
    )  # fmt: skip
    made.train()
    kept = [i for i, value in enumerate(values) if value]
    assert made.last_selection.kept.tolist() == kept
    assert sorted(sum(made.last_update_rows, [])) == sorted(members(made, kept))
    close(made, gradient_of(made, members(made, kept)))
    assert logs(made, "loss") == pytest.approx([made.expected_loss], abs=1e-6)


@pytest.mark.parametrize(
    "settings",
    [
        {"loss_type": "sapo"},
        {"loss_type": "cispo"},
        {"loss_type": "luspo", "importance_sampling_level": "sequence"},
        {"loss_type": "vespo"},
        {"loss_type": "grpo", "scale_rewards": "none", "importance_sampling_level": "sequence"},
        {"loss_type": "grpo", "num_iterations": 2},
        {"loss_type": "dapo", "mask_truncated_completions": True, "max_completion_length": 60},
        {"loss_type": "dapo", "scale_rewards": "batch"},
        {"loss_type": "dapo", "pad_to_multiple_of": 8},
        {"loss_type": "dapo", "multi_objective_aggregation": "normalize_then_sum"},
        {"loss_type": "dapo", "gradient_checkpointing": True},
    ],
    ids=lambda settings: "-".join(map(str, settings.values())),
)
def test_with_other_losses_and_settings(model, tokenizer, tmp_path, settings):
    made = filtered(
        tmp_path, model, tokenizer, [1, 2, 0, 3], beta=0.1, per_device_train_batch_size=4,
        gradient_accumulation_steps=4, **settings,
    )  # fmt: skip
    made.train()
    close(made, gradient_of(made, members(made, [0, 1, 3])))


def test_with_a_quantile_of_entropies(model, tokenizer, tmp_path):
    """Which tokens are among the uncertain ones is decided within a micro-batch, so one of them has to hold all."""
    made = filtered(
        tmp_path, model, tokenizer, [1, 2, 0, 3], per_device_train_batch_size=16, top_entropy_quantile=0.5,
        entropy_coef=0.02,
    )  # fmt: skip
    made.train()
    close(made, gradient_of(made, members(made, [0, 1, 3])))


def test_with_lora(model, tokenizer, tmp_path):
    made = trainer(
        tmp_path, model, tokenizer, spreads([0, 1, 2, 0]), kind=Recording, reward_funcs=alternating,
        peft_config=LoraConfig(target_modules=["q_proj", "v_proj"]),
        settings={"reward_variance_filtering": "top_k", "reward_variance_top_k": 1, "beta": 0.1,
                  "per_device_train_batch_size": 4, "gradient_accumulation_steps": 4, "shuffle_dataset": False},
    )  # fmt: skip
    before = parameters(made.model)
    made.train()
    assert made.last_selection.kept.tolist() == [2]
    after = parameters(made.model)
    assert {name for name, value in before.items() if not torch.equal(value, after[name])} == {
        name for name in before if "lora" in name and "ref" not in name
    }


def mixture_of_experts(tokenizer):
    torch.manual_seed(0)
    sizes = {"vocab_size": len(tokenizer), "hidden_size": 16, "intermediate_size": 16, "moe_intermediate_size": 16,
             "num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 2, "num_experts": 4,
             "num_experts_per_tok": 2, "initializer_range": 0.2,
             "pad_token_id": tokenizer.pad_token_id, "eos_token_id": tokenizer.eos_token_id}  # fmt: skip
    return Qwen3MoeForCausalLM(Qwen3MoeConfig(**sizes))


def test_with_a_router_loss(tokenizer, tmp_path):
    model = mixture_of_experts(tokenizer)
    made = filtered(tmp_path, model, tokenizer, [0, 1, 0, 2], per_device_train_batch_size=16)
    made.aux_loss_enabled, made.router_aux_loss_coef = True, 0.1  # in the configuration it breaks `generate`
    made.train()
    close(made, gradient_of(made, members(made, [1, 3])))


def test_a_router_loss_where_the_last_generation_of_a_step_is_empty(tokenizer, tmp_path):
    """The row that goes through the model there is blank, and a router loss over no token would be NaN."""
    model = mixture_of_experts(tokenizer)
    made = filtered(
        tmp_path, model, tokenizer, [1, 0], per_device_train_batch_size=4, steps_per_generation=1,
        gradient_accumulation_steps=2, loss_type="grpo",
    )  # fmt: skip
    made.aux_loss_enabled, made.router_aux_loss_coef = True, 0.1
    made.train()
    expected = gradient_of(made, members(made, [0]), batch=0)
    close(made, {name: value / 2 for name, value in expected.items()})


@pytest.mark.parametrize(("per_generation", "accumulation"), [(4, 2), (3, 2), (2, 4), (1, 3)])
@pytest.mark.parametrize("loss_type", ["grpo", "dapo"])
def test_generations_and_optimizer_steps_of_different_length(
    model, tokenizer, tmp_path, per_generation, accumulation, loss_type
):
    """Each part that belongs to one generation and one step is a mean of its own, with its share of the step."""
    made = filtered(
        tmp_path, model, tokenizer, [1, 0, 2, 3, 1, 0], loss_type=loss_type, per_device_train_batch_size=4,
        steps_per_generation=per_generation, gradient_accumulation_steps=accumulation, max_steps=3,
    )  # fmt: skip
    rows = []  # of each micro-step: batch and rows
    compute = made._compute_loss

    def watch(model, inputs):
        step = made._step % per_generation
        rows.append((len(made.outputs) - 1, made.last_update_rows[step]))
        return compute(model, inputs)

    made._compute_loss = watch
    made.train()
    made._compute_loss = compute
    part = torch.gcd(torch.tensor(per_generation), torch.tensor(accumulation)).item()
    for step, gradient in enumerate(made.gradients):
        expected = {name: torch.zeros_like(p) for name, p in made.model.named_parameters()}
        for start in range(step * accumulation, (step + 1) * accumulation, part):
            window = rows[start : start + part]
            chosen = set(sum((numbers for _, numbers in window), []))
            if chosen:
                for name, value in gradient_of(made, chosen, window[0][0]).items():
                    expected[name] += value * part / accumulation
        assert largest(expected) > 1e-3
        assert difference(gradient, expected) < 1e-6 * max(1, largest(expected))
    per_batch = [set(sum((numbers for batch, numbers in rows if batch == b), [])) for b in range(len(made.outputs))]
    assert all(len(kept) % 4 == 0 for kept in per_batch) and any(len(kept) < per_generation * 4 for kept in per_batch)


def test_with_everything_kept_it_is_trls_gradient(model, tokenizer, tmp_path):
    gradients = []
    for strategy in (None, "top_p"):
        made = filtered(
            tmp_path, model, tokenizer, [1, 2, 3, 1], reward_variance_filtering=strategy, beta=0.1,
            per_device_train_batch_size=4, gradient_accumulation_steps=4,
        )  # fmt: skip
        made.train()
        gradients.append(made.gradients[0])
    assert largest(gradients[0]) > 1e-3 and difference(*gradients) < 1e-6


def test_a_step_without_kept_groups_changes_nothing(model, tokenizer, tmp_path, caplog):
    """Momentum and weight decay rest too; logging, evaluation and checkpoints go on."""
    data = Dataset.from_list([*spreads([1, 2]).select(range(2)), *spreads([0, 0]).select(range(2))])
    made = trainer(
        tmp_path, model, tokenizer, data, kind=Recording, reward_funcs=alternating, eval_dataset=spreads([1]),
        settings={"reward_variance_filtering": "top_p", "shuffle_dataset": False, "weight_decay": 0.1, "beta": 0.1,
                  "entropy_coef": 0.01, "save_strategy": "steps", "save_steps": 1, "eval_strategy": "steps",
                  "eval_steps": 1, "max_steps": 3},
    )  # fmt: skip
    seen = []

    class Watch(type(made.callback_handler.callbacks[0]).__mro__[1]):
        def on_step_end(self, args, state, control, **kwargs):
            seen.append((parameters(made.model), copy.deepcopy(made.optimizer.state_dict()["state"])))

    made.add_callback(Watch())
    before = parameters(made.model)
    made.train()
    (first, first_state), (second, second_state), (third, _) = seen
    assert moved(before, first) and moved(second, third)
    assert_same(first, second)
    for index, state in first_state.items():
        assert all(torch.equal(torch.as_tensor(v), torch.as_tensor(second_state[index][k])) for k, v in state.items())
    assert logs(made, "filter/empty_steps") == [0.0, 1.0, 1.0]
    assert logs(made, "filter/kept_groups") == [2.0, 0.0, 2.0]
    assert logs(made, "grad_norm")[1] == 0.0 and logs(made, "loss")[1] == 0.0
    assert len(logs(made, "eval_loss")) == 3 and (tmp_path / "checkpoint-2").is_dir()
    assert "No row is left for this step" in caplog.text


def test_a_generation_without_kept_groups_leaves_the_rest_of_its_step(model, tokenizer, tmp_path):
    """One optimizer step of two generations, the second of which is all flat."""
    values = [1, 2, 0, 0]
    made = filtered(
        tmp_path, model, tokenizer, values, per_device_train_batch_size=8, steps_per_generation=1,
        gradient_accumulation_steps=2,
    )  # fmt: skip
    made.train()
    half = {name: value / 2 for name, value in gradient_of(made, members(made, [0, 1]), batch=0).items()}
    close(made, half)
    assert logs(made, "filter/empty_steps") == [0.0]


def test_entropy_is_controlled_where_the_last_generation_of_a_step_is_empty(model, tokenizer, tmp_path):
    coefficients = []
    for values in ([1, 0], [0, 1]):
        made = filtered(
            tmp_path, model, tokenizer, values, per_device_train_batch_size=4, steps_per_generation=1, max_steps=3,
            gradient_accumulation_steps=2, use_adaptive_entropy=True, entropy_target=100.0, entropy_coef=0.02,
        )  # fmt: skip
        made.train()
        coefficients.append(logs(made, "entropy_coef"))
        assert min(logs(made, "entropy")) > 1, "statistics of a row that is none"
    assert coefficients[0] == coefficients[1] and len(set(coefficients[0])) == 3


def test_steps_that_get_none_of_the_kept_rows_are_no_reason_to_stop(model, tokenizer, tmp_path, caplog):
    """One group of two rows over sixteen optimizer steps of a generation."""
    made = filtered(
        tmp_path, model, tokenizer, [0] * 7 + [1], num_generations=2, per_device_train_batch_size=1,
        steps_per_generation=16, gradient_accumulation_steps=1, max_steps=16,
    )  # fmt: skip
    made.train()
    assert made.state.global_step == 16 and made.last_selection.kept.tolist() == [7]
    assert logs(made, "filter/empty_steps")[-1] == 14.0


def test_the_count_of_empty_steps_survives_a_checkpoint(model, tokenizer, tmp_path):
    settings = {"save_strategy": "steps", "save_steps": 2, "max_steps": 3}
    made = filtered(tmp_path, model, tokenizer, [0, 0], **settings)
    made.train()
    resumed = filtered(tmp_path / "b", model, tokenizer, [0, 0], **settings,
                       reward_variance_filtering_max_empty_steps=3)  # fmt: skip
    with pytest.raises(RuntimeError, match="in 3 steps in a row"):
        resumed.train(resume_from_checkpoint=str(tmp_path / "checkpoint-2"))
    resumed = filtered(tmp_path / "c", model, tokenizer, [0, 0], **settings)
    resumed.train(resume_from_checkpoint=str(tmp_path / "checkpoint-2"))
    assert logs(resumed, "filter/empty_steps")[-1] == 3.0


def test_rows_without_a_trained_token_are_no_update(model, tokenizer, tmp_path):
    made = filtered(tmp_path, model, tokenizer, [1, 2], mask_truncated_completions=True, max_completion_length=2,
                    learning_rate=1e-2, weight_decay=0.1)  # fmt: skip
    before = parameters(made.model)
    made.train()
    assert_same(before, parameters(made.model))
    assert logs(made, "filter/empty_steps") == [1.0]


def test_other_columns_reach_the_pass_for_entropies(model, tokenizer, tmp_path, monkeypatch):
    made = filtered(tmp_path, model, tokenizer, [1, 2], reward_variance_filtering_score="entropy")
    seen = {}
    original = GRPOTrainer._get_per_token_logps_and_entropies

    def record(self, *args, **kwargs):
        seen.update({k: v for k, v in kwargs.items() if v is not None})
        return original(self, *args, **{k: v for k, v in kwargs.items() if k != "num_images"})

    monkeypatch.setattr(GRPOTrainer, "_get_per_token_logps_and_entropies", functools.wraps(original)(record))
    keep = made._rollout_values
    made._rollout_values = lambda output, score: keep({**output, "num_images": [0] * 8}, score)
    made.train()
    assert seen["num_images"] == [0] * 8


def test_a_penalty_that_cancels_is_no_spread(model, tokenizer, tmp_path):
    """Without the penalty all of a group are equal but for rounding."""

    def against(trajectory, **kwargs):
        return [-(t.reward - sum(turn.format_penalty for turn in t.turns)) / 1.1 for t in trajectory]

    made = trainer(
        tmp_path, model, tokenizer, env_dataset("helpers:Counter-v0", 8), kind=Recording, reward_funcs=against,
        settings={"reward_variance_filtering": "top_k", "reward_variance_top_k": 2, "max_steps": 1, "max_turns": 2,
                  "reward_weights": [1.1], "reward_variance_filtering_reward": "without_format_penalty"},
    )  # fmt: skip
    made._engine._generator = PolicyGenerator(
        tokenizer, lambda t: "nonsense" if t.spec.noise_seed[1] % 2 and len(t.turns) == 1 else "win</answer>"
    )
    made.train()
    assert made.last_selection.kept.tolist() == []


def test_too_many_empty_steps_end_the_run(model, tokenizer, tmp_path):
    made = filtered(tmp_path, model, tokenizer, [0, 0], max_steps=9, reward_variance_filtering_max_empty_steps=3)
    with pytest.raises(RuntimeError, match="No group was kept in 3 steps in a row: rewards do not vary"):
        made.train()
    assert made.state.global_step == 2
    never = filtered(tmp_path, model, tokenizer, [0, 0], max_steps=9, reward_variance_filtering_max_empty_steps=0)
    never.train()
    assert logs(never, "filter/empty_steps") == [float(i) for i in range(1, 10)]


@pytest.mark.parametrize("scaling", ["linear", "sqrt"])
def test_loss_scaling_is_of_the_task_term_only(model, tokenizer, tmp_path, scaling):
    gradients = {}
    for name in ("none", scaling):
        for beta in (0.0, 0.1):
            made = filtered(
                tmp_path, model, tokenizer, [0, 1, 0, 0], beta=beta, reward_variance_filtering_loss_scaling=name,
                per_device_train_batch_size=16,
            )  # fmt: skip
            made.train()
            gradients[name, beta] = made.gradients[0]
    factor = {"linear": 0.25, "sqrt": 0.5}[scaling]
    task = gradients["none", 0.0]
    assert difference(gradients[scaling, 0.0], {n: g * factor for n, g in task.items()}) < 1e-6
    expected = {n: g - task[n] * (1 - factor) for n, g in gradients["none", 0.1].items()}
    assert difference(gradients[scaling, 0.1], expected) < 1e-6
    assert difference(gradients["none", 0.1], task) > 1e-4


def test_evaluation_is_not_filtered(model, tokenizer, tmp_path):
    results = []
    for strategy in (None, "top_p"):
        made = trainer(
            tmp_path, model, tokenizer, spreads([0, 1]), reward_funcs=alternating, eval_dataset=spreads([0, 1]),
            settings={"reward_variance_filtering": strategy},
        )  # fmt: skip
        torch.manual_seed(0)
        results.append({k: v for k, v in made.evaluate().items() if "time" not in k and "per_second" not in k})
    assert results[0] == results[1] and not [name for name in results[1] if "filter/" in name]


class Plain(SNRFilterMixin, GRPOTrainer):
    """The mixin in front of TRL's own trainer."""


def run(folder, tokenizer, model, kind, config_class, **kwargs):
    settings = {"max_steps": 3, "max_completion_length": 24} | kwargs.pop("settings", {})
    made = kind(
        model=copy.deepcopy(model), args=config(folder, config_class, **settings), train_dataset=QUESTIONS,
        processing_class=copy.deepcopy(tokenizer), **kwargs,
    )  # fmt: skip
    made.train()
    return made


def test_off_means_trl_to_the_last_bit(model, tokenizer, tmp_path):
    arguments = {"reward_funcs": length_reward, "settings": {"beta": 0.1, "gradient_accumulation_steps": 2}}
    expected = run(tmp_path / "a", tokenizer, model, GRPOTrainer, GRPOConfig, **arguments)
    made = run(tmp_path / "b", tokenizer, model, Plain, RagenGRPOConfig, **arguments)
    assert_same(parameters(expected.model), parameters(made.model))
    assert {k for line in made.state.log_history for k in line} == {
        k for line in expected.state.log_history for k in line
    }


def test_the_mixin_needs_settings(model, tokenizer, tmp_path):
    with pytest.raises(TypeError, match="GRPOConfig.*no settings for the filter.*RagenGRPOConfig"):
        run(tmp_path, tokenizer, model, Plain, GRPOConfig, reward_funcs=length_reward)


@pytest.mark.parametrize("case", ["reward function", "tools", "environment_factory"])
def test_the_mixin_alone_with_the_features_of_trl(model, tool_tokenizer, tmp_path, case):  # noqa: F811
    arguments = {
        "reward function": {"reward_funcs": length_reward},
        "tools": {"reward_funcs": length_reward, "tools": [multiply]},
        "environment_factory": {"environment_factory": Board},
    }[case]
    settings = {"reward_variance_filtering": "top_k", "reward_variance_top_k": 1, "num_iterations": 2, "beta": 0.1,
                "per_device_train_batch_size": 4, "gradient_accumulation_steps": 2}  # fmt: skip
    made = run(tmp_path, tool_tokenizer, model, Plain, RagenGRPOConfig, settings=settings, **arguments)
    assert logs(made, "filter/kept_groups")[0] == 1.0 and logs(made, "filter/kept_share")[0] == 0.5
    assert moved(parameters(model), parameters(made.model))
    assert sorted(map(len, made.last_update_rows)) == [0, 4]


def test_metrics(model, tokenizer, tmp_path):
    made = filtered(tmp_path, model, tokenizer, [0, 1, 0, 2], per_device_train_batch_size=16)
    made.train()
    (line,) = [line for line in made.state.log_history if "loss" in line]
    variances = torch.tensor([0, 1 / 3, 0, 4 / 3], dtype=torch.float64)
    expected = {
        "kept_groups": 2.0,
        "kept_share": 0.5,
        "zero_share": 0.5,
        "variance_mean": float(variances.mean()),
        "variance_std": float(variances.std()),
        "variance_min": 0.0,
        "variance_max": 4 / 3,
        "variance_ratio": float(variances.std() / variances.mean()),
        "reward_before": 0.375,
        "reward_after": 0.75,
        "empty_steps": 0.0,
    }
    found = {name.removeprefix("filter/"): v for name, v in line.items() if name.startswith("filter/")}
    assert found == pytest.approx(expected)
    assert line["reward"] == pytest.approx(0.375), "TRL's own is over all rollouts"


def test_hints_are_given_once(model, tokenizer, tmp_path, caplog):
    made = filtered(tmp_path, model, tokenizer, [1, 1.01], max_steps=25)
    made.train()
    assert caplog.text.count("variance_ratio has been under 0.5 for 20 batches") == 1
    assert "more than 90% of the groups" not in caplog.text
    caplog.clear()
    flat = filtered(tmp_path, model, tokenizer, [0, 0], max_steps=25, reward_variance_filtering_max_empty_steps=0)
    flat.train()
    assert caplog.text.count("more than 90% of the groups earned the same") == 1


@pytest.mark.parametrize("score", ["length", "entropy", "entropy_variance"])
def test_scores_of_other_things_than_rewards(model, tokenizer, tmp_path, score):
    made = filtered(
        tmp_path, model, tokenizer, [1, 2, 3, 4], reward_variance_filtering_score=score,
        reward_variance_filtering="top_k", reward_variance_top_k=2, per_device_train_batch_size=16,
        max_completion_length=24,
    )  # fmt: skip
    made.train()
    (output,) = made.outputs
    mask = output["completion_mask"]
    ids = torch.cat([output["prompt_ids"], output["completion_ids"]], dim=1)
    attention = torch.cat([output["prompt_mask"], mask], dim=1)
    with torch.no_grad():
        _, entropies, *_ = made._get_per_token_logps_and_entropies(
            made.model, ids, attention, mask.size(1), compute_entropy=True
        )
    values = {
        "length": mask.sum(1).float().view(-1, 4).mean(1),
        "entropy": ((entropies * mask).sum(1) / mask.sum(1)).view(-1, 4).mean(1),
        "entropy_variance": ((entropies * mask).sum(1) / mask.sum(1)).view(-1, 4).var(1),
    }[score]
    torch.testing.assert_close(made.last_selection.scores.float(), values, rtol=1e-4, atol=1e-6)
    assert made.last_selection.kept.tolist() == sorted(values.argsort(descending=True)[:2].tolist())


def episodes(tokenizer, model, folder, policy, **settings):
    made = trainer(
        folder, model, tokenizer, env_dataset("helpers:Counter-v0", 8), kind=Recording,
        settings={"per_device_train_batch_size": 16, "max_steps": 1, "max_turns": 2,
                  "reward_variance_filtering": "top_p", "reward_variance_filtering_selection_eps": 0.0} | settings,
    )  # fmt: skip
    made._engine._generator = PolicyGenerator(tokenizer, policy)
    made.train()
    return made


@pytest.mark.parametrize(("reward", "kept"), [("total", [0, 1]), ("without_format_penalty", [1]), ("success", [2])])
def test_what_is_ranked_with_environments(model, tokenizer, tmp_path, reward, kept):
    """Group 0 differs in penalties alone, group 1 in returns without success, group 2 in success, group 3 not."""

    def policy(trajectory):
        odd = trajectory.spec.noise_seed[1] % 2
        return [
            "nonsense" if odd and len(trajectory.turns) == 1 else "lose</answer>",
            "lose</answer>" if odd else "a||lose</answer>",
            "win</answer>" if odd else "lose</answer>",
            "lose</answer>",
        ][trajectory.spec.group]

    made = episodes(tokenizer, model, tmp_path, policy, reward_variance_filtering_reward=reward,
                    reward_variance_top_p=1.0)  # fmt: skip
    assert made.last_selection.kept.tolist() == kept


def test_failed_episodes_neither_fake_nor_hide_variance(model, tokenizer, tmp_path):
    data = env_dataset("helpers:Faulty-v0", 8, env_kwargs={"fault": "step", "members": [1]})
    made = trainer(
        tmp_path, model, tokenizer, data, kind=Recording,
        settings={"max_steps": 1, "reward_variance_filtering": "top_p"},
    )  # fmt: skip
    made._engine._generator = PolicyGenerator(tokenizer, lambda t: "win</answer>")
    before = parameters(made.model)
    made.train()
    assert [t.failed for t in made.batches[0]] == [False, True, False, False] * 2
    assert made.last_selection.kept.tolist() == [] and made.last_selection.scores.tolist() == [0.0, 0.0]
    assert_same(before, parameters(made.model))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"reward_variance_filtering": "topp"}, r"top_p.*got 'topp'"),
        ({"reward_variance_top_p": 0.0}, r"in \(0, 1\], got 0.0"),
        ({"reward_variance_top_p": 1.5}, r"in \(0, 1\], got 1.5"),
        ({"reward_variance_filtering": "top_k"}, "whole number of at least 1, got None"),
        ({"reward_variance_filtering": "top_k", "reward_variance_top_k": 0}, "at least 1, got 0"),
        ({"reward_variance_filtering": "top_k", "reward_variance_top_k": 3}, "number of groups in a batch, 2, got 3"),
        ({"reward_variance_filtering": "min_p", "reward_variance_min_p": -1}, r"\[0, 1\], got -1"),
        ({"reward_variance_filtering": None, "reward_variance_top_k": 2}, "top_k=2.*no effect.*'top_k'"),
        ({"reward_variance_filtering_score": "spread"}, "got 'spread'"),
        ({"reward_variance_filtering_mode": "log"}, "got 'log'"),
        ({"reward_variance_filtering_keep": "some"}, "got 'some'"),
        ({"reward_variance_filtering_loss_scaling": "half"}, "loss_scaling.*'none', 'linear', 'sqrt'.*got 'half'"),
        ({"reward_variance_filtering_reward": "return"}, "'total', 'without_format_penalty', 'success'.*got 'return'"),
        ({"reward_variance_filtering_max_empty_steps": -1}, "max_empty_steps.*at least 0, got -1"),
        ({"reward_variance_filtering_selection_eps": float("nan")}, "eps.*got nan"),
    ],
)
def test_settings_out_of_range_are_refused(tmp_path, settings, message):
    with pytest.raises(ValueError, match=message):
        config(tmp_path, **({"reward_variance_filtering": "top_p"} | settings))


def test_the_spread_that_counts_is_within_groups_whatever_the_scaling(model, tokenizer, tmp_path):
    """Field report 3: batch scaling must not make a flat group look like one that varies."""
    made = filtered(tmp_path, model, tokenizer, [0, 1], scale_rewards="batch")
    made.train()
    assert made.last_selection.kept.tolist() == [1]
    assert made.outputs[0]["advantages"][:4].tolist() == [0.0] * 4


def test_a_row_without_a_reward_is_never_trained_on(model, tokenizer, tmp_path):
    """Field report 9: neither by its advantage nor by KL or entropy; the others' are of the three known rewards."""
    made = trainer(
        tmp_path, model, tokenizer, spreads([0, 0]), kind=Recording,
        reward_funcs=lambda completions, **kwargs: [1.0, None, 1.0, 0.0, 2.0, 2.0, None, None],
        settings={"reward_variance_filtering": "top_p", "shuffle_dataset": False, "beta": 0.1, "max_steps": 1,
                  "scale_rewards": "none"},
    )  # fmt: skip
    made.train()
    assert [sorted(rows) for rows in made.last_update_rows] == [[0, 2, 3]]
    expected = torch.tensor([1 / 3, 0, 1 / 3, -2 / 3, 0, 0, 0, 0])
    torch.testing.assert_close(made.outputs[0]["advantages"], expected)
    assert logs(made, "filter/reward_before") == pytest.approx([1.2])
    assert logs(made, "filter/reward_after") == pytest.approx([2 / 3])


def test_constant_rewards_cut_answers_and_kl_stay_finite(model, tokenizer, tmp_path):
    """Field report 24."""

    def cut(completions, **kwargs):
        return [-1.0] * len(completions)

    for strategy in (None, "top_p"):
        made = trainer(
            tmp_path, model, tokenizer, spreads([0, 0]), reward_funcs=cut,
            settings={"beta": 0.1, "max_completion_length": 3, "max_steps": 5, "reward_variance_filtering": strategy,
                      "reward_variance_filtering_max_empty_steps": 0, "mask_truncated_completions": True},
        )  # fmt: skip
        made.train()
        assert all(torch.isfinite(p).all() for p in made.model.parameters())
        assert all(abs(value) < 1e3 for value in logs(made, "loss") + logs(made, "grad_norm"))


def test_a_loss_that_is_not_finite_stops_before_the_weights_are_lost(model, tokenizer, tmp_path):
    made = filtered(tmp_path, model, tokenizer, [0, 1], learning_rate=1e-3)
    keep = made._keep

    def spoil(batches):
        kept = keep(batches)
        kept[-1]["advantages"] = kept[-1]["advantages"] * float("nan")
        return kept

    made._keep = spoil
    before = parameters(made.model)
    with pytest.raises(FloatingPointError, match="The loss is nan"):
        made.train()
    assert_same(before, parameters(made.model))


def test_what_does_not_go_together_is_refused(model, tokenizer, tmp_path):
    with pytest.raises(ValueError, match="'success' needs environments"):
        filtered(tmp_path, model, tokenizer, [1, 2], reward_variance_filtering_reward="success")


def test_rewards_that_are_all_missing(model, tokenizer, tmp_path):
    made = filtered(tmp_path, model, tokenizer, [float("nan")] * 2)
    with pytest.raises(ValueError, match="None of the 8 rollouts has a reward"):
        made.train()


def test_off_by_default(tmp_path):
    assert config(tmp_path).reward_variance_filtering is None
