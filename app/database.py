"""One connection to the chat database: opening, layout, private file modes, transactions, and what errors mean.

SQLite in WAL mode: readers and writers of two programs do not hinder each other, and a crash costs nothing that was written. A file
that is damaged or newer is never touched.
"""

from __future__ import annotations

import errno
import os
import sqlite3
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from app.migrations import INDEX, LATEST, STEPS
from app.owners import myself
from engine.errors import EngineError

FILE = "chats.db"
BUSY_S = 3.0
AGAIN_S = 0.02
BUSY = ("SQLITE_BUSY", "SQLITE_LOCKED", "SQLITE_PROTOCOL")  # another connection is in the way, for now


class Database:
    """See the module. `path` None keeps everything in memory. Methods may be called from any thread, one at a time."""

    def __init__(self, path: Path | None, busy_s: float = BUSY_S) -> None:
        self.path = path
        self._lock = threading.RLock()
        self._owner = myself()
        with self._trouble():
            if path is not None:
                # never an existing file: closing it would end the locks that this process holds on it
                with suppress(FileExistsError):
                    os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600))
            self._db = sqlite3.connect(path or ":memory:", timeout=busy_s, check_same_thread=False, isolation_level=None)
            try:
                self._prepare(busy_s)
            except BaseException:
                self._db.close()
                raise

    def _prepare(self, busy_s: float) -> None:
        """SQLite's own waiting leaves out some of these statements, such as the change to WAL: what is refused is tried again here."""
        end_s = time.monotonic() + busy_s
        while True:
            try:
                return self._lay_out()
            except sqlite3.Error as error:
                if not _name(error).startswith(BUSY) or time.monotonic() >= end_s:
                    raise
            time.sleep(AGAIN_S)

    def _lay_out(self) -> None:
        if self.path is not None:
            self._private()
        run = self._db.execute
        run("PRAGMA journal_mode = WAL")
        run("PRAGMA foreign_keys = ON")
        run("PRAGMA secure_delete = ON")  # what a person deletes is overwritten
        run("PRAGMA synchronous = FULL")
        self._migrate()
        self.indexed = True
        try:
            run(INDEX)
        except sqlite3.OperationalError as error:
            if "module" not in str(error):
                raise
            self.indexed = False

    def _private(self) -> None:
        for suffix in ("", "-wal", "-shm"):
            with suppress(OSError):
                Path(f"{self.path}{suffix}").chmod(0o600)

    def _migrate(self) -> None:
        version = self._version()
        if version == LATEST:
            return
        if version > LATEST:
            raise EngineError(
                "The chat database was written by a newer specchat.",
                "Update specchat, or set SPECCHAT_HOME to another folder.",
                kind="newer",
            )
        with self._writing():
            for step in STEPS[self._version() :]:  # again: another process may have been first
                for statement in step:
                    self._db.execute(statement)
            self._db.execute(f"PRAGMA user_version = {LATEST}")

    def _version(self) -> int:
        return int(self._db.execute("PRAGMA user_version").fetchone()[0])

    @contextmanager
    def _writing(self) -> Iterator[None]:
        """A transaction that is sure of its right to write from the beginning."""
        self._db.execute("BEGIN IMMEDIATE")
        try:
            yield
            self._db.execute("COMMIT")
        except BaseException:
            with suppress(sqlite3.Error):  # some errors have ended the transaction already
                self._db.execute("ROLLBACK")
            raise

    @contextmanager
    def _trouble(self) -> Iterator[None]:
        with self._lock:
            try:
                yield
            except (sqlite3.Error, OSError) as error:
                raise trouble(error, self.path) from error


def _name(error: Exception) -> str:
    return getattr(error, "sqlite_errorname", "") or ""


def trouble(error: Exception, path: Path | None) -> EngineError:
    """What an error of SQLite or of the file system means, and what to do."""
    where, text = f"The chat database {path}", str(error)
    code = _name(error)
    aside = "Move it to another folder to begin a new one; `sqlite3 FILE .recover` may bring the chats back."
    if code.startswith(BUSY):
        return EngineError(f"{where} is locked by another program.", "Close that program; saving goes on by itself then.", kind="locked")
    if code.startswith("SQLITE_FULL") or getattr(error, "errno", None) == errno.ENOSPC:
        return EngineError(f"{where} cannot grow: the disk is full.", "Free some space; saving goes on by itself then.", kind="disk_full")
    if code.startswith(("SQLITE_CORRUPT", "SQLITE_NOTADB")):
        return EngineError(f"{where} is damaged ({text}).", aside, kind="damaged", detail=text)
    if code.startswith(("SQLITE_READONLY", "SQLITE_CANTOPEN", "SQLITE_PERM")) or isinstance(error, OSError):
        return EngineError(f"{where} cannot be written ({text}).", "Make the file and its folder writable for you.", kind="unwritable")
    if isinstance(error, sqlite3.IntegrityError):
        return EngineError("The chat was removed by another program.", "It is saved anew.", kind="gone", detail=text)
    if "no such table" in text or "no such column" in text:
        return EngineError(f"{where} has another layout ({text}).", aside, kind="damaged", detail=text)
    return EngineError(f"{where} cannot be used ({text}).", "The chat works, but it is not saved.", kind="unwritable", detail=text)
