"""Comparing expressions with math-verify, in a process that is ended when it takes too long."""

from __future__ import annotations

import atexit
import importlib.util
import json
import os
import queue
import re
import subprocess
import sys
import threading
from functools import lru_cache
from pathlib import Path


# Seconds a comparison may take; most take a tenth. The start of the process has a limit of its own.
TIME_LIMIT = 5.0
START_LIMIT = 120.0
MAX_EXPRESSION_LENGTH = 200

_PROGRAM = Path(__file__).with_name("math_verify_worker.py")
# Powers of powers and brackets in brackets are what makes a calculation endless; right answers have few.
_MAX_POWERS = 4
_MAX_DEPTH = 8
_ENDLESS = re.compile(r"!|\^\s*\{?\s*[0-9]{4}|\^\s*(?:\{[^{}]*|\w+\s*)\^")


class WorkerError(RuntimeError):
    """The process that compares expressions could not be started."""


class _Worker:
    """One process, used by one thread at a time."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process: subprocess.Popen[str] | None = None
        self._lines: queue.SimpleQueue[str] = queue.SimpleQueue()

    def ask(self, answer: str, gold: str, limit: float) -> bool:
        with self._lock:
            process = self._started()
            try:
                assert process.stdin is not None
                process.stdin.write(json.dumps([answer, gold]) + "\n")
                process.stdin.flush()
                return self._lines.get(timeout=limit).strip() == "true"
            # Too slow, or it died of this pair. The next one gets a new process.
            except (queue.Empty, OSError):
                self._stop()
                return False
            # An interrupted question would leave its answer to the next one.
            except BaseException:
                self._stop()
                raise

    def stop(self) -> None:
        with self._lock:
            self._stop()

    def forget(self) -> None:
        """In a process that was forked off: leave the parent's process alone, and its lock, whoever held it."""
        self._lock = threading.Lock()
        self._process = None

    def _started(self) -> subprocess.Popen[str]:
        if self._process is not None and self._process.poll() is None:
            return self._process
        self._stop()
        # -P: the folder of the program has modules of the package, which must not stand for others of their names.
        self._process = subprocess.Popen(
            [sys.executable, "-P", str(_PROGRAM)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            encoding="utf-8",
            env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONIOENCODING": "utf-8"},
        )
        self._lines = queue.SimpleQueue()
        threading.Thread(target=_read, args=(self._process, self._lines), daemon=True).start()
        try:
            line = self._lines.get(timeout=START_LIMIT)
        except queue.Empty:
            line = ""
        if not line:
            self._stop()
            raise WorkerError(
                f"The process that compares expressions did not start; see what `{sys.executable} -P {_PROGRAM}` says."
            )
        return self._process

    def _stop(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            for pipe in (self._process.stdin, self._process.stdout):
                if pipe is not None:
                    try:
                        pipe.close()
                    except OSError:
                        pass
        self._process = None


def _read(process: subprocess.Popen[str], lines: queue.SimpleQueue[str]) -> None:
    # Reading has no time limit on a pipe, waiting for a queue has, on every system and in every thread.
    assert process.stdout is not None
    try:
        for line in process.stdout:
            lines.put(line)
    except ValueError:
        pass
    lines.put("")


_worker = _Worker()
atexit.register(_worker.stop)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_worker.forget)


def available() -> bool:
    """
    Whether math-verify is installed.

    Returns:
        `bool`: Whether [`expressions_match`] can be used.
    """
    return importlib.util.find_spec("math_verify") is not None


@lru_cache(maxsize=10_000)
def expressions_match(answer: str, gold: str) -> bool:
    """
    Whether math-verify finds two expressions equal, and they agree to 50 digits as well. May be called from any
    thread; comparisons wait for each other.

    Args:
        answer (`str`):
            LaTeX or plain text.
        gold (`str`):
            LaTeX or plain text.

    Returns:
        `bool`: `False` too where one of them has more than 200 characters, more than four powers, a power of a
        power, an exponent of four digits, a factorial or brackets more than eight deep, or where the comparison takes
        more than five seconds.

    Raises:
        `WorkerError`: The process that compares them cannot be started, which is no verdict.
    """
    if not (_simple(answer) and _simple(gold)):
        return False
    return _worker.ask(answer, gold, TIME_LIMIT)


def _simple(text: str) -> bool:
    depth = deepest = 0
    for symbol in text[: MAX_EXPRESSION_LENGTH + 1]:
        depth += (symbol in "({[") - (symbol in ")}]")
        deepest = max(deepest, depth)
    if len(text) > MAX_EXPRESSION_LENGTH or text.count("^") > _MAX_POWERS or deepest > _MAX_DEPTH:
        return False
    return not _ENDLESS.search(text)
