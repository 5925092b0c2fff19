"""Filtered groups leave the update: gradients, and steps in which nothing is kept."""

import copy

import pytest
import torch
from datasets import Dataset
from filter_kit import alternating, difference, filtered, gradient_of, largest, members, spreads
from kit import Recording, assert_same, logs, moved, parameters, trainer
from peft import LoraConfig
from test_plain_trl import QUESTIONS, Board, length_reward, multiply, tool_tokenizer  # noqa: F401
from transformers import Qwen3MoeConfig, Qwen3MoeForCausalLM


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
