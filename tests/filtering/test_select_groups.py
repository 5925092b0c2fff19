"""Selection of groups: the paper's worked numbers, the golden vectors, and what must hold for any rewards."""

import json
import math
import time
import warnings
from pathlib import Path

import pytest
import torch

from ragen_trl.filtering import check_filter_settings, flat_groups, select_groups


NAN = math.nan
TOP_P = {"strategy": "top_p", "value": 0.9}
# Settings that keep something whatever the scale of the rewards.
SETTINGS = [
    TOP_P | {"eps": 0.0},
    {"strategy": "top_p", "value": 0.5, "eps": 0.0, "score": "std"},
    {"strategy": "top_k", "value": 3},
    {"strategy": "top_k", "value": 3, "keep": "smallest"},
    {"strategy": "top_k_fraction", "value": 0.4},
    {"strategy": "min_p", "value": 0.3},
    {"strategy": "min_p", "value": 0.3, "keep": "smallest"},
]


def kept(rewards, **settings):
    return select_groups(torch.as_tensor(rewards), **settings).kept.tolist()


def pairs(variances):
    """Groups of two with these sample variances: a and 0 have a^2 / 2."""
    return torch.tensor([[math.sqrt(2 * v), 0.0] for v in variances], dtype=torch.float64)


def random_rewards(groups=12, size=5):
    """Groups of different spread, two of them flat."""
    rewards = torch.randn(groups, size, dtype=torch.float64) * torch.rand(groups, 1, dtype=torch.float64)
    rewards[3], rewards[7] = 0.25, -0.1
    return rewards


# Golden vectors

GOLDEN = Path(__file__).resolve().parents[3] / "shared" / "golden" / "filter.json"
CASES = json.loads(GOLDEN.read_text())["cases"] if GOLDEN.is_file() else []
PARAMS = [pytest.param(case, id=case["id"]) for case in CASES] or [
    pytest.param(None, marks=pytest.mark.skip(reason=f"no {GOLDEN}"))
]
# Refused by us, where the reference takes the nearest value that makes sense. With that value the groups are the same.
REFUSED = {
    "'top_k' of 0": ["F043", "F045", "F115", "F116"],
    "'top_k' above the number of groups": [
        *("F038", "F042", "F046", "F047", "F108", "F109", "F113", "F114", "F174", "F182", "F183", "F185", "F187"),
    ],
    "'top_k_fraction' above 1": ["F025", "F031", "F103", "F104", "F161"],
    "'top_p' above 1": ["F195"],
}
NEAREST = {case: why for why, cases in REFUSED.items() for case in cases}
GROUPS_OF_ONE = ["F155", "F156"]


def golden_settings(config, num_groups):
    settings = {
        "strategy": {"top_k": "top_k_fraction", "top_k_abs": "top_k"}.get(config["strategy"], config["strategy"]),
        "value": config["value"],
        "score": {"reward_variance": "std", "reward": "mean", "reward_sum": "sum"}[config["metric"]],
        "mode": config["top_p_prob_mode"],
        "keep": config["filter_type"],
        "include_zero": config["include_zero"],
        "eps": config["selection_eps"],
    }
    least, most = (1, num_groups) if settings["strategy"] == "top_k" else (0, 1)
    return settings, settings | {"value": min(max(settings["value"], least), most)}


@pytest.mark.filterwarnings("ignore::UserWarning")  # empty selections, and linear top_p with negative scores
@pytest.mark.parametrize("case", PARAMS)
def test_golden(case):
    rewards, expected = torch.tensor(case["rewards"]), case["expected"]
    settings, nearest = golden_settings(case["config"], len(rewards))
    if case["id"] in GROUPS_OF_ONE:
        with pytest.raises(ValueError, match="A group of 1 has no spread"):
            select_groups(rewards, **settings)
        return
    if case["id"] in NEAREST:
        with pytest.raises(ValueError, match="`value` of strategy"):
            select_groups(rewards, **settings)
        settings = nearest
    result = select_groups(rewards, **settings)

    groups = expected["kept_groups"]
    if case["ambiguous"]:  # the reference's sort decides; ours takes the earliest of those that are equal
        tied = case["ambiguity"]
        groups = sorted(tied["must_keep"] + sorted(tied["tie_pool"])[: tied["tie_pool_keep"]])
    assert result.kept.tolist() == groups
    assert result.scores.tolist() == pytest.approx(expected["scores"], rel=1e-5, abs=1e-6)
    deviation = select_groups(rewards, strategy="top_p", value=1.0, score="std").scores
    assert deviation.tolist() == pytest.approx(expected["group_std"], rel=1e-5, abs=1e-6)

    theirs, ours = expected["metrics"], result.metrics
    assert ours["kept_groups"] == theirs["rollout/filter_kept_count"]
    assert ours["kept_share"] == pytest.approx(theirs["rollout/filter_kept_ratio"])
    assert ours["zero_share"] * len(rewards) == pytest.approx(theirs["rollout/filter_zero_count"])
    assert ours["reward_before"] == pytest.approx(theirs["rollout/in_group_mean"], rel=1e-5, abs=1e-6)
    if groups and groups == expected["kept_groups"]:
        assert ours["reward_after"] == pytest.approx(theirs["rollout/chosen_in_group_mean"], rel=1e-5, abs=1e-6)


@pytest.mark.skipif(not CASES, reason=f"no {GOLDEN}")
def test_golden_deviations_are_those_listed():
    refused = []
    for case in CASES:
        settings, _ = golden_settings(case["config"], len(case["rewards"]))
        size = {"num_groups": len(case["rewards"]), "group_size": len(case["rewards"][0])}
        try:
            check_filter_settings(**{k: v for k, v in settings.items() if k != "include_zero"}, **size)
        except ValueError:
            refused.append(case["id"])
    assert refused == sorted([*NEAREST, *GROUPS_OF_ONE])


# Worked numbers

MIXED = [s**2 for s in (5, 3, 1, 0.5, 0.2, 0, 0, 0)]


@pytest.mark.parametrize(
    ("settings", "groups"),
    [
        # Deviations: sum 9.7, to reach 8.72; 5, 8, 9.
        (TOP_P | {"score": "std"}, [0, 1, 2]),
        # Softmax of the deviations: 0.838, 0.113, ...
        (TOP_P | {"score": "std", "mode": "softmax"}, [0, 1]),
        # Variances: sum 35.29, to reach 31.75; 25, 34.
        (TOP_P, [0, 1]),
        ({"strategy": "top_k_fraction", "value": 0.25}, [0, 1]),
        ({"strategy": "top_k", "value": 3}, [0, 1, 2]),
        ({"strategy": "top_k", "value": 7}, [0, 1, 2, 3, 4]),  # only five vary
        ({"strategy": "min_p", "value": 0.1, "score": "std"}, [0, 1, 2, 3]),
        ({"strategy": "top_p", "value": 1.0}, [0, 1, 2, 3, 4]),
        ({"strategy": "top_p", "value": 1.0, "include_zero": True}, list(range(8))),
        # 0.2, 0.7, 1.7, 4.7, 9.7 of the 8.72 to reach.
        (TOP_P | {"score": "std", "keep": "smallest"}, [0, 1, 2, 3, 4]),
        ({"strategy": "top_k", "value": 2, "keep": "smallest"}, [3, 4]),
        ({"strategy": "top_k", "value": 2, "keep": "smallest", "include_zero": True}, [5, 6]),
    ],
)
def test_mixed_scales(settings, groups):
    assert kept(pairs(MIXED), **settings) == groups


@pytest.mark.parametrize(
    ("value", "linear", "softmax", "softmax_without_zero"),
    [(0.9, 4, 7, 4), (0.8, 4, 6, 4), (0.6, 3, 4, 3), (0.4, 2, 3, 2)],
)
def test_softmax_hardly_filters_zero_one_rewards(value, linear, softmax, softmax_without_zero):
    rewards = pairs([0.25] * 4 + [0.0] * 4)
    settings = {"strategy": "top_p", "value": value, "score": "std"}
    for include_zero, expected in ((True, softmax), (False, softmax_without_zero)):
        assert len(kept(rewards, **settings, include_zero=include_zero)) == linear
        assert len(kept(rewards, **settings, include_zero=include_zero, mode="softmax")) == expected


@pytest.mark.parametrize("eps", [0.01, 0.0])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(("value", "groups"), [(0.9, [0, 1, 2]), (1.0, [0, 1, 2, 3]), (0.5, [0, 1])])
def test_prefix_of_the_variance_mass(eps, dtype, value, groups):
    # Sum 1.0. Without eps, 0.9 is reached to the last bit or missed by one.
    rewards = pairs([0.30, 0.30, 0.30, 0.10, 0.0]).to(dtype)
    assert kept(rewards, strategy="top_p", value=value, eps=eps) == groups


def test_scores_and_metrics_by_hand():
    rewards = torch.tensor([[1.0, 0.0, 0.0, 0.0], [2.0, 2.0, 2.0, 2.0], [3.0, 1.0, 3.0, 1.0]])
    result = select_groups(rewards, strategy="top_k", value=1)
    # Squared deviations from 0.25 add up to 0.75, from 2 to 4; divided by three.
    variances = [0.25, 0.0, 4 / 3]
    assert result.scores.tolist() == pytest.approx(variances)
    assert result.kept.dtype == torch.int64 and result.kept.tolist() == [2]
    mean = sum(variances) / 3
    std = math.sqrt(sum((v - mean) ** 2 for v in variances) / 2)
    assert result.metrics == pytest.approx(
        {
            "kept_groups": 1.0,
            "kept_share": 1 / 3,
            "zero_share": 1 / 3,
            "variance_mean": mean,
            "variance_std": std,
            "variance_min": 0.0,
            "variance_max": 4 / 3,
            "variance_ratio": std / mean,
            "reward_before": 17 / 12,
            "reward_after": 2.0,
        }
    )
    assert all(type(value) is float for value in result.metrics.values())
    for score, expected in (("std", math.sqrt(4 / 3)), ("mean", 2.0), ("sum", 8.0)):
        assert select_groups(rewards, strategy="top_k", value=1, score=score).scores[2].item() == pytest.approx(
            expected
        )


def test_variance_ratio_tells_mixed_from_uniform_batches():
    uniform = select_groups(pairs([0.5, 0.6, 0.4, 0.5]), **TOP_P).metrics["variance_ratio"]
    mixed = select_groups(pairs([6.0, 0.1, 0.1, 0.1, 5.0, 0.1]), **TOP_P).metrics["variance_ratio"]
    assert uniform < 0.33 and mixed > 1


def test_per_rollout_scores():
    rewards = torch.tensor([[1.0, 0.0, NAN], [1.0, 0.0, 0.0], [1.0, 0.0, 1.0]])
    numbers = torch.tensor([[2.0, 4.0, 99.0], [5.0, 5.0, 5.0], [1.0, 2.0, NAN]])
    for score, scores in (
        ("entropy", [3.0, 5.0, 1.5]),
        ("length", [3.0, 5.0, 1.5]),
        ("entropy_variance", [2.0, 0.0, 0.5]),
    ):
        result = select_groups(rewards, strategy="top_k", value=1, score=score, per_rollout=numbers)
        assert result.scores.tolist() == pytest.approx(scores)
        assert result.kept.tolist() == [scores.index(max(scores))]
    # The variance that is logged is that of the rewards all the same: 1/2, 1/3, 1/3.
    assert result.metrics["variance_mean"] == pytest.approx(7 / 18)


# What the reference gets wrong


def test_ties_keep_the_earlier_group():
    # Equal variances that float arithmetic tells apart: 0.1 + 0.2 is not 0.3, and members differ in order.
    rewards = torch.tensor([[0.0, 0.3, 0.0], [0.1 + 0.2, 0.0, 0.0], [1.3, 1.0, 1.0], [0.7, 1.0, 1.0]])
    for dtype in (torch.float32, torch.float64):
        for order in ([0, 1, 2, 3], [3, 2, 1, 0], [2, 0, 3, 1]):
            shuffled = rewards.to(dtype)[order]
            for keep in ("largest", "smallest"):
                assert kept(shuffled, strategy="top_k", value=2, keep=keep) == [0, 1]
            assert kept(shuffled, strategy="top_p", value=0.5, eps=0.0) == [0, 1]
            assert kept(shuffled, strategy="top_p", value=0.5, mode="softmax") == [0, 1]
            assert kept(shuffled, strategy="min_p", value=1.0) == [0, 1, 2, 3]


@pytest.mark.parametrize("value", [-0.1, 10.9, -0.3, 1e-8, 12345.678])
def test_float_noise_is_no_signal(value):
    noisy = torch.full((16,), value)
    noisy[3] = torch.nextafter(noisy[3], torch.tensor(1e9))
    rewards = torch.stack([torch.full((16,), value), noisy, torch.tensor([value] * 8 + [value * 2] * 8)])
    for score in ("variance", "std"):
        result = select_groups(rewards, strategy="top_p", value=1.0, score=score)
        assert result.kept.tolist() == [2] and result.scores[:2].tolist() == [0.0, 0.0]
    assert result.metrics["zero_share"] == pytest.approx(2 / 3)
    assert kept([[0.1 + 0.2, 0.3, 0.3, 0.3], [1.0, 0.0, 0.0, 0.0]], strategy="top_p", value=1.0) == [1]


def test_what_counts_as_zero_is_a_setting():
    # One in ten thousand of spread, and a mean that nearly cancels.
    rewards = torch.tensor([[1.0, 1.0001], [1.0, 0.0]])
    assert kept(rewards, strategy="top_p", value=1.0) == [0, 1]
    assert kept(rewards, strategy="top_p", value=1.0, zero_rtol=1e-3) == [1]
    cancelling = torch.tensor([[1.0, -0.9999], [1.0, 0.0]])
    assert kept(cancelling, strategy="top_p", value=1.0, score="mean") == [0, 1]
    assert kept(cancelling, strategy="top_p", value=1.0, score="mean", zero_rtol=1e-3) == [1]
    exact = torch.tensor([[0.3, 0.1 + 0.2], [1.0, 0.0]], dtype=torch.float64)
    assert kept(exact, strategy="top_p", value=1.0, zero_rtol=0.0) == [0, 1]


def test_zero_is_what_flat_groups_says():
    rewards = random_rewards()
    rewards[0, 1:], rewards[1, 2] = NAN, NAN
    result = select_groups(rewards, strategy="top_p", value=1.0)
    assert result.kept.tolist() == (~flat_groups(rewards)).nonzero().flatten().tolist()
    assert (result.scores == 0).tolist() == flat_groups(rewards).tolist()


def test_missing_rewards_neither_fake_nor_hide_variance():
    with_gaps = torch.tensor([[1.0, NAN, 1.0, 0.0], [1.0, NAN, 1.0, 1.0], [NAN, NAN, NAN, 1.0], [NAN] * 4])
    result = select_groups(with_gaps, strategy="top_p", value=1.0)
    assert result.kept.tolist() == [0]
    # Of 1, 1, 0: squared deviations from 2/3 add up to 2/3, divided by two.
    assert result.scores.tolist() == pytest.approx([1 / 3, 0.0, 0.0, 0.0])
    assert result.metrics["reward_before"] == pytest.approx(6 / 7)
    assert result.metrics["reward_after"] == pytest.approx(2 / 3)
    assert result.metrics["zero_share"] == 0.75
    # Variance is logged of groups that have one: 1/3 and 0.
    assert result.metrics["variance_mean"] == pytest.approx(1 / 6)
    assert not any(math.isnan(value) for value in result.metrics.values())


@pytest.mark.parametrize("score", ["variance", "std", "mean", "sum"])
def test_fewer_than_two_rewards_are_never_kept(score):
    rewards = torch.tensor([[5.0, NAN, NAN], [NAN, NAN, NAN], [1.0, 1.0, 1.0], [0.0, 1.0, NAN]])
    result = select_groups(rewards, strategy="top_p", value=1.0, score=score, include_zero=True)
    assert result.kept.tolist() == [2, 3]
    assert result.scores[:2].tolist() == [0.0, 0.0]


def test_a_missing_rollout_counts_as_an_average_one_in_the_sum():
    rewards = torch.tensor([[2.0, NAN, 4.0, NAN], [3.0, 2.0, 3.0, 2.0], [-2.0, NAN, -4.0, NAN]])
    assert select_groups(rewards, strategy="top_k", value=1, score="sum").scores.tolist() == [12.0, 10.0, -12.0]


@pytest.mark.parametrize(
    ("rewards", "settings", "reason"),
    [
        (torch.zeros(4, 4), TOP_P, "count as zero"),
        (torch.zeros(4, 4), {"strategy": "top_k", "value": 1}, "count as zero"),
        (torch.zeros(4, 4), TOP_P | {"include_zero": True}, "the sum to reach"),
        (pairs([0.004, 0.003, 0.002, 0.0]), TOP_P, r"the sum to reach, .* is -0\.0019"),
        (torch.tensor([[-1.0, -2.0], [-3.0, -1.0]]), TOP_P | {"score": "mean"}, "the sum to reach"),
        (pairs([1.0, 0.0]), TOP_P | {"keep": "smallest", "include_zero": True}, "begins with a score of 0"),
        (torch.tensor([[-1.0, 0.0], [9.0, 5.0]]), TOP_P | {"score": "mean", "keep": "smallest"}, "of -0.5"),
        (-torch.ones(2, 2), {"strategy": "min_p", "value": 0.5, "score": "mean"}, "the best score is -1"),
        (torch.tensor([[1.0, NAN], [NAN, 0.0]]), TOP_P | {"include_zero": True}, "fewer than two rollouts"),
    ],
)
def test_nothing_kept_is_said(rewards, settings, reason):
    with pytest.warns(UserWarning, match=f"No group is kept: .*{reason}"):
        result = select_groups(rewards, **settings)
    assert result.kept.shape == (0,) and result.kept.dtype == torch.int64
    assert result.metrics["kept_groups"] == 0 and result.metrics["kept_share"] == 0
    assert "reward_after" not in result.metrics and "reward_before" in result.metrics


def test_no_ratio_where_nothing_varies():
    with pytest.warns(UserWarning):
        assert "variance_ratio" not in select_groups(torch.ones(4, 4), **TOP_P).metrics


def test_negative_scores_in_linear_mode_are_said():
    rewards = torch.tensor([[4.0, 4.0], [-1.0, -1.0], [1.0, 1.0]])
    with pytest.warns(UserWarning, match="negative"):
        # Sum 4, to reach 1.99.
        assert kept(rewards, strategy="top_p", value=0.5, score="mean") == [0]


@pytest.mark.parametrize("settings", SETTINGS)
def test_ordinary_selections_are_silent(settings):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert kept(random_rewards(), **settings)


# What was reported of other projects


def test_within_group_spread_decides():
    assert kept([[1.0, 1.0, 1.0, 1.0], [0.0, 1.0, 0.0, 1.0]], **TOP_P) == [1]
    # All solved, but not all earned the same: the literals 0 and 1 play no part.
    assert kept([[1.125, 1.1, 1.125, 1.12], [1.0, 1.0, 1.0, 1.0]], **TOP_P, eps=0.0) == [0]


def test_means_before_and_after_are_over_different_rollouts():
    metrics = select_groups(torch.tensor([[0.0, 0.0], [1.0, 1.0], [0.0, 3.0], [1.0, 1.0]]), **TOP_P).metrics
    assert (metrics["reward_before"], metrics["reward_after"]) == (7 / 8, 1.5)


# What must hold for any rewards


@pytest.mark.parametrize("settings", SETTINGS)
def test_order_shift_and_scale_change_nothing(settings):
    rewards = random_rewards()
    rewards[5, 2] = NAN
    expected = kept(rewards, **settings)
    members = torch.stack([torch.randperm(rewards.shape[1]) for _ in rewards])
    assert kept(rewards.gather(1, members), **settings) == expected
    assert torch.equal(
        select_groups(rewards.gather(1, members), **settings).scores, select_groups(rewards, **settings).scores
    )
    for shift, scale in ((3.0, 1.0), (-7.5, 1.0), (0.0, 1e-4), (0.0, 250.0), (1.0, -2.0)):
        assert kept(rewards * scale + shift, **settings) == expected
    # A group is kept for what it is, not for where it stands.
    order = torch.randperm(len(rewards))
    if settings.get("keep") != "smallest":
        assert sorted(order[kept(rewards[order], **settings)].tolist()) == expected


@pytest.mark.parametrize("include_zero", [False, True])
@pytest.mark.parametrize("mode", ["linear", "softmax"])
@pytest.mark.parametrize("score", ["variance", "std"])
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_a_larger_share_keeps_a_superset(score, mode, include_zero):
    for _ in range(5):
        rewards, last = random_rewards(), set()
        for value in torch.linspace(0.02, 1.0, 50).clamp(max=1.0).tolist():
            settings = {"strategy": "top_p", "value": value, "score": score, "mode": mode}
            groups = set(kept(rewards, **settings, include_zero=include_zero))
            assert groups >= last
            last = groups
        assert len(last) == (12 if include_zero else 10)


@pytest.mark.parametrize("settings", SETTINGS)
def test_device_and_dtype_change_nothing(settings):
    rewards = (random_rewards() * 64).round() / 64  # exact in bfloat16
    first = select_groups(rewards, **settings)
    devices = ["cpu"] + ["cuda"] * torch.cuda.is_available()
    for dtype in (torch.float64, torch.float32, torch.bfloat16):
        for device in devices:
            given = rewards.to(device, dtype).requires_grad_()
            again = select_groups(given, **settings)
            assert given.double().cpu().equal(rewards)  # left alone
            assert torch.equal(again.kept, first.kept) and torch.equal(again.scores, first.scores)
            assert again.metrics == first.metrics and again.scores.dtype == torch.float64


def test_whole_numbers_are_rewards():
    assert kept([[1, 0], [1, 1]], **TOP_P) == [0]


def test_one_group():
    assert kept([[1.0, 0.0]], **TOP_P) == [0]
    assert select_groups(torch.tensor([[1.0, 0.0]]), **TOP_P).metrics["variance_std"] == 0.0


def test_costs_next_to_nothing():
    rewards, times = torch.randn(1000, 16), []
    for _ in range(20):
        start = time.perf_counter()
        select_groups(rewards, **TOP_P)
        times.append(time.perf_counter() - start)
    assert min(times) < 0.02  # about a millisecond on an idle core


# Bad input


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"strategy": "top_q"}, r"`strategy` must be one of \['top_p', 'top_k', .*, got 'top_q'"),
        ({"score": "reward"}, r"`score` must be one of \['variance', .*, got 'reward'"),
        ({"mode": "log"}, "`mode` must be one of .*, got 'log'"),
        ({"keep": "best"}, "`keep` must be one of .*, got 'best'"),
        ({"eps": -0.1}, "`eps` must be a number of at least 0, got -0.1"),
        ({"zero_rtol": NAN}, "`zero_rtol` must be a number of at least 0, got nan"),
        ({"value": 0.0}, r"'top_p' must be in \(0, 1\], got 0.0. It is the share"),
        ({"value": 1.5}, r"'top_p' must be in \(0, 1\], got 1.5"),
        ({"value": -0.5}, r"'top_p' must be in \(0, 1\], got -0.5"),
        ({"value": NAN}, "got nan"),
        ({"value": None}, "got None"),
        ({"value": "0.9"}, "got '0.9'"),
        ({"value": True}, "got True"),
        ({"strategy": "top_k", "value": 0}, "'top_k' must be a whole number of at least 1, got 0"),
        ({"strategy": "top_k", "value": 2.5}, "whole number of at least 1, got 2.5. .* 'top_k_fraction'"),
        ({"strategy": "top_k", "value": 4}, "at most the number of groups in a batch, 3, got 4. Lower it"),
        ({"strategy": "top_k_fraction", "value": 1.01}, r"in \(0, 1\], got 1.01. .* 'top_k'"),
        ({"strategy": "min_p", "value": -0.1}, r"in \[0, 1\], got -0.1"),
        ({"strategy": "min_p", "value": 2}, r"in \[0, 1\], got 2"),
    ],
)
def test_bad_settings(changes, message):
    settings = TOP_P | changes
    with pytest.raises(ValueError, match=message):
        check_filter_settings(**settings, num_groups=3, group_size=2)
    with pytest.raises(ValueError, match=message):
        select_groups(torch.rand(3, 2), **settings)


def test_good_settings():
    for settings in [*SETTINGS, {"strategy": "top_k", "value": 4.0}, {"strategy": "min_p", "value": 0}]:
        check_filter_settings(**settings)
        check_filter_settings(**settings, num_groups=4, group_size=2)


@pytest.mark.parametrize(
    ("rewards", "settings", "message"),
    [
        (torch.rand(4, 1), TOP_P, "A group of 1 has no spread .*`num_generations`"),
        (torch.rand(4), TOP_P, r"`rewards` must have shape .* got \(4,\)"),
        (torch.rand(0, 4), TOP_P, r"`rewards` must have shape .* got \(0, 4\)"),
        (torch.full((2, 3), NAN), TOP_P, "None of the 6 rollouts has a reward .* Check"),
        (torch.tensor([[1.0, 0.0], [math.inf, 0.0]]), TOP_P, r"`rewards` must be finite.* groups \[1\]"),
        (torch.tensor([[1e300, 0.0]], dtype=torch.float64), TOP_P, "`rewards` must be finite"),
        (torch.rand(4, 2), TOP_P | {"score": "entropy"}, "score='entropy' needs `per_rollout`.* got None"),
        (torch.rand(4, 2), TOP_P | {"score": "length", "per_rollout": torch.rand(8)}, r"\(4, 2\), got \(8,\)"),
        (
            torch.rand(1, 2),
            TOP_P | {"score": "length", "per_rollout": torch.tensor([[math.inf, 1.0]])},
            "`per_rollout` must be finite",
        ),
    ],
)
def test_bad_numbers(rewards, settings, message):
    with pytest.raises(ValueError, match=message):
        select_groups(rewards, **settings)
