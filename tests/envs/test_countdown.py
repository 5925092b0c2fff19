"""Countdown: verdicts by hand, an exact solver, generated problems and data in the published format."""

import itertools
import json
import logging
import pickle
import sys
import time
from collections import Counter
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ragen_envs import check_env, make_env, problem_split
from ragen_envs.countdown import RIGHT, Puzzle, load_puzzles, solve
from ragen_envs.expressions import parse_expression
from ragen_envs.rows import DatasetError


property_test = settings(max_examples=200, deadline=None, derandomize=True, database=None)

# As the published data set begins, and more in its manner; every one can be solved.
ROWS = [
    {"target": 98, "nums": [44, 19, 35]},
    {"target": 64, "nums": [63, 95, 96]},
    {"target": 28, "nums": [95, 11, 56]},
    {"target": 24, "nums": [3, 3, 8, 8]},
    *({"target": n + 50, "nums": [n, 20, 30]} for n in range(1, 40)),
]


def on_puzzle(numbers, target, **kwargs):
    """Environment that has just shown the given problem."""
    env = make_env("Countdown-v0", **kwargs)
    env.reset(seed=0)
    env._puzzle = Puzzle(tuple(numbers), target)
    return env


def verdict(numbers, target, answer, **kwargs):
    """Reward, and whether the answer was understood."""
    _, reward, terminated, truncated, info = on_puzzle(numbers, target, **kwargs).step(answer)
    assert terminated == info["action_is_valid"] == info["action_is_effective"] and not truncated
    assert info["success"] == (reward == 1.0)
    return reward, info["action_is_valid"]


@pytest.mark.parametrize(
    ("numbers", "target", "answer", "reward"),
    [
        ([6, 4], 24, "6 * 4", 1.0),
        ([6, 4], 24, "4*6", 1.0),
        ([6, 4], 24, "(6×4)", 1.0),
        ([8, 6, 2], 5, "8 − 6 ÷ 2", 1.0),
        ([3, 3, 8, 8], 24, "8 / (3 - 8 / 3)", 1.0),
        ([1, 3], 2, "-(1 - 3)", 1.0),
        # Right numbers, another value.
        ([6, 4], 24, "6 + 4", 0.1),
        ([6, 4], 24, "6 / 4", 0.1),
        ([3, 1, 1], 24, "3 / (1 - 1)", 0.1),
        # Wrong numbers, whatever the value.
        ([6, 4], 24, "6 * 2 * 2", 0.0),
        ([6, 4], 24, "6 * 4 * 1", 0.0),
        ([6, 4, 1], 24, "6 * 4", 0.0),
        ([6, 4], 24, "6 * 4 + 6 - 6", 0.0),
        ([6, 4], 24, "24", 0.0),
        ([6, 4], 24, "64", 0.0),
        ([3, 3, 3], 27, "3 * 3 * 3 * 3 / 3", 0.0),
        # Reported for a comparable environment: sets of numbers instead of numbers with their counts.
        ([1, 81, 1, 1], 81, "81 * 1", 0.0),
        ([1, 81, 1, 1], 81, "81 * 1 * 1 * 1", 1.0),
    ],
)
def test_rewards(numbers, target, answer, reward):
    assert verdict(numbers, target, answer) == (reward, True)


# Section J of the field reports, row by row.
@pytest.mark.parametrize(
    ("numbers", "target", "answer", "reward", "valid"),
    [
        ([5, 2], 2, "5/2", 0.1, True),  # 100: 2.5 is not 2
        ([7, 3, 3], 7, "7/3*3", 1.0, True),
        ([24], 24, "", 0.0, False),  # 102: malformed
        ([6], 6, "6*", 0.0, False),
        ([1, 2], 3, "((1+2)", 0.0, False),
        ([1, 2], 3, "1+2=3", 1.0, True),
        ([24], 24, "=24", 0.0, False),
        ([6, 4], 24, "6×4", 1.0, True),
        ([6, 2], 3, "6÷2", 1.0, True),
        ([10, 5], 5, "10 + - 5", 1.0, True),
        ([1000, 1], 1001, "1,000+1", 0.0, False),
        ([2, 4], 24, "24", 0.0, True),  # 104: digits joined or hidden
        ([2, 4, 10], 24, "2.4*10", 0.0, False),
        ([2, 4], 24, "2.4*10", 0.0, False),
        ([2, 1, 4], 24, "2e1+4", 0.0, False),
        ([2, 4], 24, "2 4", 0.0, False),
    ],
)
def test_field_reports(numbers, target, answer, reward, valid):
    assert verdict(numbers, target, answer) == (reward, valid)


@pytest.mark.parametrize(
    ("answer", "reward"),
    [
        ("6 * 4 = 24", 1.0),
        ("6 * 4 = 24.0", 1.0),
        ("6 + 4 = 10", 0.1),
        ("6 + 4 = 24", 0.1),
        # The formula is right, what is said of it is not.
        ("6 * 4 = 25", 0.1),
        # The number behind the sign of equality is none of those used.
        ("24 - 6 + 4 = 24", 0.0),
    ],
)
def test_equalities(answer, reward):
    assert verdict([6, 4], 24, answer) == (reward, True)


@pytest.mark.parametrize(
    ("numbers", "target", "answer", "reward"),
    [
        ([6, 4, 9], 24, "6 * 4", 1.0),
        ([6, 4, 9], 9, "9", 1.0),
        ([6, 4, 9], 24, "6 + 9", 0.1),
        ([6, 4, 9], 24, "9", 0.1),
        ([6, 4, 9], 12, "6 + 6", 0.0),
        ([6, 4, 9], 24, "24", 0.0),
    ],
)
def test_each_number_at_most_once(numbers, target, answer, reward):
    assert verdict(numbers, target, answer, use_all_numbers=False) == (reward, True)


def test_observations_say_what_was_wrong():
    assert on_puzzle([6, 4], 24).step("6 * 4")[0] == RIGHT
    assert on_puzzle([6, 4], 24).step("6 / 4")[0] == "Incorrect: the formula equals 3/2, not 24."
    assert on_puzzle([6, 4], 24).step("6 * 4 = 25")[0] == "Incorrect: the formula equals 24, not 25."
    assert on_puzzle([1, 0], 24).step("1 / 0")[0] == "Incorrect: the formula divides by zero."
    assert on_puzzle([6, 4], 24).step("24")[0] == "Incorrect: use each of 6, 4 exactly once, and no others."
    loose = on_puzzle([6, 4], 24, use_all_numbers=False)
    assert loose.step("24")[0] == "Incorrect: use each of 6, 4 at most once, and no others."


def test_a_malformed_answer_changes_nothing():
    env = make_env("Countdown-v0")
    observation, _ = env.reset(seed=3)
    invalid = {"success": False, "action_is_valid": False, "action_is_effective": False}
    for answer in ("6 * ", "2 ** 9999999999", "(" * 5000, "1" * 100_000):
        assert env.step(answer) == (observation, 0.0, False, False, invalid)
    assert env.step(env.oracle_action())[1:3] == (1.0, True)


def test_one_answer_ends_the_episode():
    env = on_puzzle([6, 4], 24)
    observation = env.step("6 + 4")[0]
    assert env.oracle_action() is None
    after = env.step("6 * 4")
    assert after == (
        observation,
        0.0,
        True,
        False,
        {"success": False, "action_is_valid": False, "action_is_effective": False},
    )


def test_brackets_by_the_thousand_do_not_change_a_right_answer():
    assert verdict([6, 4], 24, "(" * 4000 + "6" + ")" * 4000 + "*4") == (1.0, True)


@pytest.mark.parametrize("power", ["9**9**9**9", "9^9^9^9", "9**9999999999", "2**-1", "10**4300 - 10**4300"])
def test_powers_are_never_calculated(power):
    start = time.perf_counter()
    assert verdict([9, 9, 9, 9], 24, power) == (0.0, False)
    assert time.perf_counter() - start < 2.0


@pytest.mark.parametrize("use_all_numbers", [True, False])
def test_instruction_states_the_rule_and_an_example_that_holds(use_all_numbers):
    env = make_env("Countdown-v0", use_all_numbers=use_all_numbers)
    assert ("exactly once" in env.instruction) == use_all_numbers
    assert ("at most once" in env.instruction) == (not use_all_numbers)
    assert "the formula (3 + 4) * 2 is right for the numbers 2, 3, 4 and the target 14" in env.instruction
    assert verdict([2, 3, 4], 14, "(3 + 4) * 2", use_all_numbers=use_all_numbers) == (1.0, True)


def test_first_observations_are_the_same_for_ever():
    env = make_env("Countdown-v0")
    assert [env.reset(seed=seed)[0] for seed in range(3)] == [
        "Target: 56. Numbers: 9, 80, 16, 11.",
        "Target: 77. Numbers: 5, 14, 7, 41.",
        "Target: 28. Numbers: 68, 16, 56.",
    ]


@pytest.mark.parametrize("split", ["train", "validation"])
@pytest.mark.parametrize("operators", ["+-*/", "+-"])
def test_generated_problems_are_solvable_and_within_their_ranges(operators, split):
    env = make_env("Countdown-v0", operators=operators, split=split)
    counts, signed = Counter(), 0
    for seed in range(500):
        observation, _ = env.reset(seed=seed)
        puzzle = env._puzzle
        assert observation == f"Target: {puzzle.target}. Numbers: {', '.join(map(str, puzzle.numbers))}."
        assert problem_split(puzzle.key) == split
        assert 10 <= puzzle.target <= 99 and puzzle.target not in puzzle.numbers
        assert all(1 <= number <= 99 for number in puzzle.numbers)
        counts[len(puzzle.numbers)] += 1
        signed += solve(puzzle.numbers, puzzle.target, "+-", True) is not None
        answer = env.oracle_action()
        assert operators == "+-*/" or not set(answer) & set("*/(")
        assert env.step(answer)[1:3] == (1.0, True)
    assert set(counts) == {3, 4} and min(counts.values()) > 200
    # The two choices differ: most problems of the larger one need * or /.
    assert signed == 500 if operators == "+-" else signed < 250


def test_the_order_of_the_numbers_does_not_change_the_split():
    assert Puzzle((3, 1, 2), 6).key == Puzzle((2, 3, 1), 6).key == "1 2 3 = 6"


@pytest.mark.parametrize("use_all_numbers", [True, False])
def test_a_random_player_gives_formulas_of_the_numbers_shown(use_all_numbers):
    env = make_env("Countdown-v0", use_all_numbers=use_all_numbers)
    env.action_space.seed(0)
    rewards = set()
    for seed in range(200):
        env.reset(seed=seed)
        _, reward, terminated, _, _ = env.step(env.action_space.sample())
        assert terminated
        rewards.add(reward)
    assert rewards == {0.1, 1.0}


@pytest.mark.parametrize(
    ("numbers", "target", "solvable"),
    [
        ((3, 3, 8, 8), 24, True),
        ((1, 5, 5, 5), 24, True),
        ((1, 1, 1, 1), 24, False),
        ((44, 19, 35), 98, True),
        ((2, 4), 24, False),
        ((24,), 24, True),
        ((3, 4), -7, False),
        ((3, 4), -1, True),
        ((0, 0, 5), 5, True),
    ],
)
def test_solver_on_known_problems(numbers, target, solvable):
    assert (solve(numbers, target, "+-*/", True) is not None) == solvable


def test_solver_may_leave_numbers_out_or_not():
    assert solve((6, 4, 100), 24, "+-*/", True) is None
    assert solve((6, 4, 100), 24, "+-*/", False) == "6 * 4"
    assert solve((7, 100), 7, "+-*/", False) == "7"
    assert solve((20, 4, 100), 24, "+-", True) is None
    assert solve((20, 4, 100), 24, "+-", False) == "20 + 4"
    assert solve((3, 4), -7, "+-", True) == "- 3 - 4"
    assert solve((5, 5), 0, "+-", False) == "5 - 5"


def every_value(numbers):
    """Values of all formulas that use each number once, found in another way: by where the last sign stands."""
    if len(numbers) == 1:
        return {Fraction(numbers[0])}
    found = set()
    for chosen in itertools.product((True, False), repeat=len(numbers)):
        left = [number for number, taken in zip(numbers, chosen, strict=True) if taken]
        right = [number for number, taken in zip(numbers, chosen, strict=True) if not taken]
        if left and right:
            for a, b in itertools.product(every_value(left), every_value(right)):
                found |= {a + b, a - b, a * b} | ({a / b} if b else set())
    return found


@property_test
@given(st.lists(st.integers(0, 12), min_size=1, max_size=3), st.integers(-10, 40))
def test_solver_finds_a_formula_exactly_where_there_is_one(numbers, target):
    answer = solve(tuple(numbers), target, "+-*/", True)
    assert (answer is not None) == (target in every_value(numbers))
    if answer is not None:
        formula = parse_expression(answer)
        assert formula.value() == target and sorted(formula.numbers) == sorted(numbers)


@property_test
@given(st.lists(st.integers(0, 99), min_size=1, max_size=4), st.integers(-99, 200), st.booleans())
def test_signed_sums_are_found_exactly_where_there_are_some(numbers, target, use_all):
    answer = solve(tuple(numbers), target, "+-", use_all)
    factors = itertools.product((1, -1) if use_all else (1, 0, -1), repeat=len(numbers))
    sums = {sum(map(int.__mul__, choice, numbers)) for choice in factors if any(choice)}
    assert (answer is not None) == (target in sums)
    if answer is not None:
        formula = parse_expression(answer)
        assert formula.value() == target and not Counter(formula.numbers) - Counter(numbers)


def is_step(result):
    observation, reward, terminated, truncated, info = result
    assert isinstance(observation, str) and observation and reward in (0.0, 0.1, 1.0)
    assert isinstance(terminated, bool) and truncated is False
    assert set(info) == {"success", "action_is_valid", "action_is_effective"}
    return True


NEARLY = st.lists(st.sampled_from([*"0123456789+-*/()[]{}=.,x $", " 6 ", " 4 ", "**", "×", "\\frac{", "}{"])).map(
    "".join
)


@property_test
@given(st.one_of(st.text(), NEARLY, st.tuples(NEARLY, st.integers(0, 20_000)).map(lambda pair: pair[0] * pair[1])))
def test_any_text_is_an_action(action):
    env = on_puzzle([6, 4], 24)
    start = time.perf_counter()
    assert is_step(env.step(action)) and is_step(env.step(action))
    assert time.perf_counter() - start < 2.0


def test_copies_by_pickle_go_on_alike():
    env = make_env("Countdown-v0", operators="+-")
    env.action_space.seed(0)
    env.reset(seed=1)
    copy = pickle.loads(pickle.dumps(env))
    assert copy.step(copy.oracle_action()) == env.step(env.oracle_action())
    assert copy.reset()[0] == env.reset()[0]
    assert [copy.action_space.sample() for _ in range(5)] == [env.action_space.sample() for _ in range(5)]


@pytest.mark.parametrize(
    ("kwargs", "message"),
    [
        ({"operators": "*"}, r"operators='\*' is not available; choose one of '\+-\*/', '\+-'"),
        ({"use_all_numbers": "yes"}, "use_all_numbers='yes' is not possible; give True or False"),
        ({"dataset": 3}, "dataset=3 is not a path or an id.*Leave `dataset` unset"),
        ({"dataset": " "}, "is not a path or an id"),
        ({"dataset": "missing.jsonl"}, "no such file.*Leave `dataset` unset"),
    ],
)
def test_impossible_settings_are_refused(kwargs, message):
    with pytest.raises(ValueError, match=message):
        make_env("Countdown-v0", **kwargs)


def write(path, rows):
    if path.suffix == ".parquet":
        pyarrow = pytest.importorskip("pyarrow", reason="parquet files are read with pyarrow")
        from pyarrow import parquet

        parquet.write_table(pyarrow.Table.from_pylist(rows), path)
    elif path.suffix == ".json":
        path.write_text(json.dumps(rows), encoding="utf-8")
    else:
        path.write_text("\n".join(map(json.dumps, rows)) + "\n", encoding="utf-8")
    return str(path)


@pytest.mark.parametrize("suffix", [".json", ".jsonl", ".parquet"])
def test_files_in_the_published_format(tmp_path, suffix):
    path = write(tmp_path / f"table{suffix}", ROWS)
    shown = {split: set() for split in ("train", "validation")}
    for split, observations in shown.items():
        env = make_env("Countdown-v0", dataset=path, split=split)
        check_env(env)
        observations |= {env.reset(seed=seed)[0] for seed in range(400)}
    assert not shown["train"] & shown["validation"]
    assert shown["train"] | shown["validation"] == {
        f"Target: {row['target']}. Numbers: {', '.join(map(str, row['nums']))}." for row in ROWS
    }


def test_orders_of_the_same_numbers_stay_in_one_split(tmp_path):
    table = [
        {"target": row["target"], "nums": list(order)} for row in ROWS for order in itertools.permutations(row["nums"])
    ]
    path = write(tmp_path / "table.jsonl", table)
    loaded = load_puzzles(path)
    keys = {split: {puzzle.key for puzzle in puzzles} for split, puzzles in loaded.items()}
    assert sum(map(len, loaded.values())) == len(table) and not keys["train"] & keys["validation"]


def test_data_are_loaded_once(tmp_path):
    path = write(tmp_path / "table.jsonl", ROWS)
    assert make_env("Countdown-v0", dataset=path).puzzles is make_env("Countdown-v0", dataset=path).puzzles


def test_rows_that_cannot_be_used_are_left_out_and_counted(tmp_path, caplog):
    unusable = [
        {"target": 5},
        {"nums": [1, 2]},
        {"target": 5, "nums": []},
        {"target": 5, "nums": [5]},
        {"target": 15, "nums": [1, 2, 3, 4, 5]},
        {"target": 3, "nums": [1, -2]},
        {"target": 3, "nums": [1, 2.0]},
        {"target": 3, "nums": [True, 2]},
        {"target": 3, "nums": "12"},
        {"target": "3", "nums": [1, 2]},
        {"target": 10**5000, "nums": [10**4000, 2]},
        {"target": None, "nums": None},
    ]
    sys.set_int_max_str_digits(0)
    try:
        path = write(tmp_path / "table.jsonl", ROWS + unusable)
        with caplog.at_level(logging.INFO, logger="ragen_envs"):
            loaded = load_puzzles(path)
    finally:
        sys.set_int_max_str_digits(sys.int_info.default_max_str_digits)
    assert sum(map(len, loaded.values())) == len(ROWS)
    assert f"{len(ROWS)} problems, 12 rows" in caplog.text


@pytest.mark.parametrize("kwargs", [{}, {"operators": "+-"}, {"use_all_numbers": False}])
def test_problems_that_cannot_be_solved_are_passed_over(tmp_path, kwargs):
    unsolvable = [{"target": 500 + n, "nums": [1, 1, n]} for n in range(3, 40)]
    env = make_env("Countdown-v0", dataset=write(tmp_path / "table.jsonl", ROWS + unsolvable), **kwargs)
    for seed in range(100):
        env.reset(seed=seed)
        assert env._puzzle.target < 500
        assert env.operators == "+-*/" or env._puzzle.numbers != (3, 3, 8, 8)  # needs a quotient
        assert env.step(env.oracle_action())[1] == 1.0


def test_data_of_which_nothing_can_be_solved_are_refused(tmp_path):
    path = write(tmp_path / "table.jsonl", [{"target": 500 + n, "nums": [1, 1, 2]} for n in range(20)])
    env = make_env("Countdown-v0", dataset=path)
    with pytest.raises(DatasetError, match="none of the problems.*'train'.*operators='.-.*Leave `dataset` unset"):
        env.reset(seed=0)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.jsonl", '{"numbers": [1, 2], "target": 3}', "columns 'nums', 'target'.*'numbers', 'target'"),
        ("b.jsonl", "", "no row that can be used"),
        ("c.jsonl", '{"nums": [1], "target": 3}', "no row that can be used .1 read.*2 to 4 whole numbers"),
        ("d.json", "[", "cannot be read as .json"),
    ],
)
def test_unusable_files_are_refused_with_a_remedy(tmp_path, name, content, message):
    (tmp_path / name).write_text(content, encoding="utf-8")
    with pytest.raises(DatasetError, match=message) as error:
        make_env("Countdown-v0", dataset=str(tmp_path / name))
    assert "Leave `dataset` unset" in str(error.value)


def test_split_without_a_problem_is_refused(tmp_path):
    train = [row for row in ROWS if problem_split(Puzzle(tuple(row["nums"]), row["target"]).key) == "train"]
    path = write(tmp_path / "table.jsonl", train)
    make_env("Countdown-v0", dataset=path)
    with pytest.raises(DatasetError, match="no problem in the split 'validation'"):
        make_env("Countdown-v0", dataset=path, split="validation")


class FakeHub:
    """Stands for the package `datasets`: one table, or the error of a failed download."""

    def __init__(self, result):
        self.result = result

    def load_dataset(self, name, *, split):
        assert (name, split) == ("someone/Countdown-for-this-test", "train")
        if isinstance(self.result, Exception):
            raise self.result
        return self.result


def test_hub_data(monkeypatch):
    datasets = pytest.importorskip("datasets", reason="data sets of the Hub are read with datasets")
    table = datasets.Dataset.from_list(ROWS)
    monkeypatch.setitem(sys.modules, "datasets", FakeHub(ConnectionError("no route")))
    with pytest.raises(DatasetError, match="could not be loaded from the Hub.*Leave `dataset` unset"):
        make_env("Countdown-v0", dataset="someone/Countdown-for-this-test")
    # A failure is not remembered.
    monkeypatch.setitem(sys.modules, "datasets", FakeHub(table))
    check_env(make_env("Countdown-v0", dataset="someone/Countdown-for-this-test"))
