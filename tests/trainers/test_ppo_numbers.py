"""PPO's first update against the same computed from the episodes alone, one row and one token at a time."""

import copy

import pytest
import torch


pytest.importorskip("trl.experimental.ppo", reason="this TRL has no PPO")

from filter_kit import alternating, difference, largest, spreads  # noqa: E402
from kit import logs, moved, parameters  # noqa: E402
from ppo_kit import Episode, episodes, first_gradient, noisy, ppo  # noqa: E402

from ragen_trl import env_dataset  # noqa: E402
from ragen_trl.trainers.actor_critic import kl_estimate, value_losses  # noqa: E402


KL = {"kl_coef": 0.3}
CASES = {
    "default": {},
    "discounted": {"gamma": 0.9, "lam": 0.7},
    "not whitened": {"whiten_advantages": False},
    "at turns": {"reward_placement": "turn", "gamma": 0.95},
    "turn level": {"advantage_estimator": "turn_level_gae", "gamma": 0.98, "lam": 0.9, "turn_gamma": 0.8},
    "turn level, at turns": {"advantage_estimator": "turn_level_gae", "reward_placement": "turn"},
    "k1 in reward": KL,
    "k3 in reward": KL | {"kl_estimator": "k3"},
    "k1 in loss": KL | {"kl_penalty": "loss"},
    "k2 in loss": KL | {"kl_penalty": "loss", "kl_estimator": "k2"},
    "k3 in loss": KL | {"kl_penalty": "loss", "kl_estimator": "k3", "loss_type": "grpo"},
    "mean over rollouts": {"loss_type": "grpo", "vf_coef": 1.0},
    "by a constant": {"loss_type": "dr_grpo"},
    "tokens of a micro-batch": {"loss_type": "bnpo"},
    "entropy": {"entropy_coef": 0.2},
    "temperature": {"temperature": 0.6},
}


@pytest.mark.parametrize("name", CASES)
def test_first_gradient(name, model, tokenizer, tmp_path):
    settings = CASES[name]
    reference = noisy(model) if "kl_coef" in settings else None
    made = ppo(tmp_path, model, tokenizer, settings=settings, ref_model=copy.deepcopy(reference))
    policy, critic = copy.deepcopy(model), copy.deepcopy(made.critic)
    made.train()
    played = episodes(made.batches[0])
    assert len(played) == 8 and any(len(e.turn_rewards) == 2 for e in played)
    expected = first_gradient(made, played, policy, critic, reference)
    assert difference(made.gradients[0], expected) < 1e-5 * max(largest(expected), 1.0)
    critics = {n: g for n, g in expected.items() if n.startswith("critic.")}
    assert largest(critics) > 1e-4 and largest({n: g for n, g in expected.items() if n not in critics}) > 1e-4


@pytest.mark.parametrize(
    "sizes", [{"per_device_train_batch_size": 2, "gradient_accumulation_steps": 4}, {"per_device_train_batch_size": 8}]
)
@pytest.mark.parametrize("name", ["default", "mean over rollouts", "entropy"])
def test_micro_batches_make_no_difference(name, sizes, model, tokenizer, tmp_path):
    # The entropy bonus of TRL is a mean over a micro-batch, and so differs from that of all where lengths do.
    made = ppo(tmp_path, model, tokenizer, settings=CASES[name] | sizes)
    policy, critic = copy.deepcopy(model), copy.deepcopy(made.critic)
    made.train()
    expected = first_gradient(made, episodes(made.batches[0]), policy, critic)
    assert difference(made.gradients[0], expected) < (2e-2 if name == "entropy" else 1e-5)


def test_kept_groups_alone_make_the_update(model, tokenizer, tmp_path):
    """Values, whitening and means are over the kept groups, whatever else was in the batch."""
    settings = {"reward_variance_filtering": "top_k", "reward_variance_top_k": 1, "num_generations": 4,
                "per_device_train_batch_size": 2, "gradient_accumulation_steps": 4}  # fmt: skip
    made = ppo(tmp_path, model, tokenizer, settings=settings)
    policy, critic = copy.deepcopy(model), copy.deepcopy(made.critic)
    made.train()
    (kept,) = made.last_selection.kept.tolist()
    played = episodes(made.batches[0][4 * kept : 4 * kept + 4])
    expected = first_gradient(made, played, policy, critic)
    assert difference(made.gradients[0], expected) < 1e-5 * max(largest(expected), 1.0)


def test_loss_scaling_reaches_the_advantages(model, tokenizer, tmp_path):
    scaled = {"reward_variance_filtering": "top_k", "reward_variance_top_k": 1, "vf_coef": 0.0}
    gradients = []
    for scaling in ("none", "linear"):
        settings = scaled | {"reward_variance_filtering_loss_scaling": scaling}
        made = ppo(tmp_path, model, tokenizer, settings=settings)
        made.train()
        gradients.append(made.gradients[0])
    assert largest(gradients[0]) > 1e-3
    half = {name: None if g is None else g / 2 for name, g in gradients[0].items()}
    assert difference({n: g for n, g in half.items() if g is not None}, gradients[1]) < 1e-6


def test_nothing_kept_changes_nothing(model, tokenizer, tmp_path):
    settings = {"reward_variance_filtering": "top_p", "learning_rate": 0.1, "weight_decay": 0.5, "max_steps": 2}
    made = ppo(tmp_path, model, tokenizer, spreads([0.0, 0.0]), settings=settings, reward_funcs=alternating)
    before = parameters(made.model)
    made.train()
    assert not moved(before, parameters(made.model))
    assert not made.optimizer.state
    assert logs(made, "filter/empty_steps") == [1, 2]


def test_observations_have_no_gradient(model, tokenizer, tmp_path):
    """Neither of their log-probabilities nor of the values before them."""

    from ppo_kit import RecordingPPO

    class Watching(RecordingPPO):
        seen = []

        def _get_per_token_logps_and_entropies(self, *args, **kwargs):
            result = super()._get_per_token_logps_and_entropies(*args, **kwargs)
            if result[0].requires_grad:
                result[0].retain_grad()
                self._values[-1].retain_grad()
                Watching.seen.append((result[0], self._values[-1]))
            return result

    made = ppo(tmp_path, model, tokenizer, settings={"kl_coef": 0.1, "kl_penalty": "loss"}, kind=Watching)
    made.train()
    (logps, values), batch = Watching.seen[0], made._buffered_inputs[0]
    mask = (batch["completion_mask"] * batch["tool_mask"]).bool()
    width = mask.shape[1]
    assert (~mask).any() and mask.any()
    assert not logps.grad[~mask].any() and logps.grad[mask].all()
    assert not values.grad[:, -width - 1 : -1][~mask].any()
    assert not values.grad[:, : -width - 1].any() and not values.grad[:, -1].any(), "values of no use have a target"


@pytest.mark.parametrize("fault", ["failed", "no reward"])
def test_rollouts_without_a_reward_are_not_trained_on(fault, model, tokenizer, tmp_path):
    def some(completions, **kwargs):
        return [None if i in (0, 5) else float(i) for i in range(len(completions))]

    if fault == "failed":
        data = env_dataset("helpers:Faulty-v0", 8, env_kwargs={"fault": "step", "members": [1]})
        made = ppo(tmp_path, model, tokenizer, data)
    else:
        made = ppo(tmp_path, model, tokenizer, spreads([1.0, 1.0]), reward_funcs=some)
    policy, critic = copy.deepcopy(model), copy.deepcopy(made.critic)
    made.train()
    if fault == "failed":
        played = episodes(made.batches[0])
        assert 0 < len(played) < 8
    else:
        played, output = [], made.outputs[0]
        for i in sorted({*range(8)} - {0, 5}):
            prompt = output["prompt_ids"][i][output["prompt_mask"][i].bool()].tolist()
            completion = output["completion_ids"][i][output["completion_mask"][i].bool()].tolist()
            played.append(Episode(prompt, completion, [1] * len(completion), [0] * len(completion), [float(i)]))
    expected = first_gradient(made, played, policy, critic)
    assert difference(made.gradients[0], expected) < 1e-5 * max(largest(expected), 1.0)


def test_value_loss_by_hand():
    values, old, returns = (
        torch.tensor([[1.0, 1.0, -2.0]]),
        torch.tensor([[0.0, 0.9, 0.0]]),
        torch.tensor([[0.0, 2, 3]]),
    )
    losses, clipped = value_losses(values, old, returns, 0.2)
    # Kept within 0.2 of the old: 0.2, 1.0, -0.2; the larger error counts.
    assert torch.allclose(losses, 0.5 * torch.tensor([[1.0, 1.0, 25.0]]))
    assert clipped.tolist() == [[0, 0, 0]]
    losses, clipped = value_losses(torch.tensor([2.0]), torch.tensor([0.0]), torch.tensor([3.0]), 0.2)
    assert torch.allclose(losses, torch.tensor([0.5 * 2.8**2])) and clipped.tolist() == [1]


def test_kl_estimators_by_hand():
    logps, ref = torch.tensor([-1.0, -2.0]), torch.tensor([-1.5, -1.0])
    assert torch.allclose(kl_estimate(logps, ref, "k1"), torch.tensor([0.5, -1.0]))
    assert torch.allclose(kl_estimate(logps, ref, "k2"), torch.tensor([0.125, 0.5]))
    assert torch.allclose(kl_estimate(logps, ref, "k3"), torch.tensor([0.106531, 0.718282]), atol=1e-6)
