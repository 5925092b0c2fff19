"""Groups whose members all earned the same teach nothing, to the last bit."""

import pytest
import torch
from kit import Recording, assert_same, logs, moved, parameters, trainer

from ragen_trl import env_dataset
from ragen_trl.filtering import flat_groups
from ragen_trl.rollout.generation import PolicyGenerator


def played_by(tokenizer, policy, model, folder, reward_funcs=None, **settings):
    made = trainer(
        folder, model, tokenizer, env_dataset("helpers:Counter-v0", 8), kind=Recording, reward_funcs=reward_funcs,
        settings={"per_device_train_batch_size": 16, "learning_rate": 1e-2, "max_steps": 1} | settings,
    )  # fmt: skip
    made._engine._generator = PolicyGenerator(tokenizer, policy)
    return made


def constant(completions, **kwargs):
    return [0.7] * len(completions)


@pytest.mark.parametrize("group", [4, 8, 16])
@pytest.mark.parametrize("turns", [1, 2, 3, 4])
def test_equal_returns_leave_the_weights_alone(model, tokenizer, tmp_path, group, turns):
    made = played_by(tokenizer, lambda t: "nonsense", model, tmp_path, num_generations=group, max_turns=turns)
    before = parameters(made.model)
    made.train()
    assert {round(t.reward, 6) for t in made.batches[0]} == {round(-0.1 * turns, 6)}
    assert_same(before, parameters(made.model))
    assert logs(made, "frac_reward_zero_std") == [1.0] and logs(made, "grad_norm") == [0.0]


@pytest.mark.parametrize("scale_rewards", ["group", "batch", "none"])
def test_with_weighted_reward_functions_too(model, tokenizer, tmp_path, scale_rewards):
    made = played_by(
        tokenizer, lambda t: "nonsense", model, tmp_path, constant, num_generations=8, max_turns=3,
        reward_weights=[1.1], scale_rewards=scale_rewards,
    )  # fmt: skip
    before = parameters(made.model)
    made.train()
    assert_same(before, parameters(made.model))
    assert logs(made, "frac_reward_zero_std") == [1.0]


def test_parts_that_cancel_are_equal_totals(model, tokenizer, tmp_path):
    """Members differ in their parts, and the sums by what rounding leaves of them."""

    def against(trajectory, **kwargs):
        return [-t.reward / 1.1 for t in trajectory]

    made = played_by(
        tokenizer, lambda t: "win</answer>" if t.spec.noise_seed[1] % 2 else "nonsense", model, tmp_path, against,
        num_generations=8, max_turns=3, reward_weights=[1.1],
    )  # fmt: skip
    before = parameters(made.model)
    made.train()
    assert len({t.reward for t in made.batches[0]}) == 2
    assert_same(before, parameters(made.model))
    assert logs(made, "frac_reward_zero_std") == [1.0]


def test_groups_that_differ_keep_trls_advantages(model, tokenizer, tmp_path):
    """Group 0 differs, group 1 is flat: only members of the first move the weights."""

    def policy(trajectory):
        lucky = trajectory.spec.group == 0 and trajectory.spec.noise_seed[1] == 2
        return "win</answer>" if lucky else "nonsense"

    made = played_by(tokenizer, policy, model, tmp_path, num_generations=8, max_turns=3)
    before = parameters(made.model)
    made.train()
    (output,) = made.outputs
    rewards = torch.tensor([t.reward for t in made.batches[0]])
    expected = (rewards[:8] - rewards[:8].mean()) / (rewards[:8].std() + 1e-4)
    torch.testing.assert_close(output["advantages"][:8], expected)
    assert (output["advantages"][8:] == 0).all()
    assert logs(made, "frac_reward_zero_std") == [0.5]
    assert moved(before, parameters(made.model))


@pytest.mark.parametrize(
    ("rewards", "expected"),
    [
        ([[-0.3] * 8, [0.0] * 8, [-0.3] * 7 + [-0.2], [1e18] * 8], [True, True, False, True]),
        ([[1e-12, 2e-12], [1e18, 1e18 * (1 + 1e-5)], [-1.0, 1.0], [0.1 + 0.2, 0.3]], [False, False, False, True]),
        ([[torch.nan] * 3, [torch.nan, torch.nan, 1.0], [torch.nan, 1.0, 1.0], [torch.nan, 1.0, 2.0]],
         [True, True, True, False]),
    ],
)  # fmt: skip
def test_what_counts_as_flat(rewards, expected):
    assert flat_groups(torch.tensor(rewards)).tolist() == expected
    assert flat_groups(-torch.tensor(rewards, dtype=torch.float64)).tolist() == expected
