"""What a run shows at its end."""

from ragen_trl.report import evaluations, print_summary, save_learning_curve, summary_table


HISTORY = [
    {
        "step": 0,
        "eval_loss": 0.0,
        "eval_env/X-v0/success_rate": 0.25,
        "eval_env/X-v0/return": 0.1,
        "eval_entropy": 1.0,
    },
    {"step": 1, "loss": 0.1, "env/X-v0/success_rate": 0.5, "env/X-v0/return": 0.3, "entropy": 0.9, "kl": None},
    {"step": 2, "loss": 0.1, "env/X-v0/success_rate": None, "env/X-v0/return": 0.4, "entropy": 0.8},
    {
        "step": 2,
        "eval_loss": 0.0,
        "eval_env/X-v0/success_rate": 0.75,
        "eval_env/X-v0/invalid_action_rate": 0.5,
        "eval_rollout/tokens_per_turn": 7.25,
    },
]


def cells(table):
    return [list(row) for row in zip(*(column.cells for column in table.columns), strict=True)]


def test_the_table_compares_the_first_evaluation_with_the_last():
    table = summary_table(HISTORY)
    assert [column.header for column in table.columns] == ["metric", "step 0", "step 2"]
    assert cells(table) == [
        ["env/X-v0/success_rate", "0.250", "0.750"],
        ["env/X-v0/invalid_action_rate", "-", "0.500"],
        ["rollout/tokens_per_turn", "-", "7.2"],
    ]


def test_places_are_printed_unbroken(capsys):
    path = "runs/[x]/" + "long" * 50
    print_summary(HISTORY, {"checkpoint": path})
    assert f"checkpoint: {path}\n" in capsys.readouterr().out
    print_summary([], {"checkpoint": path})
    assert capsys.readouterr().out == f"checkpoint: {path}\n"


def test_one_evaluation_or_none_still_makes_a_table():
    assert [column.header for column in summary_table(HISTORY[:2]).columns] == ["metric", "step 0"]
    assert cells(summary_table(HISTORY[1:2])) == []


def test_only_evaluations_are_evaluations():
    assert [row["step"] for row in evaluations(HISTORY)] == [0, 2]


def test_the_picture_is_written_also_without_points(tmp_path):
    for name, history in (("full", HISTORY), ("empty", [])):
        path = save_learning_curve(history, tmp_path / "new" / f"{name}.png")
        assert path.read_bytes().startswith(b"\x89PNG")
