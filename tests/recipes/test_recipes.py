"""The recipes' files and what they share."""

import json
import sys
from pathlib import Path

import pytest
import torch
import yaml
from trl import ModelConfig, TrlParser

from ragen_envs import make_env
from ragen_trl import RagenGRPOConfig
from ragen_trl.recipe import RecipeArguments, resolve_model, run_grpo, run_ppo, usable_attention
from ragen_trl.rollout import RolloutSettings


ROOT = Path(__file__).parents[2]
CONFIGS = sorted((ROOT / "recipes" / "configs").rglob("*.yaml"))
ACCELERATE = sorted((ROOT / "accelerate_configs").glob("*.yaml"))


def run(*argv, config=ROOT / "recipes/configs/metamath_qwen2.5-0.5b.yaml"):
    offline = ROOT / "recipes/configs/quickstart_math.yaml"
    run_grpo("ragen_envs/MetaMathQA-v0", config, offline, argv)


def run_quickly(folder, *argv):
    """One step of the quickstart."""
    sizes = {"num_train_problems": 16, "num_eval_problems": 4, "per_device_eval_batch_size": 4, "eval_before": "false",
             "per_device_train_batch_size": 8, "num_generations": 4, "max_steps": 1}  # fmt: skip
    small = [part for name, value in sizes.items() for part in (f"--{name}", str(value))]
    run("--output_dir", str(folder), *small, *argv, config=ROOT / "recipes/configs/quickstart_math.yaml")


def parse(config, *argv):
    kind = RagenGRPOConfig
    if "recipes/ppo.py" in config.read_text():
        pytest.importorskip("trl.experimental.ppo", reason="this TRL has no PPO")
        from ragen_trl import RagenPPOConfig as kind
    parser = TrlParser((RecipeArguments, kind, ModelConfig))
    return parser.parse_args_and_config(args=["--config", str(config), "--use_cpu", "true", *argv])


@pytest.mark.parametrize("config", CONFIGS, ids=lambda path: path.name)
def test_every_config_parses_and_leaves_room_for_a_turn(config):
    recipe, args, model = parse(config)
    kwargs = {key: value for key, value in (recipe.env_kwargs or {}).items() if key != "dataset"}
    settings = args.check_agent_settings()
    assert isinstance(settings, RolloutSettings)
    limits = settings.limits_for(make_env(recipe.env_id or "ragen_envs/Sokoban-v0", **kwargs))
    assert limits.max_tokens_per_turn * 2 <= args.max_completion_length, "no room for a second turn"
    assert args.generation_batch_size % args.num_generations == 0
    assert model.model_name_or_path and args.output_dir.startswith("runs/")


@pytest.mark.parametrize("config", CONFIGS, ids=lambda path: path.name)
def test_every_config_says_what_it_is(config):
    head = config.read_text().split("\n\n")[0].splitlines()
    assert all(line.startswith("#") for line in head)
    text = "\n".join(head)
    assert "Hardware:" in text and "accelerate launch" in text and "Override:" in text


def test_there_is_a_default_and_an_offline_config_for_every_recipe():
    for recipe in (path for path in (ROOT / "recipes").glob("*.py") if "warmstart" not in path.name):
        named = [name for name in (path.name for path in CONFIGS) if f'"{name}"' in recipe.read_text()]
        assert len(named) == 2 and any(name.startswith("quickstart") for name in named), recipe.name


def test_unknown_keys_are_refused(tmp_path):
    config = tmp_path / "typo.yaml"
    config.write_text(yaml.safe_dump({**yaml.safe_load(CONFIGS[0].read_text()), "max_turnz": 3}))
    with pytest.raises(ValueError, match="max_turnz"):
        parse(config)


def test_the_command_line_wins_over_the_file():
    recipe, args, _ = parse(CONFIGS[0], "--max_turns", "7", "--env_kwargs", '{"split": "train"}')
    assert args.max_turns == 7 and recipe.env_kwargs == {"split": "train"}


def test_dataset_path_reaches_both_splits():
    train, held_out = RecipeArguments(
        env_id="ragen_envs/MetaMathQA-v0", dataset_path="some/data", num_train_problems=3, num_eval_problems=2
    ).datasets()
    assert json.loads(train[0]["env_kwargs"]) == {"dataset": "some/data"}
    assert json.loads(held_out[0]["env_kwargs"]) == {"dataset": "some/data", "split": "validation"}
    assert train["seed"] == [10000, 10001, 10002] and held_out["seed"] == [123, 124]


def test_no_held_out_problems_means_no_evaluation():
    assert RecipeArguments(env_id="ragen_envs/Sokoban-v0", num_eval_problems=0).datasets()[1] is None


@pytest.mark.parametrize(("name", "value"), [("num_train_problems", 0), ("num_eval_problems", -1)])
def test_impossible_numbers_are_refused(name, value):
    with pytest.raises(ValueError, match=f"{name}.*{value}"):
        RecipeArguments(**{name: value})


def test_models_inside_packages():
    assert resolve_model("Qwen/Qwen2.5-0.5B-Instruct") == "Qwen/Qwen2.5-0.5B-Instruct"
    assert (Path(resolve_model("package:ragen_trl/rollout")) / "engine.py").is_file()
    with pytest.raises(ValueError, match="no folder 'nowhere'"):
        resolve_model("package:ragen_trl/nowhere")


def test_a_broken_attention_package_is_left_aside(tmp_path, monkeypatch, caplog):
    (tmp_path / "flash_attn.py").write_text("raise ImportError('undefined symbol: _ZN3c10')")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "flash_attn", raising=False)
    assert usable_attention("flash_attention_2") is None
    assert "undefined symbol" in caplog.text
    assert usable_attention("sdpa") == "sdpa" and usable_attention(None) is None


PRESETS = [path for path in CONFIGS if path.stem.endswith(("_paper", "_recommended"))]
SMALL = {"model_name_or_path": "package:ragen_trl/tiny/weights", "dtype": "float32", "use_cpu": "true",
         "bf16": "false",
         "gradient_checkpointing": "false", "per_device_train_batch_size": 2, "gradient_accumulation_steps": 4,
         "num_generations": 4, "num_train_problems": 16, "num_eval_problems": 2, "per_device_eval_batch_size": 2,
         "max_steps": 2, "logging_steps": 1, "max_tokens_per_turn": 16, "max_completion_length": 600,
         "prompt_style": "compact", "diagnostics_every_n_steps": 1}  # fmt: skip


@pytest.mark.parametrize("preset", PRESETS, ids=lambda path: path.stem)
def test_presets_train_on_any_environment(preset, tmp_path, capsys):
    text = preset.read_text()
    small = SMALL | {"env_id": "ragen_envs/FrozenLake-v0", "env_kwargs": '{"observation_format": "compact"}'}
    if "steps_per_generation" in text:
        small["steps_per_generation"] = 8
    if "top_k" in text:
        small["reward_variance_top_k"] = 1
    runner = run_grpo
    if "recipes/ppo.py" in text:
        pytest.importorskip("trl.experimental.ppo", reason="this TRL has no PPO")
        runner = run_ppo
    argv = [part for name, value in small.items() for part in (f"--{name}", str(value))]
    runner("ragen_envs/Sokoban-v0", preset, preset, ["--config", str(preset), "--output_dir", str(tmp_path), *argv])
    printed = capsys.readouterr().out
    assert "env/FrozenLake-v0/success_rate" in printed and (tmp_path / "model.safetensors").is_file()


def test_there_are_two_flavours_of_each_algorithm():
    assert {path.stem for path in PRESETS} == {
        f"{name}_{flavour}" for name in ("ppo", "grpo", "dapo", "dr_grpo") for flavour in ("paper", "recommended")
    }
    ppo, dapo = (yaml.safe_load((ROOT / f"recipes/configs/{name}_paper.yaml").read_text()) for name in ("ppo", "dapo"))
    assert {k: v for k, v in ppo.items() if dapo[k] != v} == {"output_dir": "runs/ppo-paper"}


def test_long_rollouts_are_punished_on_request():
    assert RecipeArguments().reward_funcs(100) == []
    (punish,) = RecipeArguments(overlong_cache=20).reward_funcs(100)
    assert punish(completion_ids=[[0] * 70, [0] * 90, [0] * 100]) == [0.0, -0.5, -1.0]
    with pytest.raises(ValueError, match="`overlong_cache`.*100.*got 100"):
        RecipeArguments(overlong_cache=100).reward_funcs(100)


@pytest.mark.parametrize(
    ("argv", "cause"),
    [
        (["--bf16", "false", "--use_cpu", "true"], "meta-math/MetaMathQA"),
        (["--bf16", "false", "--use_cpu", "true", "--dataset_path", "questions.jsonl"], "Qwen/Qwen2.5-0.5B-Instruct"),
        ([], "bf16/gpu"),
    ],
)
def test_what_is_missing_is_explained(argv, cause, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    rows = [{"query": f"What is {n}?", "response": f"The answer is: {n}"} for n in range(50)]
    Path("questions.jsonl").write_text("\n".join(map(json.dumps, rows)))
    if cause == "bf16/gpu" and torch.cuda.is_available():
        pytest.skip("this machine has a GPU")
    with pytest.raises(SystemExit) as stopped:
        run("--output_dir", str(tmp_path), *argv)
    assert "quickstart_math.yaml" in str(stopped.value) and cause in str(stopped.value)


@pytest.mark.parametrize(
    ("argv", "error", "message"),
    [
        (["--dataset_path", "nosuch.jsonl"], ValueError, "no such file or folder"),
        (["--model_name_or_path", "/nope/model"], SystemExit, "'/nope/model' is no folder here"),
        (["--model_name_or_path", "package:nosuchpkg/x"], ValueError, "no package 'nosuchpkg'"),
        (["--config=/nope.yaml"], SystemExit, "/nope.yaml.*quickstart_math.yaml"),
        (["--config"], SystemExit, "no such file"),
        (["--env_kwargs", "{"], ValueError, "env_kwargs='{'.*JSON"),
        (["--env_kwargs", '{"split": "validation"}'], ValueError, "split.*leave it out"),
        (["--env_kwargs", "3"], ValueError, "env_kwargs='3'.*JSON"),
        (["--push_to_hub", "true", "--hub_model_id", "a/b"], Exception, "repos/create"),
    ],
)
def test_wrong_arguments_are_named(argv, error, message, tmp_path):
    with pytest.raises(error, match=message) as stopped:
        run_quickly(tmp_path, *argv)
    text = str(stopped.value)
    assert ("ships with the package" in text) == ("/nope/model" in text), "advice that does not help"


def test_a_config_after_an_equals_sign_is_read(tmp_path):
    config = tmp_path / "a=b.yaml"
    config.write_text("{max_turnz: 3, use_cpu: true, bf16: false}")
    with pytest.raises(ValueError, match="max_turnz"):
        run(f"--config={config}")


def test_without_held_out_problems_nothing_is_evaluated(tmp_path):
    run_quickly(tmp_path, "--num_eval_problems", "0", "--save_steps", "1", "--save_strategy", "steps")
    history = json.loads((tmp_path / "trainer_state.json").read_text())["log_history"]
    assert not [row for row in history if "eval_loss" in row] and (tmp_path / "model.safetensors").is_file()
    # "true" of a command line is the last checkpoint, not a folder of that name.
    run_quickly(tmp_path, "--num_eval_problems", "0", "--resume_from_checkpoint", "true", "--max_steps", "2")
    assert json.loads((tmp_path / "trainer_state.json").read_text())["global_step"] == 2


def test_a_failing_last_evaluation_does_not_lose_the_model(tmp_path, monkeypatch):
    def fail(self, *args, **kwargs):
        raise RuntimeError("no memory left")

    monkeypatch.setattr("ragen_trl.recipe.RagenGRPOTrainer.evaluate", fail)
    for strategy in ("no", "steps"):  # an evaluation of ours, and that of the Trainer after the last step
        folder = tmp_path / strategy
        with pytest.raises(RuntimeError, match="no memory left"):
            run_quickly(folder, "--eval_strategy", strategy)
        assert (folder / "model.safetensors").is_file()


@pytest.mark.parametrize("steps", [0, 1])
def test_diagnostics_are_a_matter_of_one_argument(steps, tmp_path):
    run_quickly(tmp_path, "--diagnostics_every_n_steps", str(steps), "--logging_steps", "1")
    history = json.loads((tmp_path / "trainer_state.json").read_text())["log_history"]
    assert any("collapse/first_turn/retrieval_accuracy" in row for row in history) == bool(steps)


@pytest.mark.parametrize("config", ACCELERATE, ids=lambda path: path.name)
def test_accelerate_configs_load(config):
    from accelerate.commands.config.config_args import load_config_from_file

    loaded = load_config_from_file(str(config))
    assert loaded.num_processes == {"cpu_2proc": 2, "multi_gpu": 8}.get(config.stem, 1)
