"""
GRPO on MetaMathQA: grade-school mathematics, several attempts.

The real job, `recipes/configs/metamath_qwen2.5-0.5b.yaml`:

    accelerate launch recipes/grpo_metamath.py

The shipped agent on a laptop, without network:

    accelerate launch recipes/grpo_metamath.py --config recipes/configs/quickstart_math.yaml

DAPO and Dr. GRPO are settings of the same script: `--loss_type dapo`, `--loss_type dr_grpo --scale_rewards none`.
"""

from pathlib import Path

from ragen_trl.recipe import run_grpo


CONFIGS = Path(__file__).parent / "configs"

if __name__ == "__main__":
    run_grpo("ragen_envs/MetaMathQA-v0", CONFIGS / "metamath_qwen2.5-0.5b.yaml", CONFIGS / "quickstart_math.yaml")
