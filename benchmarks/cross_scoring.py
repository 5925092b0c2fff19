"""
What a shared cache saves: scoring every reasoning under every prompt, against encoding each prompt again and again.

    python benchmarks/cross_scoring.py                                # a few minutes on one core
    python benchmarks/cross_scoring.py --prompts 4 --rounds 1         # to see that it runs

The shipped agent on random tokens, all ways in turn in one process, and the median over the rounds. Naive re-encoding
is one call on [prompt | reasoning] rows, log-probabilities of the reasoning from the logits the model returns: with
all reasonings of a prompt in a call, and with only as many as fit the token budget that ours keeps. `lean` is our own
way for models whose cache cannot be shared: within the budget, and logits of the reasoning only.

Two bounds stand beside the figure. By tokens: as if each cost the same. By the multiplications of the forward pass: a
token of a reasoning attends to the whole prompt, a token of the prompt to half of it on average, so that attention
gains less than the number of tokens says.
"""

import argparse
import os
import random
import time
from collections.abc import Callable
from statistics import median
from typing import Any
from unittest.mock import patch


os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch
from transformers import AutoModelForCausalLM

from ragen_trl import tiny
from ragen_trl.diagnostics import cross_scoring
from ragen_trl.diagnostics.cross_scoring import cross_log_probs


BUDGET = 8192
Rows = list[list[int]]


@torch.no_grad()
def naive(model: Any, prompts: Rows, reasonings: Rows, rows_per_call: int) -> torch.Tensor:
    """Reasonings of one length under prompts, each encoded again for every reasoning."""
    table = torch.empty(len(reasonings), len(prompts))
    for column, prompt in enumerate(prompts):
        for start in range(0, len(reasonings), rows_per_call):
            targets = torch.tensor(reasonings[start : start + rows_per_call])
            input_ids = torch.cat([torch.tensor([prompt]).expand(len(targets), -1), targets], dim=1)
            logits = model(input_ids=input_ids, use_cache=False).logits[:, len(prompt) - 1 : -1].float()
            log_probs = logits.gather(-1, targets[..., None])[..., 0] - logits.logsumexp(-1)
            table[start : start + rows_per_call, column] = log_probs.sum(1)
    return table


def lean(model: Any, prompts: Rows, reasonings: Rows) -> torch.Tensor:
    """As for a model whose cache cannot be shared."""
    with patch.object(cross_scoring._Scorer, "_can_share", lambda scorer: False):
        return cross_log_probs(model, prompts, reasonings, max_tokens_per_forward=BUDGET)


def bounds(config: Any, prompts: int, prompt: int, reasonings: int, reasoning: int) -> tuple[float, float]:
    """How many times less work a shared cache can be: by tokens, and by multiplications."""
    pairs = prompts * reasonings
    head = config.hidden_size * config.vocab_size
    heads = config.num_attention_heads * config.head_dim
    width = 2 * config.hidden_size * (heads + config.num_key_value_heads * config.head_dim)
    linear = config.num_hidden_layers * (width + 3 * config.hidden_size * config.intermediate_size)

    def attention(start: int, stop: int) -> float:  # positions start to stop, each attends to all before and itself
        return config.num_hidden_layers * 2 * heads * (stop * (stop + 1) - start * (start + 1)) / 2

    total, fed = prompt + reasoning, reasoning - 1
    tokens = pairs * total / (prompts * prompt + pairs * fed)
    again = pairs * (total * (linear + head) + attention(0, total))
    once = prompts * (prompt * linear + head + attention(0, prompt))
    once += pairs * (fed * (linear + head) + attention(prompt, prompt + fed))
    return tokens, again / once


def data(prompts: int, prompt: int, reasonings: int, reasoning: int, vocabulary: int) -> tuple[Rows, Rows]:
    rng = random.Random(0)

    def rows(count: int, length: int) -> Rows:
        return [[rng.randrange(vocabulary) for _ in range(length)] for _ in range(count)]

    return rows(prompts, prompt), rows(reasonings, reasoning)


def seconds(ways: dict[str, Callable[[], torch.Tensor]], rounds: int) -> dict[str, float]:
    """Median seconds of each way, all in turn; all must give the same."""
    times: dict[str, list[float]] = {way: [] for way in ways}
    for _ in range(rounds):
        tables = {}
        for way, run in ways.items():
            start = time.perf_counter()
            tables[way] = run().double()
            times[way].append(time.perf_counter() - start)
        for table in tables.values():
            torch.testing.assert_close(table, tables["shared cache"], rtol=1e-6, atol=1e-3)
    return {way: median(found) for way, found in times.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--prompts", type=int, default=64, help="number of prompts (default: 64)")
    parser.add_argument("--reasonings", type=int, default=64, help="reasonings of 100 tokens (default: 64)")
    parser.add_argument("--rounds", type=int, default=3, help="rounds of all ways in turn (default: 3)")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    model = AutoModelForCausalLM.from_pretrained(tiny.path()).eval()
    vocabulary, count, length = model.config.vocab_size, arguments.reasonings, 100

    prompts, reasonings = data(arguments.prompts, 600, count, length, vocabulary)
    cross_log_probs(model, prompts[:1], reasonings)  # warm
    few = max(1, BUDGET // (600 + length))
    found = seconds(
        {
            "shared cache": lambda: cross_log_probs(model, prompts, reasonings, max_tokens_per_forward=BUDGET),
            f"naive, {count} rows a call": lambda: naive(model, prompts, reasonings, count),
            f"naive, {few} rows a call": lambda: naive(model, prompts, reasonings, few),
            "lean": lambda: lean(model, prompts, reasonings),
        },
        arguments.rounds,
    )
    print(f"{len(prompts)} prompts of 600 tokens, {count} reasonings of {length}, budget {BUDGET} tokens\n")
    print("| way | seconds | times ours |\n|---|---|---|")
    for way, took in found.items():
        print(f"| {way} | {took:.2f} | {took / found['shared cache']:.2f} |")
    tokens, products = bounds(model.config, len(prompts), 600, count, length)
    print(f"\nBound by tokens {tokens:.2f}, by multiplications {products:.2f} (of naive).\n")

    print(
        "| prompt length | seconds | ms a prompt | naive, seconds | times ours | bounds |\n|---|---|---|---|---|---|"
    )
    for size in (150, 300, 600):
        some, reasonings = data(max(1, arguments.prompts // 4), size, count, length, vocabulary)
        ways: dict[str, Callable[[], torch.Tensor]] = {
            "shared cache": lambda: cross_log_probs(model, some, reasonings, max_tokens_per_forward=BUDGET),  # noqa: B023
            "naive": lambda: naive(model, some, reasonings, BUDGET // (size + length)),  # noqa: B023
        }
        ours, other = seconds(ways, arguments.rounds).values()
        tokens, products = bounds(model.config, len(some), size, count, length)
        cells = f"{ours:.2f} | {ours / len(some) * 1e3:.0f} | {other:.2f} | {other / ours:.2f}"
        print(f"| {size} | {cells} | {tokens:.2f}, {products:.2f} |")


if __name__ == "__main__":
    main()
