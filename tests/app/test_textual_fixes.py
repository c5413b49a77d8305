"""Pastes reach the prompt whole, whatever is in them and however the terminal cuts them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from textual import events
from textual._xterm_parser import XTermParser

from app.textual_fixes import PASTE_BEGINS, PASTE_ENDS, PasteFilter, calm_pastes


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
