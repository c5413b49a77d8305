"""From token ids to clean text, piece by piece, each piece knowing where its tokens came from. No torch.

A piece (`Segment`) is released when it is whole: a character whose bytes are spread over tokens is held back, and so is text that may
turn out to begin a stop string, or that ends inside a picture of several characters (at a joiner, behind half a flag). Joined, the pieces
are exactly what decoding all ids at once gives, cut at a stop string.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from engine.protocol import Origin, Segment

REPLACEMENT = "\ufffd"
CONTEXT = 8  # ids in front of a reply that its first piece is decoded with
JOINER = "\u200d"
FLAG_HALVES = "".join(map(chr, range(0x1F1E6, 0x1F200)))
PATIENCE = 8  # ids that may wait for a character, which has at most four bytes, or pieces that may wait for a picture, to become whole


class Detokenizer:
    """Text of one reply."""

    def __init__(self, decode: Callable[[list[int]], str], stop: Sequence[str] = (), before: Sequence[int] = ()) -> None:
        """`decode` turns ids into text; `before` are ids that stand in front of the reply's first token (a continued reply)."""
        self._decode = decode
        self._stop = tuple(s for s in stop if s)
        self._ids: list[int] = list(before)
        self._read = len(self._ids)  # ids[_first:_read] are decoded already and give the next piece its context
        self._first = self._start(max(0, self._read - CONTEXT))
        self._held: list[Segment] = []  # whole pieces that may begin a stop string, or a picture
        self._pending: list[tuple[Origin, int, int]] = []  # class of each id of a piece that is not whole yet
        self._released: list[str] = []
        self.stopped = False  # a stop string was found

    @property
    def text(self) -> str:
        """Released so far."""
        return "".join(self._released)

    def _start(self, first: int) -> int:
        """The context must not begin inside a character: a decoder may take all bytes behind it for rubbish then."""
        while first > 0 and self._read - first < 8 * CONTEXT and self._decode(self._ids[first : self._read]).startswith(REPLACEMENT):
            first -= 1
        return first

    def push(self, token: int, origin: Origin, position: int, step: int) -> list[Segment]:
        """One more token; returns the pieces that became certain."""
        assert not self.stopped
        self._ids.append(token)
        self._pending.append((origin, position, step))
        now = self._decode(self._ids[self._first :])
        if not now.endswith(REPLACEMENT):
            return self._take(len(self._pending), now)
        if len(self._pending) < PATIENCE:
            return []
        for count in range(len(self._pending) - 1, 0, -1):  # rubbish: what no byte to come can change
            part = self._decode(self._ids[self._first : self._read + count])
            if now.startswith(part) and len(now) > len(part):
                return self._take(count, part)
        return []

    def _take(self, count: int, now: str) -> list[Segment]:
        """The first `count` pending ids are a whole piece; with their context they read `now`."""
        known, ids = self._decode(self._ids[self._first : self._read]), self._ids[self._read : self._read + count]
        # where decoding at once takes back a character, because bytes of another one behind it are broken, it stands
        piece = now[len(known) :] if now.startswith(known) else self._decode(ids)
        origin, position, step = self._pending[count - 1]
        del self._pending[:count]
        self._first, self._read = self._read, self._read + count
        return self._add(Segment(piece, origin, tuple(ids), position, step))

    def _add(self, segment: Segment) -> list[Segment]:
        self._held.append(segment)
        if not self._stop:
            return self._release(self._closed(len(self._held)))
        waiting = "".join(s.text for s in self._held)
        found = min((at for at in (waiting.find(s) for s in self._stop) if at >= 0), default=-1)
        if found >= 0:
            self.stopped = True
            return self._cut(found)
        certain = len(waiting) - max(_overlap(waiting, s) for s in self._stop)
        count, length = 0, 0
        for s in self._held:
            length += len(s.text)
            if length > certain:
                break
            count += 1
        return self._release(self._closed(count))

    def _closed(self, count: int) -> int:
        """So many of the held pieces, or fewer: what is shown does not end inside a picture, as far as that can be known."""
        for fewer in range(count, max(count - PATIENCE, 0), -1):
            if not _open("".join(s.text for s in self._held[:fewer])):
                return fewer
        return count if count >= PATIENCE else 0

    def finish(self) -> list[Segment]:
        """The reply has ended: release everything that was held back."""
        taken: list[Segment] = []
        if self._pending and not self.stopped:
            taken = self._take(len(self._pending), self._decode(self._ids[self._first :]))
        return taken + self._release(len(self._held))

    def _release(self, count: int) -> list[Segment]:
        out, self._held = self._held[:count], self._held[count:]
        self._released += [s.text for s in out]
        return out

    def _cut(self, at: int) -> list[Segment]:
        cut: list[Segment] = []
        for s in self._held:
            cut.append(Segment(s.text[: max(at, 0)], s.origin, s.token_ids, s.position, s.step))
            at -= len(s.text)
        self._held = cut
        return self._release(len(cut))


def _open(text: str) -> bool:
    """Whether the text ends with a joiner, or with one half of a flag."""
    halves = len(text) - len(text.rstrip(FLAG_HALVES))
    return text.endswith(JOINER) or halves % 2 == 1


def _overlap(text: str, stop: str) -> int:
    """Length of the longest end of `text` that begins `stop`."""
    for n in range(min(len(text), len(stop) - 1), 0, -1):
        if text.endswith(stop[:n]):
            return n
    return 0
