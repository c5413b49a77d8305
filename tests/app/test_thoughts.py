"""Thoughts and what is said: tags as tokens, tags in pieces, quoted tags, templates that open the thoughts, any cutting."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.thoughts import Thoughts, split_version
from app.tree import Version
from engine.protocol import Segment
from engine.trace import DONE


def fed(*pieces: str, opened: bool = False) -> tuple[str, str, Thoughts]:
    """What is thought, what is said."""
    thoughts = Thoughts(opened)
    said = thoughts.feed(Segment(piece, "plain", (n,)) for n, piece in enumerate(pieces)) + thoughts.end()
    return thoughts.text, said, thoughts


@pytest.mark.parametrize(
    ("pieces", "thought", "said"),
    [
        (("<think>", "\n", "hm", "\n", "</think>", "\n\n", "Hi"), "hm", "\n\nHi"),
        (("\n", "<think>", "hm", "</think>", "Hi"), "hm", "Hi"),
        (("<", "think", ">", "hm", "</", "think", ">", "Hi"), "hm", "Hi"),
        (("<think>", "say </", "think", ">", " no", "</think>", "Hi"), "say </think> no", "Hi"),
        (("Hi", " <think>", "x", "</thi"), "", "Hi <think>x</thi"),
        (("<th", "ree>"), "", "<three>"),
        (("<think>", "cut off"), "cut off", ""),
        (("<think>", "cut off </thi"), "cut off </thi", ""),
        (("", "\n "), "", "\n "),
    ],
)
def test_what_is_thought_and_said(pieces: tuple[str, ...], thought: str, said: str) -> None:
    found = fed(*pieces)
    assert found[:2] == (thought, said)
    assert found[2].source + said == "".join(pieces)


def test_a_late_end_tag() -> None:
    """All before it was thoughts; a quoted one in several pieces is none."""
    thought, _, thoughts = fed("I", " wonder", "</think>", "Hi")
    assert (thought, thoughts.late, thoughts.tokens) == ("I wonder", True, 3)
    assert fed("It is", " </", "think", ">")[1:2] == ("It is </think>",)
    thought, said, thoughts = fed("I", " wonder", "</think>", "Hi", opened=True)
    assert (thought, said, thoughts.late) == ("I wonder", "Hi", False)


def test_tokens_are_counted() -> None:
    assert fed("<think>", "a", "b", "</think>", "c")[2].tokens == 4
    assert fed("a", "b")[2].tokens == 0


@given(st.lists(st.sampled_from(["<think>", "</think>", "<", "think>", "/", "a", "\n", " "]), max_size=12), st.booleans())
def test_nothing_is_lost(pieces: list[str], opened: bool) -> None:
    _, said, thoughts = fed(*pieces, opened=opened)
    whole = "".join(pieces)
    assert whole.startswith(thoughts.source)
    if not thoughts.late:
        assert thoughts.source + said == whole


def test_a_whole_reply_without_a_trace() -> None:
    """An old chat, or one whose pieces were lost: by the tags alone."""
    version = Version(replace(DONE, text="<think>hm</think>Hi"))
    assert split_version(version).source == "<think>hm</think>"
    assert split_version(Version(replace(DONE, text="Hi"))).source == ""
