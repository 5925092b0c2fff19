"""Diagnosis of a checkpoint without training: `ragen-trl diagnose`."""

from __future__ import annotations

import json
import logging
import random
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from rich.table import Table
from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig, set_seed

from ragen_envs import make_env

from .diagnostics.cross_scoring import cross_log_probs
from .diagnostics.regimes import classify_regime
from .diagnostics.survey import columns, survey, thought_metrics
from .diagnostics.thoughts import draw_first_turns, draw_turns, fitting
from .recipe import resolve_model
from .rollout.batch import RolloutBatch
from .rollout.chat import ChatFormat
from .rollout.engine import RolloutEngine, RolloutSettings
from .rollout.generation import TransformersGenerator, context_length
from .rollout.metrics import episode_metrics, summarize
from .rollout.trajectory import EpisodeSpec


logger = logging.getLogger(__name__)

_SHOWN = (
    "num_reasonings", "num_prompts", "mi_seq_estimate", "mi_upper_bound", "mi_estimate", "gap_per_token",
    "conditional_entropy_est", "reasoning_entropy_est", "mi_zscore", "retrieval_accuracy", "retrieval_chance_level",
    "retrieval_accuracy@4", "retrieval_chance_level@4",
)  # fmt: skip


@dataclass
class Diagnosis:
    """
    What was found.

    Args:
        metrics (`dict[str, float]`):
            By name, as in training: `collapse/...`, `env/...`, `rollout/...`.
        regime (`str`):
            Name of the regime.
        scores (`dict[str, torch.Tensor]`):
            Mean log-probability of a token of each reasoning under each context, by variant, (NK, N) in nats.
        own (`dict[str, list[int]]`):
            Column of the own context of each reasoning, by variant.
    """

    metrics: dict[str, float] = field(default_factory=dict)
    regime: str = ""
    scores: dict[str, torch.Tensor] = field(default_factory=dict)
    own: dict[str, list[int]] = field(default_factory=dict)

    def table(self) -> Table:
        """The numbers that matter, one column a variant."""
        table = Table("metric", *self.scores, title=f"Diagnosis: {self.regime}", title_justify="left")
        for name in _SHOWN:
            values = [self.metrics.get(f"collapse/{variant}/{name}") for variant in self.scores]
            if any(value is not None for value in values):
                table.add_row(name, *("-" if value is None else f"{value:.3f}" for value in values))
        for name, value in self.metrics.items():
            if name.endswith(("rate", "/return", "/turns")):
                table.add_row(name, f"{value:.3f}")
        return table

    def save(self, folder: Path) -> tuple[Path, Path]:
        """
        Write `diagnosis.json` and `diagnosis.png`.

        Args:
            folder (`Path`):
                Where to; made if it is not there.
        """
        folder.mkdir(parents=True, exist_ok=True)
        data, picture = folder / "diagnosis.json", folder / "diagnosis.png"
        data.write_text(json.dumps({"regime": self.regime, **self.metrics}, indent=2) + "\n")
        self._draw(picture)
        return data, picture

    def _draw(self, path: Path) -> None:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure

        figure = Figure(figsize=(12, 4.2 * max(len(self.scores), 1)), layout="constrained")
        FigureCanvasAgg(figure)
        panels = figure.subplots(max(len(self.scores), 1), 2, squeeze=False)
        for (left, right), (variant, scores) in zip(panels, self.scores.items(), strict=False):
            rows = sorted(range(len(scores)), key=self.own[variant].__getitem__)
            image = left.imshow(scores[rows].numpy(), aspect="auto", interpolation="nearest")
            left.set(title=f"{variant}: nats per token", xlabel="context", ylabel="reasoning, by own context")
            figure.colorbar(image, ax=left)
            matched = torch.zeros_like(scores, dtype=torch.bool)
            matched[range(len(scores)), self.own[variant]] = True
            for label, cells in (("own", matched), ("others", ~matched)):
                right.hist(scores[cells].numpy(), bins=40, density=True, histtype="stepfilled", alpha=0.6, label=label)
            right.set(title="under the own context and under others", xlabel="nats per token")
            right.legend()
        figure.suptitle(self.regime)
        figure.savefig(path, dpi=120)


def load(name: str) -> tuple[Any, Any]:
    """
    A model and its tokenizer, on the accelerator if there is one.

    Args:
        name (`str`):
            Hub id, folder, or `package:...`.
    """
    path = resolve_model(name)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = AutoModelForCausalLM.from_pretrained(path, dtype="auto").to(device).eval()
    return model, AutoTokenizer.from_pretrained(path)


def play(
    model: Any,
    tokenizer: Any,
    env_id: str,
    *,
    num_prompts: int = 64,
    group_size: int = 8,
    seed: int = 0,
    env_kwargs: Mapping[str, Any] | None = None,
    settings: RolloutSettings | None = None,
    temperature: float = 1.0,
    batch_size: int = 128,
) -> tuple[RolloutBatch, dict[str, float]]:
    """
    Play episodes with a model and no trainer.

    Args:
        model ([`~transformers.PreTrainedModel`]):
            The policy.
        tokenizer ([`~transformers.PreTrainedTokenizerBase`]):
            Its tokenizer, with a chat template.
        env_id (`str`):
            Environment.
        num_prompts (`int`, *optional*, defaults to `64`):
            Problems; problem `i` has the seed `seed + i`.
        group_size (`int`, *optional*, defaults to `8`):
            Episodes of each.
        seed (`int`, *optional*, defaults to `0`):
            First seed.
        env_kwargs (`Mapping[str, Any]`, *optional*):
            Arguments of the environment.
        settings ([`~ragen_trl.rollout.RolloutSettings`], *optional*):
            How episodes are played.
        temperature (`float`, *optional*, defaults to `1.0`):
            Temperature of sampling.
        batch_size (`int`, *optional*, defaults to `128`):
            Episodes at a time.

    Returns:
        `tuple[RolloutBatch, dict[str, float]]`: The episodes, and what they came to.
    """
    settings = settings or RolloutSettings(max_completion_length=4096)
    settings.limits_for(make_env(env_id, **dict(env_kwargs or {})))
    if tokenizer.pad_token_id is None:
        tokenizer.pad_token = tokenizer.eos_token
    chat = ChatFormat(tokenizer, settings.opening_tag)
    sampling = GenerationConfig(
        do_sample=True, temperature=temperature, top_k=0, top_p=1.0, pad_token_id=tokenizer.pad_token_id,
        eos_token_id=tokenizer.eos_token_id,
    )  # fmt: skip
    generator = TransformersGenerator(
        lambda: nullcontext(model),
        tokenizer,
        sampling,
        stop_ids=[chat.end_of_turn_id],
        stop_string=settings.stop_string,
        defaults=model.generation_config,
    )
    engine = RolloutEngine(settings, chat, generator, context_length(model))
    set_seed(seed)
    specs = [
        EpisodeSpec(env_id, seed + problem, dict(env_kwargs or {}), [], problem, (seed + problem, member, 0))
        for problem in range(num_prompts)
        for member in range(group_size)
    ]
    trajectories = [
        t for start in range(0, len(specs), batch_size) for t in engine.run(specs[start : start + batch_size])
    ]
    batch = RolloutBatch(
        prompt_ids=[t.prompt_ids for t in trajectories],
        completion_ids=[t.completion_ids for t in trajectories],
        sampled=[t.env_mask for t in trajectories],
        groups=[t.spec.group for t in trajectories],
        advantages=torch.zeros(len(trajectories)),
        rewards=torch.tensor([t.reward for t in trajectories], dtype=torch.float64),
        trajectories=trajectories,
    )
    return batch, episode_metrics([summarize(t, (0, t.spec.group), drifted=False) for t in trajectories])


def read_completions(path: Path, tokenizer: Any) -> RolloutBatch:
    """
    Rollouts of the last step in a file of completions that TRL wrote (`log_completions=True`). They are text, so their
    tokens are what encoding it anew gives.

    Args:
        path (`Path`):
            Parquet file with the columns `prompt` and `completion`, of text or of messages.
        tokenizer ([`~transformers.PreTrainedTokenizerBase`]):
            Tokenizer of the model.

    Raises:
        ValueError: If the file has no such columns or no rows.
    """
    frame = pd.read_parquet(path)
    missing = {"prompt", "completion"} - set(frame.columns)
    if missing or frame.empty:
        raise ValueError(f"{path} lacks {sorted(missing) or 'rows'}. Give a parquet file of TRL's `log_completions`.")
    if "step" in frame:
        frame = frame[frame["step"] == frame["step"].max()]
    if all(not isinstance(prompt, str) and not any(m["content"] for m in prompt) for prompt in frame["prompt"]):
        raise ValueError(
            f"The prompts in {path} are empty: these were episodes, whose contexts it lacks. Use --env_id."
        )
    if isinstance(frame["prompt"].iloc[0], str):
        logger.warning(
            "The file holds prompts as text without special tokens, so contexts, and with them all figures, differ "
            "from what the model saw. For episodes use --env_id."
        )
    prompts = [_prompt_ids(value, tokenizer) for value in frame["prompt"]]
    completions = [tokenizer(_text(v), add_special_tokens=False)["input_ids"] for v in frame["completion"]]
    groups = {tuple(ids): i for i, ids in enumerate(dict.fromkeys(map(tuple, prompts)))}
    return RolloutBatch(
        prompt_ids=prompts,
        completion_ids=completions,
        sampled=[[1] * len(ids) for ids in completions],
        groups=[groups[tuple(ids)] for ids in prompts],
        advantages=torch.zeros(len(prompts)),
        rewards=torch.full((len(prompts),), torch.nan, dtype=torch.float64),
    )


def _prompt_ids(value: Any, tokenizer: Any) -> list[int]:
    if not isinstance(value, str):
        value = tokenizer.apply_chat_template(list(value), tokenize=False, add_generation_prompt=True)
    return list(tokenizer(value, add_special_tokens=False)["input_ids"])


def _text(value: Any) -> str:
    """Text of the first answer that says something, its thinking included."""
    if isinstance(value, str):
        return value
    for message in value:
        content = message.get("content")
        if content is not None and not isinstance(content, str):
            content = "".join(part.get("text") or "" for part in content)
        thinking = message.get("reasoning_content")
        text = (f"<think>{thinking}</think>" if thinking else "") + (content or "")
        if message["role"] == "assistant" and text:
            return text
    return ""


def diagnose(
    model: Any,
    tokenizer: Any,
    rollouts: RolloutBatch,
    *,
    num_samples: int = 64,
    temperature: float = 1.0,
    enable_think: bool = True,
    seed: int = 0,
) -> Diagnosis:
    """
    Measure how much the reasoning in rollouts depends on the input.

    Args:
        model ([`~transformers.PreTrainedModel`]):
            The policy that made them.
        tokenizer ([`~transformers.PreTrainedTokenizerBase`]):
            Its tokenizer.
        rollouts ([`~ragen_trl.rollout.RolloutBatch`]):
            What to look at.
        num_samples (`int`, *optional*, defaults to `64`):
            Reasonings scored in each variant.
        temperature (`float`, *optional*, defaults to `1.0`):
            Temperature of sampling.
        enable_think (`bool`, *optional*, defaults to `True`):
            Whether episodes were played with a thinking block.
        seed (`int`, *optional*, defaults to `0`):
            Seed of the samples.
    """
    found = survey(rollouts, tokenizer, enable_think=enable_think)
    result = Diagnosis({"collapse/valid_thinking_rate": found.valid_rate})
    draws: dict[str, Callable[..., list[tuple[int, int]]]] = {"first_turn": draw_first_turns, "trajectory": draw_turns}
    for variant, draw in draws.items():
        drawn = draw(found.valid, num_samples, random.Random(seed))
        everything = found.thoughts(drawn)
        thoughts = fitting(everything, context_length(model))
        if len(thoughts) < len(everything):
            logger.warning(
                f"{variant}: {len(everything) - len(thoughts)} of {len(everything)} do not fit the context."
            )
        lengths = torch.tensor([[len(thought.reasoning_ids)] for thought in thoughts])

        def score(
            prompts: Sequence[Any], reasonings: Sequence[Any], variant: str = variant, lengths: Any = lengths
        ) -> torch.Tensor:
            scores = cross_log_probs(model, prompts, reasonings, temperature=temperature)
            result.scores[variant] = scores / lengths
            return scores

        metrics = thought_metrics(thoughts, score, distinct_prompts=variant == "first_turn")
        if variant in result.scores:
            _, result.own[variant] = columns(thoughts, variant == "first_turn")
        result.metrics |= {f"collapse/{variant}/{key}": value for key, value in metrics.items()}
    result.regime = _regime(result)
    return result


def _regime(result: Diagnosis) -> str:
    for variant in result.scores:
        value = {key: result.metrics[f"collapse/{variant}/{key}"] for key in _SHOWN}
        return str(
            classify_regime(
                value["conditional_entropy_est"],
                value["mi_seq_estimate"],
                retrieval=value["retrieval_accuracy"],
                chance=value["retrieval_chance_level"],
            )
        )
    return "nothing to tell apart: fewer than two contexts with reasoning"
