"""Environments that break: it ends alone, interrupts pass, and the program can end."""

import gc
import subprocess
import sys
import threading
import time
import weakref
from pathlib import Path

import pytest
from helpers import RESET_FAULTS, STEP_FAULTS

from ragen_trl.rollout import ChatFormat, EpisodeSpec, PolicyGenerator, RolloutEngine, RolloutSettings
from ragen_trl.rollout.workers import DeadlineExceeded, WorkerPool


def engine_for(tokenizer, **changes):
    settings = RolloutSettings(**({"max_completion_length": 100_000, "env_workers": 2} | changes))

    def policy(trajectory):
        return f"x</think><answer>{'a' if len(trajectory.turns) < 3 else 'win'}</answer>"

    return RolloutEngine(settings, ChatFormat(tokenizer, "<think>"), PolicyGenerator(tokenizer, policy))


def specs_for(fault, number=4, members=(1,), **kwargs):
    kwargs = {"fault": fault, "members": list(members)} | kwargs
    return [EpisodeSpec("helpers:Faulty-v0", 5, kwargs, noise_seed=(5, member, 0)) for member in range(number)]


def assert_only_member_1_failed(trajectories, reason="error"):
    assert [t.stop_reason for t in trajectories] == ["terminated", reason, "terminated", "terminated"]
    assert [t.reward for t in trajectories if not t.failed] == [3.0, 3.0, 3.0]
    broken = trajectories[1]
    assert broken.failed and not broken.success and broken.error
    assert not any(broken.env_mask)
    assert len(broken.completion_ids) == len(broken.env_mask) == len(broken.logprobs)


@pytest.mark.parametrize("fault", STEP_FAULTS + RESET_FAULTS)
def test_one_broken_episode_ends_alone(tokenizer, fault):
    engine = engine_for(tokenizer)
    for _ in range(2):  # twice, so that instances are used again
        trajectories = engine.run(specs_for(fault))
        assert_only_member_1_failed(trajectories)


@pytest.mark.parametrize(
    ("fault", "text"),
    [
        ("step", "OSError: no service"),
        ("exit", "SystemExit: 3"),
        ("nan", "reward nan"),
        ("number", "observation of type int, not str"),
        ("reset_number", "observation of type int, not str"),
        ("no_info", "action_is_valid"),
    ],
)
def test_the_error_says_what_happened(tokenizer, fault, text, caplog):
    trajectory = engine_for(tokenizer).run(specs_for(fault, 2))[1]
    assert text in trajectory.error
    assert text in caplog.text and "1 of 2 episodes failed" in caplog.text and "helpers:Faulty-v0" in caplog.text


def test_broken_constructor(tokenizer):
    engine = engine_for(tokenizer)
    specs = [EpisodeSpec("helpers:Faulty-v0", 1, {"fault": "constructor"}), EpisodeSpec("helpers:Counter-v0", 1)]
    broken, sound = engine.run(specs)
    assert "no service" in broken.error and broken.turns == []
    assert sound.success


def test_unknown_environment_in_the_middle_of_a_run(tokenizer):
    broken, sound = engine_for(tokenizer).run([EpisodeSpec("sokobann", 1), EpisodeSpec("helpers:Counter-v0", 1)])
    assert "Sokoban-v0" in broken.error and sound.success


def test_broken_instances_are_not_used_again(tokenizer):
    engine = engine_for(tokenizer)
    for _ in range(3):
        engine.run(specs_for("step"))
        kept = [env for pool in engine._idle.values() for env in pool]
        assert len(kept) == 3
        assert not any(env.ill for env in kept)


def test_closing_is_no_concern_of_an_episode(tokenizer):
    assert all(t.success for t in engine_for(tokenizer).run(specs_for("close")))


def test_interrupts_pass(tokenizer):
    with pytest.raises(KeyboardInterrupt):
        engine_for(tokenizer).run(specs_for("interrupt"))


@pytest.mark.parametrize("fault", ["sleep", "reset_sleep"])
@pytest.mark.parametrize("workers", [1, 4])
def test_a_stuck_environment_ends_at_its_time_limit(tokenizer, fault, workers):
    """Field report 69: one environment takes for ever, the others proceed."""
    engine = engine_for(tokenizer, episode_timeout=0.3, env_workers=workers)
    start = time.monotonic()
    trajectories = engine.run(specs_for(fault))
    assert time.monotonic() - start < 10
    assert_only_member_1_failed(trajectories, "timeout")
    assert "episode_timeout=0.3" in trajectories[1].error
    # The workers are whole again.
    assert all(t.success for t in engine.run(specs_for(fault, members=())))


def test_all_stuck_with_fewer_workers_than_episodes(tokenizer):
    engine = engine_for(tokenizer, episode_timeout=0.2, env_workers=2)
    start = time.monotonic()
    trajectories = engine.run(specs_for("sleep", 6, range(6)))
    assert [t.stop_reason for t in trajectories] == ["timeout"] * 6
    assert time.monotonic() - start < 10


def test_the_time_limit_counts_the_whole_episode(tokenizer):
    """Three steps of 0.2 s each are within any single limit of 0.5 s, but not together."""
    engine = engine_for(tokenizer, episode_timeout=0.5)
    trajectory = engine.run(specs_for("sleep", 1, [0], seconds=0.2))[0]
    assert trajectory.stop_reason == "timeout" and len(trajectory.turns) == 3
    engine = engine_for(tokenizer, episode_timeout=5.0)
    assert engine.run(specs_for("sleep", 1, [0], seconds=0.2))[0].success


def test_waiting_for_a_worker_does_not_count(tokenizer):
    engine = engine_for(tokenizer, episode_timeout=0.9, env_workers=1)
    trajectories = engine.run(specs_for("sleep", 4, range(4), seconds=0.2))
    assert all(t.success for t in trajectories)


def test_no_limit(tokenizer):
    engine = engine_for(tokenizer, episode_timeout=None)
    assert engine.run(specs_for("sleep", 1, [0], seconds=0.05))[0].success


def test_a_late_environment_cannot_touch_its_episode(tokenizer):
    engine = engine_for(tokenizer, episode_timeout=0.2)
    trajectory = engine.run(specs_for("sleep", 1, [0], seconds=0.6))[0]
    before = (trajectory.reward, list(trajectory.completion_ids), trajectory.stop_reason)
    time.sleep(0.7)
    assert (trajectory.reward, trajectory.completion_ids, trajectory.stop_reason) == before
    assert not any(engine._idle.values())


def test_the_program_ends_while_an_environment_is_stuck():
    code = """
import conftest
from test_failures import engine_for, specs_for
from helpers import build_tokenizer
print(engine_for(build_tokenizer(), episode_timeout=0.2).run(specs_for("sleep", 1, [0]))[0].stop_reason)
"""
    here = Path(__file__).parent
    paths = [str(here), str(here.parent), *sys.path]
    result = subprocess.run(
        [sys.executable, "-c", f"import sys; sys.path[:0] = {paths!r}\n{code}"],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    assert result.stdout.strip() == "timeout"


def test_a_finished_engine_is_let_go(tokenizer):
    """Its threads live on; they must not keep the engine, and with it the model, in memory."""
    engine = engine_for(tokenizer)
    engine.run(specs_for("step"))
    reference = weakref.ref(engine)
    del engine
    gc.collect()
    assert reference() is None


def test_worker_pool_keeps_the_order_and_catches_everything():
    pool = WorkerPool(3)
    results = pool.run([lambda i=i: 1 // (i - 2) for i in range(4)], [None] * 4)
    assert [r if not isinstance(r, BaseException) else type(r).__name__ for r, _ in results] == [
        -1,
        -1,
        "ZeroDivisionError",
        1,
    ]


def test_worker_pool_stays_of_its_size():
    """Threads given up on are replaced one for one, and return when their task is done."""
    pool = WorkerPool(2)
    before = threading.active_count()
    for _ in range(3):
        ((result, _),) = pool.run([lambda: time.sleep(0.15)], [0.02])
        assert isinstance(result, DeadlineExceeded)
    time.sleep(0.4)
    pool.run([lambda: time.sleep(0.05)] * 8, [None] * 8)
    assert threading.active_count() - before == 2


def test_worker_pool_runs_as_many_at_a_time_as_it_has_threads():
    pool = WorkerPool(4)
    pool.run([lambda: time.sleep(1)] * 4, [0.01] * 4)  # all four are given up
    barrier = threading.Barrier(4, timeout=5)
    assert [r for r, _ in pool.run([barrier.wait] * 4, [None] * 4) if isinstance(r, BaseException)] == []


def test_worker_pool_after_one_slow_task_still_starts_all_its_threads():
    pool = WorkerPool(4)
    pool.run([lambda: time.sleep(1)], [0.01])
    barrier = threading.Barrier(4, timeout=5)
    assert [r for r, _ in pool.run([barrier.wait] * 4, [None] * 4) if isinstance(r, BaseException)] == []


def test_worker_pool_of_no_workers_is_refused():
    with pytest.raises(ValueError, match="at least 1, got 0"):
        WorkerPool(0)
