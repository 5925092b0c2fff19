"""MetaMathQA: rewards over several tries, the built-in problems, and data from files."""

import json
import logging
import sys
from collections import Counter
from pathlib import Path

import pytest

from ragen_envs import check_env, make_env, problem_split, symbolic
from ragen_envs.metamathqa import WRONG, WRONG_AT_LAST, gold_answer, load_questions
from ragen_envs.rows import DatasetError
from ragen_envs.word_problems import find_word_problem, word_problems


ROOT = Path(__file__).parents[2]
REAL_DATA = "../shared/data/math/gsm8k_train_metamath_schema.jsonl"


def rows(count=40):
    return [
        {"query": f"What is {n} plus {n}?", "response": f"{n} + {n} = {2 * n}.\nThe answer is: {2 * n}"}
        for n in range(count)
    ]


def write(path, table):
    if path.suffix == ".parquet":
        pyarrow = pytest.importorskip("pyarrow", reason="parquet files are read with pyarrow")
        from pyarrow import parquet

        parquet.write_table(pyarrow.Table.from_pylist(table), path)
    elif path.suffix == ".json":
        path.write_text(json.dumps(table), encoding="utf-8")
    else:
        path.write_text("\n".join(map(json.dumps, table)) + "\n\n", encoding="utf-8")
    return str(path)


@pytest.mark.parametrize("wrong_answers", [0, 1, 2, 4])
def test_reward_halves_with_each_wrong_answer(wrong_answers):
    env = make_env("MetaMathQA-v0")
    env.reset(seed=5)
    right = env.oracle_action()
    for _ in range(wrong_answers):
        result = env.step("1000")
        assert result[:4] == (WRONG, 0.0, False, False)
        assert result[4] == {"success": False, "action_is_valid": True, "action_is_effective": True}
    # An empty answer is no attempt and costs nothing.
    env.step(" ")
    _, reward, terminated, _, info = env.step(right)
    assert reward == {0: 1.0, 1: 0.5, 2: 0.25, 4: 0.0625}[wrong_answers]
    assert terminated and info["success"]


@pytest.mark.parametrize("max_attempts", [1, 2, 5, 8])
def test_last_attempt_ends_the_episode(max_attempts):
    env = make_env("MetaMathQA-v0", max_attempts=max_attempts)
    check_env(env)
    assert (env.limits.max_turns, env.limits.max_actions, env.limits.max_actions_per_turn) == (max_attempts,) * 2 + (
        1,
    )
    env.reset(seed=5)
    right = env.oracle_action()
    results = [env.step("1000") for _ in range(max_attempts)]
    assert [result[0] for result in results] == [WRONG] * (max_attempts - 1) + [WRONG_AT_LAST]
    assert [result[2] for result in results] == [False] * (max_attempts - 1) + [True]
    assert not any(result[1] or result[3] or result[4]["success"] for result in results)
    # Too late.
    info = {"success": False, "action_is_valid": False, "action_is_effective": False}
    assert env.step(right) == (WRONG_AT_LAST, 0.0, True, False, info)
    assert env.oracle_action() is None


@pytest.mark.parametrize(
    ("kwargs", "message"),
    [
        ({"max_attempts": 0}, "max_attempts=0.*from 1 to 100"),
        ({"max_attempts": 1.5}, "max_attempts=1.5"),
        ({"comparison": "llm"}, "comparison='llm'.*'exact', 'math_verify'"),
    ],
)
def test_impossible_settings_are_refused(kwargs, message):
    with pytest.raises(ValueError, match=message):
        make_env("MetaMathQA-v0", **kwargs)


def test_missing_math_verify_is_named(monkeypatch):
    monkeypatch.setattr(symbolic, "available", lambda: False)
    with pytest.raises(ValueError, match=r"ragen-trl\[math\]"):
        make_env("MetaMathQA-v0", comparison="math_verify")


def test_attempts_start_anew_with_each_problem():
    env = make_env("MetaMathQA-v0")
    env.reset(seed=5)
    env.step("1000")
    env.reset(seed=5)
    assert env.step(env.oracle_action())[1] == 1.0


def test_answer_is_one_action():
    assert make_env("MetaMathQA-v0").limits.max_actions_per_turn == 1


@pytest.mark.parametrize(
    ("response", "gold"),
    [
        ("2 + 2 = 4.\nThe answer is: 4", "4"),
        ("The answer is: 3, no. The answer is: 4 \n", "4"),
        ("The answer is: \\frac{1}{2}\n", "\\frac{1}{2}"),
        ("The answer is: ", None),
        ("The answer is 4", None),
        ("", None),
    ],
)
def test_gold_answer(response, gold):
    assert gold_answer(response) == gold


def test_built_in_problems():
    problems = word_problems()
    assert len(problems) >= 5000
    assert len({problem.question for problem in problems}) == len(problems)
    for problem in problems:
        assert 1 <= problem.a <= 9 and 1 <= problem.b <= 9 and 0 <= problem.result <= 18
        assert problem.result == {"+": problem.a + problem.b, "-": problem.a - problem.b}[problem.op]
        row = problem.row()
        assert gold_answer(row["response"]) == str(problem.result)
        # The numbers of the text are those of the parsed form, in their order.
        assert [int(word) for word in row["query"].split() if word.isdecimal()] == [problem.a, problem.b]
        assert find_word_problem(row["query"]) == problem
    splits = Counter(problem_split(problem.question) for problem in problems)
    assert 0.17 < splits["validation"] / len(problems) < 0.23


def test_built_in_problems_read_well():
    questions = {problem.question for problem in word_problems()}
    assert "Tom has 3 apples. Amy gives Tom 4 apples. How many apples does Tom have?" in questions
    assert "There is 1 egg in a box. Tom puts in 1 egg. How many eggs are in the box?" in questions
    assert not any(" 1 eggs" in question or "There are 1 " in question for question in questions)


def test_unknown_text_is_no_built_in_problem():
    assert find_word_problem("How many?") is None


@pytest.mark.parametrize("suffix", [".json", ".jsonl", ".parquet"])
def test_local_files(tmp_path, suffix):
    path = write(tmp_path / f"table{suffix}", rows())
    env = make_env("MetaMathQA-v0", dataset=path)
    check_env(env)
    queries = {question.query for question in env.questions}
    held_out = {question.query for question in make_env("MetaMathQA-v0", dataset=path, split="validation").questions}
    assert queries | held_out == {row["query"] for row in rows()} and not queries & held_out


def test_folder_is_read_in_the_order_of_its_names(tmp_path):
    table = rows(60)
    write(tmp_path / "b.jsonl", table[20:40])
    write(tmp_path / "a.json", table[:20])
    write(tmp_path / "c.parquet", table[40:])
    (tmp_path / "README.md").write_text("Not data.", encoding="utf-8")
    questions = make_env("MetaMathQA-v0", dataset=str(tmp_path)).questions
    expected = [row["query"] for row in table if problem_split(row["query"]) == "train"]
    assert [question.query for question in questions] == expected


def test_data_is_loaded_once(tmp_path):
    path = write(tmp_path / "table.jsonl", rows())
    first = make_env("MetaMathQA-v0", dataset=path)
    second = make_env("MetaMathQA-v0", dataset=str(tmp_path / ".." / tmp_path.name / "table.jsonl"))
    assert first.questions is second.questions


def test_rewordings_stay_in_one_split(tmp_path):
    table = [
        {**row, "query": f"{lead} {row['query']}", "original_question": row["query"], "type": "GSM_Rephrased"}
        for row in rows()
        for lead in ("Say:", "Please tell:", "Quick:")
    ]
    path = write(tmp_path / "table.jsonl", table)
    for split in ("train", "validation"):
        queries = [question.query for question in load_questions(path)[split]]
        originals = Counter(query.partition(": ")[2] for query in queries)
        assert set(originals.values()) == {3}
        assert all(problem_split(original) == split for original in originals)


def test_rows_without_answer_are_left_out_and_counted(tmp_path, caplog):
    unusable = [
        {"query": "No answer?", "response": "Who knows."},
        {"query": "", "response": "The answer is: 4"},
        {"query": None, "response": "The answer is: 4"},
        {"query": "Too long?", "response": "The answer is: " + "9" * 20000},
        {"response": "The answer is: 4"},
    ]
    path = write(tmp_path / "table.jsonl", rows() + unusable)
    with caplog.at_level(logging.INFO, logger="ragen_envs"):
        loaded = load_questions(path)
    assert sum(map(len, loaded.values())) == 40
    assert "40 questions, 5 rows" in caplog.text


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.jsonl", '{"question": "2 + 2?", "answer": "4"}', "columns 'query', 'response'.*'question', 'answer'"),
        ("b.jsonl", "", "no row that can be used"),
        ("c.jsonl", '{"query": "2 + 2?", "response": "four"}', "no row that can be used .1 read"),
        ("d.json", '[{"query": ', "cannot be read as .json"),
        ("e.jsonl", "not json", "cannot be read as .jsonl"),
        ("f.parquet", "not parquet", "cannot be read as .parquet"),
        ("g.json", '["a"]', "first row has str"),
        ("h.csv", "query,response", "is not one of the files"),
    ],
)
def test_unusable_files_are_refused_with_a_remedy(tmp_path, name, content, message):
    (tmp_path / name).write_text(content, encoding="utf-8")
    with pytest.raises(DatasetError, match=message) as error:
        make_env("MetaMathQA-v0", dataset=str(tmp_path / name))
    assert "Leave `dataset` unset" in str(error.value)


@pytest.mark.parametrize("dataset", ["missing.jsonl", "./missing", "a/b/c", "", 3])
def test_missing_files_are_refused(dataset):
    with pytest.raises(DatasetError, match="Leave `dataset` unset"):
        make_env("MetaMathQA-v0", dataset=dataset)


def test_folder_without_data_is_refused(tmp_path):
    with pytest.raises(DatasetError, match="is a folder without"):
        make_env("MetaMathQA-v0", dataset=str(tmp_path))


def test_split_without_a_question_is_refused(tmp_path):
    train_only = [row for row in rows() if problem_split(row["query"]) == "train"]
    path = write(tmp_path / "table.jsonl", train_only)
    make_env("MetaMathQA-v0", dataset=path)
    with pytest.raises(DatasetError, match="no question in the split 'validation'"):
        make_env("MetaMathQA-v0", dataset=path, split="validation")


class FakeHub:
    """Stands for the package `datasets`: one table, or the error of a failed download."""

    def __init__(self, result):
        self.result = result
        self.asked = []

    def load_dataset(self, name, *, split):
        self.asked.append((name, split))
        if isinstance(self.result, Exception):
            raise self.result
        return self.result


def test_hub_data_is_read_from_its_split_train(monkeypatch):
    datasets = pytest.importorskip("datasets", reason="data sets of the Hub are read with datasets")
    hub = FakeHub(datasets.Dataset.from_list(rows()))
    monkeypatch.setitem(sys.modules, "datasets", hub)
    loaded = load_questions("someone/a-data-set-for-this-test")
    assert hub.asked == [("someone/a-data-set-for-this-test", "train")]
    assert sum(map(len, loaded.values())) == 40


@pytest.mark.parametrize("failure", [ConnectionError("no route"), ValueError("no split"), KeyError("x")])
def test_failed_download_is_an_error_each_time(monkeypatch, failure):
    hub = FakeHub(failure)
    monkeypatch.setitem(sys.modules, "datasets", hub)
    for _ in range(2):
        with pytest.raises(DatasetError, match="could not be loaded from the Hub.*Leave `dataset` unset") as error:
            make_env("MetaMathQA-v0", dataset="someone/out-of-reach")
        assert error.value.__cause__ is failure
    assert len(hub.asked) == 2


def test_interrupting_a_download_passes_through(monkeypatch):
    class Interrupted:
        def load_dataset(self, name, *, split):
            raise KeyboardInterrupt

    monkeypatch.setitem(sys.modules, "datasets", Interrupted())
    with pytest.raises(KeyboardInterrupt):
        load_questions("someone/interrupted")


def test_real_data(monkeypatch):
    monkeypatch.chdir(ROOT)
    if not Path(REAL_DATA).exists():
        pytest.skip(f"{REAL_DATA} is not there")
    env = make_env("MetaMathQA-v0", dataset=REAL_DATA)
    check_env(env)
    held_out = make_env("MetaMathQA-v0", dataset=REAL_DATA, split="validation")
    assert len(env.questions) + len(held_out.questions) == 2000
    assert 300 < len(held_out.questions) < 500
    for seed in range(50):
        env.reset(seed=seed)
        assert env.step(f"The answer is: **{env.oracle_action()}**.")[1] == 1.0
