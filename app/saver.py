"""Saves beside the screen: a thread of its own brings the database up to what it was told, so that a slow disk stops nobody.

Of rows that wait the newest state counts. What could not be written waits and is tried again; `problem` says why, so that the
screen can say NOT SAVED, and is None again once everything is written.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from app.saved import ChatRow, Row
from engine.errors import EngineError
from engine.logs import log_failure

if TYPE_CHECKING:
    from app.store import Store

RETRY_S = 5.0


@dataclass(slots=True)
class _Waiting:
    """What is to be written for one chat."""

    chat: ChatRow | None = None
    rows: dict[int, Row] = field(default_factory=dict)
    gone: dict[int, None] = field(default_factory=dict)
    certain: bool = False

    def add(self, newer: _Waiting) -> None:
        """A later state goes over an earlier one."""
        self.chat = newer.chat or self.chat
        for key in newer.gone:
            self.rows.pop(key, None)
        self.rows |= newer.rows
        self.gone |= newer.gone
        self.certain |= newer.certain


class Saver:
    """`opener` opens the database; it is tried again as long as it fails."""

    def __init__(self, opener: Callable[[], Store], retry_s: float = RETRY_S) -> None:
        self.problem: EngineError | None = None
        self.saved_s = 0.0  # when something was written last, seconds since 1970; 0 = never
        self.numbers: dict[int, int] = {}  # chat key -> the number that people type
        self.deleted: list[int] = []  # keys of chats that can be brought back, the last one deleted at the end
        self._opener, self._retry_s = opener, retry_s
        self._store: Store | None = None
        self._waiting: dict[int, _Waiting] = {}
        self._change = threading.Condition()
        self._opening = threading.Lock()  # of its own: opening may wait for another program
        self._put = self._written = 0
        self._closing = False
        self._thread = threading.Thread(target=self._run, name="specchat-saver", daemon=True)
        self._thread.start()

    @property
    def store(self) -> Store:
        """The database, for reading. Opens it where that has not happened yet; raises EngineError."""
        with self._opening:
            if self._store is None:
                self._store = self._opener()
            return self._store

    def delete(self, key: int) -> None:
        """Take a chat out of the list. Waits for the database; raises EngineError."""
        self.store.delete(key)
        self.deleted.append(key)

    def bring_back(self) -> None:
        """Undo the last `delete`. Waits for the database; raises EngineError."""
        self.store.undelete(self.deleted[-1])
        self.deleted.pop()

    def put(
        self, key: int, chat: ChatRow | None, rows: Iterable[tuple[int, Row]] = (), gone: Sequence[int] = (), *, certain: bool = True
    ) -> int:
        """Write this soon. `rows` by key, parents first; a function makes its row on the saver's thread. Returns a ticket."""
        with self._change:
            self._waiting.setdefault(key, _Waiting()).add(_Waiting(chat, dict(rows), dict.fromkeys(gone), certain))
            self._put += 1
            self._change.notify_all()
            return self._put

    def wait(self, ticket: int, timeout_s: float) -> bool:
        """Whether everything up to this ticket is on the disk; waits for it, but not once there is a problem."""
        with self._change:
            return self._change.wait_for(lambda: self._written >= ticket or self.problem is not None, timeout_s) and self._written >= ticket

    def wait_all(self, timeout_s: float) -> bool:
        """The same for all that was put so far."""
        return self.wait(self._put, timeout_s)

    def failed(self, error: EngineError) -> None:
        """Opening failed elsewhere."""
        with self._change:
            self.problem = error

    def close(self, timeout_s: float = 2.0) -> None:
        """Write what waits, and let the file go."""
        with self._change:
            self._closing = True
            self._change.notify_all()
        self._thread.join(timeout_s)

    def _run(self) -> None:
        while True:
            with self._change:
                self._change.wait_for(lambda: self._waiting or self._closing)
                if not self._waiting and self._closing:
                    break
                waiting, self._waiting = self._waiting, {}
                ticket, closing = self._put, self._closing
            try:
                self._write(waiting)
                problem = None
            except EngineError as error:
                problem = error
            except Exception as error:  # a fault of ours must not end the saving, nor go unseen
                log_failure(error)
                problem = EngineError(f"Saving failed ({type(error).__name__}: {error}).", "The log says more.", kind="internal")
            with self._change:
                self.problem = problem
                if problem is None:
                    self._written, self.saved_s = max(self._written, ticket), time.time()
                else:
                    for key, older in waiting.items():
                        if newer := self._waiting.get(key):
                            older.add(newer)
                        self._waiting[key] = older
                self._change.notify_all()
                if problem is not None and (closing or self._change.wait_for(lambda: self._closing, self._retry_s)) and closing:
                    break
        if self._store is not None:
            self._store.close()

    def _write(self, waiting: dict[int, _Waiting]) -> None:
        store = self.store
        for key, job in list(waiting.items()):
            rows = [row() if callable(row) else row for row in job.rows.values()]
            number = store.save(job.chat, rows, tuple(job.gone), certain=job.certain)
            if number:
                self.numbers[key] = number
            del waiting[key]

    def forget(self, key: int) -> None:
        """Drop what waits for a chat: it was deleted, or is put anew as a whole."""
        with self._change:
            self._waiting.pop(key, None)
            self.problem = None
