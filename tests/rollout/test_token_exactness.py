"""What is trained is what was sampled: ids, masks and log-probabilities."""

from contextlib import nullcontext

import pytest
import torch
from helpers import build_model
from transformers import GenerationConfig

from ragen_trl.rollout import ChatFormat, EpisodeSpec, RolloutEngine, RolloutSettings, TransformersGenerator
from ragen_trl.rollout.protocol import ANSWER_CLOSE


class Recorder:
    """Passes turns through and notes what the model saw and sampled."""

    def __init__(self, inner):
        self.inner = inner
        self.seen: dict[int, list[tuple[list[int], list[int]]]] = {}

    def generate(self, trajectories, max_new_tokens):
        contexts = [list(trajectory.context_ids) for trajectory in trajectories]
        completions = self.inner.generate(trajectories, max_new_tokens)
        for trajectory, context, completion in zip(trajectories, contexts, completions, strict=True):
            self.seen.setdefault(id(trajectory), []).append((context, list(completion.token_ids)))
        return completions


def generator_for(model, tokenizer, chat, settings, **sampling):
    config = GenerationConfig(
        do_sample=True,
        pad_token_id=tokenizer.pad_token_id,
        eos_token_id=tokenizer.eos_token_id,
        disable_compile=True,
        **sampling,
    )
    return TransformersGenerator(
        lambda: nullcontext(model),
        tokenizer,
        config,
        stop_ids=[chat.end_of_turn_id],
        stop_string=ANSWER_CLOSE if settings.stop_at_answer else "",
    )


def play(model, tokenizer, number, settings=None, env_id="helpers:Awkward-v0", **sampling):
    settings = settings or RolloutSettings(max_completion_length=900, enable_think=False)
    chat = ChatFormat(tokenizer, settings.opening_tag)
    recorder = Recorder(generator_for(model, tokenizer, chat, settings, **sampling))
    engine = RolloutEngine(settings, chat, recorder)
    prompt = [{"role": "system", "content": "Rules →\n"}, {"role": "user", "content": " first "}]
    specs = [EpisodeSpec(env_id, seed, prompt=prompt, noise_seed=(seed, 0, 0)) for seed in range(number)]
    return engine.run(specs), recorder


def forward_log_probs(model, trajectories, temperature):
    """Log-probabilities of all completion tokens by one forward pass over each whole sequence."""
    if len(trajectories) > 25:
        chunks = [trajectories[i : i + 25] for i in range(0, len(trajectories), 25)]
        return [row for chunk in chunks for row in forward_log_probs(model, chunk, temperature)]
    rows = [t.prompt_ids + t.completion_ids for t in trajectories]
    width = max(map(len, rows))
    ids = torch.tensor([row + [0] * (width - len(row)) for row in rows])
    mask = torch.tensor([[1] * len(row) + [0] * (width - len(row)) for row in rows])
    with torch.no_grad():
        logits = model(input_ids=ids, attention_mask=mask).logits / temperature
    values = logits[:, :-1].log_softmax(-1).gather(2, ids[:, 1:, None]).squeeze(2)
    return [
        values[i, len(t.prompt_ids) - 1 : len(t.prompt_ids) - 1 + len(t.completion_ids)].tolist()
        for i, t in enumerate(trajectories)
    ]


def suffix_ids(tokenizer, turn, last_id):
    """What ChatML puts between an answer and the next one, written out by hand."""
    text = f"<|im_end|>\n<|im_start|>user\n{turn.message}<|im_end|>\n<|im_start|>assistant\n<answer>"
    ids = tokenizer(text, add_special_tokens=False)["input_ids"]
    return ids[1:] if last_id == tokenizer.eos_token_id else ids


def assert_exact(trajectories, recorder, tokenizer):
    for trajectory in trajectories:
        seen = recorder.seen[id(trajectory)]
        assert len(seen) == len(trajectory.turns)
        ids, mask = list(seen[0][0]), []
        for turn, (context, sampled) in zip(trajectory.turns, seen, strict=True):
            if turn is not trajectory.turns[0]:
                suffix = suffix_ids(tokenizer, turn, ids[-1])
                ids += suffix
                mask += [0] * len(suffix)
            assert context == ids, "the model saw something else than is trained"
            ids += sampled
            mask += [1] * len(sampled)
        closing = [] if ids[-1] == tokenizer.eos_token_id or trajectory.turns[-1].cut else [tokenizer.eos_token_id]
        assert trajectory.prompt_ids + trajectory.completion_ids == ids + closing
        assert trajectory.env_mask == mask + [0] * len(closing)
        assert len(trajectory.completion_ids) == len(trajectory.env_mask) == len(trajectory.logprobs)


def assert_log_probs(model, trajectories, temperature):
    checked = 0
    for trajectory, expected in zip(trajectories, forward_log_probs(model, trajectories, temperature), strict=True):
        sampled = torch.tensor(trajectory.env_mask, dtype=torch.bool)
        values = torch.tensor(trajectory.logprobs)
        torch.testing.assert_close(values[sampled], torch.tensor(expected)[sampled], atol=1e-4, rtol=0)
        assert not values[~sampled].any()
        checked += int(sampled.sum())
    return checked


def test_200_episodes_with_awkward_text(model, tokenizer):
    settings = RolloutSettings(max_completion_length=900, enable_think=False, prompt_style="compact")
    trajectories, recorder = play(model, tokenizer, 200, settings)
    assert_exact(trajectories, recorder, tokenizer)
    assert assert_log_probs(model, trajectories, 1.0) > 4000
    # The sample must contain what it is meant to test.
    turns = [turn for trajectory in trajectories for turn in trajectory.turns]
    assert len(turns) > 400
    assert sum(turn.well_formed for turn in turns) > 100
    assert sum(turn.cut for turn in turns) > 100
    assert sum(turn.token_ids[-1] == tokenizer.eos_token_id for turn in turns) > 0
    whole = [trajectory.prompt_ids + trajectory.completion_ids for trajectory in trajectories]
    again = [tokenizer(tokenizer.decode(ids), add_special_tokens=False)["input_ids"] for ids in whole]
    assert sum(a != b for a, b in zip(whole, again, strict=True)) > 100, "no episode would drift when encoded anew"


@pytest.mark.parametrize(
    "sampling",
    [
        {"temperature": 0.7},
        {"temperature": 1.3, "top_k": 20},
        {"temperature": 0.7, "top_p": 0.8, "top_k": 50},
        {"min_p": 0.05},
        {"temperature": 0.7, "repetition_penalty": 1.3},
    ],
)
def test_log_probs_are_those_of_the_policy_whatever_cuts_the_sampling(model, tokenizer, sampling):
    trajectories, recorder = play(model, tokenizer, 16, **sampling)
    assert_exact(trajectories, recorder, tokenizer)
    assert assert_log_probs(model, trajectories, sampling.get("temperature", 1.0)) > 200


def test_model_with_more_embeddings_than_the_tokenizer_has_tokens(tokenizer):
    model = build_model(tokenizer, extra_vocabulary=400).eval()
    trajectories, recorder = play(model, tokenizer, 24)
    assert_exact(trajectories, recorder, tokenizer)
    assert_log_probs(model, trajectories, 1.0)
    assert any(token >= len(tokenizer) for t in trajectories for turn in t.turns for token in turn.token_ids)


def test_pad_token_that_is_the_end_token(model, tokenizer):
    tokenizer.pad_token = tokenizer.eos_token
    trajectories, recorder = play(model, tokenizer, 48)
    assert_exact(trajectories, recorder, tokenizer)
    assert_log_probs(model, trajectories, 1.0)
    for trajectory in trajectories:
        for turn in trajectory.turns:  # the end token once, at the end, and kept: it is part of the turn
            assert tokenizer.eos_token_id not in turn.token_ids[:-1]
    assert any(turn.token_ids[-1] == tokenizer.eos_token_id for t in trajectories for turn in t.turns)


def test_answers_past_the_stop_string_are_sampled_too_without_it(model, tokenizer):
    settings = RolloutSettings(max_completion_length=900, enable_think=False, stop_at_answer=False)
    trajectories, recorder = play(model, tokenizer, 24, settings)
    assert_exact(trajectories, recorder, tokenizer)
    texts = [turn.text for trajectory in trajectories for turn in trajectory.turns]
    assert any("</answer>" in text and not text.rstrip("\n!?").endswith("</answer>") for text in texts)


def test_turns_end_with_the_token_that_completes_the_answer(model, tokenizer):
    trajectories, _ = play(model, tokenizer, 24)
    for turn in (turn for trajectory in trajectories for turn in trajectory.turns):
        if turn.well_formed:
            assert "</answer>" not in tokenizer.decode(turn.token_ids[:-1])


def test_retokenised_episodes_are_reported(model, tokenizer):
    """Field report 29: the share of episodes whose text would encode to other tokens."""
    trajectories, _ = play(model, tokenizer, 32)
    chat = ChatFormat(tokenizer, "<answer>")
    drifted = [
        chat.drifted(t.prompt_messages + t.completion_messages, t.prompt_ids + t.completion_ids) for t in trajectories
    ]
    for trajectory, flag in zip(trajectories, drifted, strict=True):
        text = tokenizer.apply_chat_template(
            trajectory.prompt_messages + trajectory.completion_messages, tokenize=False
        )
        ids = tokenizer(text, add_special_tokens=False)["input_ids"]
        whole = trajectory.prompt_ids + trajectory.completion_ids
        assert flag == (ids[: len(whole)] != whole)
    assert any(drifted)
