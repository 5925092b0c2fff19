"""
GRPO, DAPO and Dr. GRPO on any environment.

    accelerate launch recipes/grpo.py --env_id ragen_envs/FrozenLake-v0
    accelerate launch recipes/grpo.py --config recipes/configs/dapo_recommended.yaml --env_id ragen_envs/Sokoban-v0

`recipes/configs/` has `grpo`, `dapo` and `dr_grpo`, each as `_recommended` and as the authors ran it (`_paper`). The
shipped agent on a laptop, without network:

    accelerate launch recipes/grpo.py --config recipes/configs/quickstart_sokoban.yaml
"""

from pathlib import Path

from ragen_trl.recipe import run_grpo


CONFIGS = Path(__file__).parent / "configs"

if __name__ == "__main__":
    run_grpo("ragen_envs/Sokoban-v0", CONFIGS / "grpo_recommended.yaml", CONFIGS / "quickstart_sokoban.yaml")
