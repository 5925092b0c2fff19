"""Channels planted by hand: models whose next-token table is known, and with it the mutual information."""

import math

import pytest
import torch
from transformers import PretrainedConfig, PreTrainedModel
from transformers.modeling_outputs import CausalLMOutput

from ragen_trl.diagnostics import Regime, classify_regime, cross_log_probs, mutual_information_metrics


KEYS, WORDS = 8, 40  # tokens 0-7 are keys of prompts, 8-47 are words of reasonings


class Planted(PreTrainedModel):
    """Every token after a prompt is a word drawn by a table, given the key that the prompt ends with."""

    config_class = PretrainedConfig

    def __init__(self, table):
        super().__init__(PretrainedConfig(vocab_size=KEYS + WORDS))
        self.table = torch.nn.Parameter(table.log())  # (KEYS, WORDS)

    def forward(self, input_ids, attention_mask=None, **kwargs):
        is_key = input_ids < KEYS
        place = torch.where(is_key, torch.arange(input_ids.shape[1]), -1).cummax(dim=1).values
        key = input_ids.gather(1, place.clamp(min=0)).clamp(max=KEYS - 1)
        keys = torch.full((*input_ids.shape, KEYS), -30.0)
        return CausalLMOutput(logits=torch.cat([keys, self.table[key]], dim=-1))


def healthy():
    """Five words for each key, of its own."""
    table = torch.full((KEYS, WORDS), 1e-9)
    for key in range(KEYS):
        table[key, 5 * key : 5 * key + 5] = 0.2
    return table


def collapsed():
    """The same five words whatever the key."""
    table = torch.full((KEYS, WORDS), 1e-9)
    table[:, :5] = 0.2
    return table


def noisy(share):
    """A word of the key's own with a probability, else one of eight that all have."""
    table = torch.full((KEYS, WORDS), 1e-12)
    table[:, KEYS : 2 * KEYS] = (1 - share) / KEYS
    table[range(KEYS), range(KEYS)] = share
    return table


def measured(table, length, per_key, **kwargs):
    model = Planted(table).double()
    generator = torch.Generator().manual_seed(0)
    keys = torch.arange(KEYS).repeat_interleave(per_key)
    words = torch.multinomial(table[keys], length, replacement=True, generator=generator) + KEYS
    scores = cross_log_probs(model, [[9, key] for key in range(KEYS)], words.tolist())
    return mutual_information_metrics(scores, torch.full((len(keys),), length), keys, **kwargs)


@pytest.mark.parametrize("share", [0.3, 0.6, 0.9])
def test_the_estimate_is_the_known_information(share):
    """One word: I(X;Z) = share * ln K, as only a word of one's own tells the key."""
    exact = share * math.log(KEYS)
    found = measured(noisy(share), 1, per_key=5000)
    assert found["mi_seq_estimate"] == pytest.approx(exact, rel=0.01)
    assert found["mi_estimate"] == pytest.approx(exact, rel=0.01)
    conditional = -(share * math.log(share) + (1 - share) * math.log((1 - share) / KEYS))
    assert found["conditional_entropy_est"] == pytest.approx(conditional, rel=0.01)
    assert found["reasoning_entropy_est"] == pytest.approx(
        found["mi_estimate"] + found["conditional_entropy_est"], abs=1e-5
    )
    assert found["mi_seq_estimate"] <= math.log(KEYS) + 1e-4


def test_health_and_collapse_of_the_same_entropy_are_told_apart():
    good, bad = (measured(table, 12, per_key=16) for table in (healthy(), collapsed()))
    assert good["conditional_entropy_est"] == pytest.approx(bad["conditional_entropy_est"], rel=0.05)
    assert good["conditional_entropy_est"] == pytest.approx(math.log(5), rel=0.05)
    assert good["retrieval_accuracy"] == 1.0 and good["mi_seq_estimate"] == pytest.approx(math.log(KEYS), abs=1e-4)
    assert bad["retrieval_accuracy"] == pytest.approx(bad["retrieval_chance_level"]) == pytest.approx(1 / KEYS)
    assert bad["mi_seq_estimate"] == pytest.approx(0.0, abs=1e-6)
    baseline = {
        "baseline_entropy": good["conditional_entropy_est"],
        "baseline_mi": good["mi_seq_estimate"],
    }
    for found, expected in ((good, Regime.DIVERSE_REASONING), (bad, Regime.TEMPLATE_COLLAPSE)):
        regime = classify_regime(
            found["conditional_entropy_est"], found["mi_seq_estimate"], retrieval=found["retrieval_accuracy"],
            chance=found["retrieval_chance_level"], **baseline,
        )  # fmt: skip
        assert regime == expected
