"""Going on from a checkpoint in the middle of a generation."""

from __future__ import annotations

import os
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from accelerate.logging import get_logger
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR

from ..rollout.metrics import EpisodeSummary


logger = get_logger(__name__)


class ResumeMixin:
    """
    Puts into a checkpoint what [`~trl.GRPOTrainer`] keeps in memory between two generations: rollouts that are still
    to be trained on, how many micro-steps were made, and metrics not logged yet. Without it a run that goes on from
    there would generate anew, at another rhythm than before.
    """

    if TYPE_CHECKING:
        accelerator: Any
        args: Any
        num_iterations: int
        state: Any
        _buffered_inputs: list[dict[str, Any]] | None
        _get_output_dir: Any
        _metrics: dict[str, dict[str, list[float]]]
        _step: int

    _summaries: dict[str, list[EpisodeSummary]]

    def _save_checkpoint(self, model: Any, trial: Any) -> None:
        super()._save_checkpoint(model, trial)  # type: ignore[misc]
        folder = Path(self._get_output_dir(trial=trial)) / f"{PREFIX_CHECKPOINT_DIR}-{self.state.global_step}"
        folder.mkdir(parents=True, exist_ok=True)
        pending = self._step % (self.args.steps_per_generation * self.num_iterations) != 0
        content = {
            "step": self._step,
            "rollouts": self._buffered_inputs if pending else None,
            "metrics": {name: [float(value) for value in values] for name, values in self._metrics["train"].items()},
            "episodes": [asdict(summary) for summary in getattr(self, "_summaries", {}).get("train", [])],
        }
        torch.save(content, folder / f"{self._file}.tmp")
        os.replace(folder / f"{self._file}.tmp", folder / self._file)

    @property
    def _file(self) -> str:
        return f"rollouts_{self.accelerator.process_index}_of_{self.accelerator.num_processes}.pt"

    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        super()._load_optimizer_and_scheduler(checkpoint)  # type: ignore[misc]
        if checkpoint is None:
            return
        path = Path(checkpoint) / self._file
        if not path.exists():
            logger.warning(
                f"{path} is missing (another number of processes, or another trainer's checkpoint). Rollouts that "
                "were still to be trained on are generated anew, so the run is not the one that was interrupted."
            )
            self._step = self.state.global_step * self.args.gradient_accumulation_steps
            return
        content = torch.load(path, map_location=self.accelerator.device, weights_only=True)
        self._step, self._buffered_inputs = content["step"], content["rollouts"]
        self._metrics["train"].update(content["metrics"])
        if content["episodes"]:
            self._summaries["train"] = [EpisodeSummary(**episode) for episode in content["episodes"]]
