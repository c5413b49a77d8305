"""The only place that touches what Textual keeps to itself. Checked against textual 8.2.8.

In terminals without an extended key protocol Alt+Enter arrives as ESC CR, which Textual reads as a plain Enter: it would send the
prompt instead of starting a new line.

A bracketed paste that holds escape characters is broken up by Textual's reader: its parts would arrive as keys, and its line ends would
send the prompt. Most terminals take these characters out of a paste; tmux does not.

A write to a terminal that is gone ends Textual's writer; whoever writes after that waits for it in vain, the end of the program too.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from enum import StrEnum
from typing import IO, Any

from textual import _ansi_sequences
from textual._xterm_parser import XTermParser
from textual.drivers._writer_thread import WriterThread

PASTE_BEGINS, PASTE_ENDS = "\x1b[200~", "\x1b[201~"


class _Keys(StrEnum):
    ALT_ENTER = "alt+enter"


def teach_alt_enter() -> None:
    """Make ESC CR and ESC LF the key alt+enter. Without the table of this version nothing happens."""
    table: Any = getattr(_ansi_sequences, "ANSI_SEQUENCES_KEYS", None)
    if isinstance(table, dict):
        for sequence in ("\x1b\r", "\x1b\n"):
            table.setdefault(sequence, (_Keys.ALT_ENTER,))


class PasteFilter:
    """Shows escape characters within a bracketed paste as their symbol. Fed with what the terminal sends, in any pieces."""

    def __init__(self) -> None:
        self._inside = False
        self._seen = ""  # outside: the last that went through, which may be the first part of a mark
        self._held = ""  # inside: the same, kept back

    def feed(self, data: str) -> str:
        """The data, harmless. Keys are never kept back; within a paste, a part of its end waits for the rest."""
        out = []
        while data:
            if self._inside:
                text, found, data = (self._held + data).partition(PASTE_ENDS)
                part = 0 if found else max((n for n in range(1, len(PASTE_ENDS)) if text.endswith(PASTE_ENDS[:n])), default=0)
                self._held = text[len(text) - part :]
                out += [text[: len(text) - part].replace("\x1b", "␛"), found]
                self._inside, self._seen = not found, ""
                continue
            at = (self._seen + data).find(PASTE_BEGINS)
            if at < 0:
                self._seen = (self._seen + data)[1 - len(PASTE_BEGINS) :]
                out.append(data)
                break
            end = at + len(PASTE_BEGINS) - len(self._seen)
            out.append(data[:end])
            data, self._inside, self._held = data[end:], True, ""
        return "".join(out)


def calm_pastes() -> None:
    """Let every reader of this process filter what is pasted."""
    if hasattr(XTermParser, "specchat_original"):
        return
    original: Any = XTermParser.feed
    XTermParser.specchat_original = original  # type: ignore[attr-defined]

    def feed(self: Any, data: str) -> Iterable[Any]:
        if not data:  # the end of the input
            return original(self, data)
        paste = self.__dict__.setdefault("specchat_paste", PasteFilter())
        calm = paste.feed(data)
        return original(self, calm) if calm else ()

    XTermParser.feed = feed  # type: ignore[method-assign]


class LossyFile:
    """Where a terminal takes what it can: what it refuses is lost, and the writer goes on."""

    def __init__(self, file: IO[str]) -> None:
        self._file = file

    def write(self, text: str) -> None:
        with suppress(OSError):
            self._file.write(text)

    def flush(self) -> None:
        with suppress(OSError):
            self._file.flush()

    def fileno(self) -> int:
        return self._file.fileno()


def lose_writes() -> None:
    """Let every writer of this process outlive its terminal."""
    if hasattr(WriterThread, "specchat_original"):
        return
    original: Any = WriterThread.run
    WriterThread.specchat_original = original  # type: ignore[attr-defined]

    def run(self: Any) -> None:
        self._file = LossyFile(self._file)
        original(self)

    WriterThread.run = run  # type: ignore[method-assign]
