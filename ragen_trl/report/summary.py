"""The end of a run: a table of what changed, and the learning curve as a picture."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text


# Metric suffixes of `env/<name>/` shown in the table, with the number format.
_SHOWN = {"success_rate": ".3f", "return": ".3f", "turns": ".2f", "invalid_action_rate": ".3f", "pass@": ".3f"}
_OTHERS = {"rollout/well_formed_rate": ".3f", "rollout/tokens_per_turn": ".1f", "completions/mean_length": ".1f"}


def evaluations(log_history: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """
    Rows of a run's history that are evaluations, in order.

    Args:
        log_history (`Sequence[Mapping[str, Any]]`):
            `trainer.state.log_history`.
    """
    return [row for row in log_history if "eval_loss" in row]


def summary_table(log_history: Sequence[Mapping[str, Any]]) -> Table:
    """
    Table of the first evaluation and the last.

    Args:
        log_history (`Sequence[Mapping[str, Any]]`):
            `trainer.state.log_history`.
    """
    table = Table(title="Held-out problems", title_justify="left")
    table.add_column("metric")
    rows = evaluations(log_history)
    shown = [rows[0], rows[-1]] if len(rows) > 1 else rows
    for row in shown:
        table.add_column(f"step {row['step']}", justify="right")
    for name, form in _metrics_shown(rows[-1] if rows else {}):
        values = (format(float(row[name]), form) if row.get(name) is not None else "-" for row in shown)
        table.add_row(name.removeprefix("eval_"), *values)
    return table


def print_summary(log_history: Sequence[Mapping[str, Any]], places: Mapping[str, str]) -> None:
    """
    Print what a run has come to.

    Args:
        log_history (`Sequence[Mapping[str, Any]]`):
            `trainer.state.log_history`.
        places (`Mapping[str, str]`):
            What lies where.
    """
    console = Console()
    if evaluations(log_history):
        console.print(summary_table(log_history))
    for what, where in places.items():  # unbroken, to be copied
        console.print(f"{what}: {where}", soft_wrap=True, highlight=False, markup=False)


def print_completions(rows: Sequence[tuple[str, str, float]]) -> None:
    """
    Print prompts, completions and rewards as a table.

    Args:
        rows (`Sequence[tuple[str, str, float]]`):
            Prompt, completion and reward of each.
    """
    table = Table("prompt", "completion", "reward", show_lines=True)
    for prompt, completion, reward in rows:
        table.add_row(Text(prompt), Text(completion), f"{reward:.3f}")  # texts may look like markup
    Console().print(table)


def save_learning_curve(log_history: Sequence[Mapping[str, Any]], path: Path) -> Path:
    """
    Draw success, return, entropy, and how well reasonings find their prompt, over the steps of a run.

    Args:
        log_history (`Sequence[Mapping[str, Any]]`):
            `trainer.state.log_history`.
        path (`Path`):
            PNG file to write.

    Returns:
        `Path`: The file written.
    """
    # pyplot would choose a backend for the whole program; a figure of its own needs no display.
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(16, 3.6), layout="constrained")
    FigureCanvasAgg(figure)
    panels = figure.subplots(1, 4)
    endings = ("/success_rate", "/return", "entropy", "/retrieval_accuracy")
    titles = ("success rate", "return", "entropy", "retrieval accuracy (reasoning to prompt)")
    for axes, ending, title in zip(panels, endings, titles, strict=True):
        for name in sorted({key for row in log_history for key in row if key.endswith(ending)}):
            points = [(row["step"], row[name]) for row in log_history if row.get(name) is not None]
            held_out = name.startswith("eval_")
            label = f"held out: {name.removeprefix('eval_')}" if held_out else name
            axes.plot(
                *zip(*points, strict=True), "o--" if held_out else "-", label=label, alpha=1 if held_out else 0.7
            )
        axes.set(xlabel="step", title=title)
        axes.grid(alpha=0.3)
        if axes.lines:
            axes.legend(fontsize="x-small")
    for axes in (panels[0], panels[3]):
        axes.set_ylim(-0.02, 1.02)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=120)
    return path


def _metrics_shown(metrics: Mapping[str, Any]) -> list[tuple[str, str]]:
    rows = []
    for ending, form in _SHOWN.items():
        rows += [(n, form) for n in metrics if n.startswith("eval_env/") and n.rpartition("/")[2].startswith(ending)]
    return rows + [(f"eval_{name}", form) for name, form in _OTHERS.items() if f"eval_{name}" in metrics]
