"""Foreign text cannot steer the terminal, and nothing of it disappears."""

from __future__ import annotations

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

from app.terminal import column, for_terminal, one_line


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain, é 你好 👩‍👩‍👧", "plain, é 你好 👩‍👩‍👧"),
        ("tab\tand\nline", "tab\tand\nline"),
        ("dos\r\nlines\r\n", "dos\nlines\n"),
        ("\x1b]52;c;aGk=\x07", "␛]52;c;aGk=␇"),
        ("\x1b[2J\x1b[H", "␛[2J␛[H"),
        ("a\rb\x00c\x7fd", "a␍b␀c␡d"),
        ("\x9b31m", "‹9B›31m"),
        ("abc\u202edef\u2066", "abc‹202E›def‹2066›"),
        ("a\u2028b\u2029c\x0bd\x0ce", "a‹2028›b‹2029›c␋d␌e"),
        ("bad\udcff", "bad\ufffd"),
        ("[bold]x[/] [/foo] [link='x']", "[bold]x[/] [/foo] [link='x']"),
    ],
)
def test_examples(text: str, shown: str) -> None:
    assert for_terminal(text) == shown


@given(st.text())
def test_no_control_survives(text: str) -> None:
    """Only newline and tab of all controls come out, it can be encoded, and splitting lines agrees with the newlines."""
    shown = for_terminal(text)
    assert all(unicodedata.category(c) not in ("Cc", "Cs", "Zl", "Zp") for c in shown if c not in "\n\t")
    shown.encode("utf-8")
    assert len((shown + "x").splitlines()) == shown.count("\n") + 1
    assert for_terminal(shown) == shown


def test_one_line() -> None:
    assert one_line("a\n b\t\x1bc") == "a b ␛c"
    assert one_line("abcdef", 4) == "abc…"
    assert one_line("abcd", 4) == "abcd"


@pytest.mark.parametrize("text", ["你好世界你好世界", "👩‍👩‍👧 a family 👩‍👩‍👧", "e\u0301te\u0301 e\u0301te\u0301", "plain words"])
@pytest.mark.parametrize("width", range(12))
def test_cut_by_cells_and_never_inside_a_character(text: str, width: int) -> None:
    line = one_line(text, width)
    assert cell_len(line) <= width
    kept = line.removesuffix("…")
    assert text.startswith(kept)
    assert not text[len(kept) :].startswith(("\u200d", "\u0301"))
    assert cell_len(column(text, width)) == width
    assert column(text, width)[-1:] in ("", " ")
