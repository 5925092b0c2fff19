"""What is taken from TRL's PPO trainer, all in one place, as newer TRL has none."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from transformers import Trainer
from trl.trainer.base_trainer import _BaseTrainer


try:
    from trl.experimental.ppo import PPOConfig as PPOConfig
    from trl.experimental.ppo import PPOTrainer
except ImportError as error:
    import trl

    raise ImportError(
        f"PPO builds on `trl.experimental.ppo`, which TRL {trl.__version__} does not have: 1.13 removed it. "
        'Install `"trl>=1.12,<1.13"` (the extra `ragen-trl[ppo]`), or use `RagenGRPOTrainer`.'
    ) from error

if TYPE_CHECKING:
    from torch.utils.data import DataLoader


class PPOInterface(PPOTrainer):
    """
    TRL's [`~trl.experimental.ppo.PPOTrainer`] as a type, without its loop: a trainer that inherits from it is one, and
    trains, saves and loads by [`~transformers.Trainer`]'s methods. What is left are the names of its settings
    (`PPOConfig`) and of its constructor's arguments.
    """

    __init__ = _BaseTrainer.__init__
    train = Trainer.train
    save_model = Trainer.save_model
    _save_checkpoint = Trainer._save_checkpoint
    null_ref_context = None

    def get_train_dataloader(self) -> DataLoader[Any]:
        return Trainer.get_train_dataloader(self)

    def get_eval_dataloader(self, eval_dataset: Any = None) -> DataLoader[Any]:
        return Trainer.get_eval_dataloader(self, eval_dataset)
