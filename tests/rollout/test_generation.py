"""Backends: where a turn stops, how long it may be, and what is asked of vLLM."""

from contextlib import contextmanager

import pytest
import torch
from helpers import build_model, build_tokenizer
from transformers import GenerationConfig
from transformers.modeling_outputs import CausalLMOutputWithPast

from ragen_trl.rollout import EpisodeSpec, PolicyGenerator, Trajectory, TransformersGenerator, Turn, VLLMGenerator
from ragen_trl.rollout.generation import _StopString


STOP = "</answer>"


def trajectory_of(context_ids, token_ids=()):
    return Trajectory(EpisodeSpec("x", 0), turns=[Turn(list(context_ids), "m", token_ids=list(token_ids))])


class Script:
    """Makes a real model's `generate` sample given rows of tokens: all the probability goes to the next one."""

    def __init__(self, model, rows, start):
        self.model, self.rows, self.start = model, rows, start
        self.calls = 0
        self.position = 0
        self.original = model.forward
        model.forward = self.forward

    def forward(self, *args, **kwargs):
        self.calls += 1
        output = self.original(*args, **kwargs)
        logits = torch.full_like(output.logits, -100.0)
        for row, ids in enumerate(self.rows):
            logits[row, -1, ids[min(self.position, len(ids) - 1)]] = 100.0
        self.position += 1
        return CausalLMOutputWithPast(logits=logits, past_key_values=output.past_key_values)


def generator_for(model, tokenizer, stop_ids=(), stop_string=STOP, keep_alive=False, **config):
    @contextmanager
    def context():
        yield model

    config = {"do_sample": True, "eos_token_id": tokenizer.eos_token_id} | config
    config = GenerationConfig(pad_token_id=tokenizer.pad_token_id, disable_compile=True, **config)
    return TransformersGenerator(context, tokenizer, config, stop_ids, stop_string, keep_alive)


def sample(model, tokenizer, texts, limits=None, **settings):
    """What is kept of scripted turns, given as texts or ids, and how many passes the model made."""
    rows = [tokenizer(t, add_special_tokens=False)["input_ids"] if isinstance(t, str) else t for t in texts]
    script = Script(model, rows, 3)
    generator = generator_for(model, tokenizer, **settings)
    trajectories = [trajectory_of(range(3, 6 + i)) for i in range(len(rows))]
    completions = generator.generate(trajectories, limits or [60] * len(rows))
    for completion in completions:
        assert len(completion.token_ids) == len(completion.logprobs)
    return completions, rows, script.calls


@pytest.fixture(scope="module")
def plain_tokenizer():
    """Without tokens for the tags: they are spelled out."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    core = Tokenizer(models.BPE({symbol: i for i, symbol in enumerate(alphabet)}, []))
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    core.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(tokenizer_object=core, eos_token="<|im_end|>", pad_token="<|endoftext|>")


def test_stop_string_split_over_many_tokens(plain_tokenizer):
    model = build_model(plain_tokenizer).eval()
    (completion,), rows, calls = sample(model, plain_tokenizer, ["🙂 Up</answer> and more"])
    assert plain_tokenizer.decode(completion.token_ids) == "🙂 Up</answer>"
    assert len(completion.token_ids) == calls, "the model ran on after the answer"


def test_stop_string_merged_with_what_follows(model, tokenizer):
    piece = tokenizer.convert_tokens_to_ids("</answer>!?")
    (completion,), _, calls = sample(model, tokenizer, [[10, 11, piece, 12, 13]])
    assert completion.token_ids == [10, 11, piece] and calls == 3


def test_stop_string_completed_inside_a_token(model, tokenizer):
    """`</answer` spelled out, then a token that starts with `>`."""
    ids = tokenizer("</answer", add_special_tokens=False)["input_ids"]
    closer = tokenizer.convert_tokens_to_ids("<think>")  # holds the last character, completes nothing
    end = tokenizer(">", add_special_tokens=False)["input_ids"]
    (completion,), _, _ = sample(model, tokenizer, [[closer, *ids, *end, 20, 21]])
    assert completion.token_ids == [closer, *ids, *end]


def test_rows_stop_on_their_own(model, tokenizer):
    eos = tokenizer.eos_token_id
    texts = ["a</answer> rest", "longer text without an end " * 3, [30, eos, 31, 32], "bb</answer>!? x"]
    completions, rows, _ = sample(model, tokenizer, texts, [60, 9, 60, 60])
    decoded = [tokenizer.decode(completion.token_ids) for completion in completions]
    assert decoded[0] == "a</answer>"
    assert completions[1].token_ids == rows[1][:9]
    assert completions[2].token_ids == [30, eos]
    assert decoded[3] == "bb</answer>!?"


def test_limits_of_rows(model, tokenizer):
    completions, rows, calls = sample(model, tokenizer, ["x y z " * 20] * 4, [1, 7, 3, 20])
    assert [len(completion.token_ids) for completion in completions] == [1, 7, 3, 20]
    assert calls == 20


def test_a_turn_that_ends_at_its_limit_exactly(model, tokenizer):
    ids = tokenizer("go Up</answer>", add_special_tokens=False)["input_ids"]
    (completion,), _, _ = sample(model, tokenizer, [ids + [20, 21]], [len(ids)])
    assert completion.token_ids == ids
    (completion,), _, _ = sample(build_model(tokenizer).eval(), tokenizer, [ids + [20, 21]], [len(ids) - 1])
    assert completion.token_ids == ids[:-1]


def test_end_of_turn_token_that_is_not_the_end_token(model, tokenizer):
    end_of_turn = tokenizer.convert_tokens_to_ids("<|im_start|>")
    (completion,), _, calls = sample(model, tokenizer, [[10, end_of_turn, 11]], stop_ids=[end_of_turn])
    assert completion.token_ids == [10, end_of_turn] and calls == 2
    (completion,), _, _ = sample(build_model(tokenizer).eval(), tokenizer, [[10, tokenizer.eos_token_id, 11]],
                                 stop_ids=[end_of_turn])  # fmt: skip
    assert completion.token_ids == [10, tokenizer.eos_token_id]


def test_several_end_tokens(model, tokenizer):
    (completion,), _, _ = sample(model, tokenizer, [[10, 77, 11]], eos_token_id=[tokenizer.eos_token_id, 77])
    assert completion.token_ids == [10, 77]


def test_no_end_token_at_all(model, tokenizer):
    model.generation_config.eos_token_id = None
    (completion,), rows, _ = sample(model, tokenizer, ["x y z " * 20], [8], eos_token_id=None, stop_string="")
    assert completion.token_ids == rows[0][:8]


def test_pad_token_is_kept_when_it_is_the_end_token(model, tokenizer):
    tokenizer.pad_token = tokenizer.eos_token
    eos = tokenizer.eos_token_id
    completions, _, _ = sample(model, tokenizer, [[10, eos], [10, 11, 12, 13, eos]])
    assert [completion.token_ids for completion in completions] == [[10, eos], [10, 11, 12, 13, eos]]


def test_tokens_beyond_the_tokenizer(tokenizer):
    model = build_model(tokenizer, extra_vocabulary=50).eval()
    beyond = len(tokenizer) + 40
    (completion,), _, _ = sample(model, tokenizer, [[10, beyond, *tokenizer("</answer>")["input_ids"][:9], 12]])
    assert completion.token_ids[1] == beyond
    assert tokenizer.decode(completion.token_ids).endswith("</answer>")


def test_greedy(model, tokenizer):
    generator = generator_for(model, tokenizer, do_sample=False)
    first, second = (generator.generate([trajectory_of([3, 4, 5])], [12])[0] for _ in range(2))
    assert first == second and all(value <= 0 for value in first.logprobs)


def test_repetition_penalty_is_applied(model, tokenizer):
    texts = [
        generator_for(model, tokenizer, do_sample=False, repetition_penalty=penalty, eos_token_id=None, stop_string="")
        .generate([trajectory_of([3, 4, 5])], [40])[0]
        .token_ids
        for penalty in (1.0, 8.0)
    ]
    assert len(set(texts[0])) < len(set(texts[1]))


def test_the_callers_configuration_is_left_alone(model, tokenizer):
    config = GenerationConfig(eos_token_id=5, repetition_penalty=1.2, max_new_tokens=77)
    before = config.to_dict()
    TransformersGenerator(lambda: None, tokenizer, config, [9], STOP)
    assert config.to_dict() == before


def test_nothing_to_sample(model, tokenizer):
    script = Script(model, [[10]], 1)
    assert generator_for(model, tokenizer).generate([], []) == [] and script.calls == 0
    # A sharded model has to run nevertheless: the other ranks wait for it.
    assert generator_for(model, tokenizer, keep_alive=True).generate([], []) == [] and script.calls == 1


@pytest.mark.parametrize("text", [STOP, "🙂>", "\n\n"])
def test_stop_string_is_found_once_wherever_it_is_cut(text):
    tokenizer = build_tokenizer()
    stop = _StopString(tokenizer, text)
    generator = torch.Generator().manual_seed(0)
    for trial in range(30):
        # Bytes and merged tokens at random, with the text put in as bytes, pieces or the tokenizer's own encoding.
        before = torch.randint(0, 256, (5,), generator=generator).tolist()
        pieces = (
            [text]
            if trial % 3 == 0
            else list(text)
            if trial % 3 == 1
            else [text[: len(text) // 2], text[len(text) // 2 :]]
        )
        ids = before + [i for piece in pieces for i in tokenizer(piece, add_special_tokens=False)["input_ids"]]
        hits = [n for n in range(1, len(ids) + 1) if stop.completes(ids[:n])]
        first = next(n for n in range(1, len(ids) + 1) if text in tokenizer.decode(ids[:n]))
        assert hits[0] == first


def test_policy_generator_goes_through_tokens(tokenizer):
    seen = []
    generator = PolicyGenerator(tokenizer, lambda trajectory: seen.append(trajectory) or "→ Up</answer><|im_end|>")
    trajectories = [trajectory_of([1]), trajectory_of([2])]
    whole, cut = generator.generate(trajectories, [50, 2])
    assert seen == trajectories
    assert tokenizer.decode(whole.token_ids) == "→ Up</answer><|im_end|>"
    assert whole.token_ids[-1] == tokenizer.eos_token_id
    assert cut.token_ids == whole.token_ids[:2] and cut.logprobs == [0.0, 0.0]


class VLLM:
    """Records what is asked of TRL's vLLM backend; answers with a count."""

    def __init__(self):
        self.asked = []

    def generate(self, prompts, images, num_generations, profiler=None):
        self.asked.append((prompts, images, num_generations))
        ids = [[100 + i, 200 + i, 300 + i] for i in range(len(prompts))]
        # Sampled token first, as TRL reads it; `None` for one that vLLM could not score.
        values = [[[-1.0 - i, -9.0], [-2.0], [None]] for i in range(len(prompts))]
        return prompts, ids, values, [[[0]] * 3] * len(prompts)


def test_vllm_gets_each_context_as_a_prompt_of_its_own():
    backend = VLLM()
    completions = VLLMGenerator(backend).generate([trajectory_of([1, 2], [3]), trajectory_of([1, 2], [4, 5])], [3, 2])
    assert backend.asked == [([[1, 2, 3], [1, 2, 4, 5]], None, 1)]
    assert [c.token_ids for c in completions] == [[100, 200, 300], [101, 201]]
    assert [c.logprobs for c in completions] == [[-1.0, -2.0, None], [-2.0, -2.0]]


def test_vllm_shared_by_ranks_gets_as_many_prompts_from_each():
    """TRL cuts the answers into equal slices, so a rank with fewer live episodes must not ask for fewer."""
    backend = VLLM()
    generator = VLLMGenerator(backend, 7, lambda number: 3)
    completions = generator.generate([trajectory_of([1, 2])], [9])
    assert backend.asked[0][0] == [[1, 2], [7], [7]]
    assert [c.token_ids for c in completions] == [[100, 200, 300]]
    assert generator.generate([], []) == []
    assert backend.asked[1][0] == [[7], [7], [7]]


def test_vllm_is_not_asked_for_nothing():
    backend = VLLM()
    assert VLLMGenerator(backend).generate([], []) == []
    assert backend.asked == []
