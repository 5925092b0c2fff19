"""
PPO on any environment.

    accelerate launch recipes/ppo.py --env_id ragen_envs/FrozenLake-v0

`recipes/configs/` has `ppo_recommended.yaml`, and `ppo_paper.yaml` as the authors ran it. The shipped agent on a
laptop, without network:

    accelerate launch recipes/ppo.py --config recipes/configs/quickstart_ppo.yaml

PPO needs TRL 1.12: `pip install "ragen-trl[ppo]"`.
"""

from pathlib import Path

from ragen_trl.recipe import run_ppo


CONFIGS = Path(__file__).parent / "configs"

if __name__ == "__main__":
    run_ppo("ragen_envs/Sokoban-v0", CONFIGS / "ppo_recommended.yaml", CONFIGS / "quickstart_ppo.yaml")
