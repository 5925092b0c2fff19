"""What runs on each of two ranks; started by test_two_processes.py with torchrun. Writes what it saw as JSON."""

from __future__ import annotations

import json
import sys
from pathlib import Path


sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parent.parent)]

import conftest  # noqa: E402, F401  (environment and threads)
import torch  # noqa: E402
from accelerate.utils import gather, gather_object  # noqa: E402
from helpers import build_model, build_tokenizer  # noqa: E402
from kit import Recording, config, trainer  # noqa: E402
from trl.trainer import grpo_trainer  # noqa: E402

from ragen_trl import env_dataset  # noqa: E402
from ragen_trl.rollout import (  # noqa: E402
    ChatFormat,
    Completion,
    EpisodeSpec,
    RolloutEngine,
    RolloutSettings,
    VLLMGenerator,
)


OUT = Path(sys.argv[1])
TOKENIZER = build_tokenizer()


def make(name, dataset=None, **kwargs):
    # Straddling: 3 rollouts a rank in groups of 2.
    settings = {"per_device_train_batch_size": 3, "num_generations": 2, "per_device_eval_batch_size": 2}
    settings |= kwargs.pop("settings", {})
    args = config(OUT / name, **settings)
    return trainer(OUT / name, build_model(TOKENIZER), TOKENIZER, dataset, kind=Recording, args=args, **kwargs)


def faulty(fault, members):
    return env_dataset("helpers:Faulty-v0", 8, env_kwargs={"fault": fault, "members": members})


def checksum(model):
    return [float(parameter.double().sum()) for parameter in model.parameters()]


def history(made):
    return [
        {k: v for k, v in line.items() if "time" not in k and "per_second" not in k} for line in made.state.log_history
    ]


def episodes(batch):
    return [
        {
            "group": t.spec.group,
            "seed": t.spec.seed,
            "noise": list(t.spec.noise_seed),
            "prompt": t.prompt_ids,
            "turns": len(t.turns),
            "reward": t.reward,
            "failed": t.failed,
        }
        for t in batch
    ]


def report(made):
    return {
        "before": None,
        "after": checksum(made.accelerator.unwrap_model(made.model)),
        "history": history(made),
        "batches": [episodes(batch) for batch in made.batches],
        "advantages": [output["advantages"].tolist() for output in made.outputs],
        "trained_tokens": [int(o["num_items_in_batch"]) for o in made.outputs],
        "local_tokens": [int((o["completion_mask"] * o["tool_mask"]).sum()) for o in made.outputs],
    }


def straddling():
    made = make("straddling", settings={"max_steps": 3})
    made.train()
    return report(made)


def one_rank_idle():
    """All of the second rank's episodes fail before their first prompt."""
    data = faulty("reset", [3, 4, 5])
    made = make("idle", data, settings={"num_generations": 6, "max_steps": 2})
    made.train()
    return report(made)


def too_many_failures():
    """The failures are all on the second rank; both have to stop."""
    made = make("failures", faulty("reset", [3, 4, 5]), settings={"num_generations": 6, "max_failure_rate": 0.4})
    try:
        made.train()
    except RuntimeError as error:
        return str(error)
    return "went on"


def evaluation():
    """Three problems, two rollouts each, four at a time: the last batch is filled up."""
    made = make(
        "evaluation",
        settings={"eval_on_start": True, "eval_strategy": "steps", "eval_steps": 1, "max_steps": 1},
        eval_dataset=env_dataset("helpers:Lottery-v0", 3),
    )
    made.train()
    played = [gather_object(episodes(batch)) for batch in made.batches]
    return report(made) | {"played": played}


def evaluation_first():
    made = make("first", eval_dataset=env_dataset("helpers:Lottery-v0", 2))
    made.evaluate()
    try:
        made.train()
    except RuntimeError as error:
        return str(error)
    return "went on"


class Backend:
    """Takes equal numbers of prompts from all ranks, as a vLLM server does, or hangs and mixes them up."""

    def __init__(self, accelerator):
        self.accelerator, self.asked = accelerator, []

    def generate(self, prompts, images, num_generations):
        numbers = gather(torch.tensor([len(prompts)])).tolist()
        everything = gather_object(prompts)
        self.asked.append(numbers)
        start = self.accelerator.process_index * len(prompts)
        own = everything[start : start + len(prompts)]
        ids = [TOKENIZER("a</answer>", add_special_tokens=False)["input_ids"] + [prompt[-1]] for prompt in own]
        return own, ids, [[[-1.0]] * len(row) for row in ids], None


def shared_vllm():
    """Ranks play different numbers of episodes with different numbers of turns."""
    made = make("vllm")
    backend = Backend(made.accelerator)
    rank = made.accelerator.process_index
    generator = VLLMGenerator(backend, 7, made._largest_of_ranks)
    settings = RolloutSettings(max_completion_length=5000, enable_think=False, max_turns=2 + 2 * rank)
    engine = RolloutEngine(settings, ChatFormat(TOKENIZER, "<answer>"), generator, agree=made._any_rank)
    specs = [EpisodeSpec("helpers:Counter-v0", 10 * rank + i) for i in range(1 + 2 * rank)]
    specs += [EpisodeSpec("helpers:Lottery-v0", 1)] * 2
    played = engine.run(specs)
    right = all(turn.token_ids[-1] == turn.context_ids[-1] for t in played for turn in t.turns)
    return {"asked": backend.asked, "turns": [len(t.turns) for t in played], "right": right}


class TrainerBackend(Backend):
    """The same in a trainer's place for vLLM; every answer is another length, so that ranks drift apart."""

    def __init__(self, accelerator, **others):
        super().__init__(accelerator)

    def sync_weights(self):
        pass

    def generate(self, prompts, images, num_generations):
        own, ids, values, rest = super().generate(prompts, images, num_generations)
        # Every other rank-0 answer ends its episode early by using up its actions.
        many = TOKENIZER("a||b||c</answer>", add_special_tokens=False)["input_ids"]
        ids = [many if self.accelerator.process_index == 0 else row for row in ids]
        return own, ids, [[[-1.0]] * len(row) for row in ids], rest


def vllm_training():
    grpo_trainer.VLLMGeneration = TrainerBackend
    grpo_trainer.is_vllm_available = lambda *args, **kwargs: True
    settings = {"use_vllm": True, "vllm_mode": "colocate", "max_actions": 5, "max_turns": 4, "max_steps": 1}
    made = make("vllm_training", settings=settings | {"max_tokens_per_turn": 24, "max_completion_length": 400})
    made.train()
    return report(made) | {"asked": made.vllm_generation.asked}


class Counting:
    def __init__(self):
        self.calls = 0

    def generate(self, trajectories, max_new_tokens):
        self.calls += 1
        ids = TOKENIZER("a</answer>", add_special_tokens=False)["input_ids"]
        return [Completion(ids, [0.0] * len(ids)) for _ in trajectories]


def sharded():
    made = make("sharded")
    rank = made.accelerator.process_index
    generator = Counting()
    settings = RolloutSettings(max_completion_length=5000, enable_think=False, max_turns=1 + 3 * rank)
    engine = RolloutEngine(settings, ChatFormat(TOKENIZER, "<answer>"), generator, agree=made._any_rank)
    turns = [len(t.turns) for t in engine.run([EpisodeSpec("helpers:Counter-v0", rank)])]
    return {"calls": generator.calls, "turns": turns}


if __name__ == "__main__":
    cases = (
        straddling, one_rank_idle, too_many_failures, evaluation, evaluation_first, shared_vllm, vllm_training,
        sharded,
    )  # fmt: skip
    results = {case.__name__: case() for case in cases}
    rank = int(torch.distributed.get_rank())
    (OUT / f"rank{rank}.json").write_text(json.dumps(results))
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()
