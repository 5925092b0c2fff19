"""Every reasoning under every prompt: equal to plain re-encoding, each prompt encoded once, nothing disturbed."""

import os
import random
import warnings
from contextlib import nullcontext

import pytest
import torch
import torch.distributed as dist
import transformers
from peft import LoraConfig, PrefixTuningConfig, PromptTuningConfig, get_peft_model
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.overrides import TorchFunctionMode
from transformers import AutoModelForCausalLM

from ragen_trl.diagnostics.cross_scoring import cross_log_probs


VOCABULARY = 61
COMMON = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "initializer_range": 0.3,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
WINDOW = {"sliding_window": 7}
TWO_KINDS = {**WINDOW, "layer_types": ["sliding_attention", "full_attention"], "head_dim": 8}
# Models whose cache is lent.
LENT = {
    "Qwen2": {},
    "Qwen3": {"head_dim": 8},
    "Llama": {},
    "Gemma": {"head_dim": 8},
    "GPT2": {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 128},  # learned positions
    "OPT": {"ffn_dim": 48, "word_embed_proj_dim": 32, "dropout": 0.5},
    "Bloom": {"hidden_dropout": 0.5},  # no positions but a bias by distance
    "Mixtral": {"num_local_experts": 4},
    "Gemma2": TWO_KINDS,
    "Gemma3Text": TWO_KINDS,
    "Mistral": WINDOW,
}
# Models whose cache cannot be lent: state of a recurrence, of a convolution, other frequencies from 31 tokens on.
ENCODED_AGAIN = {
    "Mamba": {"state_size": 4, "expand": 2},
    "Lfm2": {"layer_types": ["conv", "full_attention"], "block_auto_adjust_ff_dim": False},
    "Phi3": {
        "rope_parameters": {
            "rope_type": "longrope",
            "rope_theta": 100.0,
            "short_factor": [1.0] * 4,
            "long_factor": [1.0, 2.0, 3.0, 4.0],
        },
        "original_max_position_embeddings": 30,
    },
}
BUDGET = 200


def build(name, dtype=torch.float64, attention=None, **changes):
    """A random model with logits far from uniform, in training mode, so that dropout would be seen."""
    torch.manual_seed(0)
    settings = {**COMMON, **LENT.get(name, {}), **ENCODED_AGAIN.get(name, {}), **changes}
    if name == "GPT2":
        settings = {k: v for k, v in settings.items() if k not in COMMON or k == "vocab_size"}
    name = name.split("-")[0]
    family = name.removesuffix("Text")
    config = getattr(transformers, f"{family}{'TextConfig' if name != family else 'Config'}")(**settings)
    config.attention_dropout = 0.5
    model = AutoModelForCausalLM.from_config(config, attn_implementation=attention, experts_implementation="eager")
    return model.to(dtype).train()


def data(seed=0, prompts=6, reasonings=9, longest=(40, 15)):
    """Prompts and reasonings of mixed lengths from 1, some of them twice."""
    rng = random.Random(seed)

    def rows(count, longest):
        lengths = [1, longest, *(rng.randint(1, longest) for _ in range(count - 4))]
        found = [[rng.randrange(3, VOCABULARY) for _ in range(length)] for length in lengths]
        found += rng.sample(found, 2)
        rng.shuffle(found)
        return found

    return rows(prompts, longest[0]), rows(reasonings, longest[1])


@torch.no_grad()
def reference(model, prompts, reasonings, temperature=1.0):
    """One pair after the other, whole and unpadded."""
    modes = {module: module.training for module in model.modules()}
    model.eval()
    table = torch.empty(len(reasonings), len(prompts), dtype=torch.float64)
    for i, z in enumerate(reasonings):
        for j, x in enumerate(prompts):
            logits = model(input_ids=torch.tensor([x + z]), use_cache=False).logits[0, -len(z) - 1 : -1]
            log_probs = (logits / temperature).log_softmax(-1)
            table[i, j] = log_probs.gather(-1, torch.tensor(z)[:, None]).double().sum()
    for module, mode in modes.items():
        module.training = mode
    return table


class InDouble(TorchFunctionMode):
    """
    Nothing is rounded to float32 on the way, as norms and attention of transformers do whatever the model is in: a
    difference of 1e-16 may flip such a rounding, and 1e-9 would be a matter of luck.
    """

    def __torch_function__(self, function, types, args=(), kwargs=None):
        if function is torch.Tensor.float:
            function = torch.Tensor.double
        args = [torch.float64 if arg is torch.float32 else arg for arg in args]
        kwargs = {k: torch.float64 if v is torch.float32 else v for k, v in (kwargs or {}).items()}
        return function(*args, **kwargs)


class Calls:
    """What each forward call of a model works on: rows, new tokens of a row, and cached tokens of a row."""

    def __init__(self, model):
        self.seen = []
        self.handle = model.register_forward_pre_hook(self._note, with_kwargs=True)

    def _note(self, module, args, kwargs):
        cache = kwargs.get("cache", kwargs.get("past_key_values"))
        self.seen.append((*kwargs["input_ids"].shape, 0 if cache is None else cache.get_seq_length()))

    def __enter__(self):
        return self

    def __exit__(self, *exception):
        self.handle.remove()

    @property
    def sizes(self):
        return [rows * (new + cached) for rows, new, cached in self.seen]

    @property
    def tokens(self):
        return sum(rows * new for rows, new, _ in self.seen)


def close(got, expected, reasonings, tolerance):
    lengths = torch.tensor([len(z) for z in reasonings], dtype=torch.float64)
    assert got.shape == expected.shape
    assert float(((got - expected).abs() / lengths[:, None]).max()) < tolerance


@pytest.mark.parametrize("name", [*LENT, *ENCODED_AGAIN])
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-9), (torch.float32, 1e-5)])
def test_equals_plain_encoding(name, dtype, tolerance):
    model, (prompts, reasonings) = build(name, dtype), data()
    with InDouble() if dtype == torch.float64 else nullcontext(), Calls(model) as calls:
        got = cross_log_probs(model, prompts, reasonings, max_tokens_per_forward=BUDGET)
        seen = list(calls.seen)
        expected = reference(model, prompts, reasonings)
    assert got.dtype == torch.float64 and got.device.type == "cpu"
    assert any(cached for *_, cached in seen) == (name in LENT)
    assert max(rows * (new + cached) for rows, new, cached in seen) <= BUDGET
    close(got, expected, reasonings, tolerance)


class Table(torch.nn.Module):
    """Next token by the current one alone, from a table set by hand. Has no cache, and gives all logits."""

    def __init__(self, probabilities):
        super().__init__()
        self.table = torch.nn.Parameter(torch.tensor(probabilities).log())
        self.config = transformers.PreTrainedConfig(vocab_size=len(probabilities))

    def forward(self, input_ids):
        return transformers.modeling_outputs.CausalLMOutput(logits=self.table[input_ids])


def test_numbers_by_hand():
    model = Table([[0.5, 0.25, 0.25], [0.1, 0.8, 0.1], [0.2, 0.2, 0.6]])
    # After 0: 1 has 0.25, then 1 again 0.8, then 2 0.1. After 2: 0.2 for the first, the rest is the same.
    got = cross_log_probs(model, [[1, 0], [2]], [[1, 1, 2], [0]]).exp()
    torch.testing.assert_close(got, torch.tensor([[0.02, 0.016], [0.5, 0.2]], dtype=torch.float64))
    # Probabilities to the power of 1/2, normalised.
    hot = cross_log_probs(model, [[1]], [[1]], temperature=2.0).exp()
    assert float(hot) == pytest.approx(0.8**0.5 / (0.8**0.5 + 2 * 0.1**0.5), rel=1e-6)


@pytest.mark.parametrize("name", ["Llama", "Lfm2"])
@pytest.mark.parametrize("budget", [1, 30, 57, 5000])
def test_budget_changes_calls_and_not_results(name, budget):
    model, (prompts, reasonings) = build(name), data()
    with InDouble(), Calls(model) as calls:
        got = cross_log_probs(model, prompts, reasonings, max_tokens_per_forward=budget)
        seen = list(calls.seen)
        close(got, reference(model, prompts, reasonings), reasonings, 1e-9)
    # What does not fit goes alone.
    assert all(rows == 1 or rows * (new + cached) <= budget for rows, new, cached in seen)
    assert (max(rows for rows, *_ in seen) == 1) == (budget == 1)


def test_each_distinct_prompt_is_encoded_once():
    model, (prompts, _) = build("Qwen2"), data()
    rng = random.Random(0)
    reasonings = [[rng.randrange(3, VOCABULARY) for _ in range(10)] for _ in range(7)]
    distinct = {tuple(x) for x in prompts}
    assert len(distinct) < len(prompts)
    positions = []
    hook = model.lm_head.register_forward_hook(lambda module, args, output: positions.append(output[..., 0].numel()))
    with Calls(model) as calls:
        cross_log_probs(model, prompts, reasonings + reasonings[:3], max_tokens_per_forward=10**6)
    hook.remove()
    # One token more is the look at the cache. The first of ten tokens is known from the prompt, the last is not fed.
    assert calls.tokens == 1 + sum(map(len, distinct)) + len(distinct) * 7 * 9
    assert len(calls.seen) == 1 + 2 * len(distinct)
    assert sum(positions) == 1 + len(distinct) + len(distinct) * 7 * 9


def test_order_and_duplicates_do_not_matter():
    model, (prompts, reasonings) = build("Qwen3"), data()
    rng = random.Random(3)
    columns, rows = rng.sample(range(len(prompts)), len(prompts)), rng.sample(range(len(reasonings)), len(reasonings))
    with InDouble():
        straight = cross_log_probs(model, prompts, reasonings, max_tokens_per_forward=BUDGET)
        shuffled = cross_log_probs(
            model, [prompts[j] for j in columns], [reasonings[i] for i in rows], max_tokens_per_forward=BUDGET
        )
    close(shuffled, straight[rows][:, columns], [reasonings[i] for i in rows], 1e-12)
    same = [j for j in range(len(prompts)) if prompts.count(prompts[j]) == 2]
    again = [i for i in range(len(reasonings)) if reasonings.count(reasonings[i]) == 2]
    assert len(same) >= 2 and len(again) >= 2
    for j in same:
        assert torch.equal(straight[:, j], straight[:, prompts.index(prompts[j])])
    for i in again:
        assert torch.equal(straight[i], straight[reasonings.index(reasonings[i])])


@pytest.mark.parametrize("kind", ["lora", "prompt", "prefix"])
@pytest.mark.parametrize("name", ["Qwen2", "Gemma"])
def test_with_peft(name, kind):
    config = {
        "lora": LoraConfig(
            task_type="CAUSAL_LM", init_lora_weights=False, lora_dropout=0.5, target_modules=["q_proj"]
        ),
        "prompt": PromptTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=3),
        "prefix": PrefixTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=3),
    }[kind]
    plain, (prompts, reasonings) = build(name), data()
    bare = cross_log_probs(plain, prompts, reasonings)
    model = get_peft_model(plain, config).double().train()
    with warnings.catch_warnings(), InDouble(), Calls(model) as calls:
        warnings.simplefilter("error", UserWarning)  # such as position ids that PEFT drops
        got = cross_log_probs(model, prompts, reasonings, max_tokens_per_forward=BUDGET)
        assert any(cached for *_, cached in calls.seen) == (kind == "lora")
        close(got, reference(model, prompts, reasonings), reasonings, 1e-9)
    assert float((got - bare).abs().max()) > 0.1


@pytest.mark.parametrize("attention", ["eager", "sdpa"])
@pytest.mark.parametrize("name", ["Qwen3", "Mistral"])
def test_attention_kernels_and_bf16(name, attention):
    model, (prompts, reasonings) = build(name, torch.bfloat16, attention), data()
    got = cross_log_probs(model, prompts, reasonings, temperature=0.7)
    close(got, reference(model.float(), prompts, reasonings, 0.7), reasonings, 0.3)
    close(cross_log_probs(model, prompts, reasonings), reference(model, prompts, reasonings), reasonings, 1e-5)


def snapshot(model):
    return {
        "training": [module.training for module in model.modules()],
        "attributes": [sorted(vars(module)) for module in model.modules()],
        "config": model.config.to_dict(),
        "checkpointing": [getattr(module, "gradient_checkpointing", None) for module in model.modules()],
        "gradients": [(p.requires_grad, p.grad is None) for p in model.parameters()],
        "buffers": [buffer.tolist() for buffer in model.buffers()],
        "random": (torch.get_rng_state().tolist(), random.getstate(), torch.is_grad_enabled()),
    }


@pytest.mark.parametrize("name", ["Qwen2", "Lfm2"])
@pytest.mark.parametrize("fails_at", [None, 0, 2])
def test_leaves_everything_as_it_was(name, fails_at):
    model, (prompts, reasonings) = build(name), data()
    model.gradient_checkpointing_enable()
    model.config.use_cache = False
    model.model.layers[1].eval()  # a part that is frozen
    before, calls = snapshot(model), []

    def noisy(module, args, output):
        torch.rand(1)
        assert not module.training and not torch.is_grad_enabled()
        calls.append(0)
        if len(calls) - 1 == fails_at:
            raise RuntimeError("out of memory")

    hook = model.model.layers[0].register_forward_hook(noisy)
    with pytest.raises(RuntimeError, match="out of memory") if fails_at is not None else nullcontext():
        cross_log_probs(model, prompts, reasonings)
    hook.remove()
    assert calls and snapshot(model) == before
    with InDouble():
        got = cross_log_probs(model, prompts, reasonings)
        close(got, reference(model, prompts, reasonings), reasonings, 1e-9)


@pytest.mark.parametrize("name", ["Llama", "Lfm2"])
@pytest.mark.parametrize("world_size", [2, 3, 8])
def test_ranks_share_the_columns_and_call_equally_often(name, world_size):
    model, (prompts, reasonings) = build(name), data(seed=1)
    whole = cross_log_probs(model, prompts, reasonings, max_tokens_per_forward=60)
    parts, counts = [], []
    for rank in range(world_size):
        with Calls(model) as calls:
            part = cross_log_probs(
                model, prompts, reasonings, max_tokens_per_forward=60, rank=rank, world_size=world_size
            )
        parts.append(part)
        counts.append(len(calls.seen))
    assert len(set(counts)) == 1 and counts[0] > 1
    assert bool((sum((part != 0).int() for part in parts) == 1).all())
    assert torch.equal(sum(parts), whole)


class Wrapped(torch.nn.Module):
    """As FSDP and DeepSpeed wrap a model: only calls of the outside count."""

    def __init__(self, module):
        super().__init__()
        self.module = module
        self.calls = 0

    def forward(self, *args, **kwargs):
        self.calls += 1
        return self.module(*args, **kwargs)


def test_wrapped_models_are_called_from_outside():
    model, (prompts, reasonings) = build("Llama"), data()
    plain = cross_log_probs(model, prompts, reasonings)
    wrapped = Wrapped(model)
    with Calls(model) as calls:
        assert torch.equal(cross_log_probs(wrapped, prompts, reasonings), plain)
        assert any(cached for *_, cached in calls.seen) and wrapped.calls == len(calls.seen)
    assert torch.equal(cross_log_probs(torch.nn.DataParallel(model), prompts, reasonings), plain)


def _sharded(rank, store, expected):
    """One of two processes, each with half of every weight: an unequal number of calls would hang."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
    for name, table in expected.items():
        model, (prompts, reasonings) = build(name), data(seed=1)
        for layer in model.model.layers:
            fully_shard(layer, mesh=init_device_mesh("cpu", (2,)))
        fully_shard(model, mesh=init_device_mesh("cpu", (2,)))
        part = cross_log_probs(model, prompts[:3], reasonings, max_tokens_per_forward=60, rank=rank, world_size=2)
        dist.all_reduce(part)
        torch.testing.assert_close(part, table)
    dist.destroy_process_group()
    os._exit(0)  # taking down an interpreter with such models in it aborts now and then


def test_two_processes_with_sharded_models(tmp_path):
    prompts, reasonings = data(seed=1)
    names = ("Llama", "Lfm2")
    expected = {
        name: cross_log_probs(build(name), prompts[:3], reasonings, max_tokens_per_forward=60) for name in names
    }
    torch.multiprocessing.spawn(_sharded, (str(tmp_path / "store"), expected), nprocs=2)


def test_nothing_to_score():
    model = build("Llama")
    with Calls(model) as calls:
        assert cross_log_probs(model, [[3]], []).shape == (0, 1)
        assert cross_log_probs(model, [], [[3], [3]]).shape == (2, 0)
    assert not calls.seen


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"prompts": [[3], []]}, r"`prompts\[1\]` is empty; at least one token .* Leave out"),
        ({"reasonings": [[]]}, r"`reasonings\[0\]` is empty; at least one token .* Leave out"),
        (
            {"prompts": [[3] * 100], "reasonings": [[4], [5] * 29]},
            r"100 .* 29, 129 together; .* context has 128.*leave",
        ),
        ({"prompts": [[3, VOCABULARY]]}, r"`prompts\[0\]` has token ids from 3 to 61; the model knows 0 to 60\. "),
        ({"reasonings": [[3], [-1]]}, r"`reasonings\[1\]` has token ids from -1 to -1; .* tokenizer"),
        ({"max_tokens_per_forward": 0}, r"`max_tokens_per_forward` must be at least 1, got 0\. 8192"),
        ({"temperature": 0.0}, r"`temperature` must be above 0, got 0\.0\. Take"),
        ({"temperature": float("nan")}, r"`temperature` must be above 0, got nan"),
        ({"rank": 2, "world_size": 2}, r"`rank` must be in \[0, world_size\), got rank 2 of 2\. Pass"),
    ],
)
def test_errors_at_the_door(changes, message):
    model = build("Llama")
    settings = {"prompts": [[3, 4]], "reasonings": [[5]], **changes}
    with Calls(model) as calls, pytest.raises(ValueError, match=message):
        cross_log_probs(model, **settings)
    assert not calls.seen


def test_fills_the_context_to_the_last_token():
    model = build("GPT2")
    prompts, reasonings = [[3] * 100], [list(range(3, 31))]
    with InDouble():
        close(cross_log_probs(model, prompts, reasonings), reference(model, prompts, reasonings), reasonings, 1e-9)
