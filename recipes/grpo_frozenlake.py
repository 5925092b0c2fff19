"""
GRPO on FrozenLake: find the way over a frozen lake.

The real job, `recipes/configs/frozenlake_qwen2.5-3b.yaml`:

    accelerate launch recipes/grpo_frozenlake.py

The shipped agent on a laptop, without network:

    accelerate launch recipes/grpo_frozenlake.py --config recipes/configs/quickstart_frozenlake.yaml

DAPO and Dr. GRPO are settings of the same script: `--loss_type dapo`, `--loss_type dr_grpo --scale_rewards none`.
"""

from pathlib import Path

from ragen_trl.recipe import run_grpo


CONFIGS = Path(__file__).parent / "configs"

if __name__ == "__main__":
    run_grpo(
        "ragen_envs/FrozenLake-v0", CONFIGS / "frozenlake_qwen2.5-3b.yaml", CONFIGS / "quickstart_frozenlake.yaml"
    )
