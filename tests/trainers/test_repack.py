"""Rows on their way through the filter: the plan, and rows taken apart and put together again."""

import random

import pytest
import torch

from ragen_trl.trainers.repack import blank, join_rows, plan_rows, split_rows


def cases():
    rng = random.Random(0)
    for _ in range(300):
        world, windows, steps, per_step = (
            rng.choice([1, 2, 3, 4]),
            rng.randint(1, 4),
            rng.randint(1, 4),
            rng.randint(1, 5),
        )
        per_rank = windows * steps * per_step
        kept = sorted(rng.sample(range(world * per_rank), rng.randint(0, world * per_rank)))
        yield kept, {"world_size": world, "rows_per_rank": per_rank, "windows": windows, "window_steps": steps}


def test_plans_of_any_shape():
    for kept, shape in cases():
        plan = plan_rows(kept, seed=3, **shape)
        assert plan == plan_rows(kept, seed=3, **shape), "ranks would not agree"
        assert len(plan) == shape["windows"] * shape["window_steps"]
        assert all(len(ranks) == shape["world_size"] and len({len(rows) for rows in ranks}) == 1 for ranks in plan)
        flat = [row for ranks in plan for rows in ranks for row in rows]
        assert sorted(row for row in flat if row is not None) == kept
        assert flat.count(None) < shape["world_size"]
        per_step = shape["rows_per_rank"] // len(plan)
        assert all(len(ranks[0]) <= per_step for ranks in plan)
        of_ranks = [[row for ranks in plan for row in ranks[r] if row is not None] for r in range(shape["world_size"])]
        sizes = [len(rows) for rows in of_ranks]
        assert max(sizes) - min(sizes) <= 1
        own = [sum(row // shape["rows_per_rank"] == r for row in kept) for r in range(shape["world_size"])]
        moved = sum(row // shape["rows_per_rank"] != r for r, rows in enumerate(of_ranks) for row in rows)
        # No more travel than the shares ask for, the larger shares being those of the ranks that have most.
        shares = sorted(sizes, reverse=True)
        assert moved == sum(max(n - share, 0) for n, share in zip(sorted(own, reverse=True), shares, strict=True))


def test_windows_share_the_rows_and_end_with_real_steps():
    for kept, shape in cases():
        plan = plan_rows(kept, seed=1, **shape)
        steps = shape["window_steps"]
        windows = [plan[start : start + steps] for start in range(0, len(plan), steps)]
        slots = [sum(len(ranks[0]) for ranks in window) for window in windows]
        assert max(slots) - min(slots) <= 1
        for window in windows:
            sizes = [len(ranks[0]) for ranks in window]
            real = [size for size in sizes if size]
            assert sizes == [0] * (len(sizes) - len(real)) + real
            assert not real or max(real) - min(real) <= 1


def test_the_order_is_random_and_of_the_seed():
    shape = {"world_size": 1, "rows_per_rank": 12, "windows": 1, "window_steps": 1}
    first, second = (plan_rows(list(range(12)), seed=seed, **shape)[0][0] for seed in (1, 2))
    assert first != second and sorted(first) == sorted(second) == list(range(12))


def batch(**more):
    """Three rows; the second is failed (all masked), the third fills its width."""
    prompt_mask = torch.tensor([[0, 0, 1], [0, 1, 1], [1, 1, 1]])
    completion_mask = torch.tensor([[1, 1, 0, 0], [0, 0, 0, 0], [1, 1, 1, 1]])
    columns = {
        "prompt_ids": torch.arange(9).view(3, 3) * prompt_mask + 99 * (1 - prompt_mask),
        "prompt_mask": prompt_mask,
        "completion_ids": torch.arange(12).view(3, 4) * completion_mask + 99 * (1 - completion_mask),
        "completion_mask": completion_mask,
        "tool_mask": completion_mask.clone(),
        "advantages": torch.tensor([1.0, 2.0, 3.0]),
        "old_per_token_logps": -torch.arange(12.0).view(3, 4) * completion_mask,
        "num_items_in_batch": torch.tensor(6),
        "row": torch.arange(3),
    }
    return columns | more


def same(first, second):
    assert first.keys() == second.keys()
    for name, value in first.items():
        if torch.is_tensor(value):
            assert value.dtype == second[name].dtype and torch.equal(value, second[name]), name
        else:
            assert value == second[name]


def test_taken_apart_and_put_together_it_is_the_same():
    original = batch(
        importance_sampling_ratio=torch.tensor([[0.5], [1.0], [2.0]]),
        token_type_ids=torch.tensor([[0, 0, 1, 1, 1, 0, 0], [0, 1, 1, 0, 0, 0, 0], [1, 1, 1, 1, 1, 1, 1]]),
        others=["a", "b", "c"],
    )
    rows = split_rows(original)
    assert [len(row["prompt_ids"]) for row in rows] == [1, 2, 3]
    assert [len(row["completion_ids"]) for row in rows] == [2, 1, 4], "none is empty"
    del original["num_items_in_batch"]
    same(join_rows(rows, 99), original)


def test_widths_are_those_of_the_rows_that_are_left():
    joined = join_rows(split_rows(batch())[:2], 99)
    assert joined["prompt_ids"].tolist() == [[99, 2], [4, 5]]
    assert joined["completion_ids"].tolist() == [[0, 1], [99, 99]]
    assert joined["old_per_token_logps"].shape == (2, 2) and joined["advantages"].tolist() == [1.0, 2.0]


def test_ratios_are_filled_up_with_ones():
    """Their logarithms are summed over padding too."""
    joined = join_rows(split_rows(batch(importance_sampling_ratio=torch.full((3, 4), 2.0)))[:3], 99)
    assert joined["importance_sampling_ratio"].tolist() == [[2, 2, 1, 1], [2, 1, 1, 1], [2, 2, 2, 2]]


def test_advantages_by_token():
    joined = join_rows(split_rows(batch(advantages=torch.arange(12.0).view(3, 4)))[:1], 99)
    assert joined["advantages"].tolist() == [[0.0, 1.0]]


def test_widths_of_a_multiple():
    values = torch.tensor([[0.5], [1.0], [2.0]])
    kinds = torch.ones(3, 7, dtype=torch.long)
    original = batch(importance_sampling_ratio=values, token_type_ids=kinds)
    joined = join_rows(split_rows(original)[:2], 99, multiple_of=4)
    assert joined["prompt_ids"].shape == joined["completion_ids"].shape == joined["tool_mask"].shape == (2, 4)
    assert joined["old_per_token_logps"].shape == (2, 4) and joined["token_type_ids"].shape == (2, 8)
    assert joined["importance_sampling_ratio"].shape == (2, 1) and joined["advantages"].shape == (2,)
    assert joined["token_type_ids"][0].tolist() == [0, 0, 0, 1, 1, 1, 0, 0]


@pytest.mark.parametrize("kind", ["grid", "flat", "tiles", "padded"])
def test_images_stay_with_their_rows(kind):
    """Rows of one, no and two images, in the layouts that TRL knows."""
    columns = {
        "grid": {"image_grid_thw": torch.tensor([[1, 2, 1], [1, 1, 1], [1, 1, 3]]), "num_images": [1, 0, 2],
                 "pixel_values": torch.arange(12.0).view(6, 2)},
        "flat": {"num_images": [1, 0, 2], "pixel_values": torch.arange(6.0).view(3, 2),
                 "image_sizes": torch.arange(6).view(3, 2)},
        "tiles": {"num_images": [1, 0, 2], "num_tiles": [2, 0, 2], "pixel_values": torch.arange(8.0).view(4, 2)},
        "padded": {"num_images": [2, 2, 2], "pixel_values": torch.arange(12.0).view(3, 2, 2)},
    }[kind]  # fmt: skip
    original = batch(**columns)
    rows = split_rows(original)
    del original["num_items_in_batch"]
    same(join_rows(rows, 99), original)
    turned = join_rows([rows[2], rows[0]], 99)
    first = {"grid": [2, 3, 4, 5, 0, 1], "flat": [1, 2, 0], "tiles": [2, 3, 0, 1], "padded": [2, 0]}[kind]
    assert torch.equal(turned["pixel_values"], columns["pixel_values"][first])
    assert turned["num_images"] == [columns["num_images"][2], columns["num_images"][0]]


def test_a_row_that_makes_up_the_number_reaches_no_loss():
    row = split_rows(batch())[2]
    silent = blank(row)
    assert not silent["completion_mask"].any() and not silent["tool_mask"].any() and silent["advantages"] == 0
    assert not silent["prompt_mask"].any(), "a router loss is over all tokens"
    assert row["completion_mask"].all() and row["prompt_mask"].all()
    assert blank(row, hide_prompt=False)["prompt_mask"].all(), "where it is alone, it has some tokens"
