"""A tiny model and tokenizer built in memory, chat templates, and environments that misbehave on request."""

from __future__ import annotations

import time
from typing import Any

import gymnasium
import torch
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from ragen_envs import Limits, TextEnv, step_info


CHATML = (
    "{%- for m in messages %}{{- '<|im_start|>' + m['role'] + '\n' + m['content'] + '<|im_end|>' + '\n' }}"
    "{%- endfor %}{%- if add_generation_prompt %}{{- '<|im_start|>assistant\n' }}{%- endif %}"
)

# Pieces of text that merge with their neighbours, or look like something they are not.
AWKWARD = [
    "→ Up, Up",
    " leading",
    "trailing ",
    "\n\n",
    "  ",
    "naïve café",
    "日本語テキスト",
    "🙂🤖",
    "👩‍👩‍👧",
    "e\u0301",
    "the the",
    "ing",
    "<|im_start|>user\n",
    "<|im_end|>",
    "</answer>",
    "<think>",
    "<answer>Up || Down</answer>",
    "{braces} {0} {{ x }}",
    "%s %d",
    "\t\r\n",
    "\u200b",
    "A" * 30,
    "||",
    "[INST]",
    "\\n",
    "0.10000",
]

_WORDS = ["Up", "Down", "Left", "Right", "go", "no"]


def build_tokenizer(chat_template: str | None = CHATML) -> PreTrainedTokenizerFast:
    """
    Byte-level BPE with merges, so that text put together encodes differently from its parts. Some tokens hold whole
    tags, others a tag and what surrounds it, so that a random model gives a well-formed answer now and then.
    """
    core = Tokenizer(models.BPE())
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    core.decoder = decoders.ByteLevel()
    corpus = [
        " ".join(AWKWARD),
        "You are an agent. The state of the board. Think, then answer. Up Down Left Right",
    ] * 4
    trainer = trainers.BpeTrainer(
        vocab_size=360, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False
    )
    core.train_from_iterator(corpus, trainer)
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=core, eos_token="<|im_end|>", pad_token="<|endoftext|>")
    tokenizer.add_special_tokens({"additional_special_tokens": ["<|im_start|>"]})
    pieces = ["<think>", "</think>", "<answer>", "</answer>"]
    pieces += [f"{word}</answer>" for word in _WORDS] + [f"{word}</think><answer>" for word in _WORDS]
    pieces += [f"</think><answer>{a}||{b}</answer>" for a in _WORDS for b in _WORDS[:3]] + [
        "</answer>\n",
        "</answer>!?",
    ]
    tokenizer.add_tokens([AddedToken(piece, normalized=False) for piece in pieces])
    tokenizer.chat_template = chat_template
    return tokenizer


def build_model(tokenizer: PreTrainedTokenizerFast, extra_vocabulary: int = 0, seed: int = 0) -> LlamaForCausalLM:
    """Random Llama of a few ten thousand parameters, with logits large enough that sampling is not uniform."""
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=len(tokenizer) + extra_vocabulary,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        max_position_embeddings=8192,
        pad_token_id=tokenizer.pad_token_id,
        eos_token_id=tokenizer.eos_token_id,
        bos_token_id=None,
        tie_word_embeddings=True,
        initializer_range=0.2,
    )
    model = LlamaForCausalLM(config)
    model.config._name_or_path = "tiny-random"
    with torch.no_grad():  # the end of a turn is to be likely in some contexts
        model.get_input_embeddings().weight[tokenizer.eos_token_id] *= 4
    return model


class Counter(TextEnv):
    """
    Counts. `win` and `lose` end the episode, `stop` truncates it, `bad...` is invalid, all else counts one up and pays
    `pay`. Text of any length can be asked for with `filler`.
    """

    instruction = "Count."
    limits = Limits(max_turns=4, max_actions_per_turn=3, max_actions=8, max_tokens_per_turn=64)

    def __init__(
        self, *, pay: float = 1.0, filler: int = 0, max_tokens: int | None = None, split: Any = "train"
    ) -> None:
        super().__init__(split=split)
        self.pay, self.filler, self.count = pay, filler, 0
        if max_tokens is not None:
            self.limits = Limits(4, 3, 8, max_tokens)

    def _show(self) -> str:
        return f"seed {self.seed} count {self.count}" + "." * (self.filler if self.count else 0)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed, options=options)
        self.seed, self.count, self.noise_seed = seed, 0, (options or {}).get("noise_seed")
        return self._show(), {}

    def step(self, action):
        if action.startswith("bad") or not action.strip() or action.startswith("§"):
            return self._show(), 0.0, False, False, step_info(success=False, valid=False, effective=False)
        self.count += 1
        done, success = action in ("win", "lose"), action == "win"
        info = step_info(success=success, valid=True, effective=True)
        return self._show(), self.pay, done, action == "stop", info


class Awkward(TextEnv):
    """Shows awkward text; rewards and length of the episode are random, any action will do."""

    instruction = "Answer → anything. 🙂 {not a field} <|im_end|>"
    limits = Limits(max_turns=5, max_actions_per_turn=2, max_actions=10, max_tokens_per_turn=16)

    def _show(self) -> str:
        picks = self.np_random.integers(len(AWKWARD), size=int(self.np_random.integers(1, 6)))
        return "".join(AWKWARD[i] for i in picks)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed, options=options)
        self.text = self._show()
        return self.text, {}

    def step(self, action):
        if not action.strip() or action.startswith("§"):
            return self.text, 0.0, False, False, step_info(success=False, valid=False, effective=False)
        self.text = self._show()
        reward = float(self.noise.normal())
        done = bool(self.np_random.random() < 0.2)
        return self.text, reward, done, False, step_info(success=done and reward > 0, valid=True, effective=True)


class Lottery(TextEnv):
    """Ends after one turn, whatever is answered, and pays what the noise of the episode says."""

    instruction = "Play."
    limits = Limits(max_turns=1, max_actions_per_turn=1, max_actions=1, max_tokens_per_turn=40)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed, options=options)
        return f"ticket {seed}", {}

    def step(self, action):
        valid = not action.startswith("§") and bool(action)
        pay = float(self.noise.normal()) if valid else 0.0
        return (
            "drawn" if valid else f"ticket {0}",
            pay,
            valid,
            False,
            step_info(success=pay > 0, valid=valid, effective=valid),
        )


class Faulty(Counter):
    """Breaks in the way `fault` says, for members `members` of a group (by noise seed), or for all without it."""

    def __init__(self, *, fault: str, members: list[int] | None = None, seconds: float = 3600.0) -> None:
        if fault == "constructor" and members is None:
            raise OSError("no service")
        super().__init__()
        self.fault, self.members, self.seconds, self.ill = fault, members, seconds, False

    def reset(self, *, seed=None, options=None):
        result = super().reset(seed=seed, options=options)
        # With the noise seeds of a checker everything is in order.
        in_rollout = isinstance(self.noise_seed, tuple)
        self.ill = in_rollout and (self.members is None or self.noise_seed[1] in self.members)
        if self.ill and self.fault in _RESET_FAULTS:
            return _RESET_FAULTS[self.fault](self, result)
        return result

    def step(self, action):
        result = super().step(action)
        if self.ill and self.fault in _STEP_FAULTS:
            return _STEP_FAULTS[self.fault](self, *result)
        return result

    def close(self):
        if self.fault == "close":
            raise RuntimeError("cannot close")


def _raise(error: BaseException) -> Any:
    raise error


def _sleep(env: Faulty, *result: Any) -> Any:
    time.sleep(env.seconds)
    return result


_RESET_FAULTS = {
    "reset": lambda env, result: _raise(OSError("no service")),
    "reset_none": lambda env, result: None,
    "reset_number": lambda env, result: (5, {}),
    "reset_exit": lambda env, result: _raise(SystemExit(3)),
    "reset_sleep": lambda env, result: _sleep(env, *result),
}
_STEP_FAULTS = {
    "step": lambda env, *r: _raise(OSError("no service")),
    "exit": lambda env, *r: _raise(SystemExit(3)),
    "interrupt": lambda env, *r: _raise(KeyboardInterrupt()),
    "sleep": _sleep,
    "none": lambda env, *r: None,
    "short": lambda env, *r: r[:4],
    "number": lambda env, o, *r: (5, *r),
    "nan": lambda env, o, w, *r: (o, float("nan"), *r),
    "inf": lambda env, o, w, *r: (o, float("inf"), *r),
    "huge": lambda env, o, w, *r: (o, 1e300, *r),
    "text_reward": lambda env, o, w, *r: (o, "one", *r),
    "no_info": lambda env, *r: (*r[:4], {}),
    "info_none": lambda env, *r: (*r[:4], None),
}


class _Speechless(Exception):
    """Cannot be printed."""

    def __str__(self) -> str:
        raise RuntimeError("no words")


_STEP_FAULTS["speechless"] = lambda env, *r: _raise(_Speechless())
STEP_FAULTS = sorted(set(_STEP_FAULTS) - {"interrupt", "sleep"})
RESET_FAULTS = sorted(set(_RESET_FAULTS) - {"reset_sleep"})


class Mute(Counter):
    """Shows nothing after the first action, which the checker does not notice."""

    def step(self, action):
        observation, *rest = super().step(action)
        return ("" if isinstance(self.noise_seed, tuple) else observation), *rest


for _class in (Counter, Awkward, Lottery, Faulty, Mute):
    _id = f"{_class.__name__}-v0"
    if _id not in gymnasium.registry:
        gymnasium.register(_id, entry_point=_class, disable_env_checker=True, order_enforce=False)
