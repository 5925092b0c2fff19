from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest


RECIPE = Path(__file__).parents[2] / "recipes" / "warmstart_tiny.py"


def load_recipe() -> ModuleType:
    spec = importlib.util.spec_from_file_location("warmstart_tiny", RECIPE)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


@pytest.mark.slow
def test_few_steps_lower_the_loss(tmp_path: Path) -> None:
    recipe = load_recipe()
    arguments = recipe.WarmstartArguments(output_dir=str(tmp_path), num_episodes=400, num_epochs=5)
    losses = [entry["loss"] for entry in recipe.warm_start(arguments).state.log_history if "loss" in entry]
    # A uniform guess costs 6.5 nats a token.
    assert losses[0] > losses[-1] and losses[-1] < 1.5
