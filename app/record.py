"""What is known of a reply token by token: its segments and its steps, as they came. No widgets.

The class of every token follows from the verifier's own counts: a step emits `emitted` tokens, the first `accepted` of them are kept
ones, the last is the target's own. A `Segment` (the smallest piece of clean text) takes the class of its last token.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from engine.protocol import Done, Origin, Segment, Step


@dataclass(frozen=True, slots=True)
class Token:
    """One emitted token: its class, its place in its draft (from 1; 0 = the target's own), and the number of its step."""

    id: int
    origin: Origin
    position: int
    step: int


class Record:
    """Segments and steps of one reply."""

    def __init__(self) -> None:
        self.steps: list[Step] = []
        self.segments: list[Segment] = []
        self._ended = False

    def __bool__(self) -> bool:
        return bool(self.segments)

    def add(self, step: Step) -> None:
        """One more step."""
        self.steps.append(step)
        self.segments += step.segments

    def finish(self, done: Done) -> None:
        """The pieces that were still held back."""
        if not self._ended:
            self._ended = True
            self.segments += done.tail

    @property
    def text(self) -> str:
        """The segments, joined: exactly the reply."""
        return "".join(segment.text for segment in self.segments)

    def tokens(self) -> list[Token]:
        """Every token that is part of a segment, classed by the steps' counts."""
        ids = [token for segment in self.segments for token in segment.token_ids]
        return [Token(token, *where) for token, where in zip(ids, self._classes(), strict=False)]

    def _classes(self) -> Iterator[tuple[Origin, int, int]]:
        for step in self.steps:
            own = own_origin(step)
            for place in range(1, step.emitted + 1):
                yield ("kept", place, step.index) if place <= step.accepted else (own, 0, step.index)


def own_origin(step: Step) -> Origin:
    """The class of the target's own token of a step."""
    if not step.drafted:
        return "plain"
    return "correction" if step.accepted < step.drafted else "bonus"
