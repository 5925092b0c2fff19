"""Advantages: golden vectors, hand-computed episodes, the reference's faults, and plain loops over random rollouts."""

import json
import math
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from ragen_trl.advantages import gae, group_advantages, rloo_advantages, turn_level_gae, whiten


NAN, INF = math.nan, math.inf


def f64(rows):
    return torch.as_tensor(rows, dtype=torch.float64)


def close(result, expected, tolerance=1e-12):
    torch.testing.assert_close(result, f64(expected), rtol=0, atol=tolerance)


def random_rollouts(seed, rows=6, length=24):
    """Rows with observations, padding and adjacent turns, one with no trainable token, one with nothing else."""
    generator = torch.Generator().manual_seed(seed)
    mask = (torch.rand(rows, length, generator=generator) < 0.6).long()
    mask[:, length - int(torch.randint(6, (1,), generator=generator)) :] = 0
    mask[1], mask[2] = 0, 1
    turns = (torch.rand(rows, length, generator=generator) < 0.3).long().cumsum(dim=1)
    rewards = torch.randn(rows, length, generator=generator, dtype=torch.float64)
    rewards *= torch.rand(rows, length, generator=generator) < 0.4
    return rewards, torch.randn(rows, length, generator=generator, dtype=torch.float64), mask, turns


# Golden vectors

GOLDEN = Path(__file__).resolve().parents[2] / "shared" / "golden" / "advantages.json"
CASES = json.loads(GOLDEN.read_text())["cases"] if GOLDEN.is_file() else []
NOT_HERE = {
    "A032": "REINFORCE++ is not among our estimators",
    "A033": "REINFORCE++ is not among our estimators",
    "A034": "soft_advantage_reweight is not among our settings",
    "A037": "grpo_advantage_length_weight is not among our settings",
    "A038": "soft_advantage_reweight and grpo_advantage_length_weight are not among our settings",
    "A039": "zero_task_advantage is not among our settings",
}
PARAMS = [
    pytest.param(
        case, id=case["id"], marks=[pytest.mark.skip(reason=NOT_HERE[i]) for i in NOT_HERE if i == case["id"]]
    )
    for case in CASES
] or [pytest.param(None, marks=pytest.mark.skip(reason=f"no {GOLDEN}"))]


def golden_group_advantages(case, dtype):
    returns = torch.tensor(case["token_level_rewards"], dtype=dtype).sum(dim=1)
    groups, estimator = torch.tensor(case["group_index"]), case["estimator"].removesuffix("_chain")
    # Rows with one episode id are turns of one episode, which counts once.
    episodes = case.get("episode_ids", list(range(len(returns))))
    first = torch.tensor([episodes.index(episode) for episode in episodes])
    kept = first.unique()
    if estimator == "rloo":
        advantages = rloo_advantages(returns[kept], groups[kept])
    else:
        settings = {"scale": case["params"]["norm_adv_by_std"], "eps": case["params"].get("epsilon", 1e-6)}
        advantages = group_advantages(returns[kept], groups[kept], **settings)
    return advantages[torch.searchsorted(kept, first)]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("case", PARAMS)
def test_golden(case, dtype):
    params, expected = case["params"], case["expected"]
    mask, rewards = torch.tensor(case["response_mask"]), torch.tensor(case["token_level_rewards"], dtype=dtype)

    def same(result, name):
        assert result.dtype == dtype and not result[mask == 0].any()  # the reference leaves whitened values there
        theirs = torch.tensor(expected[name], dtype=dtype) * mask
        torch.testing.assert_close(result, theirs, rtol=2e-5, atol=1e-5)

    if "values" in case:
        settings = {"gamma": params["gamma"], "lam": params["lam"]}
        values = torch.tensor(case["values"], dtype=dtype)
        if case["estimator"] == "bi_level_gae":
            ends = (rewards != 0).long()  # the reference's rule, which merges turns without a reward
            turns = ends.cumsum(dim=1) - ends
            settings["turn_gamma"] = params["high_level_gamma"]
            advantages, returns = turn_level_gae(rewards, values, mask, turns, **settings)
        else:
            advantages, returns = gae(rewards, values, mask, **settings)
        same(returns, "returns")
        if "advantages_before_whitening" in expected:
            same(advantages, "advantages_before_whitening")
        advantages = whiten(advantages, mask)
    else:
        advantages = golden_group_advantages(case, dtype)[:, None] * mask
    ratio = params.get("filter_kept_ratio", 1.0)
    advantages *= {"none": 1.0, "linear": ratio, "sqrt": ratio**0.5}[params.get("filter_loss_scaling", "none")]
    same(advantages, "advantages")


# Over tokens

TWO_TURNS = {  # two turns of two tokens, with an observation between them and one after the last
    "rewards": f64([[0, 1, 0, 0, 2, 0]]),
    "values": f64([[1, 2, 9, 1, 4, 9]]),
    "mask": torch.tensor([[1, 1, 0, 1, 1, 0]]),
}
TURNS = torch.tensor([[0, 0, 0, 1, 1, 1]])


def test_two_turns_by_hand():
    # One-step errors from the right: 2 - 4 = -2, 0 + 4/2 - 1 = 1, 1 + 1/2 - 2 = -1/2, 0 + 2/2 - 1 = 0; each takes in a
    # quarter of the sum behind it.
    advantages, returns = gae(**TWO_TURNS, gamma=0.5, lam=0.5)
    close(advantages, [[-0.09375, -0.375, 0, 0.5, -2, 0]])
    close(returns, [[0.90625, 1.625, 0, 1.5, 2, 0]])


def test_the_return_minus_the_value():
    # The specification's episode: with both factors 1 the advantage is what was earned from here on, minus the value.
    rewards, values, mask = f64([[0, 0, 1]]), f64([[0.5, 0.6, 0.4]]), torch.ones(1, 3)
    advantages, returns = gae(rewards, values, mask, gamma=1.0, lam=1.0)
    close(advantages, [[0.5, 0.4, 0.6]])
    close(returns, [[1, 1, 1]])
    close(whiten(advantages, mask), [[0, -1, 1]], tolerance=1e-6)


def test_a_reward_reaches_the_tokens_before_an_observation():
    # Field report 52; in the reference's REINFORCE++ it does not.
    rewards, mask = f64([[0, 0, 0, 0, 0, 1]]), torch.tensor([[1, 1, 0, 0, 1, 1]])
    _, returns = gae(rewards, torch.zeros(1, 6), mask, gamma=1.0, lam=1.0)
    close(returns.double(), [[1, 1, 0, 0, 1, 1]])
    # No discount is spent on observations: four tokens, three steps.
    _, returns = gae(rewards, torch.zeros(1, 6), mask, gamma=0.5, lam=1.0)
    close(returns.double(), [[0.125, 0.25, 0, 0, 0.5, 1]])


def test_no_value_follows_the_last_trainable_token():
    # Field report 54: the state after the last action has no value, be it an observation or padding.
    for behind in (0.0, 7.0, NAN):
        values = f64([[0.5, 0.25, behind, behind]])
        advantages, returns = gae(torch.zeros(1, 4), values, torch.tensor([[1, 1, 0, 0]]), gamma=1.0, lam=0.0)
        close(advantages, [[0.25 - 0.5, 0 - 0.25, 0, 0]])
        close(returns, [[0.25, 0, 0, 0]])


def test_a_reward_at_a_masked_position_is_ignored():
    # As documented: on padding (field report 56) or an observation it is not that of an action.
    rewards = torch.tensor([[0.0, 1.0, 5.0, 0.0, 1.0, NAN]])
    _, returns = gae(rewards, torch.zeros(1, 6), TWO_TURNS["mask"], gamma=1.0, lam=1.0)
    assert returns.tolist() == [[2, 2, 0, 1, 1, 0]]


def both(rewards, values, mask, turns, gamma=0.9, lam=0.8, turn_gamma=0.7):
    """Advantages and returns of both estimators."""
    tokens = gae(rewards, values, mask, gamma=gamma, lam=lam)
    return *tokens, *turn_level_gae(rewards, values, mask, turns, gamma=gamma, lam=lam, turn_gamma=turn_gamma)


@pytest.mark.parametrize("junk", [1.0, 1e30, NAN, INF, -INF])
def test_masked_positions_have_no_influence(junk):
    rewards, values, mask, turns = random_rollouts(seed=3)
    before = both(rewards, values, mask, turns)
    masked = mask == 0
    after = both(
        rewards.masked_fill(masked, junk), values.masked_fill(masked, junk), mask, turns.masked_fill(masked, -5)
    )
    for left, right in zip(before, after, strict=True):
        assert torch.equal(left, right) and not right[masked].any()
    assert torch.equal(whiten(rewards.masked_fill(masked, junk), mask), whiten(rewards, mask))


def test_side_and_amount_of_padding_do_not_matter():
    inputs = random_rollouts(seed=4)
    plain = both(*inputs)
    left = [torch.nn.functional.pad(x, (5, 0)) for x in inputs]
    right = [torch.nn.functional.pad(x, (0, 5)) for x in inputs]
    for result, in_left, in_right in zip(plain, both(*left), both(*right), strict=True):
        assert torch.equal(result, in_left[:, 5:]) and torch.equal(result, in_right[:, :-5])
    for row in range(len(inputs[0])):  # alone in the batch
        for left, right in zip(plain, both(*(x[row : row + 1] for x in inputs)), strict=True):
            assert torch.equal(left[row : row + 1], right)


def slow_trace(rewards, values, gamma, lam):
    """The definition: from each step on, the sum of the one-step errors, weighted with powers of gamma * lam."""
    values = [*values, 0.0]
    errors = [r + gamma * values[i + 1] - values[i] for i, r in enumerate(rewards)]
    return [sum((gamma * lam) ** (j - i) * errors[j] for j in range(i, len(errors))) for i in range(len(errors))]


def slow_turn_level(rewards, values, turns, gamma, lam, turn_gamma):
    parts = [[i for i, turn in enumerate(turns) if turn == wanted] for wanted in sorted(set(turns))]
    ends = [values[part[-1]] for part in parts]
    totals = slow_trace([sum(rewards[i] for i in part) for part in parts], ends, turn_gamma, lam)
    result = []
    for part, advantage, value in zip(parts, totals, ends, strict=True):
        last = [0.0] * (len(part) - 1) + [advantage + value]
        result += slow_trace(last, [values[i] for i in part], gamma, lam)
    return result


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("factors", [(1, 1, 1), (0.99, 0.95, 0.9), (0.5, 0, 1), (0, 1, 0.3), (1, 0.7, 0)])
def test_plain_loops_over_random_rollouts(seed, factors):
    rewards, values, mask, turns = random_rollouts(seed)
    gamma, lam, turn_gamma = factors
    results = both(rewards, values, mask, turns, gamma, lam, turn_gamma)
    for row in range(len(mask)):
        where = mask[row].nonzero().flatten().tolist()
        r, v, t = ([x[row, i].item() for i in where] for x in (rewards, values, turns))
        expected = [slow_trace(r, v, gamma, lam), slow_turn_level(r, v, t, gamma, lam, turn_gamma)]
        for (advantages, returns), ours in zip((results[:2], results[2:]), expected, strict=True):
            close(advantages[row, where], ours)
            close(returns[row, where], [a + b for a, b in zip(ours, v, strict=True)])


# Over turns


def test_turn_level_by_hand():
    # Turns: rewards 1 and 2, values 2 and 4 at their ends. One-step errors 2 - 4 = -2 and 1 + 4 - 2 = 3, advantages -2
    # and 3 - 2/2 = 2, returns 2 and 4. These are what the last tokens of the turns are paid: errors 4 - 2 = 2 and 0 in
    # the first turn, 2 - 4 = -2 and 1 in the second; the first token of each takes in a quarter of the other.
    advantages, returns = turn_level_gae(**TWO_TURNS, turns=TURNS, gamma=0.5, lam=0.5, turn_gamma=1.0)
    close(advantages, [[0.5, 2, 0, 0.5, -2, 0]])
    close(returns, [[1.5, 4, 0, 1.5, 2, 0]])


def test_a_turn_without_reward_is_a_turn():
    # Field report 64: rewards 0, 0, 1, discount 0.9 a turn. With turn ends told by rewards this is one turn, all 1.0.
    mask = torch.tensor([[1, 1, 0, 1, 0, 0, 1, 1, 1, 0]])
    turns = torch.tensor([[0, 0, 0, 1, 1, 1, 2, 2, 2, 2]])
    rewards = f64([[0, 0, 0, 0, 0, 0, 0, 0, 1, 0]])
    zero = torch.zeros_like(rewards)
    _, returns = turn_level_gae(rewards, zero, mask, turns, gamma=1.0, lam=1.0, turn_gamma=0.9)
    close(returns, [[0.81, 0.81, 0, 0.9, 0, 0, 1, 1, 1, 0]])
    # A last turn without reward is judged too: its tokens were worth 0, not the 0.5 that the critic expected.
    values = torch.full_like(zero, 0.5)
    advantages, returns = turn_level_gae(zero, values, mask, turns, gamma=1.0, lam=1.0, turn_gamma=0.9)
    close(advantages, -0.5 * mask.double())
    assert not returns.any()
    # One token a turn and one discount: the same as over tokens.
    mask, turns = torch.tensor([[1, 0, 1, 1]]), torch.tensor([[0, 0, 1, 2]])
    rewards, zero = f64([[0, 0, 0, 1]]), f64([[0, 0, 0, 0]])
    for _, returns in (
        turn_level_gae(rewards, zero, mask, turns, gamma=1.0, lam=1.0, turn_gamma=0.9),
        gae(rewards, zero, mask, gamma=0.9, lam=1.0),
    ):
        close(returns, [[0.81, 0, 0.9, 1]])


def test_rewards_inside_a_turn_count_at_its_end():
    rewards = f64([[0.25, 0.75, 0, 2, 0, 0]])
    moved = turn_level_gae(**TWO_TURNS | {"rewards": rewards}, turns=TURNS, gamma=0.5, lam=0.5, turn_gamma=1.0)
    plain = turn_level_gae(**TWO_TURNS, turns=TURNS, gamma=0.5, lam=0.5, turn_gamma=1.0)
    assert torch.equal(moved[0], plain[0]) and torch.equal(moved[1], plain[1])


def test_only_the_order_of_turn_numbers_matters():
    rewards, values, mask, turns = random_rollouts(seed=5)
    for left, right in zip(
        both(rewards, values, mask, turns), both(rewards, values, mask, turns * 7 - 3), strict=True
    ):
        assert torch.equal(left, right)


# Whitening


def test_whitening_is_over_what_the_mask_selects():
    # 1, 2, 3: mean 2, unbiased variance 1. The reference gives masked positions (x - 2) / 1, that is 98 here.
    x, mask = f64([[1, 100, 2], [3, NAN, INF]]), torch.tensor([[1, 0, 1], [1, 0, 0]])
    scale = 1 / math.sqrt(1 + 1e-8)
    close(whiten(x, mask), [[-scale, 0, 0], [scale, 0, 0]])
    close(whiten(x, mask, shift_mean=False), [[2 - scale, 0, 2], [2 + scale, 0, 0]])


@pytest.mark.parametrize("constant", [0.0, 0.1, -0.3, 1e4, 1e-12])
def test_a_constant_has_no_deviation(constant):
    x = torch.full((40, 7), constant)
    assert not whiten(x, torch.ones_like(x)).any()
    torch.testing.assert_close(whiten(x, torch.ones_like(x), shift_mean=False), x)
    # What float32 leaves of "return minus value" on a large return is not blown up either.
    x = 1e4 + 1e-3 * torch.arange(8.0)
    assert len(x.unique()) > 1 and not whiten(x, torch.ones(8)).any()


def test_one_value_or_none():
    x, one, none = torch.tensor([3.0, 4.0, NAN]), torch.tensor([0, 1, 0]), torch.zeros(3)
    assert whiten(x, one).tolist() == whiten(x, none).tolist() == [0, 0, 0]
    assert whiten(x, one, shift_mean=False).tolist() == [0, 4, 0]
    assert whiten(x, none, shift_mean=False).tolist() == [0, 0, 0]
    assert whiten(torch.zeros(0, 5), torch.zeros(0, 5)).shape == (0, 5)


@pytest.mark.parametrize("broken", [NAN, INF, -INF])
def test_what_is_not_finite_is_not_hidden(broken):
    x, mask = torch.tensor([1.0, broken, 2.0, 3.0]), torch.tensor([1, 1, 1, 0])
    assert whiten(x, mask).isnan().tolist() == [True, True, True, False]
    assert whiten(torch.full((2,), broken), torch.ones(2)).isnan().all()
    # In the estimators it stays in its row.
    rewards, values, mask, turns = random_rollouts(seed=8)
    before = both(rewards, values, mask, turns)
    values[2, 7] = broken
    for left, right in zip(before, both(rewards, values, mask, turns), strict=True):
        assert torch.equal(left[[0, 1, 3, 4, 5]], right[[0, 1, 3, 4, 5]]) and not right[2].isfinite().all()


def _on_two_ranks(rank, store, cases):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
    for x, mask, split, expected in cases:
        part = slice(None, split) if rank == 0 else slice(split, None)
        torch.testing.assert_close(whiten(x[part], mask[part]), expected[part], rtol=0, atol=1e-6)
    dist.destroy_process_group()


def test_two_ranks_are_as_one(tmp_path):
    x = 100 + torch.randn(8, 50)
    mask = (torch.rand(8, 50) < 0.5).long()
    half = torch.cat([torch.ones(4, 50), torch.zeros(4, 50)]).long()  # nothing selected on the second rank
    steps = torch.cat([torch.zeros(4, 50), torch.ones(4, 50)])  # constant on each rank
    cases = [(x, mask, 4), (x, mask, 1), (x, mask, 8), (x, half, 4), (steps, mask, 4), (x * 0 + 1, mask, 4)]
    cases = [(x, mask, split, whiten(x, mask)) for x, mask, split in cases]
    assert cases[4][3].any() and not cases[5][3].any()
    torch.multiprocessing.spawn(_on_two_ranks, (str(tmp_path / "store"), cases), nprocs=2)


# Against the group


def test_groups_by_hand():
    # The specification's group: mean 4.975, standard deviation 6.380; a second group is strewn in.
    returns, groups = f64([10.6, 1, -0.5, -0.6, 3, 10.4]), torch.tensor([7, -2, 7, 7, -2, 7])
    half = math.sqrt(0.5)
    close(group_advantages(returns, groups), [0.882, -half, -0.858, -0.874, half, 0.850], tolerance=1e-3)
    close(group_advantages(returns, groups, scale=False), [5.625, -1, -5.475, -5.575, 1, 5.425])
    # The others' mean in its place: 4/3 and 2 times as far.
    close(rloo_advantages(returns, groups), [7.5, -2, -7.3, -5.575 * 4 / 3, 2, 5.425 * 4 / 3])


def test_order_of_rollouts_does_not_matter():
    returns, groups = torch.randn(24, dtype=torch.float64), torch.randint(5, (24,))
    order = torch.randperm(24)
    for estimate in (group_advantages, rloo_advantages):
        close(estimate(returns, groups)[order], estimate(returns[order], groups[order]))
    sums = torch.zeros(5, dtype=torch.float64).index_add(0, groups, group_advantages(returns, groups, scale=False))
    close(sums, [0] * 5)


@pytest.mark.parametrize("settings", [{}, {"scale": False}, {"eps": 0.0}])
def test_a_flat_group_has_no_advantage(settings):
    # The reference's mean of equal float32 numbers is not always one of them: eight times -0.3 gave -0.30000004.
    returns, groups = torch.tensor([-0.3] * 8 + [0.0] * 3 + [1.0, 2.0]), torch.tensor([0] * 8 + [1] * 3 + [2] * 2)
    advantages = group_advantages(returns, groups, **settings)
    assert not advantages[:11].any() and advantages[11] < 0 < advantages[12]
    returns[:4] += 1e-7
    assert len(returns[:8].unique()) == 2 and not group_advantages(returns, groups, **settings)[:11].any()
    assert not rloo_advantages(returns, groups)[:11].any()


@pytest.mark.parametrize("scale", [True, False])
def test_a_rollout_without_a_return_is_no_member(scale):
    returns, groups = f64([1, NAN, 3, 5, NAN, NAN]), torch.tensor([0, 0, 0, 1, 1, 2])
    advantages = group_advantages(returns, groups, scale=scale)
    close(advantages[[0, 2]], group_advantages(f64([1, 3]), torch.tensor([0, 0]), scale=scale))
    # The last of a group whose others failed has nothing to be compared with: an outage must not make a 5 out of it.
    assert advantages[[1, 3, 4, 5]].tolist() == [0, 0, 0, 0]
    assert rloo_advantages(returns, groups).tolist() == [-2, 0, 2, 0, 0, 0]


def test_a_group_of_one():
    returns, groups = f64([5, -2]), torch.tensor([3, 1])
    assert (
        group_advantages(returns, groups, scale=False).tolist() == rloo_advantages(returns, groups).tolist() == [5, -2]
    )
    close(group_advantages(returns, groups), [5 / (1 + 1e-6), -2 / (1 + 1e-6)])


# What comes in and what goes out


def test_dtypes_and_gradients():
    rewards, values, mask, turns = random_rollouts(seed=6)
    exact = both(rewards, values.bfloat16().double(), mask, turns)
    low = values.bfloat16().requires_grad_()
    for result, reference in zip(both(rewards, low, mask.bool(), turns), exact, strict=True):
        assert result.dtype == torch.float32 and not result.requires_grad
        torch.testing.assert_close(result.double(), reference)
    assert whiten(low, mask.double()).dtype == torch.float32 and not whiten(low, mask).requires_grad
    assert group_advantages(low.detach()[0], turns[0]).dtype == torch.float32
    assert group_advantages(torch.tensor([0, 1]), torch.tensor([0, 0])).dtype == torch.float32


def test_inputs_are_left_alone():
    inputs = random_rollouts(seed=7)
    copies = [x.clone() for x in inputs]
    both(*inputs)
    whiten(inputs[0], inputs[2])
    group_advantages(inputs[0][0], inputs[3][0])
    assert all(torch.equal(left, right) for left, right in zip(inputs, copies, strict=True))


@pytest.mark.parametrize("shape", [(0, 0), (0, 5), (3, 0), (3, 5)])
def test_nothing_to_estimate(shape):
    zero = torch.zeros(shape)
    for result in both(zero, zero, zero, zero):
        assert result.shape == shape and not result.any()
    empty = torch.zeros(0)
    assert group_advantages(empty, empty).shape == rloo_advantages(empty, empty).shape == (0,)


@pytest.mark.parametrize("name", ["gamma", "lam", "turn_gamma"])
@pytest.mark.parametrize("factor", [-0.1, 1.01, NAN])
def test_factors_out_of_range(name, factor):
    settings = {"gamma": 1.0, "lam": 1.0, "turn_gamma": 1.0} | {name: factor}
    with pytest.raises(ValueError, match=rf"`{name}` must be in \[0, 1\], got {factor}. 1 looks"):
        turn_level_gae(**TWO_TURNS, turns=TURNS, **settings)
    del settings["turn_gamma"]
    if name != "turn_gamma":
        with pytest.raises(ValueError, match=rf"`{name}` must be in"):
            gae(**TWO_TURNS, **settings)


def test_shapes_that_do_not_fit():
    factors = {"gamma": 1.0, "lam": 1.0}
    for name in TWO_TURNS:
        short = TWO_TURNS | {name: TWO_TURNS[name][:, 1:]}
        with pytest.raises(ValueError, match=rf"same shape \(B, T\), got .*'{name}': \(1, 5\).* Pad or cut"):
            gae(**short, **factors)
    with pytest.raises(ValueError, match=r"'turns': \(1, 5\)"):
        turn_level_gae(**TWO_TURNS, turns=TURNS[:, 1:], turn_gamma=1.0, **factors)
    with pytest.raises(ValueError, match=r"same shape \(B, T\), got .*\(6,\)"):
        gae(**{name: x[0] for name, x in TWO_TURNS.items()}, **factors)
    with pytest.raises(ValueError, match=r"`mask` must have the shape of `x`, \(2, 3\), got \(2, 1\)"):
        whiten(torch.zeros(2, 3), torch.ones(2, 1))
    for returns, groups in ((torch.zeros(3), torch.zeros(2)), (torch.zeros(2, 2), torch.zeros(2, 2))):
        for estimate in (group_advantages, rloo_advantages):
            with pytest.raises(ValueError, match=r"must both have shape \(B,\), got .* Give one return"):
                estimate(returns, groups)


def test_numbers_that_do_not_fit():
    with pytest.raises(ValueError, match=r"`turns` must not decrease .* in rows \[0\]\. Give each token the number"):
        turn_level_gae(**TWO_TURNS, turns=torch.tensor([[0, 1, 0, 0, 1, 0]]), gamma=1.0, lam=1.0, turn_gamma=1.0)
    for eps in (-1e-6, NAN, INF):
        with pytest.raises(ValueError, match=f"`eps` must be a number of at least 0, got {eps}"):
            group_advantages(torch.zeros(2), torch.zeros(2), eps=eps)
    with pytest.raises(ValueError, match=r"finite, or NaN where there is none; rollouts \[1\] .* Bound them"):
        group_advantages(torch.tensor([0.0, INF]), torch.zeros(2))
