"""How far a download is: bytes, rate and time left. `Meter` turns byte counts into `Progress`, at most ten times a second."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from engine.errors import EngineError

Source = Literal["hub", "mirror"]
WINDOW_S = 5.0  # the rate is that of the last seconds, so that it follows the line
EVERY_S = 0.1
STALL_S = 5.0  # without a new byte
STALLED, RETRYING = "stalled", "retrying"
CHECKING = "checking"  # the note while a file's checksum is computed


@dataclass(frozen=True, slots=True)
class Progress:
    """One look at a running download. `total` 0 and `left_s` None mean unknown; `note` is a short text for people.

    Where nothing comes it begins with the word for that state and a colon.
    """

    file: str
    done: int
    total: int
    rate: float  # bytes per second
    left_s: float | None
    source: Source
    note: str = ""

    @property
    def state(self) -> str:
        """`stalled`, `retrying`, or nothing special."""
        word = self.note.partition(":")[0]
        return word if word in (STALLED, RETRYING) else ""


Report = Callable[[Progress], None]
Cancelled = Callable[[], bool]


class Meter:
    """Counts one download. A new file or note is reported at once, mere bytes at most every `EVERY_S`."""

    def __init__(self, source: Source, report: Report | None, clock: Callable[[], float] = time.monotonic) -> None:
        self.total = 0
        self._source: Source = source
        self._report = report
        self._clock = clock
        self._seen: deque[tuple[float, int]] = deque()
        self._last_s = float("-inf")
        self._what = ("", "")
        self._now = (0, "", "")
        self._moved_s = clock()

    def still(self) -> None:
        """Nothing has come since the last time; after a while that is said."""
        self.at(*self._now)

    def at(self, done: int, file: str, note: str = "") -> None:
        """`done` bytes of `total` are there."""
        now = self._clock()
        if (done, file, note) != self._now:
            self._now, self._moved_s = (done, file, note), now
        waited_s = now - self._moved_s
        if waited_s >= STALL_S and note != CHECKING and not note.startswith(RETRYING):
            note = f"{STALLED}: nothing has come for {waited_s:.0f} s" + (f" ({note})" if note else "")
        if self._seen and done < self._seen[-1][1]:
            self._seen.clear()  # a file started over: old times say nothing about it
        self._seen.append((now, done))
        while len(self._seen) > 2 and self._seen[1][0] < now - WINDOW_S:
            self._seen.popleft()
        if self._report is None or (now - self._last_s < EVERY_S and (file, note) == self._what and done < self.total):
            return
        self._last_s, self._what = now, (file, note)
        started_s, started = self._seen[0]
        rate = (done - started) / (now - started_s) if now > started_s else 0.0
        left_s = (self.total - done) / rate if rate > 0 and self.total else None
        self._report(Progress(file, done, self.total, rate, left_s, self._source, note))


def human(size: float) -> str:
    """Bytes as people read them, in steps of 1000 as download pages count: 98 MB, 1.1 GB."""
    for unit in ("bytes", "kB", "MB"):
        if size < 1000:
            return f"{size:.0f} {unit}"
        size /= 1000
    return f"{size:.1f} GB"


def stopped(name: str) -> EngineError:
    """The answer when a person stops a download."""
    return EngineError(
        f"The download of {name} was stopped.",
        "What was fetched is kept; pulling again goes on from there.",
        kind="cancelled",
    )
