"""Tells a reply's thoughts from what it says: the text from its beginning to the end tag, `<think>` … `</think>`.

A tag counts by its token where the model writes it as one: a tag that is only quoted, in several pieces, does not end the thoughts.
Some templates open the thoughts themselves, so that the reply has an end tag alone; `opened` says that this is one of them. Joined,
`source` and what `feed` returned are exactly the reply.
"""

from __future__ import annotations

from collections.abc import Iterable

from app.tree import Version
from engine.protocol import Segment

OPEN, CLOSE = "<think>", "</think>"


class Thoughts:
    """One reply on its way."""

    def __init__(self, opened: bool = False) -> None:
        self.source = ""  # with the tags
        self.tokens = 0  # in the thoughts, tags included
        self.inside = opened  # thinking now
        self.closed = False  # the thoughts are over
        self.late = False  # an end tag came without a beginning: all of `said` was thoughts, and the template had opened them
        self._held = ""  # white space, and what may become a tag
        self._said = ""  # the reply outside the thoughts, as long as a late end tag may come
        self._by_token = opened  # a tag was one token
        self._said_tokens = 0

    def feed(self, segments: Iterable[Segment]) -> str:
        """Add to the reply; returns the part of it that is said."""
        return "".join([self._one(segment.text, len(segment.token_ids)) for segment in segments])

    def end(self) -> str:
        """The reply is over: what was held back."""
        held, self._held = self._held, ""
        if self.inside:
            self.source += held
            return ""
        return held

    @property
    def text(self) -> str:
        """The thoughts without their tags."""
        return self.source.strip().removeprefix(OPEN).removesuffix(CLOSE).strip()

    def _one(self, text: str, tokens: int) -> str:
        if self.closed:
            return text
        if self.inside:
            self.tokens += tokens
            return self._inside(text, tokens)
        if self._said:
            return self._outside(text, tokens)
        self._held += text
        begun = self._held.lstrip()
        if begun.startswith(OPEN):
            self.inside, self._by_token = True, text.strip() == OPEN and tokens == 1
            self.tokens += tokens
            held, self._held = self._held, ""
            return self._inside(held, 0)
        if OPEN.startswith(begun):
            self.tokens += tokens if begun else 0
            return ""
        self.tokens = 0
        held, self._held = self._held, ""
        return self._outside(held, tokens)

    def _inside(self, text: str, tokens: int) -> str:
        if self._by_token and text.strip() != CLOSE:
            self.source += text
            return ""
        whole = self._held + text
        at = whole.find(CLOSE)
        if at < 0:
            keep = next((n for n in range(len(CLOSE) - 1, 0, -1) if whole.endswith(CLOSE[:n])), 0)
            self.source += whole[: len(whole) - keep]
            self._held = whole[len(whole) - keep :]
            return ""
        end = at + len(CLOSE)
        self.source += whole[:end]
        self._held, self.inside, self.closed = "", False, True
        return whole[end:]

    def _outside(self, text: str, tokens: int) -> str:
        if text.strip() == CLOSE and tokens == 1:
            self.late = self.closed = True
            self.source, self._said = self._said + text, ""
            self.tokens = self._said_tokens + 1
            return ""
        self._said += text
        self._said_tokens += tokens
        return text


def split_version(version: Version) -> Thoughts:
    """The thoughts of a whole reply. Its pieces are looked at only where there is an end tag."""
    thoughts = Thoughts()
    if CLOSE in version.text or version.text.lstrip().startswith(OPEN):
        thoughts.feed(version.segments or [Segment(version.text, "plain", ())])
    thoughts.end()
    return thoughts
