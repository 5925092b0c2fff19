"""Diagnosis of a checkpoint, with an environment and of completions that TRL wrote."""

import json
from pathlib import Path

import pandas as pd
import pytest
import torch
from filter_kit import spreads
from kit import trainer
from test_plain_trl import length_reward

from ragen_trl import diagnose, tiny
from ragen_trl.cli import main
from ragen_trl.rollout import RolloutSettings


SOKOBAN = ["--env_id", "ragen_envs/Sokoban-v0", "--env_kwargs", '{"layout": "open", "observation_format": "compact"}']
SMALL = ["--prompt_style", "compact", "--max_tokens_per_turn", "16", "--num_prompts", "6", "--group_size", "2"]


def test_the_shipped_agent_listens(tmp_path, capsys):
    main(["diagnose", "--model", "package:ragen_trl/tiny/weights", *SOKOBAN, *SMALL, "--output_dir", str(tmp_path)])
    printed = capsys.readouterr().out
    assert "retrieval_accuracy" in printed and f"picture: {tmp_path / 'diagnosis.png'}" in printed
    found = json.loads((tmp_path / "diagnosis.json").read_text())
    assert (
        found["collapse/first_turn/retrieval_accuracy"]
        > 0.9
        > 0.3
        > found["collapse/first_turn/retrieval_chance_level"]
    )
    assert found["collapse/valid_thinking_rate"] > 0.9 and "reasoning" in found["regime"]
    assert 0 <= found["env/Sokoban-v0/success_rate"] <= 1
    assert (tmp_path / "diagnosis.png").read_bytes().startswith(b"\x89PNG")


def test_the_same_seed_gives_the_same_episodes():
    model, tokenizer = diagnose.load(tiny.path())
    settings = RolloutSettings(prompt_style="compact", max_tokens_per_turn=16)
    batches = []
    for i in range(2):
        torch.manual_seed(i)
        kwargs = {"layout": "open", "observation_format": "compact"}
        batches.append(
            diagnose.play(
                model, tokenizer, "ragen_envs/Sokoban-v0", num_prompts=3, group_size=2, env_kwargs=kwargs,
                settings=settings, batch_size=4,
            )[0]
        )  # fmt: skip
    first, second = batches
    assert first.groups == [0, 0, 1, 1, 2, 2] and first.completion_ids == second.completion_ids
    assert first.prompt_ids[0] == first.prompt_ids[1] != first.prompt_ids[2]


def test_completions_that_trl_wrote(model, tokenizer, tmp_path, capsys):
    made = trainer(
        tmp_path / "run", model, tokenizer, spreads([1, 2]), reward_funcs=length_reward,
        settings={"log_completions": True, "max_completion_length": 12, "max_steps": 2},
    )  # fmt: skip
    made.train()
    capsys.readouterr()
    (*_, last) = sorted((tmp_path / "run").rglob("*.parquet"))
    rollouts = diagnose.read_completions(last, tokenizer)
    assert len(rollouts.prompt_ids) == 8 and len(set(rollouts.groups)) == 2
    main(
        ["diagnose", "--model", model.config._name_or_path, "--completions", str(last), "--output_dir", str(tmp_path)]
    )
    assert "retrieval_accuracy" in capsys.readouterr().out
    assert json.loads((tmp_path / "diagnosis.json").read_text())["collapse/first_turn/num_prompts"] == 2


def test_completions_of_episodes_are_refused(tokenizer, tmp_path):
    frame = pd.DataFrame({"prompt": [[{"role": "user", "content": ""}]], "completion": [[]]})
    frame.to_parquet(tmp_path / "x.parquet")
    with pytest.raises(ValueError, match="episodes.*--env_id"):
        diagnose.read_completions(tmp_path / "x.parquet", tokenizer)


def test_messages_of_all_kinds_are_read():
    tool = {"role": "assistant", "content": None, "tool_calls": []}
    answer = {"role": "assistant", "content": [{"type": "text", "text": "5"}], "reasoning_content": "a"}
    assert diagnose._text([tool, {"role": "tool", "content": "3"}, answer]) == "<think>a</think>5"
    assert diagnose._text([tool]) == "" and diagnose._text("x") == "x"


def test_a_file_without_completions(tokenizer, tmp_path):
    pd.DataFrame({"prompt": ["x"]}).to_parquet(tmp_path / "x.parquet")
    with pytest.raises(ValueError, match="completion.*log_completions"):
        diagnose.read_completions(tmp_path / "x.parquet", tokenizer)


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["--env_id", "sokobann"], "Sokoban-v0"),
        ([*SOKOBAN, "--num_prompts", "1"], "at least 2"),
        ([*SOKOBAN, "--prompt_style", "fancy"], "fancy"),
        ([*SOKOBAN, "--max_completion_length", "10"], "leaves no room"),
        ([], "--env_id"),
        (["--completions", "nowhere.parquet"], "nowhere.parquet"),
    ],
)
def test_bad_arguments_are_named(argv, message, capsys, tmp_path):
    with pytest.raises(SystemExit):
        main(["diagnose", "--model", tiny.path(), "--output_dir", str(tmp_path), *argv])
    assert message in capsys.readouterr().err
    assert not list(Path(tmp_path).iterdir())
