"""Pastes reach the prompt whole, whatever is in them and however the terminal cuts them; a terminal that is gone holds no writer up."""

from __future__ import annotations

import io
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st
from textual import events
from textual._xterm_parser import XTermParser
from textual.drivers._writer_thread import MAX_QUEUED_WRITES, WriterThread

from app.textual_fixes import PASTE_BEGINS, PASTE_ENDS, PasteFilter, calm_pastes, lose_writes
from tests.patience import PATIENCE_S, wait_until


@pytest.mark.parametrize("size", [1, 2, 3, 5, 7, 64, 10_000])
def test_a_paste_with_escape_sequences_is_one_paste(size: int) -> None:
    calm_pastes()
    calm_pastes()  # once is enough
    text = "one \x1b[31mred\x1b[0m line\nand \x1b]52;c;eHg=\x07 more\n" * 40
    sent = f"a{PASTE_BEGINS}{text}{PASTE_ENDS}b"
    parser = XTermParser()
    got = [event for i in range(0, len(sent), size) for event in parser.feed(sent[i : i + size])]
    pastes = [event.text for event in got if isinstance(event, events.Paste)]
    assert pastes == [text.replace("\x1b", "␛")]
    assert [event.character for event in got if isinstance(event, events.Key)] == ["a", "b"]


def test_keys_are_left_alone() -> None:
    assert PasteFilter().feed("\x1b[A\x1b\rx\x1b") == "\x1b[A\x1b\rx\x1b"


@given(st.lists(st.tuples(st.text(alphabet="ab\x1b[201~0\n"), st.booleans()), max_size=6), st.integers(1, 9))
def test_no_piece_makes_a_difference(parts: list[tuple[str, bool]], size: int) -> None:
    sent = "".join(f"{PASTE_BEGINS}{text}{PASTE_ENDS}" if pasted else text.replace("\x1b", "") for text, pasted in parts)
    whole, cut = PasteFilter(), PasteFilter()
    assert whole.feed(sent) == "".join(cut.feed(sent[i : i + size]) for i in range(0, len(sent), size))


class Terminal(io.StringIO):
    """A terminal that is there as long as it is `ok`."""

    ok = True

    def write(self, text: str) -> int:
        if not self.ok:
            raise OSError(5, "Input/output error")
        return super().write(text)

    def flush(self) -> None:
        self.write("")


def test_a_terminal_that_is_gone_holds_no_writer_up() -> None:
    """More than its queue holds; and what came before is written."""
    lose_writes()
    lose_writes()  # once is enough
    terminal = Terminal()

    def write() -> None:
        writer = WriterThread(terminal)
        writer.start()
        writer.write("before")
        wait_until(lambda: terminal.getvalue() == "before")
        terminal.ok = False
        for _ in range(2 * MAX_QUEUED_WRITES):
            writer.write("after")
        terminal.ok = True
        writer.write("again")
        writer.stop()

    thread = threading.Thread(target=write, daemon=True)
    thread.start()
    thread.join(PATIENCE_S)
    assert not thread.is_alive()
    assert terminal.getvalue().startswith("before")
    assert terminal.getvalue().endswith("again")
