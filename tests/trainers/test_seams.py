"""What this package relies on in TRL beyond its public names; a failure here says what TRL has changed."""

import inspect

import pytest
from kit import trainer
from trl import GRPOConfig, GRPOTrainer
from trl.models import unwrap_model_for_generation
from trl.trainer.utils import split_pixel_values_by_grid, unsplit_pixel_values_by_grid


def names(function):
    return list(inspect.signature(function).parameters)


@pytest.mark.parametrize(
    ("method", "expected"),
    [
        ("_generate_and_score_completions", ["self", "inputs"]),
        ("_calculate_rewards", ["self", "inputs", "prompts", "completions", "completion_ids_list"]),
        ("_compute_loss", ["self", "model", "inputs"]),
        ("_prepare_inputs", ["self", "generation_batch"]),
        ("_set_signature_columns_if_needed", ["self"]),
        ("get_eval_dataloader", ["self", "eval_dataset"]),
        ("log", ["self", "logs", "start_time"]),
        ("_generate", ["self", "prompts"]),
    ],
)
def test_signatures(method, expected):
    assert names(getattr(GRPOTrainer, method)) == expected


def test_constructor_takes_what_we_hand_on():
    ours = [
        "model",
        "reward_funcs",
        "args",
        "train_dataset",
        "eval_dataset",
        "processing_class",
        "reward_processing_classes",
        "callbacks",
        "optimizers",
    ]
    # In this order, since users may give them by position.
    assert names(GRPOTrainer.__init__)[1:10] == ours
    assert {"rollout_func", "tools", "environment_factory", "peft_config"} <= set(names(GRPOTrainer.__init__))


def test_our_constructor_has_their_order():
    from ragen_trl import RagenGRPOTrainer

    assert names(RagenGRPOTrainer.__init__) == names(GRPOTrainer.__init__)


def test_the_way_to_the_model_for_generation():
    assert names(unwrap_model_for_generation)[:4] == [
        "model",
        "accelerator",
        "gather_deepspeed3_params",
        "generation_kwargs",
    ]


def test_attributes_of_a_trainer(model, tokenizer, tmp_path):
    made = trainer(tmp_path, model, tokenizer)
    assert names(type(made._dist).summon_full_params) == ["self", "module", "kwargs"]
    with made._dist.summon_full_params(made.model, recurse=False):
        pass
    assert made.rollout_func == made._rollout
    assert made.chat_template_kwargs == {}
    assert (made.num_generations, made.num_generations_eval) == (4, 4)
    assert set(made._metrics) == {"train", "eval"}
    assert made.generation_config.max_new_tokens == 160
    assert made.generation_kwargs["max_new_tokens"] == 160
    assert made._tokenizer is made._engine.chat.tokenizer
    assert made.reward_weights.tolist() == [1.0]
    assert made.reward_func_names == ["environment"]


def test_settings_we_read_exist():
    fields = GRPOConfig.__dataclass_fields__
    for name in (
        "ds3_gather_for_generation",
        "use_vllm",
        "use_transformers_continuous_batching",
        "generation_kwargs",
        "reward_weights",
        "generation_batch_size",
        "num_generations",
        "num_generations_eval",
        "steps_per_generation",
        "max_completion_length",
        "chat_template_kwargs",
    ):
        assert name in fields, name


def test_the_vllm_backend_is_called_as_trl_calls_it():
    from trl.generation.vllm_generation import VLLMGeneration

    assert names(VLLMGeneration.generate)[:4] == ["self", "prompts", "images", "num_generations"]


def test_a_rollout_function_gets_prompts_and_trainer_and_its_fields_reach_the_rewards(model, tokenizer, tmp_path):
    """`env_mask` masks the loss, other fields become arguments of reward functions."""
    seen = {}

    def rollout(prompts, given):
        seen["trainer"] = given
        number = len(prompts)
        return {
            "prompt_ids": [[3, 4]] * number,
            "completion_ids": [[5, 6, 7]] * number,
            "logprobs": [[-1.0, 0.0, -1.0]] * number,
            "env_mask": [[1, 0, 1]] * number,
            "extra": list(range(number)),
        }

    def reward(completions, extra, **kwargs):
        seen["extra"] = extra
        return [float(i) for i in extra]

    from datasets import Dataset
    from kit import config

    data = Dataset.from_dict({"prompt": [[{"role": "user", "content": str(i)}] for i in range(4)]})
    made = GRPOTrainer(
        model=model, reward_funcs=reward, args=config(tmp_path, GRPOConfig), train_dataset=data,
        processing_class=tokenizer, rollout_func=rollout,
    )  # fmt: skip
    made.model.train()
    output = made._generate_and_score_completions(next(iter(made.get_train_dataloader())))
    assert seen["trainer"] is made and seen["extra"] == list(range(8))
    assert output["tool_mask"].tolist() == [[1, 0, 1]] * 8
    assert output["num_items_in_batch"] == 16


def test_a_row_without_any_reward_leaves_the_group_statistics(model, tokenizer, tmp_path):
    """What failed episodes are built on."""
    from datasets import Dataset
    from kit import config

    def reward(completions, **kwargs):
        return [None, 1.0, 2.0, 3.0] * 2

    data = Dataset.from_dict({"prompt": [[{"role": "user", "content": str(i)}] for i in range(4)]})
    args = config(tmp_path, GRPOConfig, max_completion_length=4)
    made = GRPOTrainer(model=model, reward_funcs=reward, args=args, train_dataset=data, processing_class=tokenizer)
    made.model.train()
    output = made._generate_and_score_completions(next(iter(made.get_train_dataloader())))
    assert output["advantages"].tolist() == pytest.approx([0.0, -1.0, 0.0, 1.0] * 2, abs=1e-3)


def test_what_the_filter_relies_on(model, tokenizer, tmp_path):
    made = trainer(tmp_path, model, tokenizer)
    wanted = ["self", "model", "input_ids", "attention_mask", "logits_to_keep", "batch_size", "compute_entropy"]
    assert names(GRPOTrainer._get_per_token_logps_and_entropies)[:7] == wanted
    assert made._buffered_inputs is None and made._step == 0
    assert (made._entropy_bonus_enabled, made.aux_loss_enabled, made.pad_to_multiple_of) == (False, False, None)
    settings = {"use_adaptive_entropy": True, "entropy_target": 1.0, "entropy_coef": 0.02}
    adaptive = trainer(tmp_path, model, tokenizer, settings=settings)
    assert (adaptive.entropy_coef, adaptive.use_adaptive_entropy) == (0.02, True)
    assert adaptive._entropy_bonus_enabled and adaptive._last_world_entropy == float("inf")
    assert adaptive.args.entropy_target == 1.0
    for function in (split_pixel_values_by_grid, unsplit_pixel_values_by_grid):
        assert function({"x": 1}) == {"x": 1}
    known = ("grpo", "bnpo", "dr_grpo", "dapo", "cispo", "sapo", "luspo", "vespo")
    source = inspect.getsource(GRPOTrainer._compute_loss)
    assert all(f'"{name}"' in source for name in known)


def test_what_the_diagnostics_rely_on(model, tokenizer, tmp_path):
    made = trainer(tmp_path, model, tokenizer)
    assert made.temperature == 1.0 and made._tokenizer is tokenizer and made.callback_handler.callbacks


def test_what_ppo_relies_on(model, tokenizer, tmp_path):
    ppo = pytest.importorskip("trl.experimental.ppo", reason="this TRL has no PPO")
    from kit import config
    from transformers import Trainer

    from ragen_trl import RagenPPOConfig, RagenPPOTrainer
    from ragen_trl.trainers.ppo_interface import PPOInterface

    # Whatever TRL's trainer does in place of Trainer is passed over, but for what is ours below.
    replaced = {name for name in vars(ppo.PPOTrainer) if hasattr(Trainer, name) and not name.startswith("__")}
    assert replaced <= set(vars(PPOInterface)) | {"log"}
    assert names(RagenPPOTrainer.__init__)[: len(names(ppo.PPOTrainer.__init__))] == names(ppo.PPOTrainer.__init__)
    assert set(ppo.PPOConfig.__dataclass_fields__) <= set(RagenPPOConfig.__dataclass_fields__)
    assert names(GRPOTrainer._tokenize_prompts) == ["self", "prompts"]
    assert "completion_ids, logprobs = self._generate_single_turn(" in inspect.getsource(GRPOTrainer._generate)
    made = trainer(tmp_path, model, tokenizer, kind=RagenPPOTrainer, args=config(tmp_path, RagenPPOConfig))
    assert (made.beta, made.num_iterations, made.epsilon_low) == (0.05, 4, 0.2)
    for name in ("_save", "_save_checkpoint", "_load_from_checkpoint", "_load_best_model", "create_optimizer"):
        assert callable(getattr(Trainer, name))


def test_without_ppo_in_trl_the_remedy_is_named():
    try:
        import trl.experimental.ppo  # noqa: F401
    except ImportError:
        import ragen_trl

        for name in ("RagenPPOTrainer", "RagenPPOConfig"):
            with pytest.raises(ImportError, match=r"trl>=1.12,<1.13.*RagenGRPOTrainer"):
                getattr(ragen_trl, name)
    else:
        pytest.skip("this TRL has PPO")
