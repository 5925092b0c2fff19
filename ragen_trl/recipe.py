"""What the recipe scripts share: arguments, data, the run, and what is shown at its end."""

from __future__ import annotations

import importlib
import json
import os
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
from trl import ModelConfig, TrlParser, get_peft_config, get_quantization_config

from ragen_envs import UnknownEnvError

from .report import evaluations, print_summary, save_learning_curve
from .rollout.dataset import env_dataset
from .trainers.grpo_config import RagenGRPOConfig
from .trainers.grpo_trainer import RagenGRPOTrainer


logger = get_logger(__name__)

_PACKAGE = "package:"


@dataclass
class RecipeArguments:
    """
    What a recipe plays.

    Args:
        env_id (`str`, *optional*):
            Environment. Each recipe has its own default.
        env_kwargs (`dict` or `str`, *optional*):
            Arguments of the environment, as a mapping or as JSON.
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
        cpu_threads (`int`, *optional*):
            Threads of torch on the CPU. More than one is slower for small models on busy cores.
    """

    env_id: str | None = field(default=None, metadata={"help": "Environment. Each recipe has its own default."})
    env_kwargs: dict[str, Any] | str | None = field(
        default=None, metadata={"help": "Arguments of the environment, as a mapping or as JSON."}
    )
    dataset_path: str | None = field(
        default=None, metadata={"help": "Data of the environment: a Hub id, a file or a folder."}
    )
    num_train_problems: int = field(default=10_000, metadata={"help": "Problems to train on."})
    num_eval_problems: int = field(default=256, metadata={"help": "Held-out problems to evaluate on, 0 for none."})
    train_seed: int = field(default=10_000, metadata={"help": "Seed of the first problem to train on."})
    eval_seed: int = field(default=123, metadata={"help": "Seed of the first problem to evaluate on."})
    eval_before: bool = field(default=True, metadata={"help": "Whether to evaluate before training too."})
    cpu_threads: int | None = field(default=None, metadata={"help": "Threads of torch on the CPU."})

    def __post_init__(self) -> None:
        if isinstance(self.env_kwargs, str):
            self.env_kwargs = json.loads(self.env_kwargs)
        for name, least in (("num_train_problems", 1), ("num_eval_problems", 0)):
            if getattr(self, name) < least:
                raise ValueError(f"`{name}` must be at least {least}, got {getattr(self, name)}.")

    def datasets(self) -> tuple[Dataset, Dataset | None]:
        """Rows to train on and rows to evaluate on."""
        kwargs = dict(self.env_kwargs or {})  # type: ignore[arg-type]
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
    Run a GRPO recipe from its command line.

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
    argv = list(sys.argv[1:] if argv is None else argv)
    if not any(argument.split("=")[0] == "--config" for argument in argv):
        argv = ["--config", str(config), *argv]
    parser = TrlParser((RecipeArguments, RagenGRPOConfig, ModelConfig))
    with _explained(offline_config):
        recipe, training_args, model_args = parser.parse_args_and_config(args=argv)
    recipe.env_id = recipe.env_id or env_id
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
    with _explained(offline_config, f"{model_args.model_name_or_path!r} or {recipe.dataset_path or recipe.env_id!r}"):
        trainer = RagenGRPOTrainer(
            model=resolve_model(model_args.model_name_or_path),
            args=training_args,
            train_dataset=train_dataset,
            eval_dataset=eval_dataset,
            quantization_config=get_quantization_config(model_args),
            peft_config=get_peft_config(model_args),
        )

    ################
    # Training
    ################
    trainer.train(resume_from_checkpoint=training_args.resume_from_checkpoint)
    done = evaluations(trainer.state.log_history)
    if eval_dataset is not None and not (done and done[-1]["step"] == trainer.state.global_step):
        trainer.evaluate()

    ################
    # Result
    ################
    trainer.save_model(training_args.output_dir)
    trainer.save_state()
    if trainer.accelerator.is_main_process:
        history = trainer.state.log_history
        picture = save_learning_curve(history, Path(training_args.output_dir) / "learning_curve.png")
        print_summary(history, {"checkpoint": training_args.output_dir, "picture": str(picture)})
    if training_args.push_to_hub:
        trainer.push_to_hub(dataset_name=recipe.dataset_path)


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
    path = Path(str(resources.files(package))) / folder
    if not path.is_dir():
        raise ValueError(f"model_name_or_path={name!r}: the package {package!r} has no folder {folder!r}.")
    return str(path)


@contextmanager
def _explained(offline_config: Path, loaded: str = "the settings") -> Iterator[None]:
    """Tell how to go on where the machine lacks what the settings need."""
    try:
        yield
    except UnknownEnvError:
        raise
    except (OSError, ValueError) as error:
        missing = _what_is_missing(str(error), loaded)
        if missing is None:
            raise
        raise SystemExit(
            f"{error}\n\n{missing} The same recipe trains what ships with the package on a CPU without a network:\n\n"
            f"    --config {os.path.relpath(offline_config)}\n\n"
            "Local copies of a model and of data are named with `--model_name_or_path` and `--dataset_path`."
        ) from error


def _what_is_missing(error: str, loaded: str) -> str | None:
    if "bf16/gpu" in error:
        return "These settings are for a GPU."
    if any(hint in error for hint in ("huggingface.co", "Hub", "offline", "couldn't connect")):
        return f"From the Hub could not be loaded: {loaded}."
    return None
