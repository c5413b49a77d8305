"""From token ids to clean text, piece by piece, each piece knowing where its tokens came from. No torch.

A piece (`Segment`) is released when it is whole: a character whose bytes are spread over tokens is held back, and so is text that may
turn out to begin a stop string. Joined, the pieces are exactly what decoding all ids at once gives, cut at a stop string.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from engine.protocol import Origin, Segment

REPLACEMENT = "\ufffd"


class Detokenizer:
    """Text of one reply."""

    def __init__(self, decode: Callable[[list[int]], str], stop: Sequence[str] = (), before: Sequence[int] = ()) -> None:
        """`decode` turns ids into text; `before` are ids that stand in front of the reply's first token (a continued reply)."""
        self._decode = decode
        self._stop = tuple(s for s in stop if s)
        self._ids: list[int] = list(before)
        self._first = self._read = len(self._ids)  # ids[_first:_read] are decoded already and give the next piece its context
        self._first = max(0, self._first - 8)
        self._held: list[Segment] = []  # whole pieces that may begin a stop string
        self._pending: list[int] = []  # tokens of a piece that is not whole yet
        self._class: tuple[Origin, int, int] = ("plain", 0, 0)  # origin, position and step of the newest token
        self.text = ""  # released so far
        self.stopped = False  # a stop string was found

    def push(self, token: int, origin: Origin, position: int, step: int) -> list[Segment]:
        """One more token; returns the pieces that became certain."""
        assert not self.stopped
        self._ids.append(token)
        self._pending.append(token)
        self._class = (origin, position, step)
        known = self._decode(self._ids[self._first : self._read])
        now = self._decode(self._ids[self._first :])
        if now.endswith(REPLACEMENT) and len(self._pending) < 8:
            return []
        piece = now[len(known) :]
        self._first, self._read = self._read, len(self._ids)
        return self._add(Segment(piece, origin, tuple(self._pending), position, step))

    def _add(self, segment: Segment) -> list[Segment]:
        self._pending = []
        self._held.append(segment)
        if not self._stop:
            return self._release(len(self._held))
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
        return self._release(count)

    def finish(self) -> list[Segment]:
        """The reply has ended: release everything that was held back."""
        if self._pending and not self.stopped:
            known = self._decode(self._ids[self._first : self._read])
            piece = self._decode(self._ids[self._first :])[len(known) :]
            self._held.append(Segment(piece, self._class[0], tuple(self._pending), *self._class[1:]))
            self._pending = []
        return self._release(len(self._held))

    def _release(self, count: int) -> list[Segment]:
        out, self._held = self._held[:count], self._held[count:]
        self.text += "".join(s.text for s in out)
        return out

    def _cut(self, at: int) -> list[Segment]:
        cut: list[Segment] = []
        for s in self._held:
            cut.append(Segment(s.text[: max(at, 0)], s.origin, s.token_ids, s.position, s.step))
            at -= len(s.text)
        self._held = cut
        return self._release(len(cut))


def _overlap(text: str, stop: str) -> int:
    """Length of the longest end of `text` that begins `stop`."""
    for n in range(min(len(text), len(stop) - 1), 0, -1):
        if text.endswith(stop[:n]):
            return n
    return 0
