"""Steps and segments of a reply as a small blob for the database, and back.

Texts are not repeated: a segment is the number of its characters, and the reply's text gives the rest. JSON arrays under zlib: about
four bytes a token, readable by any later version.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterable, Sequence
from typing import Any

from engine.protocol import Origin, Segment, Step

FORMAT = 1
ORIGINS: tuple[Origin, ...] = ("kept", "correction", "bonus", "plain")  # by number; new ones go to the end
US = 1e6
LARGEST = 64_000_000  # bytes, unpacked


class Packer:
    """Packs a reply again and again while it grows: a step is written once."""

    def __init__(self) -> None:
        self._rows: list[str] = []

    def pack(self, steps: Sequence[Step], tail: Sequence[Segment] = ()) -> bytes:
        """The blob; `steps` are those of the last time and perhaps more. Empty where there is nothing to keep."""
        if not steps and not tail:
            return b""
        self._rows += [_written(_row(step)) for step in steps[len(self._rows) :]]
        return zlib.compress(f"[{FORMAT},[{','.join(self._rows)}],{_written(_pack(tail))}]".encode("ascii"))


def pack(steps: Sequence[Step], tail: Sequence[Segment] = ()) -> bytes:
    """The blob of a whole reply."""
    return Packer().pack(steps, tail)


def unpack(blob: bytes, text: str, reply: int) -> tuple[tuple[Step, ...], tuple[Segment, ...]]:
    """Steps and tail. Empty when the blob is damaged, of another format, or does not belong to this text: it is an extra."""
    if not blob:
        return (), ()
    try:
        reader = zlib.decompressobj()
        data = reader.decompress(blob, LARGEST)
        number, rows, tail = json.loads(data)
        if number != FORMAT:
            return (), ()
        cut = _Cutter(text)
        steps = tuple(_step(row, reply, cut) for row in rows)
        rest = tuple(cut.segments(tail))
    except (zlib.error, ValueError, TypeError, IndexError, KeyError):
        return (), ()
    return (steps, rest) if cut.at == len(text) else ((), ())


def _written(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"))


def _row(step: Step) -> list[Any]:
    times = (step.draft_s, step.verify_s, step.bridge_s, step.other_s, step.at_s)
    counts = [step.index, step.emitted, step.drafted, step.accepted, step.nodes]
    return [*counts, *(round(value * US) for value in times), step.note, _pack(step.segments)]


def _pack(segments: Iterable[Segment]) -> list[Any]:
    return [[len(s.text), ORIGINS.index(s.origin), list(s.token_ids), s.position, s.step] for s in segments]


class _Cutter:
    def __init__(self, text: str) -> None:
        self.at = 0
        self._text = text

    def segments(self, rows: list[Any]) -> Iterable[Segment]:
        for length, origin, ids, position, step in rows:
            yield Segment(self._text[self.at : self.at + length], ORIGINS[origin], tuple(ids), position, step)
            self.at += length


def _step(row: list[Any], reply: int, cut: _Cutter) -> Step:
    index, emitted, drafted, accepted, nodes, draft, verify, bridge, other, at, note, segments = row
    return Step(
        reply, index, tuple(cut.segments(segments)), emitted, drafted, accepted, nodes,
        draft / US, verify / US, bridge / US, other / US, at / US, note,
    )  # fmt: skip
