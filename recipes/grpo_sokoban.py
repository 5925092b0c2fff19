"""
GRPO on Sokoban: push boxes onto targets.

The real job, `recipes/configs/sokoban_qwen2.5-3b.yaml`:

    accelerate launch recipes/grpo_sokoban.py

The shipped agent on a laptop, without network:

    accelerate launch recipes/grpo_sokoban.py --config recipes/configs/quickstart_sokoban.yaml

DAPO and Dr. GRPO are settings of the same script: `--loss_type dapo`, `--loss_type dr_grpo --scale_rewards none`.
"""

from pathlib import Path

from ragen_trl.recipe import run_grpo


CONFIGS = Path(__file__).parent / "configs"

if __name__ == "__main__":
    run_grpo("ragen_envs/Sokoban-v0", CONFIGS / "sokoban_qwen2.5-3b.yaml", CONFIGS / "quickstart_sokoban.yaml")
