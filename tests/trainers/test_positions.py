"""Models with a table of positions see each episode where it stood when it was sampled, however far it is padded."""

import copy

import pytest
import torch
from kit import Recording, config
from test_episodes import one_batch
from transformers import (
    BioGptConfig,
    BioGptForCausalLM,
    GPT2Config,
    GPT2LMHeadModel,
    GPTNeoConfig,
    GPTNeoForCausalLM,
    OPTConfig,
    OPTForCausalLM,
    XGLMConfig,
    XGLMForCausalLM,
)

from ragen_trl import env_dataset
from ragen_trl.trainers.positions import count_positions_from_mask


SIZES = {"vocab_size": 420, "max_position_embeddings": 420}  # as large as the vocabulary, to be told apart from it
MODELS = {
    "gpt2": lambda: GPT2LMHeadModel(GPT2Config(**SIZES, n_embd=16, n_layer=1, n_head=2)),
    "gpt_neo": lambda: GPTNeoForCausalLM(
        GPTNeoConfig(**SIZES, hidden_size=16, num_layers=1, num_heads=2, attention_types=[[["global"], 1]])
    ),
    "biogpt": lambda: BioGptForCausalLM(
        BioGptConfig(**SIZES, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16)
    ),
    "xglm": lambda: XGLMForCausalLM(XGLMConfig(**SIZES, d_model=16, num_layers=1, attention_heads=2, ffn_dim=16)),
    "opt": lambda: OPTForCausalLM(
        OPTConfig(
            **SIZES, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, ffn_dim=16, word_embed_proj_dim=16
        )
    ),
}


@pytest.mark.parametrize(("name", "wrong"), [(name, name != "opt") for name in MODELS])
def test_padding_on_the_left_changes_nothing(name, wrong):
    model = MODELS[name]().eval()
    ids = torch.randint(5, 400, (1, 12))
    alone = model(input_ids=ids).logits
    padded = torch.cat([torch.zeros(1, 7, dtype=torch.long), ids, torch.zeros(1, 4, dtype=torch.long)], dim=1)
    mask = torch.cat([torch.zeros(1, 7), torch.ones(1, 12), torch.zeros(1, 4)], dim=1).long()
    before = model(input_ids=padded, attention_mask=mask).logits[:, 7:19]
    assert torch.allclose(before, alone, atol=1e-5) == (not wrong)
    assert count_positions_from_mask(model) == 1
    torch.testing.assert_close(model(input_ids=padded, attention_mask=mask).logits[:, 7:19], alone, atol=1e-5, rtol=0)
    if name == "gpt2":
        own = torch.arange(23).unsqueeze(0)
        given = model(input_ids=padded, attention_mask=mask, position_ids=own).logits[:, 7:19]
        torch.testing.assert_close(given, before)


def test_other_models_are_left_alone(model):
    assert count_positions_from_mask(model) == 0


def test_log_probabilities_of_sampler_and_trainer_agree(tokenizer, tmp_path):
    torch.manual_seed(0)
    sizes = {"vocab_size": len(tokenizer), "n_positions": 260, "n_embd": 16, "n_layer": 1, "n_head": 2,
             "embd_pdrop": 0.0, "attn_pdrop": 0.0, "resid_pdrop": 0.0}  # fmt: skip
    model = GPT2LMHeadModel(GPT2Config(**sizes, initializer_range=0.3, eos_token_id=tokenizer.eos_token_id))
    model.save_pretrained(tmp_path / "model")
    model.config._name_or_path = str(tmp_path / "model")
    settings = {"max_completion_length": 220, "beta": 0.1, "max_tokens_per_turn": 8}
    recording = Recording(
        model=copy.deepcopy(model), args=config(tmp_path, **settings), processing_class=tokenizer,
        train_dataset=env_dataset("helpers:Awkward-v0", 8),
    )  # fmt: skip
    _, output = one_batch(recording)
    ids = torch.cat([output["prompt_ids"], output["completion_ids"]], dim=1)
    attention = torch.cat([output["prompt_mask"], output["completion_mask"]], dim=1)
    assert (attention[:, 0] == 0).any(), "no prompt was padded"
    mask = output["completion_mask"] * output["tool_mask"]
    for scoring in (recording.model, recording.ref_model):  # the same weights still
        with torch.no_grad():
            values, *_ = recording._get_per_token_logps_and_entropies(
                scoring, ids, attention, output["completion_ids"].size(1), batch_size=8
            )
        assert ((values - output["sampling_per_token_logps"]) * mask).abs().max() < 1e-4
