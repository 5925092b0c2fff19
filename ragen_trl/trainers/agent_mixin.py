"""What the trainers share: playing episodes for dataset rows that name an environment."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from accelerate.logging import get_logger
from accelerate.utils import DistributedType, gather, gather_object
from trl.models import unwrap_model_for_generation

from ..rollout.chat import ChatFormat
from ..rollout.dataset import COLUMNS, check_rows, episode_spec, uses_envs
from ..rollout.engine import RolloutEngine, RolloutSettings
from ..rollout.generation import Generator, TransformersGenerator, VLLMGenerator, context_length
from ..rollout.metrics import EpisodeSummary, episode_metrics, summarize
from ..rollout.trajectory import Trajectory
from .agent_config import AgentConfig
from .episodes import AnyDataset, check_amount, for_episodes, refuse_others, with_episode_reward
from .positions import count_positions_from_mask
from .resume import ResumeMixin


if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

logger = get_logger(__name__)

_EMPTY_USER, _EMPTY_ANSWER = {"role": "user", "content": ""}, {"role": "assistant", "content": ""}

# TRL 1.12 has no such argument.
_KEEPS_CHECKPOINTING = "gradient_checkpointing_kwargs" in inspect.signature(unwrap_model_for_generation).parameters


class AgentMixin(ResumeMixin):
    """
    Plays an episode for each dataset row with an `env_id`, in front of [`SNRFilterMixin`] and what trains as
    [`~trl.GRPOTrainer`] does; of no effect without such rows.

    With them, completions come from a multi-turn rollout (through TRL's `rollout_func`), the return of the episode is
    one more reward function named `environment` (weight 1), and failed episodes leave the loss and the group
    statistics.
    """

    if TYPE_CHECKING:
        accelerator: Any
        args: Any
        model: Any
        model_wrapped: Any
        processing_class: Any
        state: Any
        num_generations: int
        num_generations_eval: int
        chat_template_kwargs: dict[str, Any]
        rollout_func: Callable[..., dict[str, Any]] | None
        _filtering: bool
        _rewards_per_func: torch.Tensor | None
        _reward_parts: Callable[[], torch.Tensor]
        _summed: Callable[[torch.Tensor], torch.Tensor]
        _total_rewards: Callable[[], torch.Tensor]

    _engine: RolloutEngine | None = None
    _always_guarded = False  # whether a loss that is not finite ends training without episodes too
    _eval_name = ""

    def __init__(
        self,
        model: Any,
        reward_funcs: Any = None,
        args: Any = None,
        train_dataset: AnyDataset | None = None,
        eval_dataset: Any = None,
        reward_processing_classes: Any = None,
        tools: list[Callable[..., Any]] | None = None,
        rollout_func: Callable[..., dict[str, Any]] | None = None,
        environment_factory: Any = None,
        **kwargs: Any,
    ) -> None:
        settings = self._episode_settings(args, train_dataset, eval_dataset)
        if settings is not None:
            refuse_others(rollout_func=rollout_func, tools=tools, environment_factory=environment_factory)
            args = for_episodes(args, settings, reward_funcs)
            check_amount(args, train_dataset)
            # TRL checks this only if `eval_strategy` asks for evaluations, and `evaluate()` then fails on a shape.
            if eval_dataset is not None and (hint := args.eval_batch_hint()):
                raise ValueError(hint)
            reward_funcs, reward_processing_classes = with_episode_reward(reward_funcs, reward_processing_classes)
            rollout_func = self._rollout
        with warnings.catch_warnings():
            if settings is not None:  # TRL warns that `rollout_func` may change, which is ours to follow
                warnings.filterwarnings("ignore", message="You are using 'rollout_func'")
            super().__init__(  # type: ignore[call-arg]
                model=model,
                reward_funcs=reward_funcs,
                args=args,
                train_dataset=train_dataset,
                eval_dataset=eval_dataset,
                reward_processing_classes=reward_processing_classes,
                tools=tools,
                rollout_func=rollout_func,
                environment_factory=environment_factory,
                **kwargs,
            )
        if settings is not None:
            self._start_engine(settings)

    @staticmethod
    def _episode_settings(args: Any, train_dataset: AnyDataset | None, eval_dataset: Any) -> RolloutSettings | None:
        """Settings of episodes if the datasets name environments, else `None`; refuses what could not be played."""
        evals = eval_dataset if isinstance(eval_dataset, Mapping) else {None: eval_dataset}
        named = {"train_dataset": train_dataset}
        named |= {f"eval_dataset[{k!r}]" if k is not None else "eval_dataset": v for k, v in evals.items()}
        given = {name: dataset for name, dataset in named.items() if dataset is not None}
        with_envs = {name for name, dataset in given.items() if uses_envs(dataset)}
        if not with_envs:
            return None
        if with_envs != set(given):
            raise ValueError(
                f"{sorted(with_envs)} name environments (column `env_id`), {sorted(set(given) - with_envs)} do not. "
                "Either all datasets of a trainer name environments, or none does."
            )
        if not isinstance(args, AgentConfig):
            raise TypeError(
                f"The data name environments (column `env_id`), but `args` is a {type(args).__name__}, which has no "
                "settings for episodes. Use the configuration of this package, e.g. `RagenGRPOConfig`."
            )
        settings = args.check_agent_settings()
        for name in sorted(with_envs):
            check_rows(given[name], name, settings)
        return settings

    def train(self, *args: Any, **kwargs: Any) -> Any:
        # accelerate takes a model that was evaluated for prepared and then leaves the wrapping out, so that the ranks
        # would train apart without a word.
        evaluated = getattr(self.model, "_is_accelerate_prepared", False) and self.model_wrapped is self.model
        if self.accelerator.distributed_type in (DistributedType.MULTI_GPU, DistributedType.MULTI_CPU) and evaluated:
            raise RuntimeError(
                "`evaluate()` was called before `train()` on several processes, whose gradients would then not be "
                "averaged. Set `eval_on_start=True` to evaluate before the first step."
            )
        return super().train(*args, **kwargs)  # type: ignore[misc]

    def _start_engine(self, settings: RolloutSettings) -> None:
        """Build the engine; called once the host is constructed."""
        chat = ChatFormat(self.processing_class, settings.opening_tag, self.chat_template_kwargs)
        for model in (self.model, getattr(self, "ref_model", None)):
            if model is not None:
                count_positions_from_mask(model)
        sharded = self.accelerator.distributed_type == DistributedType.FSDP or (
            self.accelerator.distributed_type == DistributedType.DEEPSPEED
            and self.accelerator.state.deepspeed_plugin.zero_stage == 3
        )
        # A vLLM server, or one spread over ranks, waits for all of them too.
        together = sharded or (self.args.use_vllm and self.accelerator.num_processes > 1)
        self._engine = RolloutEngine(
            settings,
            chat,
            self._make_generator(settings, chat, sharded),
            context_length=context_length(self.model),
            agree=self._any_rank if together else None,
        )
        self._rows: Sequence[Mapping[str, Any]] = []
        self._summaries: dict[str, list[EpisodeSummary]] = {"train": [], "eval": []}
        self._num_batches = 0
        self._eval_episodes: int | None = None

    def evaluate(self, *args: Any, **kwargs: Any) -> dict[str, float]:
        # Metrics of one of several datasets get its name, as its loss does: `eval_<name>_env/...`.
        outer, prefix = self._eval_name, kwargs.get("metric_key_prefix", "eval")
        self._eval_name = f"{prefix.removeprefix('eval_')}_" if prefix.startswith("eval_") else ""
        try:
            return super().evaluate(*args, **kwargs)  # type: ignore[misc]
        finally:
            self._eval_name = outer

    def get_eval_dataloader(self, *args: Any, **kwargs: Any) -> Any:
        loader = super().get_eval_dataloader(*args, **kwargs)  # type: ignore[misc]
        if self._engine is not None:
            sized = hasattr(loader.dataset, "__len__")
            self._eval_episodes = len(loader.dataset) * self.num_generations_eval if sized else None
        return loader

    def _make_generator(self, settings: RolloutSettings, chat: ChatFormat, sharded: bool) -> Generator:
        temperature = (self.args.generation_kwargs or {}).get("temperature", self.args.temperature)
        if temperature != self.args.temperature:
            raise ValueError(
                f"`generation_kwargs` has the temperature {temperature}, log-probabilities would be computed at "
                f"`temperature={self.args.temperature}`. Set the second."
            )
        if self.args.use_vllm:
            backend = self.vllm_generation  # type: ignore[attr-defined]
            return VLLMGenerator(backend, chat.tokenizer.pad_token_id, self._largest_of_ranks)
        return TransformersGenerator(
            self._model_for_generation,
            chat.tokenizer,
            self.generation_config,  # type: ignore[attr-defined]
            stop_ids=[chat.end_of_turn_id],
            stop_string=settings.stop_string,
            keep_alive=sharded,
            defaults=getattr(self.model, "generation_config", None),
        )

    @contextmanager
    def _model_for_generation(self) -> Iterator[Any]:
        # TRL's own way in, so that FSDP, ZeRO-3 and gradient checkpointing are handled as in plain TRL. `_dist` is
        # private: tests/trainers/test_seams.py tells when TRL changes it.
        checkpointing = {"gradient_checkpointing_kwargs": self.args.gradient_checkpointing_kwargs}
        with (
            unwrap_model_for_generation(
                self.model_wrapped,
                self.accelerator,
                gather_deepspeed3_params=self.args.ds3_gather_for_generation,
                generation_kwargs=self.generation_kwargs,  # type: ignore[attr-defined]
                **(checkpointing if _KEEPS_CHECKPOINTING else {}),
            ) as model,
            self._dist.summon_full_params(self.model_wrapped, recurse=False),  # type: ignore[attr-defined]
        ):
            yield model

    def _any_rank(self, playing: bool) -> bool:
        flag = torch.tensor([float(playing)], device=self.accelerator.device)
        return bool(self.accelerator.reduce(flag, reduction="sum").item())

    def _largest_of_ranks(self, number: int) -> int:
        return int(self.accelerator.gather(torch.tensor([number], device=self.accelerator.device)).max().item())

    @property
    def _mode(self) -> str:
        return "train" if self.model.training else "eval"

    def _rollout(self, prompts: list[Any], trainer: Any) -> dict[str, Any]:
        """TRL's `rollout_func`: plays the rows put aside in `_rows`."""
        assert self._engine is not None
        group_size = self.num_generations if self._mode == "train" else self.num_generations_eval
        first = self.accelerator.process_index * len(self._rows)
        # Members of a group share the problem, not the luck; a problem met again at a later step has other luck.
        step = self.state.global_step if self._mode == "train" else 0
        specs = [
            episode_spec(row, (first + i) // group_size, (int(row["seed"]), (first + i) % group_size, step))
            for i, row in enumerate(self._rows)
        ]
        trajectories = self._engine.run(specs)
        self._note(trajectories)
        # TRL pads with these lists, so an episode that failed before its first prompt needs a token too.
        filler = [self._engine.chat.tokenizer.pad_token_id]
        return {
            "prompt_ids": [t.prompt_ids or filler for t in trajectories],
            "completion_ids": [t.completion_ids or filler for t in trajectories],
            "env_mask": [t.env_mask or [0] for t in trajectories],
            "logprobs": [t.logprobs or [0.0] for t in trajectories],
            "trajectory": trajectories,
        }

    def _note(self, trajectories: Sequence[Trajectory]) -> None:
        """Keep summaries of all ranks for the next log line, and stop where too many episodes failed."""
        assert self._engine is not None
        chat = self._engine.chat
        self._num_batches += 1
        local = [
            summarize(
                t,
                (self._num_batches, t.spec.group),
                bool(t.turns) and chat.drifted(t.prompt_messages + t.completion_messages, t.context_ids),
            )
            for t in trajectories
        ]
        summaries: list[EpisodeSummary] = gather_object(local)
        self._summaries[self._mode].extend(summaries)
        # An evaluation is judged by all of it so far: its last batch may be a single episode.
        judged = summaries if self._mode == "train" else self._summaries["eval"]
        failed = [summary for summary in judged if summary.failed]
        # Gathered before this point, so that all ranks stop together.
        if len(failed) > self.args.max_failure_rate * len(judged):
            raise RuntimeError(
                f"{len(failed)} of {len(judged)} episodes failed, more than `max_failure_rate="
                f"{self.args.max_failure_rate}` allows. The first, of {failed[0].env_id}: {failed[0].error}. Mend the "
                "environment or the service behind it and resume from the last checkpoint, or raise the limit."
            )

    def _flush_episode_metrics(self) -> None:
        """Put the metrics of the episodes since the last log line where TRL's next one takes them from."""
        if self._engine is None:
            return
        summaries = self._summaries[self._mode]
        if self._mode == "eval":  # accelerate fills the last batch with first rows, so that ranks have equally many
            summaries = summaries[: self._eval_episodes]
        metrics = episode_metrics(summaries)
        self._summaries[self._mode].clear()
        for name, value in metrics.items():
            self._metrics[self._mode][f"{self._eval_name}{name}"] = [value]
        if metrics.get("rollout/stop/token_budget", 0.0) > 0.1:
            logger.warning_once(
                "More than a tenth of the episodes ended because the next turn did not fit: `max_completion_length="
                f"{self.args.max_completion_length}`, the model's context is {self._engine.context_length:g} tokens. "
                "They pay format penalties for fewer turns than others, which rewards length: raise the smaller one."
            )
        if metrics.get("rollout/cut_turn_rate", 0.0) > 0.9:
            logger.warning_once(
                "More than 90% of the turns ran into `max_tokens_per_turn` before they gave an answer. If returns do "
                "not vary, nothing is learned: raise the limit or ask for shorter answers."
            )

    # --- TRL's seams ---

    def _set_signature_columns_if_needed(self) -> None:
        super()._set_signature_columns_if_needed()  # type: ignore[misc]
        if self._engine is not None:
            self._signature_columns: list[str] = list(dict.fromkeys([*self._signature_columns, *COLUMNS]))

    def _generate_and_score_completions(self, inputs: list[dict[str, Any]]) -> dict[str, Any]:
        if self._engine is None and self.rollout_func is None and "env_id" in inputs[0]:
            raise ValueError(
                "The rows name environments (column `env_id`), but the trainer was built without such data and plays "
                "no episodes. Give it as `train_dataset` or `eval_dataset` to the trainer."
            )
        # `rollout_func` gets the prompts alone, so the rows are put aside for it.
        self._rows = inputs
        output: dict[str, Any] = super()._generate_and_score_completions(inputs)  # type: ignore[misc]
        return output

    def _calculate_rewards(
        self, inputs: list[dict[str, Any]], prompts: list[Any], completions: list[Any], completion_ids_list: list[Any]
    ) -> torch.Tensor:
        if self._engine is None:
            plain: torch.Tensor = super()._calculate_rewards(  # type: ignore[misc]
                inputs, prompts, completions, completion_ids_list
            )
            return plain
        trajectories: list[Trajectory] = [row["trajectory"] for row in inputs]
        # A failed episode may lack even a first message, which reward functions need not be ready for.
        prompts = [trajectory.prompt_messages or [_EMPTY_USER] for trajectory in trajectories]
        completions = [trajectory.completion_messages or [_EMPTY_ANSWER] for trajectory in trajectories]
        rewards = super()._calculate_rewards(  # type: ignore[misc]
            inputs, prompts, completions, completion_ids_list
        )
        facts = [[t.failed, t.success, sum(turn.format_penalty for turn in t.turns)] for t in trajectories]
        failed, self._successes, self._penalties = gather(torch.tensor(facts, device=rewards.device).float()).T
        # Without any reward TRL leaves a row out of the group statistics and gives it no advantage.
        self._rewards_per_func = rewards.masked_fill(failed.bool().unsqueeze(1), torch.nan)
        assert self._rewards_per_func is not None
        return self._rewards_per_func

    def _has_episodes(self) -> bool:
        return bool(self.rollout_func == self._rollout)

    def _rewards_to_rank(self) -> torch.Tensor:
        totals, parts = self._total_rewards(), self._reward_parts()
        match self.args.reward_variance_filtering_reward:
            case "success":
                return self._successes.to(totals).masked_fill(totals.isnan(), torch.nan)
            case "without_format_penalty":
                penalties = self._penalties.to(parts).masked_fill(totals.isnan(), torch.nan)
                return self._summed(torch.cat([parts, -penalties.unsqueeze(1)], dim=1))
        return totals

    def _compute_loss(self, model: Any, inputs: dict[str, Any]) -> torch.Tensor:
        loss: torch.Tensor = super()._compute_loss(model, inputs)  # type: ignore[misc]
        if (self._engine is not None or self._filtering or self._always_guarded) and not torch.isfinite(loss):
            raise FloatingPointError(
                f"The loss is {loss.item()}. Training stops before weights are overwritten; go on from the last "
                "checkpoint. Rewards out of proportion, a learning rate that is too high, and half precision are the "
                "usual causes."
            )
        return loss

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        self._flush_episode_metrics()
        super().log(logs, start_time)  # type: ignore[misc]
