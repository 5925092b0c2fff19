"""PPO trainers for the tests, and their first gradient computed from the episodes alone, one token at a time."""

from __future__ import annotations

import copy
import math
from dataclasses import dataclass
from typing import Any

import torch
from filter_kit import Gradients
from kit import RecordingMixin, config, trainer

from ragen_trl import RagenPPOConfig, RagenPPOTrainer, env_dataset


class RecordingPPO(RecordingMixin, RagenPPOTrainer):
    """Keeps what it saw."""


def noisy(model: Any, seed: int = 1, size: float = 0.05) -> Any:
    """A copy that is a little different."""
    model = copy.deepcopy(model)
    noise = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += size * torch.randn(parameter.shape, generator=noise)
    return model


def ppo(folder: Any, model: Any, tokenizer: Any, dataset: Any = None, *, opinion: float = 0.3, **kwargs: Any) -> Any:
    """
    A trainer on episodes of two turns that keeps its gradients and stays where it is. Its critic has an `opinion`, as
    with a head of zero there would be nothing to see; `kwargs` go to the trainer, `settings` among them to the config.
    """
    settings = {"learning_rate": 0.0, "max_steps": 1, "max_grad_norm": 0.0, "kl_coef": 0.0, "max_turns": 2,
                "temperature": 1.0, "num_ppo_epochs": 1} | kwargs.pop("settings", {})  # fmt: skip
    data = env_dataset("helpers:Awkward-v0", 8) if dataset is None else dataset
    made = trainer(
        folder, model, tokenizer, data, kind=kwargs.pop("kind", RecordingPPO),
        args=config(folder, RagenPPOConfig, **settings), callbacks=[Gradients(), *kwargs.pop("callbacks", [])],
        **kwargs,
    )  # fmt: skip
    if opinion:
        with torch.no_grad():
            made.critic.score.weight.normal_(0, opinion, generator=torch.Generator().manual_seed(5))
    made.gradients = next(c for c in made.callback_handler.callbacks if isinstance(c, Gradients)).steps
    return made


@dataclass
class Episode:
    """What the gradient follows from."""

    prompt: list[int]
    completion: list[int]
    mask: list[int]
    turns: list[int]  # of each token of the completion
    turn_rewards: list[float]


def episodes(trajectories: Any) -> list[Episode]:
    """Plain facts of episodes that did not fail."""
    found = []
    for t in trajectories:
        turns: list[int] = []
        for i, turn in enumerate(t.turns):
            turns += [i] * (len(turn.token_ids) + (len(turn.context_ids) if i else 0))
        turns += [turns[-1]] * (len(t.completion_ids) - len(turns))
        rewards = [turn.reward + turn.format_penalty for turn in t.turns]
        if not t.failed:
            found.append(Episode(t.prompt_ids, t.completion_ids, t.env_mask, turns, rewards))
    return found


def log_probs(model: Any, episode: Episode, temperature: float) -> tuple[torch.Tensor, torch.Tensor]:
    """Of each token of the completion, and the entropy before it; of one row without padding."""
    logits = model(torch.tensor([episode.prompt + episode.completion])).logits[0] / temperature
    logits = logits[len(episode.prompt) - 1 : -1].log_softmax(-1)
    own = logits.gather(1, torch.tensor(episode.completion).unsqueeze(1)).squeeze(1)
    return own, -(logits.exp() * logits).sum(-1)


def critic_values(critic: Any, episode: Episode) -> torch.Tensor:
    hidden = critic.model(torch.tensor([episode.prompt + episode.completion])).last_hidden_state[0]
    return (hidden @ critic.score.weight[0])[len(episode.prompt) - 1 : -1]


def gae_of(rewards: list[float], values: list[float], gamma: float, lam: float) -> list[float]:
    """A double sum, as the definition has it."""
    deltas = [r + gamma * v_next - v for r, v, v_next in zip(rewards, values, [*values[1:], 0.0], strict=True)]
    return [sum((gamma * lam) ** (k - t) * deltas[k] for k in range(t, len(deltas))) for t in range(len(deltas))]


def kl_terms(difference: Any, estimator: str) -> Any:
    return {
        "k1": difference,
        "k2": difference * difference / 2,
        "k3": (-difference).exp() - 1 + difference,
    }[estimator]


def advantages_of(episode: Episode, values: list[float], kl: list[float], s: Any) -> tuple[list[float], list[float]]:
    """Advantages and returns of the sampled tokens, in their order."""
    own = [i for i, m in enumerate(episode.mask) if m]
    last = {turn: max(i for i in own if episode.turns[i] == turn) for turn in {episode.turns[i] for i in own}}
    rewards = dict.fromkeys(own, 0.0)
    if s.reward_placement == "turn":
        for turn, i in last.items():
            rewards[i] += episode.turn_rewards[turn]
    else:
        rewards[own[-1]] += sum(episode.turn_rewards)
    for i in own:
        rewards[i] -= kl[i]
    value = [values[i] for i in own]
    if s.advantage_estimator == "gae":
        advantages = gae_of([rewards[i] for i in own], value, s.gamma, s.lam)
    else:
        numbers = sorted(last)
        turn_rewards = [sum(rewards[i] for i in own if episode.turns[i] == n) for n in numbers]
        turn_values = [values[last[n]] for n in numbers]
        high = gae_of(turn_rewards, turn_values, s.turn_gamma, s.lam)
        advantages = []
        for n, advantage, turn_value in zip(numbers, high, turn_values, strict=True):
            inside = [values[i] for i in own if episode.turns[i] == n]
            advantages += gae_of([0.0] * (len(inside) - 1) + [advantage + turn_value], inside, s.gamma, s.lam)
    return advantages, [a + v for a, v in zip(advantages, value, strict=True)]


def first_gradient(
    made: Any, played: list[Episode], policy: Any, critic: Any, reference: Any = None
) -> dict[str, Any]:
    """Gradient of the first optimizer step over all episodes, by the names that the trainer gives its parameters."""
    s = made.args
    policy.zero_grad(), critic.zero_grad()
    facts = []
    for e in played:
        logps, entropies = log_probs(policy, e, s.temperature)
        values = critic_values(critic, e)
        with torch.no_grad():
            ref = log_probs(reference, e, s.temperature)[0] if reference is not None else logps.detach()
        kl = kl_terms(logps - ref, s.kl_estimator) * s.kl_coef
        in_reward = (kl.detach() if s.kl_penalty == "reward" else 0 * kl).tolist()
        facts.append((e, logps, entropies, values, kl, *advantages_of(e, values.tolist(), in_reward, s)))
    everything = [a for *_, advantages, _ in facts for a in advantages]
    mean = sum(everything) / len(everything)
    deviation = math.sqrt(sum((a - mean) ** 2 for a in everything) / (len(everything) - 1) + 1e-8)
    total, count, longest = 0.0, len(everything), s.max_completion_length
    for e, logps, entropies, values, kl, advantages, returns in facts:
        own = [i for i, m in enumerate(e.mask) if m]
        weight = {"dapo": 1 / count, "bnpo": 1 / count, "grpo": 1 / len(own) / len(played),
                  "dr_grpo": 1 / len(played) / longest}[s.loss_type]  # fmt: skip
        for i, advantage, target in zip(own, advantages, returns, strict=True):
            scaled = (advantage - mean) / deviation if s.whiten_advantages else advantage
            # On-policy the ratio is one, so that nothing is clipped and its gradient is that of the log-probability.
            total = total - weight * scaled * logps[i] + weight * s.vf_coef * 0.5 * (values[i] - target) ** 2
            total = total - s.entropy_coef * entropies[i] / count
            if s.kl_penalty == "loss":
                total = total + weight * kl[i]
    total.backward()
    found = {name: p.grad.clone() for name, p in policy.named_parameters() if p.grad is not None}
    return found | {f"critic.{name}": p.grad.clone() for name, p in critic.named_parameters() if p.grad is not None}
