"""Blocks close where Markdown blocks close, fences stay whole, and nothing is lost, whatever the chunks."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.blocks import Blocks, tail


def closed_parts(chunks: list[str]) -> tuple[list[str], str]:
    blocks = Blocks()
    parts = [part for chunk in chunks for part in blocks.feed(chunk)]
    return parts, blocks.open


@pytest.mark.parametrize(
    ("text", "parts", "rest"),
    [
        ("one\ntwo\n", [], "one\ntwo\n"),
        ("one\n\ntwo", ["one\n\n"], "two"),
        ("\n\none\n \ntwo", ["\n\none\n \n"], "two"),
        ("say:\n```py\na\n\nb\n```\nend", ["say:\n", "```py\na\n\nb\n```\n"], "end"),
        ("```py\na\n\nb", [], "```py\na\n\nb"),
        ("````\n```\n\n````\nx", ["````\n```\n\n````\n"], "x"),
        ("~~~\n```\n~~~\n", ["~~~\n```\n~~~\n"], ""),
        ("```a`b```\n\nx", ["```a`b```\n\n"], "x"),
        ("- item\n  ```sh\n  ls\n\n  ```\nx", ["- item\n", "  ```sh\n  ls\n\n  ```\n"], "x"),
        ("- ```sh\n  ls\n\n  pwd\n  ```\n", ["- ```sh\n  ls\n\n  pwd\n  ```\n"], ""),
        ("> ```\n> x\n> ```\ny", ["> ```\n> x\n> ```\n"], "y"),
        ("| a |\n|---|\n| 1 |\n\n", ["| a |\n|---|\n| 1 |\n\n"], ""),
    ],
)
def test_cuts(text: str, parts: list[str], rest: str) -> None:
    """Fed character by character."""
    assert closed_parts(list(text)) == (parts, rest)


@given(st.lists(st.text(alphabet="a`~\n >-1.", max_size=12), max_size=12))
def test_chunks_do_not_matter(chunks: list[str]) -> None:
    """All text comes out, and what is open at the end is the same for any chunks."""
    parts, rest = closed_parts(chunks)
    text = "".join(chunks)
    assert "".join(parts) + rest == text
    assert closed_parts([text]) == closed_parts(list(text)) == (parts, rest)


def test_tail() -> None:
    """Short text whole; long text its last lines, with the number left out; one endless line is cut too."""
    assert tail("a\nb") == ("a\nb", 0)
    text = "\n".join(str(n) for n in range(100))
    shown, left = tail(text, lines=10)
    assert shown.split("\n") == [str(n) for n in range(90, 100)]
    assert left == 90
    assert tail("x" * 20_000, lines=60, width=100) == ("x" * 6000, 0)
    assert tail("") == ("", 0)
