"""Processes of the benchmarks: lanes that answer questions, and programs in a terminal that nobody looks at.

A second pool of compute threads in one process slows both, so each lane has a process of its own; while one works the others wait for
their next line. The screen needs a terminal: a pseudo terminal is read here, and what it shows is thrown away but for its end.
"""

from __future__ import annotations

import json
import os
import pty
import resource
import select
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

LAST = 4000  # bytes of a terminal's output that are kept
ENDED = "a benchmark process ended; its message is above"


class Child:
    """One lane in a process of its own: a JSON line in, a JSON line out."""

    def __init__(self, script: str | Path, *arguments: str, python: str = sys.executable, threads: int = 0) -> None:
        """`threads` > 0 sets the compute threads of the lane; 0 leaves it to the lane."""
        environment = {**os.environ, **({"OMP_NUM_THREADS": str(threads)} if threads else {})}
        self._process = subprocess.Popen(
            [python, str(script), *arguments], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
        )

    def ask(self, **question: Any) -> dict[str, Any]:
        """The answer to one question. Ends the benchmark where the lane has ended: its message is above."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(question) + "\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            raise SystemExit(ENDED) from None
        return self.listen()

    def listen(self) -> dict[str, Any]:
        """The next line, of a lane that speaks without being asked."""
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise SystemExit(ENDED)
        return dict(json.loads(line))

    def close(self) -> None:
        """Let it end."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()


def in_terminal(
    command: Sequence[str],
    limit_s: float,
    columns: int = 100,
    rows: int = 30,
    until: Callable[[bytes], bool] = lambda shown: False,
    **environment: str,
) -> tuple[float, bytes]:
    """Run a command in a pseudo terminal until it ends, `until` (the last bytes that were shown) says so, or the time is over.

    Returns the seconds that this took and the end of what was shown. A program that has not ended by then is stopped.
    """
    ours, theirs = pty.openpty()
    size = {"TERM": "xterm-256color", "COLUMNS": str(columns), "LINES": str(rows)}
    begun_s = time.monotonic()
    process = subprocess.Popen(
        command, stdin=theirs, stdout=theirs, stderr=theirs, env={**os.environ, **size, **environment}, start_new_session=True
    )
    os.close(theirs)
    shown, enough = b"", False
    while not enough and time.monotonic() < begun_s + limit_s:
        if select.select([ours], [], [], 0.2)[0]:
            try:
                shown += os.read(ours, 65536)
            except OSError:  # the other side is closed
                break
            enough, shown = until(shown), shown[-LAST:]
        elif process.poll() is not None:
            break
    took_s = time.monotonic() - begun_s
    try:
        process.wait(0 if enough else 20)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    os.close(ours)
    return took_s, shown


def peak_bytes() -> int:
    """Most memory that this process ever had, mapped files included."""
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return most if sys.platform == "darwin" else 1024 * most
