"""
Make the embedded agent: supervised training of a fresh model on imperfect demonstrations.

The demonstrations are episodes of the train split that scripted players with errors play through the rollout engine,
so the model sees token for token what reinforcement learning will show it. Only what the players wrote is trained.

    OMP_NUM_THREADS=1 python recipes/warmstart_tiny.py --output_dir runs/tiny

makes the shipped weights from nothing in four minutes on one core, half a minute of it for the demonstrations.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import torch
from transformers import set_seed
from trl import SFTConfig, SFTTrainer, TrlParser

from ragen_trl.tiny.demonstrations import demonstrations
from ragen_trl.tiny.model import build_model
from ragen_trl.tiny.tokenizer import build_tokenizer


@dataclass
class WarmstartArguments:
    """
    Arguments of the recipe.

    Args:
        output_dir (`str`, *optional*, defaults to `"runs/tiny"`):
            Folder for weights and tokenizer.
        num_episodes (`int`, *optional*, defaults to `6000`):
            Demonstrations of the task that is hardest to learn; the others get a share of it.
        num_epochs (`float`, *optional*, defaults to `5`):
            Passes over them.
        batch_size (`int`, *optional*, defaults to `32`):
            Episodes a step.
        learning_rate (`float`, *optional*, defaults to `0.002`):
            Highest learning rate.
        seed (`int`, *optional*, defaults to `0`):
            Seed of weights, players, problems and order.
        cpu_threads (`int`, *optional*, defaults to `1`):
            Threads of torch. More of them on busy cores wait for each other.
    """

    output_dir: str = field(default="runs/tiny", metadata={"help": "Folder for weights and tokenizer."})
    num_episodes: int = field(default=6000, metadata={"help": "Demonstrations of the hardest task."})
    num_epochs: float = field(default=5, metadata={"help": "Passes over them."})
    batch_size: int = field(default=32, metadata={"help": "Episodes a step."})
    learning_rate: float = field(default=2e-3, metadata={"help": "Highest learning rate."})
    seed: int = field(default=0, metadata={"help": "Seed of weights, players, problems and order."})
    cpu_threads: int = field(default=1, metadata={"help": "Threads of torch."})


def training_config(arguments: WarmstartArguments) -> SFTConfig:
    """Settings of the supervised training."""
    return SFTConfig(
        output_dir=str(Path(arguments.output_dir) / "trainer"),
        num_train_epochs=arguments.num_epochs,
        per_device_train_batch_size=arguments.batch_size,
        learning_rate=arguments.learning_rate,
        lr_scheduler_type="cosine",
        warmup_steps=50,
        weight_decay=0.0,
        adam_beta2=0.98,
        logging_steps=50,
        save_strategy="no",
        report_to="none",
        seed=arguments.seed,
        use_cpu=True,
        bf16=False,
        gradient_checkpointing=False,
        max_length=None,
    )


def warm_start(arguments: WarmstartArguments) -> SFTTrainer:
    """
    Train the agent.

    Args:
        arguments ([`WarmstartArguments`]):
            What to train it on, and for how long.

    Returns:
        [`~trl.SFTTrainer`]: The trainer, done; its model and log are in it.
    """
    torch.set_num_threads(arguments.cpu_threads)
    set_seed(arguments.seed)
    tokenizer = build_tokenizer()
    trainer = SFTTrainer(
        model=build_model(tokenizer, arguments.seed),
        args=training_config(arguments),
        train_dataset=demonstrations(tokenizer, arguments.num_episodes, arguments.seed),
        processing_class=tokenizer,
    )
    trainer.train()
    return trainer


def main() -> None:
    (arguments,) = TrlParser(WarmstartArguments).parse_args_and_config()
    trainer = warm_start(arguments)
    trainer.model.config.use_cache = True  # the trainer turns it off, and sampling would be slow
    # Not `trainer.save_model`: the folder is to hold what `from_pretrained` needs and nothing else.
    trainer.model.save_pretrained(arguments.output_dir)
    trainer.processing_class.save_pretrained(arguments.output_dir)


if __name__ == "__main__":
    main()
