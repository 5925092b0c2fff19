"""What the filter chooses by, in a trainer: rewards, settings, metrics, and TRL's features beside it."""

import copy
import functools

import pytest
import torch
from filter_kit import Plain, alternating, filtered, spreads
from kit import Recording, assert_same, config, logs, moved, parameters, trainer
from test_plain_trl import QUESTIONS, Board, length_reward, multiply, tool_tokenizer  # noqa: F401
from trl import GRPOConfig, GRPOTrainer

from ragen_trl import RagenGRPOConfig, env_dataset
from ragen_trl.rollout.generation import PolicyGenerator


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


def test_what_does_not_go_together_is_refused(model, tokenizer, tmp_path):
    with pytest.raises(ValueError, match="'success' needs environments"):
        filtered(tmp_path, model, tokenizer, [1, 2], reward_variance_filtering_reward="success")


def test_rewards_that_are_all_missing(model, tokenizer, tmp_path):
    made = filtered(tmp_path, model, tokenizer, [float("nan")] * 2)
    with pytest.raises(ValueError, match="None of the 8 rollouts has a reward"):
        made.train()


def test_off_by_default(tmp_path):
    assert config(tmp_path).reward_variance_filtering is None
