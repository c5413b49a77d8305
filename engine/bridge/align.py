"""Keeps two tokenizers on the same reply, in bytes: the target's ids, and the drafter's ids for the same text.

Nothing here depends on the length of the text: a step encodes short windows near the end, which begin at a safe start, a place where
both a character and a word begin. `Line` turns drafted bytes into the target's ids; `Follower` keeps the drafter's ids canonical for what
was committed (`sync_drafter`). Half a character is held back from the encoders until it is whole. Prompts are not translated.
"""

from __future__ import annotations

from collections.abc import Sequence

from engine.bridge.codec import Codec, character

WINDOW_BYTES = 64  # of known text that a window may begin with; both sides of a step together stay under 512
WINDOW_TOKENS = 32
DRAFT_BYTES = 80  # a draft ends here
TRANSLATE_BYTES = 224  # of a step's 512 may go into translating drafts


def safe_start(text: bytes | bytearray, ends: Sequence[int], n: int | None = None) -> int:
    """Index of the token from which the first `n` tokens of a text (all by default) are encoded anew; token i ends at `ends[i]`.

    It lies two tokens back at least, where a token begins with a space or a newline, or at the start of the text. Where there is none
    within the window (Chinese, long runs), it is the earliest token of the window that begins with a character.
    """
    n = len(ends) if n is None else n
    stop = ends[n - 1] if n else 0
    best = n
    for i in range(n - 1, max(-1, n - 1 - WINDOW_TOKENS), -1):
        start = ends[i - 1] if i else 0
        if stop - start > WINDOW_BYTES:
            break
        if i == 0 or (start < stop and text[start] & 0xC0 != 0x80):
            best = i
            if i <= n - 2 and start < stop and text[start] in b" \n":
                break
    return best


class Line:
    """Target ids of a reply and their bytes. `lead` is the format's own space in front of it (`Codec.lead`), or nothing."""

    def __init__(self, codec: Codec, lead: bytes) -> None:
        self.codec = codec
        self.lead = lead
        self.text = bytearray()  # what the ids spell
        self.ends: list[int] = []  # offset behind each id; an id without bytes (a control token) has no width
        self.encoded = 0  # bytes given to the encoder so far, those of its tails among them
        self._of: Line | None = None  # whose tail it is

    def add(self, ids: Sequence[int]) -> None:
        """More ids."""
        table = self.codec.table.tokens
        for i in ids:
            self.text += (table[i] if i < len(table) else None) or b""
            self.ends.append(len(self.text))

    def tail(self) -> Line:
        """A line of its own that begins with the last words of this one."""
        new = Line(self.codec, self.lead)
        first = max(0, len(self.ends) - WINDOW_TOKENS)
        at = self.ends[first - 1] if first else 0
        new.text, new.ends = self.text[at:], [end - at for end in self.ends[first:]]
        new._of = self._of or self
        return new

    def follow(self, data: bytes) -> list[int]:
        """The ids that this model would write for `data` behind the line, as far as the characters are whole."""
        found = self._behind(data)
        if found is None:  # a token reaches over the end of the line: go on from there
            return self._encode(data[: self._whole(data)])
        return found

    def joined(self, data: bytes) -> list[int]:
        """The same where the line and `data` meet between two tokens, and `data` ends with a character; else nothing."""
        return (self._behind(data) or []) if self._whole(data) == len(data) else []

    def _whole(self, data: bytes) -> int:
        """Length of the part of `data` that ends a character behind the line."""
        before = bytes(self.text[-3:])
        return max(0, Codec.whole(before + data) - len(before))

    def _behind(self, data: bytes) -> list[int] | None:
        """Ids behind the line; None where a token reaches over its end."""
        data = data[: self._whole(data)]
        if not data:
            return []
        if not self.ends:
            return self._encode(self.lead + data)
        first = safe_start(self.text, self.ends)
        known = bytes(self.text[self.ends[first - 1] if first else 0 :])
        ids = self._encode(known + data)
        at = done = 0
        while at < len(known) and done < len(ids):
            at += len(self.codec.spell(ids[done : done + 1]))
            done += 1
        return ids[done:] if at <= len(known) else None

    def _encode(self, text: bytes) -> list[int]:
        (self._of or self).encoded += len(text)
        return self.codec.encode(text)


class Follower:
    """The drafter's ids for a reply whose target ids are told, and behind them those that it drafts."""

    def __init__(self, target: Codec, drafter: Codec, at_start: bool = True) -> None:
        """`at_start`: the reply begins right behind a chat template; else it goes on with a raw prompt or a begun reply."""
        self.line = Line(target, target.lead if at_start else b"")
        self.ids: list[int] = []  # of the drafter: they spell `read` without `held`, then `drafted`
        self.read = bytearray()  # the reply as the drafter reads it
        self.held = b""  # the beginning of a character at its end
        self.drafted = b""
        self.changed = 0  # so many of the first ids are as they were when the owner last set this, drafted ones included
        self._codec = drafter
        self._lead = drafter.lead if at_start else b""
        self._ends: list[int] = []
        self._origin = 0  # offset in `read` of the first id
        self._settled = 0  # ids that stand for committed text
        self._seen = 0  # bytes of `read` at the last sync
        self._encoded = 0

    @property
    def encoded(self) -> int:
        """Bytes given to both encoders so far."""
        return self._encoded + self.line.encoded

    @property
    def plain(self) -> bool:
        """Whether a drafted token's bytes are what it adds to the reply: not inside a character, nor at a start with a space of its own."""
        return not self.held and (bool(self.read) or not (self._lead or self.line.lead))

    @property
    def behind(self) -> int:
        """Committed bytes that the drafter's ids do not know yet."""
        return len(self.read) - self._seen

    def extend(self, ids: Sequence[int]) -> None:
        """Committed target ids."""
        before = len(self.line.text)
        self.line.add(ids)
        if self.read:
            self.read += self.line.text[before:]
        elif said := self.line.text.removeprefix(self.line.lead):
            self.read += self._lead + said

    def sync(self) -> None:
        """Forget what is being drafted and make the ids canonical for all that was committed, near its end only."""
        first = safe_start(self.read, self._ends, self._settled)
        at = self._ends[first - 1] if first else self._origin
        window = bytes(self.read[at:])
        whole = Codec.whole(window)
        fresh, ends = self._spelled(window[:whole], at)
        if not fresh:  # nothing, or nothing that the vocabulary has: never look at it again
            if first:
                self._ends[first - 1] = at + whole
            else:
                self._origin = at + whole
        same = 0
        for old, new in zip(self.ids[first:], fresh, strict=False):
            if old != new:
                break
            same += 1
        self.changed = min(self.changed, first + same)
        self.ids[first + same :] = fresh[same:]
        self._ends[first:] = ends
        self._settled, self._seen = len(self.ids), len(self.read)
        self.held, self.drafted = window[whole:], b""

    def _spelled(self, data: bytes, at: int) -> tuple[list[int], list[int]]:
        """Ids for `data`, which begins at offset `at`, and where they end. Characters that the vocabulary lacks are passed over."""
        ids: list[int] = []
        ends: list[int] = []
        stop = at + len(data)
        while at < stop:
            rest = data[len(data) - (stop - at) :]
            self._encoded += len(rest)
            for i in self._codec.encode(rest):
                ids.append(i)
                at += len(self._codec.spell((i,)))
                ends.append(at)
            skipped = at
            while at < stop and (at == skipped or not self._codec.pieces(character(data, len(data) + at - stop))):
                at += len(character(data, len(data) + at - stop))
            if ends:
                ends[-1] = at
        return ids, ends

    def put(self, token: int) -> None:
        """The drafter drafts one more of its ids, which must have bytes."""
        if self.changed == len(self.ids):
            self.changed += 1
        self.ids.append(token)
        self.drafted += self._codec.spell((token,))
        self._ends.append((self._ends[-1] if self._ends else 0) + len(self._codec.spell((token,))))

    def swap(self, token: int) -> None:
        """The last id gives way to a longer one that begins with its bytes; what that has more is drafted."""
        last = self._codec.spell(self.ids[-1:])
        del self.ids[-1], self._ends[-1]
        self._settled = min(self._settled, len(self.ids))
        self.changed = min(self.changed, len(self.ids))
        self.put(token)
        self.drafted = self.drafted.removeprefix(last)

    @property
    def news(self) -> bytes:
        """What the draft adds to the reply; nothing while it is at odds with a character that the reply has begun."""
        if not self.read:
            return self.drafted.removeprefix(self._lead)
        return self.drafted.removeprefix(self.held) if self.drafted.startswith(self.held) else b""

    def candidates(self, ended: bool = False) -> list[int]:
        """The draft in target ids. Unless the turn has `ended` behind it, a last id of spaces only is left out: the next word would
        take them."""
        ids = self.line.follow(self.news)
        if not ended and ids and not self.line.codec.spell(ids[-1:]).strip(b" "):
            ids.pop()
        return ids
