"""What the README shows runs."""

import re
import runpy
import shlex
from pathlib import Path

import pytest


ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()
SNIPPETS = re.findall(r"```python\n(.*?)```", README, flags=re.DOTALL)
COMMANDS = [
    line.split("#")[0].strip()
    for block in re.findall(r"```bash\n(.*?)```", README, re.DOTALL)
    for line in block.splitlines()
]
# The snippets name a model from the Hub and real amounts of work, and mean a machine with a GPU.
SMALLER = {
    "max_steps=100": "max_steps=1, bf16=False",
    ", max_completion_length=2400": ", max_completion_length=64, max_tokens_per_turn=24",
    '"ragen_envs/Sokoban-v0", 64': '"ragen_envs/Sokoban-v0", 2',
    "max_completion_length=512": "max_completion_length=192",
}


@pytest.mark.parametrize("number", range(len(SNIPPETS)))
def test_snippets_run_as_they_stand(number, tmp_path, monkeypatch, capsys):
    from ragen_trl import tiny

    snippet = SNIPPETS[number].replace("Qwen/Qwen2.5-0.5B-Instruct", tiny.path())
    assert snippet != SNIPPETS[number]
    for long, short in SMALLER.items():
        snippet = snippet.replace(long, short)
    (tmp_path / "snippet.py").write_text(snippet)
    monkeypatch.chdir(tmp_path)
    runpy.run_path("snippet.py", run_name="__main__")
    assert list((tmp_path / "runs").rglob("*.safetensors")), "nothing was trained and saved"


def test_the_shortened_passages_are_in_the_readme():
    assert all(any(long in snippet for snippet in SNIPPETS) for long in SMALLER)


def test_the_environment_example_is_short():
    example = next(snippet for snippet in SNIPPETS if "TextEnv" in snippet)
    assert len([line for line in example.splitlines() if line.strip()]) <= 40


@pytest.mark.parametrize("command", COMMANDS)
def test_commands_name_what_exists(command):
    words = shlex.split(command)
    if words[0] == "make":
        assert re.search(rf"^{words[1]}:", (ROOT / "Makefile").read_text(), re.MULTILINE)
    files = [word for word in words if word.endswith((".py", ".yaml"))]
    assert words[0] == "make" or files
    assert all((ROOT / file).is_file() for file in files)


@pytest.mark.parametrize(
    "page", ["README.md", "CONTRIBUTING.md", *sorted(str(p.relative_to(ROOT)) for p in (ROOT / "docs").glob("*.md"))]
)
def test_links_lead_somewhere(page):
    for target in re.findall(r"\]\(([^)#]+)", (ROOT / page).read_text()):
        assert target.startswith("https://") or ((ROOT / page).parent / target).exists(), target


def test_every_metric_we_log_is_documented():
    from ragen_trl.rollout import EpisodeSummary, episode_metrics

    text = (ROOT / "docs" / "metrics.md").read_text()
    summary = EpisodeSummary(
        "ragen_envs/X-v0", (0, 0), "terminated", True, 1.0, 0.0, 1, 4, 1, 0, 1, 0, False, False, None
    )
    for name in episode_metrics([summary]):
        last = name.rpartition("/")[2]
        assert f"`{last}`" in text or "pass@" in last or "stop/" in name, name
