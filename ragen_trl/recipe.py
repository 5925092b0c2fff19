"""What the recipe scripts share: arguments, data, the run, and what is shown at its end."""

from __future__ import annotations

import importlib
import json
import os
import re
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path
from typing import Any

import torch
from accelerate.logging import get_logger
from datasets import Dataset
from transformers import IntervalStrategy, TrainerCallback
from trl import ModelConfig, TrlParser, get_peft_config, get_quantization_config
from trl.rewards import get_soft_overlong_punishment

from ragen_envs.rows import HubDatasetError

from .callbacks import MutualInformationCallback
from .report import evaluations, print_summary, save_learning_curve
from .rollout.dataset import env_dataset
from .trainers.grpo_config import RagenGRPOConfig
from .trainers.grpo_trainer import RagenGRPOTrainer


logger = get_logger(__name__)

_PACKAGE = "package:"
_CONFIG_FORM = re.compile(r"(?<=^--config)=")


@dataclass
class RecipeArguments:
    """
    What a recipe plays.

    Args:
        env_id (`str`, *optional*):
            Environment. Each recipe has its own default.
        env_kwargs (`dict` or `str`, *optional*):
            Arguments of the environment, as a mapping or as JSON. On the command line they take the place of all those
            in the file.
        dataset_path (`str`, *optional*):
            Data of an environment that takes some: a Hub id, a file or a folder. Shorthand for `dataset` in
            `env_kwargs`.
        num_train_problems (`int`, *optional*, defaults to `10000`):
            Problems to train on; problem `i` has the seed `train_seed + i`.
        num_eval_problems (`int`, *optional*, defaults to `256`):
            Held-out problems to evaluate on, `0` for none.
        train_seed (`int`, *optional*, defaults to `10000`):
            Seed of the first problem to train on.
        eval_seed (`int`, *optional*, defaults to `123`):
            Seed of the first problem to evaluate on.
        eval_before (`bool`, *optional*, defaults to `True`):
            Whether to evaluate before training too.
        diagnostics_every_n_steps (`int`, *optional*, defaults to `5`):
            Steps between two measurements of mutual information, as in the paper's code; `0` for none.
        diagnostics_num_samples (`int`, *optional*, defaults to `64`):
            Reasonings scored in each of them.
        overlong_cache (`int`, *optional*):
            Soft punishment of long rollouts (DAPO, arXiv 2503.14476): over the last `overlong_cache` tokens below
            `max_completion_length` it grows from 0 to -1. Defaults to none.
        cpu_threads (`int`, *optional*):
            Threads of torch on the CPU. More than one is slower for small models on busy cores.
    """

    env_id: str | None = field(default=None, metadata={"help": "Environment. Each recipe has its own default."})
    env_kwargs: dict[str, Any] | str | None = field(
        default=None, metadata={"help": "Arguments of the environment, instead of all those in the file; JSON."}
    )
    dataset_path: str | None = field(
        default=None, metadata={"help": "Data of the environment: a Hub id, a file or a folder."}
    )
    num_train_problems: int = field(default=10_000, metadata={"help": "Problems to train on."})
    num_eval_problems: int = field(default=256, metadata={"help": "Held-out problems to evaluate on, 0 for none."})
    train_seed: int = field(default=10_000, metadata={"help": "Seed of the first problem to train on."})
    eval_seed: int = field(default=123, metadata={"help": "Seed of the first problem to evaluate on."})
    eval_before: bool = field(default=True, metadata={"help": "Whether to evaluate before training too."})
    diagnostics_every_n_steps: int = field(
        default=5, metadata={"help": "Steps between two measurements of mutual information, 0 for none."}
    )
    diagnostics_num_samples: int = field(default=64, metadata={"help": "Reasonings scored in each measurement."})
    overlong_cache: int | None = field(
        default=None, metadata={"help": "Tokens below `max_completion_length` over which a punishment grows to -1."}
    )
    cpu_threads: int | None = field(default=None, metadata={"help": "Threads of torch on the CPU."})

    def __post_init__(self) -> None:
        self.env_kwargs = _mapping(self.env_kwargs)
        least_values = {"num_train_problems": 1, "num_eval_problems": 0, "diagnostics_every_n_steps": 0}
        for name, least in least_values.items():
            if getattr(self, name) < least:
                raise ValueError(f"`{name}` must be at least {least}, got {getattr(self, name)}.")

    def reward_funcs(self, max_completion_length: int) -> list[Any]:
        """Reward functions on top of the environment's."""
        if self.overlong_cache is None:
            return []
        if not 0 < self.overlong_cache < max_completion_length:
            raise ValueError(
                f"`overlong_cache` must lie between 0 and `max_completion_length={max_completion_length}`, got "
                f"{self.overlong_cache}."
            )
        return [get_soft_overlong_punishment(max_completion_length, self.overlong_cache)]

    def datasets(self) -> tuple[Dataset, Dataset | None]:
        """Rows to train on and rows to evaluate on."""
        kwargs = _mapping(self.env_kwargs)
        if "split" in kwargs:
            raise ValueError(
                f"env_kwargs={kwargs!r} has a `split`. Problems to train on and to evaluate on are kept apart here: "
                "leave it out."
            )
        if self.dataset_path is not None:
            kwargs["dataset"] = self.dataset_path
        env_id = self.env_id or ""
        train = env_dataset(env_id, self.num_train_problems, seed=self.train_seed, env_kwargs=kwargs)
        if self.num_eval_problems == 0:
            return train, None
        return train, env_dataset(
            env_id, self.num_eval_problems, seed=self.eval_seed, split="validation", env_kwargs=kwargs
        )


def run_grpo(env_id: str, config: Path, offline_config: Path, argv: Sequence[str] | None = None) -> None:
    """
    Run a recipe with [`RagenGRPOTrainer`] from its command line.

    Args:
        env_id (`str`):
            Environment unless the arguments name another.
        config (`Path`):
            Settings if `--config` names none.
        offline_config (`Path`):
            Settings to point to where these need a network and there is none.
        argv (`Sequence[str]`, *optional*):
            Arguments. Defaults to those of the process.
    """
    _run(RagenGRPOTrainer, RagenGRPOConfig, env_id, config, offline_config, argv)


def run_ppo(env_id: str, config: Path, offline_config: Path, argv: Sequence[str] | None = None) -> None:
    """
    Run a recipe with [`RagenPPOTrainer`] from its command line. Arguments as for [`run_grpo`].

    Raises:
        ImportError: On TRL 1.13 and newer, which have no PPO.
    """
    from .trainers.ppo_config import RagenPPOConfig  # not to be had with every TRL
    from .trainers.ppo_trainer import RagenPPOTrainer

    _run(RagenPPOTrainer, RagenPPOConfig, env_id, config, offline_config, argv)


def _run(
    trainer_class: Any, config_class: Any, env_id: str, config: Path, offline_config: Path, argv: Sequence[str] | None
) -> None:
    argv = _with_config(sys.argv[1:] if argv is None else argv, config)
    parser = TrlParser((RecipeArguments, config_class, ModelConfig))
    with _explained(offline_config):
        recipe, training_args, model_args = parser.parse_args_and_config(args=argv)
    recipe.env_id = recipe.env_id or env_id
    model = resolve_model(model_args.model_name_or_path)
    if recipe.cpu_threads is not None:
        torch.set_num_threads(recipe.cpu_threads)

    ################
    # Trainer
    ################
    train_dataset, eval_dataset = recipe.datasets()
    training_args.model_init_kwargs = {
        "revision": model_args.model_revision,
        "attn_implementation": usable_attention(model_args.attn_implementation),
        "dtype": model_args.dtype,
    }
    training_args.eval_on_start = eval_dataset is not None and recipe.eval_before
    if eval_dataset is None:
        training_args.eval_strategy = IntervalStrategy.NO
    with _explained(offline_config, model):
        trainer = trainer_class(
            model=model,
            reward_funcs=recipe.reward_funcs(training_args.max_completion_length),
            args=training_args,
            train_dataset=train_dataset,
            eval_dataset=eval_dataset,
            quantization_config=get_quantization_config(model_args),
            peft_config=get_peft_config(model_args),
        )
    if recipe.diagnostics_every_n_steps:
        trainer.add_callback(
            MutualInformationCallback(recipe.diagnostics_every_n_steps, recipe.diagnostics_num_samples)
        )
    saving = _SaveAtTheEnd(trainer)
    trainer.add_callback(saving)

    ################
    # Training
    ################
    resume = training_args.resume_from_checkpoint
    # On a command line "true" stands for the last checkpoint in `output_dir`.
    trainer.train(resume_from_checkpoint={"true": True, "false": None}.get(str(resume).lower(), resume))
    if not saving.done:
        trainer.save_model(training_args.output_dir)
    done = evaluations(trainer.state.log_history)
    if eval_dataset is not None and not (done and done[-1]["step"] == trainer.state.global_step):
        trainer.evaluate()

    ################
    # Result
    ################
    trainer.save_state()
    if trainer.accelerator.is_main_process:
        history = trainer.state.log_history
        picture = save_learning_curve(history, Path(training_args.output_dir) / "learning_curve.png")
        print_summary(history, {"checkpoint": training_args.output_dir, "picture": str(picture)})
    if training_args.push_to_hub:
        trainer.push_to_hub(dataset_name=recipe.dataset_path)


class _SaveAtTheEnd(TrainerCallback):
    """Saves the model after the last step and not later: an evaluation follows there, which may fail."""

    def __init__(self, trainer: Any) -> None:
        self._trainer = trainer
        self.done = False

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.global_step >= state.max_steps or control.should_training_stop:
            self._trainer.save_model(args.output_dir)
            self.done = True


def usable_attention(name: str | None) -> str | None:
    """
    The attention implementation asked for, or `None` (the model's default) with a warning where its package is there
    but does not load, as happens with a build for another torch.

    Args:
        name (`str`, *optional*):
            E.g. `"sdpa"` or `"flash_attention_2"`.
    """
    if name != "flash_attention_2":
        return name
    try:
        importlib.import_module("flash_attn")
    except ImportError as error:
        logger.warning(f"attn_implementation={name!r} cannot be used ({error}); the model's default is used instead.")
        return None
    return name


def resolve_model(name: str) -> str:
    """
    Path of a model that ships inside a Python package (`package:<package>/<folder>`); any other name as it is.

    Args:
        name (`str`):
            Hub id, folder, or `package:...`.

    Raises:
        ValueError: If the package has no such folder.
    """
    if not name.startswith(_PACKAGE):
        return name
    package, _, folder = name.removeprefix(_PACKAGE).partition("/")
    try:
        path = Path(str(resources.files(package))) / folder
    except (ImportError, ValueError) as error:
        raise ValueError(f"model_name_or_path={name!r}: there is no package {package!r} ({error}).") from error
    if not path.is_dir():
        raise ValueError(f"model_name_or_path={name!r}: the package {package!r} has no folder {folder!r}.")
    return str(path)


def _mapping(value: dict[str, Any] | str | None) -> dict[str, Any]:
    """`env_kwargs` as a mapping; of YAML it is one already, of a command line it is JSON."""
    try:
        mapping = json.loads(value) if isinstance(value, str) else value or {}
    except ValueError:
        mapping = None
    if not isinstance(mapping, dict):
        raise ValueError(
            f"env_kwargs={value!r} is no mapping. Give a JSON object, e.g. " + """'{"layout": "open"}'."""
        )
    return dict(mapping)


def _with_config(argv: Sequence[str], config: Path) -> list[str]:
    """Arguments with `--config FILE` among them, the only form that TrlParser reads."""
    argv = [part for argument in argv for part in _CONFIG_FORM.split(argument, maxsplit=1)]
    if "--config" not in argv:
        return ["--config", str(config), *argv]
    file = "".join(argv[argv.index("--config") + 1 :][:1])
    if not Path(file).is_file():
        shipped = ", ".join(os.path.relpath(path) for path in sorted(config.parent.glob("*.yaml")))
        raise SystemExit(f"--config {file}: there is no such file. Shipped are {shipped}.")
    return argv


@contextmanager
def _explained(offline_config: Path, model: str = "") -> Iterator[None]:
    """Tell how to go on where the machine lacks what the settings need."""
    try:
        yield
    except (OSError, ValueError) as error:
        missing = _what_is_missing(error, model)
        if missing is None:
            raise
        raise SystemExit(
            f"{error}\n\n{missing} The same recipe trains what ships with the package on a CPU without a network:\n\n"
            f"    --config {os.path.relpath(offline_config)}\n\n"
            "Local copies of a model and of data are named with `--model_name_or_path` and `--dataset_path`."
        ) from error


def _what_is_missing(error: Exception, model: str) -> str | None:
    """What the settings need that is not here; `None` if the error is of another kind."""
    if "bf16/gpu" in str(error):
        return "These settings are for a GPU."
    if isinstance(error, HubDatasetError):
        return "The data could not be loaded from the Hub."
    # A model is loaded before the repository to push to is made; nothing else opens files while a trainer is built.
    if model and isinstance(error, OSError) and not Path(model).exists() and "repos/create" not in str(error):
        return f"The model {model!r} is no folder here, and could not be loaded from the Hub."
    return None
