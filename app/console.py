"""The command line's side of the terminal: exact text to stdout, everything else to stderr, Ctrl+C, errors, the log.

Nothing here fails because a reader went away: a closed stderr is ignored, a closed stdout raises `OutputClosed`.
"""

from __future__ import annotations

import contextlib
import errno
import json
import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from types import FrameType
from typing import Any

from app.terminal import for_terminal, one_line
from engine.errors import EngineError
from engine.logs import log_failure, log_text
from engine.places import log_dir

STOPPED = 130
LINE_EVERY_S = 10.0  # progress lines where stderr is no terminal
LIVE_EVERY_S = 0.25  # and the rewritten line where it is one: drawing must not slow what it shows


class OutputClosed(Exception):
    """Whoever read our stdout has gone (`| head -1`): end quietly."""


def is_terminal(stream: Any) -> bool:
    """True for an open stream that is a terminal."""
    try:
        return stream is not None and stream.isatty()
    except ValueError:  # closed
        return False


def say(text: str, end: str = "\n") -> None:
    """A line for the person, on stderr, made safe for a terminal."""
    _write_stderr(for_terminal(text) + end)


def _write_stderr(text: str) -> None:
    if sys.stderr is None:
        return
    with contextlib.suppress(OSError, ValueError):
        encoding = sys.stderr.encoding or "utf-8"
        sys.stderr.write(text.encode(encoding, "replace").decode(encoding))
        sys.stderr.flush()


def emit(text: str) -> None:
    """Text to stdout: exact bytes in UTF-8 into a pipe or file, made safe on a terminal."""
    if sys.stdout is None:
        raise OutputClosed
    try:
        if is_terminal(sys.stdout):
            encoding = sys.stdout.encoding or "utf-8"
            sys.stdout.write(for_terminal(text).encode(encoding, "replace").decode(encoding))
            sys.stdout.flush()
        else:
            sys.stdout.flush()
            sys.stdout.buffer.write(text.encode("utf-8", "replace"))
            sys.stdout.buffer.flush()
    except (BrokenPipeError, ValueError) as error:
        raise OutputClosed from error
    except OSError as error:
        if error.errno in (errno.EPIPE, errno.EINVAL):  # Windows says EINVAL
            raise OutputClosed from error
        raise EngineError(
            f"Standard output cannot be written: {error.strerror}.",
            "Free some space or write it elsewhere.",
            kind="disk_full" if error.errno == errno.ENOSPC else "unwritable",
        ) from error


def emit_json(value: Any) -> None:
    """One JSON object on stdout. A terminal gets escapes for everything that is not ASCII, so that nothing is executed."""
    text = json.dumps(value, ensure_ascii=is_terminal(sys.stdout), indent=2 if is_terminal(sys.stdout) else None)
    emit(text + "\n")


def silence_stdout() -> None:
    """After `OutputClosed`: what is still buffered goes nowhere, so that the interpreter's own flush does not complain."""
    if sys.stdout is None:
        return
    with contextlib.suppress(OSError, ValueError):
        devnull = os.open(os.devnull, os.O_WRONLY)
        os.dup2(devnull, sys.stdout.fileno())
        os.close(devnull)


def report(error: EngineError, as_json: bool = False) -> None:
    """An error for the person on stderr, and for a program as one object on stdout."""
    say(f"error: {error.message}")
    if error.hint:
        say(f"hint: {error.hint}")
    if error.detail:
        log_text(f"{error.kind}: {error.message}\n{error.detail}")
    if as_json:
        emit_json(error_object(error))


def error_object(error: EngineError) -> dict[str, Any]:
    """What `--json` prints instead of a result."""
    return {"error": {"kind": error.kind, "message": error.message, "hint": error.hint, "numbers": error.numbers}}


def unexpected(error: BaseException) -> EngineError:
    """Any other exception as one sentence; its traceback goes to the log."""
    where = log_failure(error)
    sentence = f"{type(error).__name__}: {error}".strip().splitlines()[0].rstrip(".:")
    return EngineError(
        f"Something unexpected happened ({sentence}).",
        f"The details are in {where}." if where else "The details could not be written to the log folder.",
        kind="internal",
    )


def log_to_file() -> None:
    """Warnings of libraries go to the log file instead of the terminal."""
    try:
        handler: logging.Handler = logging.FileHandler(log_dir() / "specchat.log", encoding="utf-8", delay=True)
    except EngineError:
        handler = logging.NullHandler()
    handler.setFormatter(logging.Formatter("%(asctime)s %(name)s %(levelname)s %(message)s"))
    logging.basicConfig(level=logging.WARNING, handlers=[handler])


def log_threads() -> None:
    """What ends another thread goes to the log too, instead of as a traceback to the terminal."""

    def hook(args: threading.ExceptHookArgs) -> None:
        if args.exc_value is not None:
            log_failure(args.exc_value)

    threading.excepthook = hook


class Ticker:
    """Progress on stderr: one line that is rewritten on a terminal; else a line now and then, for jobs longer than `patience_s`."""

    def __init__(self, patience_s: float = 0.0) -> None:
        self._live = is_terminal(sys.stderr)
        self._from_s = 0.0 if self._live else time.monotonic() + patience_s
        self._every_s = LIVE_EVERY_S if self._live else LINE_EVERY_S
        self._width = 0
        self._last_s = float("-inf")
        self._what = ""

    def show(self, what: str, text: str) -> None:
        """`what` names the job: a new one is shown at once; `text` says how far it is."""
        now_s = time.monotonic()
        if now_s < self._from_s or (what == self._what and now_s - self._last_s < self._every_s):
            return
        self._last_s, self._what = now_s, what
        if self._live:
            line = one_line(text, max(20, _columns() - 1))
            _write_stderr("\r" + line + " " * (self._width - len(line)))
            self._width = len(line)
        else:
            say(text)

    def clear(self) -> None:
        """Take the live line away."""
        if self._live and self._width:
            _write_stderr("\r" + " " * self._width + "\r")
        self._width, self._what = 0, ""


def _columns() -> int:
    try:
        return os.get_terminal_size(2).columns or 80
    except OSError:
        return 80


class Interrupt:
    """Ctrl+C as a wish to stop: the first sets `stopped` and calls `on_stop`, the second ends the command at once."""

    def __init__(self) -> None:
        self.stopped = threading.Event()
        self.on_stop: Callable[[], None] | None = None
        self._before: Any = None

    def __enter__(self) -> Interrupt:
        if threading.current_thread() is threading.main_thread():
            self._before = signal.signal(signal.SIGINT, self._on_signal)
        return self

    def __exit__(self, *_: object) -> None:
        if self._before is not None:
            signal.signal(signal.SIGINT, self._before)

    @property
    def close_s(self) -> float:
        """How long to wait for the engine's thread at the end; a stopped person does not wait for a stuck one."""
        return 0.2 if self.stopped.is_set() else 2.0

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if self.stopped.is_set():
            raise KeyboardInterrupt
        self.stop()

    def stop(self) -> None:
        """What Ctrl+C does."""
        self.stopped.set()
        if self.on_stop is not None:
            self.on_stop()
