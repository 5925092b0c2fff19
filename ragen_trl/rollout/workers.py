"""Threads that may be given up on: a stuck environment must not stop the others, nor the program's end."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, Generic, TypeVar


T = TypeVar("T")


class DeadlineExceeded(TimeoutError):
    """A task took longer than it may."""


class _Job(Generic[T]):
    def __init__(self, task: Callable[[], T]) -> None:
        self.task = task
        self.started: float | None = None
        self.seconds = 0.0
        self.result: T | BaseException | None = None
        self.done = threading.Event()
        self.abandoned = False

    def run(self) -> None:
        self.started = time.monotonic()
        try:
            self.result = self.task()
        except BaseException as error:  # noqa: B036 - handed to the caller, who decides; a lost one would hang the run
            self.result = error
        self.seconds = time.monotonic() - self.started
        self.done.set()


class WorkerPool:
    """
    Runs tasks on daemon threads, each with its own time limit.

    The pools of the standard library wait for their threads at exit, so one stuck environment would hang the program.

    Args:
        num_workers (`int`):
            Tasks that run at the same time.
    """

    def __init__(self, num_workers: int) -> None:
        if num_workers < 1:
            raise ValueError(f"num_workers must be at least 1, got {num_workers}.")
        self._num_workers = num_workers
        self._jobs: queue.SimpleQueue[_Job] = queue.SimpleQueue()
        self._threads = 0

    def run(
        self, tasks: Sequence[Callable[[], T]], timeouts: Sequence[float | None]
    ) -> list[tuple[T | BaseException, float]]:
        """
        Run all tasks and wait for them.

        Args:
            tasks (`Sequence[Callable[[], T]]`):
                What to run.
            timeouts (`Sequence[float | None]`):
                Seconds that each task may take from its start, `None` for no limit. A task past its limit is given
                up: its thread is left behind and replaced.

        Returns:
            `list[tuple[T | BaseException, float]]`: For each task its result or the exception it raised
            ([`DeadlineExceeded`] past the limit), and the seconds it took.
        """
        jobs = [_Job(task) for task in tasks]
        while self._threads < min(self._num_workers, len(jobs)):
            self._threads += 1
            self._start_thread()
        for job in jobs:
            self._jobs.put(job)
        return [self._wait(job, timeout) for job, timeout in zip(jobs, timeouts, strict=True)]

    def _wait(self, job: _Job[Any], timeout: float | None) -> tuple[Any, float]:
        while not job.done.is_set():
            if timeout is None:
                job.done.wait()
            elif job.started is None:  # waits for a thread; its own time has not begun
                job.done.wait(0.01)
            elif not job.done.wait(max(0.0, job.started + timeout - time.monotonic())):
                job.abandoned = True
                self._start_thread()
                return DeadlineExceeded(f"took longer than {timeout:g} s"), timeout
        return job.result, job.seconds

    def _start_thread(self) -> None:
        threading.Thread(target=self._work, name="ragen-env", daemon=True).start()

    def _work(self) -> None:
        while True:
            job = self._jobs.get()
            job.run()
            if job.abandoned:  # a replacement is already at work
                return
            del job  # an idle thread would keep it alive, and with it the episodes, the engine and the model
