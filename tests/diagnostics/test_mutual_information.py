"""Mutual-information metrics: golden vectors, channels of known information, and what must hold for any matrix."""

import json
import math
from pathlib import Path

import pytest
import torch

from ragen_trl.diagnostics.mutual_information import MarginalStdEMA, mutual_information_metrics


MODES = ["after_mix", "before_mix"]
COUNTERS = {"num_prompts", "num_reasonings"}


def metrics(scores, counts=None, columns=None, **settings):
    """Of a matrix; by default one token a reasoning, and as many reasonings as prompts, each from its own."""
    scores = torch.as_tensor(scores, dtype=torch.float64)
    counts = torch.ones(len(scores)) if counts is None else torch.as_tensor(counts)
    columns = torch.arange(len(scores)) if columns is None else torch.as_tensor(columns)
    return mutual_information_metrics(scores, counts, columns, **settings)


def random_case(seed=0, prompts=6, each=5, spread=2.0):
    """Reasonings of mixed lengths that are likelier under their own prompt."""
    generator = torch.Generator().manual_seed(seed)
    columns = torch.arange(prompts).repeat_interleave(each)
    counts = torch.randint(1, 30, (prompts * each,), generator=generator)
    scores = -1.3 * counts[:, None] + spread * torch.randn(len(counts), prompts, generator=generator).double()
    scores[torch.arange(len(counts)), columns] += spread
    return scores, counts, columns


def same(left, right, tolerance=1e-9):
    assert left.keys() == right.keys()
    assert left == pytest.approx(right, abs=tolerance)


# Golden vectors

GOLDEN = Path(__file__).resolve().parents[3] / "shared" / "golden" / "mi.json"
CASES = json.loads(GOLDEN.read_text())["cases"] if GOLDEN.is_file() else []
PARAMS = [pytest.param(case, id=case["id"]) for case in CASES if case["kind"] != "schedule"] or [
    pytest.param(None, marks=pytest.mark.skip(reason=f"no {GOLDEN}"))
]


def tolerances(name):
    """Relative and absolute, as the README of the vectors has them."""
    if "zscore" in name:
        return {"rel": 1e-3, "abs": 2e-3}
    if name.startswith("retrieval"):
        return {"rel": 0, "abs": 1e-6}
    return {"rel": 1e-5, "abs": 2e-4 if "_seq" in name else 2e-6}


def golden_scores(case, step):
    """What the case holds: the summed matrix, or (columns, rows, tokens) to sum."""
    if case["kind"] == "tokens":
        return torch.tensor([[sum(row) for row in column] for column in step["token_log_probs"]]).T
    return torch.tensor(step["cross_log_probs_sum"]).reshape(-1, len(step["column_group_ids"]))


@pytest.mark.parametrize("case", PARAMS)
def test_golden(case):
    ema = MarginalStdEMA(case["config"]["ema_decay"])
    for step in case["steps"]:
        expected = step["expected"]
        before = ema.state_dict()
        if not expected:  # one column; the case has no matrix then
            ours = mutual_information_metrics(
                torch.zeros(len(step["token_counts"]), len(step["column_group_ids"])),
                torch.tensor(step["token_counts"]), torch.tensor(step["col_ids"]), length_normalization="before_mix",
                std_eps=case["config"]["std_eps"], ema=ema,
            )  # fmt: skip
            assert ours.keys() == COUNTERS and ema.state_dict() == before
            continue
        ours = mutual_information_metrics(
            golden_scores(case, step), torch.tensor(step["token_counts"]), torch.tensor(step["col_ids"]),
            column_signatures=step["column_signature_ids"], length_normalization="before_mix",
            std_eps=case["config"]["std_eps"], ema=ema,
        )  # fmt: skip
        assert expected.keys() <= ours.keys()
        assert ours.keys() - expected.keys() <= COUNTERS | {"gap_per_token"}
        for name in expected.keys() - set(step["ambiguous_metrics"]):
            assert ours[name] == pytest.approx(expected[name], **tolerances(name)), name


def test_worked_example_of_both_normalisations():
    # 4 reasonings, 2 prompts; worked by hand in the specification (5.5). Row 1, S: -10 - 0.675; S / 5: -2 - 0.322.
    scores = [[-10, -14], [-12, -12], [-20, -15], [-9, -8]]
    case = {"scores": scores, "counts": [5, 6, 10, 4], "columns": [0, 0, 1, 1]}
    code, paper = (metrics(**case, length_normalization=mode) for mode in ("before_mix", "after_mix"))
    assert code["mi_estimate"] == pytest.approx(0.165, abs=1e-3)
    assert code["reasoning_entropy_est"] == pytest.approx(2.040, abs=1e-3)
    assert code["marginal_std"] == pytest.approx(0.218, abs=1e-3)
    assert code["mi_zscore"] == pytest.approx(0.752, abs=2e-3)
    # log of the mean of the sequence probabilities, then by length: (0.675/5 + 0/6 + 0.686/10 + 0.380/4) / 4
    assert paper["mi_estimate"] == pytest.approx((0.675 / 5 + 0.6864 / 10 + 0.3799 / 4) / 4, abs=1e-4)
    assert paper["conditional_entropy_est"] == code["conditional_entropy_est"] == 1.875
    assert paper["gap_per_token"] == code["gap_per_token"] == pytest.approx((4 / 5 + 0 + 5 / 10 + 1 / 4) / 4)
    for result in (code, paper):
        assert result["mi_seq_estimate"] == pytest.approx(0.435, abs=1e-3)
        assert result["conditional_entropy_seq_est"] == 11.25
        assert result["marginal_std_seq"] == pytest.approx(2.648, abs=1e-3)
        assert result["mi_zscore_seq"] == pytest.approx(0.164, abs=1e-3)
    # Row 2 ties: 3.5 of 4, where the paper's code takes the first column and has 4 of 4.
    assert paper["retrieval_accuracy"] == 0.875


# Channels whose information is known


def channel(table, copies):
    """Every reasoning that occurs, as often as it does: `copies[i][z]` under prompt i, one symbol z each."""
    table = torch.tensor(table, dtype=torch.float64)
    columns, symbols = [], []
    for prompt, row in enumerate(copies):
        for symbol, count in enumerate(row):
            columns += [prompt] * count
            symbols += [symbol] * count
    return table.log()[:, symbols].T, torch.ones(len(columns)), torch.tensor(columns)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(
    ("table", "bits"),
    [
        # Binary symmetric channel: log 2 - H(0.1).
        ([[0.9, 0.1], [0.1, 0.9]], math.log(2) + 0.9 * math.log(0.9) + 0.1 * math.log(0.1)),
        # Noiseless, four symbols: log 4. Under the other prompts the symbol is impossible.
        (torch.eye(4).tolist(), math.log(4)),
        # Deaf: each prompt has the same distribution.
        ([[0.2, 0.5, 0.3]] * 3, 0.0),
        # Erasure with probability 0.25: 0.75 log 2.
        ([[0.75, 0.25, 0], [0, 0.25, 0.75]], 0.75 * math.log(2)),
    ],
)
def test_mi_of_a_known_channel_is_exact(table, bits, mode):
    copies = [[round(100 * p) for p in row] for row in table]
    result = metrics(*channel(table, copies), length_normalization=mode)
    assert result["mi_seq_estimate"] == pytest.approx(bits, abs=1e-12)
    assert result["mi_estimate"] == pytest.approx(bits, abs=1e-12)  # one token a reasoning


def test_mi_of_a_sampled_channel_is_within_one_per_cent():
    # 8 prompts; five symbols, each that of the prompt with 0.65, else one of the 15 others. Sampled, 4000 a prompt.
    prompts, symbols, keep, length = 8, 16, 0.65, 2
    table = torch.full((prompts, symbols), (1 - keep) / (symbols - 1), dtype=torch.float64)
    table[torch.arange(prompts), torch.arange(prompts)] = keep
    generator = torch.Generator().manual_seed(3)
    columns = torch.arange(prompts).repeat_interleave(4000)
    drawn = torch.multinomial(table[columns], length, replacement=True, generator=generator)  # (NK, length)
    scores = sum(table.log()[:, drawn[:, t]].T for t in range(length))
    pairs = (table[:, :, None] * table[:, None, :]).flatten(1)  # (prompts, symbols^2), the exact p(z|x)
    exact = float((pairs * (pairs / pairs.mean(0)).log()).sum(1).mean())
    result = metrics(scores, torch.full((len(columns),), length), columns)
    assert result["mi_seq_estimate"] == pytest.approx(exact, rel=0.01)
    assert result["mi_estimate"] == pytest.approx(exact / length, rel=0.01)
    assert result["conditional_entropy_est"] == pytest.approx(-float((table * table.log()).sum(1).mean()), rel=0.01)


def test_identical_prompts_weigh_as_often_as_they_occur():
    # Prompt 0 twice, prompt 1 once: p(x) = 2/3, 1/3, and a noiseless channel tells H(X).
    scores = [[0.0, 0.0, -math.inf], [0.0, 0.0, -math.inf], [-math.inf, -math.inf, 0.0]]
    entropy = math.log(3) - 2 / 3 * math.log(2)
    result = metrics(scores, column_signatures=["a", "a", "b"])
    assert result["mi_seq_estimate"] == pytest.approx(entropy)
    assert result["mi_upper_bound"] == pytest.approx(entropy)
    assert metrics(scores, column_signatures="aab", length_normalization="before_mix")["mi_upper_bound"] == math.log(3)
    assert result["retrieval_accuracy"] == 1.0
    assert result["retrieval_chance_level"] == pytest.approx((2 + 2 + 1) / 9)
    assert result["retrieval_chance_level@2"] == pytest.approx((1 + 1 + 2 / 3) / 3)
    assert result["num_prompts"] == 2


# What holds for any matrix


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("seed", range(20))
def test_identities_and_bounds(seed, mode):
    scores, counts, columns = random_case(seed, prompts=2 + seed % 7, spread=10.0 ** (seed % 4 - 1))
    ema = MarginalStdEMA()
    result = metrics(scores, counts, columns, length_normalization=mode, ema=ema)
    for kind in ("", "_seq"):
        total = result[f"mi{kind}_estimate"] + result[f"conditional_entropy{kind}_est"]
        assert result[f"reasoning_entropy{kind}_est"] == pytest.approx(total, abs=1e-5)
        assert result[f"mi_zscore_ema{kind}"] == result[f"mi_zscore{kind}"]  # the first step is its own average
    assert result["mi_seq_estimate"] <= math.log(scores.shape[1]) + 1e-4
    assert result["mi_upper_bound"] == pytest.approx(math.log(scores.shape[1]))
    assert result["matched_log_prob_mean"] == -result["conditional_entropy_est"]
    assert result["marginal_log_prob_mean"] == -result["reasoning_entropy_est"]
    accuracies = [result[f"retrieval_accuracy{at}"] for at in ("", "@2", "@4", "@8")]
    assert accuracies == sorted(accuracies) and accuracies[-1] <= 1
    assert all(math.isfinite(value) for value in result.values())


def test_mi_never_exceeds_log_n_in_float32_either():
    scores = torch.full((64, 64), -5000.0, dtype=torch.float32).fill_diagonal_(-500.0)
    result = mutual_information_metrics(scores, torch.full((64,), 400), torch.arange(64))
    assert math.log(64) - 1e-9 < result["mi_seq_estimate"] <= math.log(64) + 1e-4
    assert result["mi_estimate"] == pytest.approx(math.log(64) / 400)
    assert result["gap_per_token"] == 4500 / 400  # does not saturate


@pytest.mark.parametrize("mode", MODES)
def test_order_of_prompts_and_reasonings_does_not_matter(mode):
    scores, counts, columns = random_case(7)
    scores[3] = scores[8] = -20.0  # ties too
    signatures = torch.tensor([0, 1, 2, 1, 3, 4])
    scores[:, 3] = scores[:, 1]
    rows, cols = torch.randperm(len(scores)), torch.randperm(6)
    shuffled = scores[rows][:, cols], counts[rows], cols.argsort()[columns[rows]]
    settings = {"length_normalization": mode}
    left = metrics(scores, counts, columns, column_signatures=signatures, **settings)
    same(left, metrics(*shuffled, column_signatures=signatures[cols], **settings))


@pytest.mark.parametrize("mode", MODES)
def test_reasoning_that_ignores_the_prompt_scores_chance(mode):
    # Field report 170: argmax would always take column 0.
    noise = torch.randn(16, 8, dtype=torch.float64)
    equal = torch.linspace(-90, -30, 16)[:, None].expand(16, 8)
    for own in (torch.zeros(16, dtype=torch.int64), torch.arange(16) % 8):
        for scores in (equal, equal + 1e-6 * noise):  # rounding of float32 is no preference
            result = metrics(scores, torch.full((16,), 20), own, length_normalization=mode)
            assert result["retrieval_accuracy"] == pytest.approx(1 / 8)
            assert result["retrieval_accuracy@4"] == pytest.approx(1 / 2)
            assert result["retrieval_above_chance@2"] == pytest.approx(0)
            assert result["mi_estimate"] == pytest.approx(0, abs=1e-5)
            assert result["gap_per_token"] == pytest.approx(0, abs=1e-5)


def test_estimates_may_fall_below_zero():
    # Field report 172: random scores, four prompts, two reasonings each. A small sample errs to both sides.
    columns = torch.arange(4).repeat_interleave(2)
    random = [torch.randn(8, 4, generator=torch.Generator().manual_seed(seed)) - 20 for seed in range(20)]
    results = [metrics(scores, columns=columns) for scores in random]
    estimates = [result["mi_seq_estimate"] for result in results]
    assert min(estimates) < 0 < max(estimates)
    assert all(result["mi_upper_bound"] == pytest.approx(math.log(4)) for result in results)


def test_planted_collapse_and_planted_health_with_the_same_entropy():
    generator = torch.Generator().manual_seed(0)
    columns = torch.arange(8).repeat_interleave(8)
    matched = -1.0 * torch.randint(10, 40, (64,), generator=generator)
    counts = -matched
    template = matched[:, None].expand(64, 8)
    healthy = torch.where(torch.nn.functional.one_hot(columns, 8).bool(), template, template - 12)
    collapsed, alive = metrics(template, counts, columns), metrics(healthy, counts, columns)
    assert collapsed["conditional_entropy_est"] == pytest.approx(alive["conditional_entropy_est"], rel=0.05)
    assert collapsed["retrieval_accuracy"] == pytest.approx(1 / 8) and alive["retrieval_accuracy"] == 1.0
    assert collapsed["mi_seq_estimate"] == pytest.approx(0) and alive["mi_seq_estimate"] > 0.99 * math.log(8)
    assert collapsed["gap_per_token"] == 0 and alive["gap_per_token"] > 0.3


# Retrieval


def test_retrieval_by_hand():
    # The own column is 0 of ten, and with signatures column 2 holds the same prompt.
    third = [-3.0, -1, -2] + [-9.0] * 7
    copy = [-5.0, -1, -2] + [-9.0] * 7
    tie = [-2.0, -1, -2, -2] + [-9.0] * 6
    signatures = [0, 1, 0, 3, 4, 5, 6, 7, 8, 9]
    alone = metrics([third, copy, tie], columns=[0, 0, 0])
    # Two are better in the first and second row, one in the third, where three share the places 2 to 4.
    assert alone["retrieval_accuracy"] == 0
    assert alone["retrieval_accuracy@2"] == pytest.approx((0 + 0 + 1 / 3) / 3)
    assert alone["retrieval_accuracy@4"] == 1
    twice = metrics([third, copy, tie], columns=[0, 0, 0], column_signatures=signatures)
    # Column 2 is second in the first two rows, and one more of the three tied ones in the last.
    assert twice["retrieval_accuracy@2"] == pytest.approx((1 + 1 + 2 / 3) / 3)
    assert twice["retrieval_chance_level"] == pytest.approx(0.2)
    assert twice["retrieval_chance_level@2"] == pytest.approx(1 - 8 / 10 * 7 / 9)


@pytest.mark.parametrize(
    "signatures",
    [
        [(1, 2), (1, 2), (3,)],
        [[1, 2], [1, 2], [3]],
        torch.tensor([5, 5, 9]),
        [torch.tensor([1, 2]), torch.tensor([1, 2]), torch.tensor([3])],
        ["x", "x", "y"],
        iter("xxy"),
    ],
)
def test_kinds_of_signatures(signatures):
    assert metrics(torch.zeros(3, 3), column_signatures=signatures)["num_prompts"] == 2


# Too little to measure


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(
    ("scores", "columns", "prompts"),
    [([[-3.0]] * 4, [0] * 4, 1), (torch.zeros(0, 5), [], 5), (torch.zeros(0, 0), [], 0)],
)
def test_counters_remain_when_nothing_is_defined(scores, columns, prompts, mode):
    ema = MarginalStdEMA()
    result = metrics(scores, columns=columns, length_normalization=mode, ema=ema)
    assert result == {"num_prompts": prompts, "num_reasonings": len(columns)}
    assert ema.state_dict() == {}


def test_one_prompt_met_many_times_is_one_prompt():
    assert metrics(torch.zeros(4, 4), column_signatures=[7] * 4) == {"num_prompts": 1, "num_reasonings": 4}
    code = metrics(torch.zeros(4, 4), column_signatures=[7] * 4, length_normalization="before_mix")
    assert code["mi_estimate"] == 0 and code["num_prompts"] == 1 and "gap_per_token" not in code


def test_rows_without_tokens_are_no_reasonings():
    scores, counts, columns = random_case(2)
    extra = (
        torch.cat([scores, torch.zeros(3, 6)]),
        torch.cat([counts, torch.zeros(3)]),
        torch.cat([columns, columns[:3]]),
    )
    same(metrics(*extra), metrics(scores, counts, columns))
    assert metrics(*extra, length_normalization="before_mix")["num_reasonings"] == len(scores) + 3
    assert metrics(torch.zeros(3, 3), torch.zeros(3)) == {"num_prompts": 3, "num_reasonings": 0}


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"scores": torch.full((3, 3), math.nan)}, r"Rows \[0, 1, 2\] .* NaN"),
        ({"scores": torch.zeros(3, 3).fill_diagonal_(-math.inf)}, "probability zero"),
        ({"scores": torch.zeros(3)}, "shape"),
        ({"counts": [1, 2]}, "shape"),
        ({"counts": [1, 2, -1]}, "at least 0"),
        ({"columns": [0, 1, 3]}, "from 0 to 2"),
        ({"columns": [0, 1, -1]}, "from 0 to 2"),
        ({"columns": [0.0, 1.0, 2.0]}, "whole numbers"),
        ({"column_signatures": [1, 2]}, "each of the 3 columns"),
        ({"length_normalization": "mix"}, "'mix'"),
        ({"std_eps": 0.0}, "std_eps"),
    ],
)
def test_bad_input_is_refused(change, words):
    with pytest.raises(ValueError, match=words):
        metrics(**({"scores": torch.zeros(3, 3)} | change))


# Running deviations


def test_ema_by_hand_and_across_a_checkpoint():
    cases = [random_case(seed, spread=0.5 + seed) for seed in range(4)]
    deviations = [metrics(*case)["marginal_std"] for case in cases]
    expected = [deviations[0]]
    for deviation in deviations[1:]:
        expected.append(0.9 * expected[-1] + 0.1 * deviation)

    whole = MarginalStdEMA()
    straight = [metrics(*case, ema=whole) for case in cases]
    assert [r["marginal_std_ema"] for r in straight] == pytest.approx(expected)
    last = straight[-1]
    assert last["mi_zscore_ema"] == pytest.approx(last["mi_estimate"] / (expected[-1] + 1e-3))

    first = MarginalStdEMA()
    for case in cases[:2]:
        metrics(*case, ema=first)
    resumed = MarginalStdEMA()
    resumed.load_state_dict(json.loads(json.dumps(first.state_dict())))
    assert [metrics(*case, ema=resumed) for case in cases[2:]] == straight[2:]


def test_ema_is_asked_for():
    assert not any("_ema" in name for name in metrics(*random_case()))
    with pytest.raises(ValueError, match="decay"):
        MarginalStdEMA(1.0)


def test_device_and_precision_of_the_input_do_not_matter():
    scores, counts, columns = random_case(5)
    coarse = scores.to(torch.float32)
    left = mutual_information_metrics(coarse.requires_grad_(), counts.int(), columns.int())
    same(left, mutual_information_metrics(coarse.detach().double(), counts.float(), columns))
