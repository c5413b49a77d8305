"""What is known of a reply token by token: its segments and its steps, as they came. No widgets.

Which tokens were kept follows from the verifier's own counts: a step emits `emitted` tokens, the first `accepted` of them are kept
ones, the last is the target's own. Whether that one is a correction or a bonus, its `Segment` says (the smallest piece of clean text,
with the class of its last token): in a tree a whole branch can be kept that is shorter than the tree is deep.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from engine.protocol import Done, Origin, Segment, Step
from engine.stats import Tally


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
        self._stopped = False  # a stop id ended it

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
            self._stopped = done.stop_id is not None
            self.segments += done.tail

    def tally(self) -> Tally:
        """The numbers of the reply, by their definitions."""
        tally = Tally()
        for step in self.steps:
            tally.add(step)
        if self._stopped:
            tally.stopped()
        return tally

    @property
    def text(self) -> str:
        """The segments, joined: exactly the reply."""
        return "".join(segment.text for segment in self.segments)

    def tokens(self) -> list[Token]:
        """Every token that is part of a segment, classed by the steps' counts."""
        places = self._places()
        return [token for segment in self.segments for token in self._of(segment, places)]

    @staticmethod
    def _of(segment: Segment, places: Iterator[tuple[Step, int]]) -> Iterator[Token]:
        for n, (token, (step, place)) in enumerate(zip(segment.token_ids, places, strict=False), start=1):
            if place <= step.accepted:
                yield Token(token, "kept", place, step.index)
            else:
                known = n == len(segment.token_ids) and segment.origin != "kept"
                yield Token(token, segment.origin if known else own_origin(step), 0, step.index)

    def _places(self) -> Iterator[tuple[Step, int]]:
        """For each emitted token its step, and its place among the tokens of that step, from 1."""
        return ((step, place) for step in self.steps for place in range(1, step.emitted + 1))


def own_origin(step: Step, pieces: Iterable[Segment] = ()) -> Origin:
    """The class of the target's own token of a step: as its piece says, else by the counts."""
    said = [piece.origin for piece in pieces if piece.origin != "kept"]
    if said:
        return said[-1]
    if not step.drafted:
        return "plain"
    return "correction" if step.accepted < step.drafted else "bonus"
