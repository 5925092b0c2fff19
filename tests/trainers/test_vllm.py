"""The trainer with TRL's vLLM backend replaced by one that samples with the model itself."""

import pytest
import torch
from kit import Recording, config, logs, moved, parameters, trainer
from trl.trainer import grpo_trainer


class Stand:
    """Takes what TRL gives to vLLM and samples token by token; log-probabilities are off by a known amount."""

    made: list["Stand"] = []
    offset = 0.0

    def __init__(self, model, processing_class, temperature, generation_kwargs, max_completion_length, **others):
        self.model, self.tokenizer, self.temperature = model, processing_class, temperature
        self.kwargs, self.limit = generation_kwargs, max_completion_length
        self.synced, self.asked = 0, []
        Stand.made.append(self)

    def sync_weights(self):
        self.synced += 1

    @torch.no_grad()
    def generate(self, prompts, images, num_generations, profiler=None):
        assert num_generations == 1 and images is None
        self.asked.append(len(prompts))
        ids, values = [], []
        for prompt in prompts:
            row, row_values = [], []
            while len(row) < self.kwargs.get("max_tokens", self.limit):
                logits = self.model(torch.tensor([prompt + row])).logits[0, -1] / self.temperature
                token = int(torch.multinomial(logits.softmax(-1), 1))
                row.append(token)
                row_values.append([float(logits.log_softmax(-1)[token]) + self.offset, -99.0])
                text = self.tokenizer.decode(row)
                if token == self.tokenizer.eos_token_id or any(stop in text for stop in self.kwargs.get("stop", [])):
                    break
            ids.append(row)
            values.append(row_values)
        return prompts, ids, values, None


@pytest.fixture
def stand(monkeypatch):
    Stand.made.clear()
    monkeypatch.setattr(grpo_trainer, "VLLMGeneration", Stand)
    monkeypatch.setattr(grpo_trainer, "is_vllm_available", lambda *args, **kwargs: True, raising=False)
    return Stand


def test_training_with_vllm(model, tokenizer, tmp_path, stand):
    settings = {"use_vllm": True, "vllm_mode": "colocate", "temperature": 0.8, "max_steps": 2, "logging_steps": 1}
    settings["vllm_importance_sampling_mode"] = "token_truncate"
    recording = trainer(tmp_path, model, tokenizer, kind=Recording, settings=settings)
    before = parameters(recording.model)
    recording.train()
    (backend,) = stand.made
    assert backend.kwargs["stop"] == ["</answer>"] and backend.kwargs["include_stop_str_in_output"]
    assert backend.kwargs["max_tokens"] == 12
    assert backend.synced == 2, "the weights are to be handed over before each rollout"
    turns = [max(len(t.turns) for t in batch) for batch in recording.batches]
    assert len(backend.asked) == sum(turns) and backend.asked[0] == 8
    assert moved(before, parameters(recording.model))
    # Sampler and trainer agree, so there is nothing to correct; observations do not count.
    assert max(logs(recording, "sampling/sampling_logp_difference/max")) < 1e-4
    for output in recording.outputs:
        torch.testing.assert_close(
            output["importance_sampling_ratio"],
            torch.ones_like(output["importance_sampling_ratio"]),
            atol=1e-3,
            rtol=0,
        )
    assert any(turn.well_formed for batch in recording.batches for t in batch for turn in t.turns)


def test_the_users_own_sampling_settings_win(model, tokenizer, tmp_path, stand):
    args = config(tmp_path, use_vllm=True, vllm_mode="colocate", generation_kwargs={"max_tokens": 5, "stop": ["x"]})
    trainer(tmp_path, model, tokenizer, args=args)
    assert stand.made[0].kwargs["max_tokens"] == 5 and stand.made[0].kwargs["stop"] == ["x"]
    assert args.generation_kwargs == {"max_tokens": 5, "stop": ["x"]}


def test_limits_of_environments_hold_without_one_in_the_settings(model, tokenizer, tmp_path, stand):
    settings = {"use_vllm": True, "vllm_mode": "colocate", "max_tokens_per_turn": None, "stop_at_answer": False}
    recording = trainer(tmp_path, model, tokenizer, kind=Recording, settings=settings | {"max_steps": 1})
    recording.train()
    assert "max_tokens" not in stand.made[0].kwargs and "stop" not in stand.made[0].kwargs
    lengths = [len(turn.token_ids) for batch in recording.batches for t in batch for turn in t.turns]
    assert max(lengths) <= 64
