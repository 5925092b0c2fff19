"""Regimes of a run and the rules that end it: planted runs, thresholds to the number, and checkpoints."""

import json
import math

import pytest

from ragen_trl.diagnostics.regimes import CollapseRules, Regime, RegimeTracker, classify_regime


# entropy, MI, retrieval, chance of a healthy start, as the embedded agent has it on FrozenLake
START = {"entropy": 0.67, "mi": 3.06, "retrieval": 0.80, "chance": 1 / 32}


def started(**settings):
    """A tracker that has seen ten healthy measurements."""
    tracker = RegimeTracker(**settings)
    for _ in range(10):
        assert tracker.update(**START) is Regime.MEASURING
        assert not tracker.changed
    return tracker


def rebuilt(thing, fresh):
    """What is left of it after a checkpoint."""
    fresh.load_state_dict(json.loads(json.dumps(thing.state_dict())))
    return fresh


# Regimes


@pytest.mark.parametrize(
    ("entropy", "mi", "retrieval", "regime"),
    [
        (0.70, 3.00, 0.82, "diverse reasoning"),
        (1.42, 3.00, 0.82, "diverse reasoning"),
        (0.20, 3.20, 0.95, "compressed reasoning"),
        (0.67, 0.10, 1 / 32, "template collapse"),
        (1.42, 1.10, 0.27, "template collapse"),  # the embedded agent with an entropy bonus of 0.06, step 80
        (0.05, 0.00, 1 / 32, "low-entropy collapse"),
    ],
)
def test_four_regimes_relative_to_the_start(entropy, mi, retrieval, regime):
    tracker = started()
    for _ in range(3):
        found = tracker.update(entropy, mi, retrieval=retrieval, chance=1 / 32)
    assert found == tracker.regime == regime
    assert found.collapsed == regime.endswith("collapse")


def test_planted_collapse_and_planted_health_with_the_same_entropy():
    # Matrices as in test_mutual_information; here their metrics: same entropy, retrieval at chance and at one.
    collapsed, healthy = started(), started()
    for _ in range(3):
        collapsed.update(0.67, 0.0, retrieval=0.125, chance=0.125)
        healthy.update(0.67, math.log(8), retrieval=1.0, chance=0.125)
    assert collapsed.regime is Regime.TEMPLATE_COLLAPSE
    assert healthy.regime is Regime.DIVERSE_REASONING


def test_change_is_told_once_and_one_odd_batch_is_none():
    tracker = started()
    assert tracker.update(**START) is Regime.DIVERSE_REASONING and tracker.changed
    tracker.update(**(START | {"mi": 1.0}))  # mean of three is 2.4
    assert tracker.regime is Regime.DIVERSE_REASONING and not tracker.changed
    tracker.update(**(START | {"mi": 0.2}))  # 1.42, under half of 3.06
    assert tracker.regime is Regime.TEMPLATE_COLLAPSE and tracker.changed
    tracker.update(**(START | {"mi": 0.2}))
    assert tracker.regime is Regime.TEMPLATE_COLLAPSE and not tracker.changed


def test_threshold_to_the_number():
    settings = {"baseline_entropy": 1.0, "baseline_mi": 2.0}
    assert classify_regime(1.0, 1.0001, **settings) is Regime.DIVERSE_REASONING
    assert classify_regime(1.0, 1.0, **settings) is Regime.TEMPLATE_COLLAPSE
    assert classify_regime(0.5, 1.0001, **settings) is Regime.COMPRESSED_REASONING
    assert classify_regime(0.5, 1.0, **settings, mi_share=0.4) is Regime.COMPRESSED_REASONING
    # Retrieval of 0.2 with chance 0.1: 11 % of the way to 1.
    assert classify_regime(1.0, 1.5, **settings, retrieval=0.2, chance=0.1) is Regime.DIVERSE_REASONING
    assert classify_regime(1.0, 1.5, **settings, retrieval=0.18, chance=0.1) is Regime.TEMPLATE_COLLAPSE


def test_checkpoint_without_a_run():
    assert classify_regime(0.7, 2.0, retrieval=0.9, chance=0.1) is Regime.DIVERSE_REASONING
    assert classify_regime(0.7, 0.1, retrieval=0.11, chance=0.1) is Regime.TEMPLATE_COLLAPSE
    assert classify_regime(0.01, 2.0, retrieval=0.9, chance=0.1) is Regime.COMPRESSED_REASONING
    with pytest.raises(ValueError, match="baseline_mi"):
        classify_regime(0.7, 2.0)


def test_run_that_starts_collapsed_is_named_so():
    tracker = RegimeTracker()
    for _ in range(11):
        regime = tracker.update(0.7, 0.01, retrieval=0.13, chance=0.125)
    assert regime is Regime.TEMPLATE_COLLAPSE
    nothing = RegimeTracker(baseline_steps=1)
    nothing.update(0.7, -0.01)
    assert nothing.update(0.7, -0.01) is Regime.TEMPLATE_COLLAPSE  # no retrieval, no information


def test_rise_of_mi_while_the_format_is_lost_is_not_read_as_health():
    # Field report 174: a reproduction in which MI rose to 2.35 and fell to 0.1 while valid thinking fell to nothing.
    tracker, texts = RegimeTracker(baseline_steps=3, window=1), []
    for mi, valid, invalid in [(1.5, 1.0, 0.2)] * 3 + [(2.35, 0.4, 0.8), (2.0, 0.2, 0.97), (0.06, 0.01, 1.0)]:
        tracker.update(0.6, mi, valid_thinking_rate=valid, invalid_action_rate=invalid)
        texts.append(tracker.evidence())
    assert "most turns hold no reasoning" not in texts[2]
    assert "MI 2.35 (157% of 1.5 at the start)" in texts[3]
    assert "turns with valid thinking 40%, invalid actions 80%" in texts[3]
    assert "most turns hold no reasoning" in texts[3]
    assert tracker.regime is Regime.TEMPLATE_COLLAPSE


def test_evidence_names_everything():
    tracker = started()
    assert RegimeTracker().evidence() == "nothing measured yet"
    for _ in range(3):
        tracker.update(0.70, 0.31, retrieval=0.05, chance=1 / 32, valid_thinking_rate=0.98, invalid_action_rate=0.03)
    assert tracker.evidence() == (
        "MI 0.31 (10% of 3.06 at the start), retrieval 0.05 where guessing has 0.0312, entropy 0.7 nats per "
        "token (104% of 0.67 at the start), turns with valid thinking 98%, invalid actions 3% (last 3 measurements)"
    )


def test_regime_survives_a_checkpoint_at_any_step():
    series = [(0.7 + 0.01 * i, 3.0 - 0.2 * i, 0.9 - 0.06 * i) for i in range(15)]
    whole, resumed = RegimeTracker(baseline_steps=4), RegimeTracker(baseline_steps=4)
    for entropy, mi, retrieval in series:
        resumed = rebuilt(resumed, RegimeTracker(baseline_steps=4))
        for tracker in (whole, resumed):
            tracker.update(entropy, mi, retrieval=retrieval, chance=0.1)
        assert (resumed.regime, resumed.changed, resumed.evidence()) == (whole.regime, whole.changed, whole.evidence())
    assert whole.regime is Regime.TEMPLATE_COLLAPSE


def test_names_and_codes_are_fixed():
    # In charts and checkpoints.
    assert {str(regime): regime.code for regime in Regime} == {
        "measuring baseline": 0,
        "diverse reasoning": 1,
        "compressed reasoning": 2,
        "template collapse": 3,
        "low-entropy collapse": 4,
    }


@pytest.mark.parametrize(
    ("settings", "update", "words"),
    [
        ({"baseline_steps": 0}, {}, "baseline_steps"),
        ({"window": 1.5}, {}, "window"),
        ({"mi_share": 1.0}, {}, "mi_share"),
        ({}, {"mi": math.nan}, "mi"),
        ({}, {"entropy": math.inf}, "entropy"),
        ({}, {"retrieval": 0.5}, "chance"),
    ],
)
def test_bad_input_is_refused(settings, update, words):
    with pytest.raises(ValueError, match=words):
        RegimeTracker(**settings).update(**({"entropy": 1.0, "mi": 1.0} | update))


# Rules that end a run


@pytest.mark.parametrize("window", [5, 10])  # the paper's and its code's
def test_variance_rule(window):
    rules = CollapseRules(variance_window=window)
    for _ in range(10):
        assert not rules.update_step(reward_spread=2.0)
    for spread in [0.19] * (window - 1) + [0.2] + [0.19] * (window - 1):  # 0.2 is not below 10 % of 2.0
        assert not rules.update_step(reward_spread=spread)
    broken = rules.update_step(reward_spread=0.19)
    assert list(broken) == ["reward_variance_collapse"]
    assert f"0.19, below 10% of 2 at the start, {window} times in a row" in broken["reward_variance_collapse"]
    assert rules.update_step(reward_spread=0.0)  # it holds on
    assert not rules.update_step()  # nothing kept: no step, no word
    assert not rules.update_step(reward_spread=1.0)


def test_paper_window_is_the_default():
    rules = CollapseRules()
    steps = [bool(rules.update_step(reward_spread=spread)) for spread in [1.0] * 10 + [0.05] * 6]
    assert steps == [False] * 14 + [True] * 2


def test_baseline_steps_are_in_no_window_and_a_flat_baseline_has_no_share():
    rules = CollapseRules(baseline_steps=10)
    assert not any(rules.update_step(reward_spread=spread) for spread in [100.0] * 2 + [0.0] * 12)
    assert rules.update_step(reward_spread=0.0)
    flat = CollapseRules(mi_share=0.5, baseline_steps=2, mi_window=1, variance_window=1)
    assert not any(flat.update_step(reward_spread=0.0, mi=mi) for mi in [-0.1] * 20)


def test_success_rule_counts_each_environment():
    rules = CollapseRules()
    for step in range(4):
        assert not rules.update_validation({"Sokoban": 0.0, "FrozenLake": 0.009 if step != 2 else 0.01})
    broken = rules.update_validation({"Sokoban": 0.0, "FrozenLake": 0.0})
    assert list(broken) == ["low_validation_success"]
    assert "Sokoban 0.00% (5)" in broken["low_validation_success"]
    assert "FrozenLake" not in broken["low_validation_success"]
    assert not rules.update_validation({"Sokoban": 0.02, "FrozenLake": 0.0})


def test_mi_rule_is_off_until_asked_for():
    series = [3.0] * 10 + [0.5] * 12
    off = CollapseRules()
    assert not any(off.update_step(mi=mi) for mi in series)
    rules = CollapseRules(mi_share=0.2)
    steps = [list(rules.update_step(mi=mi)) for mi in series]
    assert steps == [[]] * 19 + [["low_mutual_information"]] * 3


def test_rules_that_are_off():
    rules = CollapseRules(variance_share=None, success_threshold=None)
    assert not any(rules.update_step(reward_spread=spread) for spread in [1.0] * 10 + [0.0] * 20)
    assert not any(rules.update_validation({"Sokoban": 0.0}) for _ in range(20))


def test_rules_survive_a_checkpoint_at_any_step():
    settings = {"mi_share": 0.3, "baseline_steps": 3, "mi_window": 4, "success_window": 3}
    whole, resumed = CollapseRules(**settings), CollapseRules(**settings)
    seen = set()
    for step in range(12):
        resumed = rebuilt(resumed, CollapseRules(**settings))
        results = [
            rules.update_step(reward_spread=2.0**-step, mi=3.0 * 0.7**step)
            | rules.update_validation({"a": 0.1 - step})
            for rules in (whole, resumed)
        ]
        assert results[0] == results[1]
        seen |= results[0].keys()
    assert seen == {"reward_variance_collapse", "low_mutual_information", "low_validation_success"}


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"variance_share": 0.0}, "variance_share"),
        ({"success_threshold": 1}, "success_threshold"),
        ({"mi_share": -0.1}, "mi_share"),
        ({"success_window": 0}, "success_window"),
    ],
)
def test_bad_rules_are_refused(settings, words):
    with pytest.raises(ValueError, match=words):
        CollapseRules(**settings)


def test_rules_take_numbers_only():
    with pytest.raises(ValueError, match="reward_spread"):
        CollapseRules().update_step(reward_spread=math.nan)
    with pytest.raises(ValueError, match="Sokoban"):
        CollapseRules().update_validation({"Sokoban": math.nan})
