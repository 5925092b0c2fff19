"""Small trainers for the tests."""

from __future__ import annotations

import copy
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import torch

from ragen_trl import RagenGRPOConfig, RagenGRPOTrainer, env_dataset


def config(folder: Any, kind: type = RagenGRPOConfig, **changes: Any) -> Any:
    """Exact and cheap: CPU, float32, 8 rollouts in 2 groups."""
    episodes = {"max_tokens_per_turn": 12, "enable_think": False, "prompt_style": "compact"}
    settings = {
        "output_dir": str(folder),
        "use_cpu": True,
        "bf16": False,
        "gradient_checkpointing": False,
        "per_device_train_batch_size": 8,
        "per_device_eval_batch_size": 8,
        "num_generations": 4,
        "max_completion_length": 160,
        "max_steps": 2,
        "logging_steps": 1,
        "learning_rate": 1e-3,
        "report_to": "none",
        "save_strategy": "no",
        "disable_tqdm": True,
        "seed": 3,
    }
    return kind(**((settings | episodes if issubclass(kind, RagenGRPOConfig) else settings) | changes))


def trainer(
    folder: Any, model: Any, tokenizer: Any, dataset: Any = None, kind: type = RagenGRPOTrainer, **kwargs: Any
):
    """A trainer on the counting environment, unless told otherwise; keywords that configs have go to the config."""
    args = kwargs.pop("args", None) or config(folder, **kwargs.pop("settings", {}))
    return kind(
        model=copy.deepcopy(model),
        args=args,
        train_dataset=env_dataset("helpers:Counter-v0", 8) if dataset is None else dataset,
        processing_class=tokenizer,
        **kwargs,
    )


def parameters(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    return {name: value.detach().clone() for name, value in model.named_parameters()}


def assert_same(first: dict[str, torch.Tensor], second: dict[str, torch.Tensor]) -> None:
    """Equal to the last bit."""
    assert first.keys() == second.keys()
    for name, value in first.items():
        assert torch.equal(value, second[name]), name


def moved(first: dict[str, torch.Tensor], second: dict[str, torch.Tensor]) -> bool:
    return any(not torch.equal(value, second[name]) for name, value in first.items())


def logs(trainer: Any, key: str) -> list[float]:
    """Values logged under a name, one per log line that has it."""
    return [line[key] for line in trainer.state.log_history if key in line]


def launch(script: str, *arguments: Any, timeout: float = 400) -> None:
    """Run a script of this folder on two ranks; it fails if they do, or if they hang."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2"]
    process = subprocess.Popen(
        [*command, str(Path(__file__).parent / script), *map(str, arguments)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        output, _ = process.communicate(timeout=timeout)
    finally:
        if process.poll() is None:
            process.terminate()  # the launcher then ends its ranks, which would outlive it if it were killed
            process.wait(60)
    assert process.returncode == 0, output[-9000:]


class RecordingMixin:
    """Keeps the episodes of every batch and the tensors made of them."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self.batches: list[list[Any]] = []
        self.outputs: list[dict[str, Any]] = []
        super().__init__(*args, **kwargs)

    def _rollout(self, prompts: Any, trainer: Any) -> Any:
        result = super()._rollout(prompts, trainer)
        self.batches.append(result["trajectory"])
        return result

    def _generate_and_score_completions(self, inputs: Any) -> Any:
        output = super()._generate_and_score_completions(inputs)
        self.outputs.append({k: v.clone() if isinstance(v, torch.Tensor) else v for k, v in output.items()})
        return output


class Recording(RecordingMixin, RagenGRPOTrainer):
    """The trainer of most tests."""
