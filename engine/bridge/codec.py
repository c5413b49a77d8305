"""Bytes to ids and back for one tokenizer, for text that goes on: no dummy prefix, no begin-of-text, no special token read out of words.

What is spelled is exact, always: where the tokenizer itself would rewrite something (an accent apart from its letter, a character that
it has no token for, half a character), the longest tokens that fit take its place.
"""

from __future__ import annotations

import codecs
import re
from collections.abc import Sequence
from functools import cached_property
from typing import TYPE_CHECKING

from engine.bridge.bytes import ByteTable, byte_table
from engine.bridge.habits import habits
from engine.bridge.pipeline import Pipeline

if TYPE_CHECKING:
    from engine.decoder.tokenizer import Tokenizer

REPAIRS = 16  # places in one text that are put right one by one; a text with more is spelled by longest tokens from there on
_LOOSE = re.compile("([\udc80-\udcff]+)")  # bytes that are no UTF-8, as Python escapes them


class Codec:
    """See the module. `lead` is the space in front of this model's replies that belongs to its format, not to the text."""

    def __init__(self, tokenizer: Tokenizer, vocab_size: int | None = None) -> None:
        self.name = tokenizer.name
        self.table: ByteTable = byte_table(tokenizer, vocab_size)
        backend = getattr(tokenizer.hf, "backend_tokenizer", None)
        self._pipeline = Pipeline(backend) if backend is not None and self.table.kind != "other" else None
        usual = habits(tokenizer, self.table)
        self.lead: bytes = usual.lead
        self.turn_end: int | None = usual.end  # the id that its template ends a turn with

    def spell(self, ids: Sequence[int]) -> bytes:
        """The bytes that ids append to a reply, each of which must have bytes (`table.tokens[i]`): no control id."""
        tokens = self.table.tokens
        found = [tokens[i] for i in ids]
        assert None not in found, "a control token, or one that is no text"
        return b"".join(token for token in found if token is not None)

    def said(self, ids: Sequence[int]) -> bytes:
        """The text of a reply to messages that begins with these ids: what they spell, without the format's own space."""
        return self.spell(ids).removeprefix(self.lead)

    def encode(self, text: bytes) -> list[int]:
        """Canonical ids of text that begins a window inside a reply. They spell `text`; where the vocabulary cannot, its longest beginning
        that it can. Bytes that are no UTF-8 are spelled by themselves."""
        try:
            return self._exact(text.decode(), text)
        except UnicodeDecodeError:
            pass
        ids: list[int] = []
        for i, piece in enumerate(_LOOSE.split(text.decode("utf-8", "surrogateescape"))):
            part = piece.encode("utf-8", "surrogateescape")
            found = self.pieces(part) if i % 2 else self._exact(piece, part)
            ids += found
            if len(self.spell(found)) < len(part):
                break
        return ids

    def encode_many(self, texts: Sequence[bytes]) -> list[list[int]]:
        """`encode` of many short texts, on all cores."""
        good: dict[int, str] = {}
        for i, text in enumerate(texts):
            try:
                good[i] = text.decode()
            except UnicodeDecodeError:
                continue
        found: list[list[int] | None] = [None] * len(texts)
        if self._pipeline is not None:
            for i, ids in zip(good, self._pipeline.encode_many(list(good.values())), strict=True):
                if self._spelled(ids) == texts[i]:
                    found[i] = ids
        return [self.encode(text) if ids is None else ids for text, ids in zip(texts, found, strict=True)]

    def first(self, text: bytes) -> list[int]:
        """The same for text right behind the prompt of a chat, with the space that this model puts in front of it: `said(first(t)) == t`.
        Behind a raw prompt, or going on with a begun reply, use `encode`."""
        return self.encode(self.lead + text)

    @staticmethod
    def whole(data: bytes) -> int:
        """Length of the part that ends between characters: at most 3 bytes that begin one are held back, never an invalid one."""
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        decoder.decode(data[-3:])
        held = decoder.getstate()[0]
        if held[:1] == b"\xed" and held[1:] >= b"\xa0":  # half a surrogate, which Python waits for
            held = b""
        return len(data) - len(held)

    def pieces(self, data: bytes) -> list[int]:
        """Any bytes by the longest tokens that fit, from the left; stops where none does."""
        ids: list[int] = []
        at = 0
        while at < len(data):
            for stop in range(min(len(data), at + self._longest), at, -1):
                if (i := self.ids.get(data[at:stop])) is not None:
                    ids.append(i)
                    at = stop
                    break
            else:
                break
        return ids

    @cached_property
    def ids(self) -> dict[bytes, int]:
        """The id of each byte string of the vocabulary: of several, the one that the encoder emits, else the lowest."""
        found: dict[bytes, int] = {}
        twins: dict[bytes, set[int]] = {}
        for i, token in enumerate(self.table.tokens):
            if token is not None and found.setdefault(token, i) != i:
                twins.setdefault(token, {found[token]}).add(i)
        for token, several in twins.items():
            emitted = self._encoded(token)
            if len(emitted) == 1 and emitted[0] in several:
                found[token] = emitted[0]
        return found

    @cached_property
    def _longest(self) -> int:
        return max(map(len, self.ids), default=0)

    def _encoded(self, token: bytes) -> list[int]:
        try:
            return self._pipeline.encode(token.decode()) if self._pipeline is not None else []
        except UnicodeDecodeError:
            return []

    def _spelled(self, ids: Sequence[int]) -> bytes | None:
        """What ids spell; None where one of them has no bytes."""
        tokens, size = self.table.tokens, len(self.table.tokens)
        found = [tokens[i] if i < size else None for i in ids]
        return None if None in found else b"".join(token for token in found if token is not None)

    def _exact(self, text: str, data: bytes) -> list[int]:
        """Ids that spell valid text: the tokenizer's own, put right where they spell something else."""
        if not text:
            return []
        if self._pipeline is None:
            return self.pieces(data)
        ids = self._pipeline.encode(text)
        if self._spelled(ids) == data:
            return ids
        kept: list[int] = []
        at = 0
        for _ in range(REPAIRS):
            at = self._agreeing(ids, kept, data, at)
            rest = character(data, at)
            one = self.pieces(rest)
            kept += one
            spelled = len(self.spell(one))
            at += spelled
            if spelled < len(rest) or at == len(data):
                return kept
            ids = self._pipeline.encode(data[at:].decode())
        return kept + self.pieces(data[at:])

    def _agreeing(self, ids: Sequence[int], kept: list[int], data: bytes, at: int) -> int:
        """Keep ids for as long as they spell `data` from `at` on; returns where that ends."""
        for i in ids:
            token = self.table.tokens[i] if i < len(self.table.tokens) else None
            if token is None or not data.startswith(token, at):
                break
            kept.append(i)
            at += len(token)
        return at


def character(data: bytes, at: int) -> bytes:
    """The rest of the character at `at`; nothing at the end."""
    stop = at + 1
    while stop < len(data) and data[stop] & 0xC0 == 0x80:
        stop += 1
    return data[at:stop]
