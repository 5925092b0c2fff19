"""Expressions compared by math-verify in a process of its own: verdicts, limits, threads, and outages."""

import json
import os
import threading
import time

import pytest

from ragen_envs import check_env, make_env, symbolic
from ragen_envs.answers import answers_match


pytest.importorskip("math_verify", reason="expressions are compared with math-verify")

TOWER = "9^{9^{9^9}}"


@pytest.fixture(autouse=True)
def fresh():
    """No verdict is remembered, and no process is left behind."""
    symbolic.expressions_match.cache_clear()
    yield
    symbolic._worker.stop()


def judge(answer, gold):
    return answers_match(answer, gold, symbolic.expressions_match)


@pytest.mark.parametrize(
    ("answer", "gold"),
    [
        (r"2\sqrt{3}", r"\sqrt{12}"),
        (r"$\frac{\sqrt{2}}{2}$", r"\frac{1}{\sqrt{2}}"),
        ("x^2+2x+1", "(x+1)^2"),
        (r"\boxed{1-\sqrt{2}}", r"-\sqrt{2}+1"),
        (r"(3, \frac{\pi}{2})", r"\left(3,\pi/2\right)"),
        (r"2\sqrt{3}, 1", r"1, \sqrt{12}"),
        ("3^{20}x", "3486784401x"),
    ],
)
def test_same(answer, gold):
    assert judge(answer, gold)


@pytest.mark.parametrize(
    ("answer", "gold"),
    [
        (r"2\sqrt{3}", r"\sqrt{13}"),
        ("(x+1)^2", "x^2+1"),
        # Which math-verify by itself takes to be equal.
        ("1/2^99", "1/2^98"),
        (r"\frac{1}{2^{99}}", r"\frac{1}{2^{98}}"),
        (r"\pi", "3.14159265"),
        (r"\sqrt{2}", "1.41421356"),
        ("0.333333333333", "1/3"),
        ("3x-y+13=0", "3x+4y+14=0"),
        # A number is to be given as one.
        ("3^{20}", "3486784401"),
        # What it cannot read.
        ("((", "x"),
        ("\ud800x", "x"),
        (r"\frac{", "x"),
    ],
)
def test_different(answer, gold):
    assert not judge(answer, gold)


def test_endless_calculation_ends_and_leaves_the_next_unaffected(monkeypatch):
    monkeypatch.setattr(symbolic, "TIME_LIMIT", 2.0)
    results = []

    def run():
        assert judge(r"2\sqrt{3}", r"\sqrt{12}")  # starts the process
        start = time.perf_counter()
        results.append((judge(TOWER, "x"), time.perf_counter() - start))
        results.append((judge(r"3\sqrt{2}", r"\sqrt{18}"), 0.0))
        symbolic.expressions_match.cache_clear()

    run()
    worker = threading.Thread(target=run)
    worker.start()
    worker.join(timeout=120)
    assert [verdict for verdict, _ in results] == [False, True, False, True]
    assert max(seconds for _, seconds in results) < 10


@pytest.mark.parametrize(
    "answer",
    ["9^9^9^9^9^9^9^9^9", r"\frac{1}{" * 500 + "1" + "}" * 500, "x" * 201, "9" * 20000, "(" * 9 + "x" + ")" * 9],
)
def test_what_could_take_long_is_not_even_asked(answer, monkeypatch):
    monkeypatch.setattr(symbolic._worker, "ask", lambda *args: pytest.fail("was asked"))
    assert not judge(answer, "x")


def test_threads_get_their_own_verdicts():
    verdicts = {}

    def run(number):
        verdicts[number] = judge(rf"{number}\sqrt{{2}}", rf"\sqrt{{{2 * number**2 + number % 2}}}")

    threads = [threading.Thread(target=run, args=(number,)) for number in range(2, 12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=120)
    assert verdicts == {number: number % 2 == 0 for number in range(2, 12)}


def test_process_that_dies_is_replaced():
    assert judge(r"2\sqrt{3}", r"\sqrt{12}")
    symbolic._worker._process.kill()
    symbolic._worker._process.wait()
    assert judge(r"3\sqrt{3}", r"\sqrt{27}")


def test_interrupt_passes_and_leaves_no_stale_verdict(monkeypatch):
    assert judge(r"2\sqrt{3}", r"\sqrt{12}")

    class Interrupting:
        def get(self, timeout):
            raise KeyboardInterrupt

    monkeypatch.setattr(symbolic._worker, "_lines", Interrupting())
    with pytest.raises(KeyboardInterrupt):
        judge(r"2\sqrt{5}", r"\sqrt{20}")
    assert not judge(r"2\sqrt{5}", r"\sqrt{21}")


def test_process_that_cannot_start_is_no_verdict(monkeypatch, tmp_path):
    monkeypatch.setattr(symbolic, "_PROGRAM", tmp_path / "missing.py")
    with pytest.raises(symbolic.WorkerError, match="did not start"):
        judge(r"2\sqrt{3}", r"\sqrt{12}")


@pytest.mark.skipif(not hasattr(os, "fork"), reason="forks are for systems that have them")
def test_forked_process_starts_its_own():
    assert judge(r"2\sqrt{3}", r"\sqrt{12}")
    theirs = symbolic._worker._process.pid
    child = os.fork()
    if child == 0:
        right = judge(r"3\sqrt{2}", r"\sqrt{18}") and symbolic._worker._process.pid != theirs
        symbolic._worker.stop()
        os._exit(0 if right else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert judge(r"4\sqrt{2}", r"\sqrt{32}") and symbolic._worker._process.pid == theirs


def test_environment_uses_it_on_request(tmp_path):
    rows = [{"query": f"Question {i}", "response": r"The answer is: \sqrt{12}"} for i in range(30)]
    (tmp_path / "q.jsonl").write_text("\n".join(map(json.dumps, rows)))
    for comparison, reward in (("math_verify", 1.0), ("exact", 0.0)):
        env = make_env("MetaMathQA-v0", dataset=str(tmp_path / "q.jsonl"), comparison=comparison)
        check_env(env)
        env.reset(seed=0)
        assert env.step(r"2\sqrt{3}")[1] == reward
