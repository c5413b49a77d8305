"""The tree of a conversation: questions, the versions of their answers, and what followed each. No widgets, no database.

A question (`Turn`) has versions of its answer (`Version`); each version has branches, the questions that followed it. One item of
every fork is chosen, and the chosen ones, from the root on, are the conversation that is shown and sent. Nothing leaves the tree
unless a person deletes it.
"""

from __future__ import annotations

import secrets
import time
from dataclasses import dataclass, field, replace
from typing import Generic, Literal, TypeVar

from app.traces import pack, unpack
from engine.protocol import Done, Segment, Step

T = TypeVar("T")
State = Literal["done", "streaming", "interrupted"]


def new_key() -> int:
    """A key for a row of the database, without asking it: milliseconds and 20 random bits, so that keys sort by time."""
    return (time.time_ns() // 1_000_000) << 20 | secrets.randbits(20)


class Fork(Generic[T]):
    """Some items of which one, or none, is chosen."""

    def __init__(self) -> None:
        self.items: list[T] = []
        self.at: int | None = None

    @property
    def chosen(self) -> T | None:
        """The item that counts."""
        return None if self.at is None else self.items[self.at]

    def add(self, item: T) -> None:
        """Append and choose."""
        self.items.append(item)
        self.at = len(self.items) - 1

    def choose(self, item: T) -> None:
        """Make this one count."""
        self.at = self.items.index(item)

    def step(self, by: int) -> bool:
        """Choose a neighbour; False at the ends."""
        at = (len(self.items) if self.at is None else self.at) + by
        if not 0 <= at < len(self.items):
            return False
        self.at = at
        return True

    def remove(self, item: T) -> None:
        """Take out; where it was chosen its neighbour is."""
        at = self.items.index(item)
        self.items.remove(item)
        if self.at is not None and self.at >= at:
            self.at = min(max(0, self.at - (self.at > at)), len(self.items) - 1) if self.items else None


@dataclass(frozen=True, slots=True)
class Attachment:
    """A text file that was sent with a question."""

    name: str
    text: str


class Version:
    """One answer, whole or as far as it came."""

    def __init__(
        self, done: Done, steps: tuple[Step, ...] = (), *, key: int | None = None, number: int = 0, model: str = "", state: State = "done"
    ) -> None:
        self.key = new_key() if key is None else key
        self.done = done
        self.number = number  # among all versions of this answer that were ever made, from 0: part of its seed
        self.model = model
        self.state: State = state
        self.numbers = ""  # speed and acceptance, as they were shown
        self.created_s = time.time()
        self.turn: Turn | None = None  # what it answers
        self.next: Fork[Turn] = Fork()
        self._steps: tuple[Step, ...] | None = steps
        self._packed = b""

    @property
    def text(self) -> str:
        """The exact text."""
        return self.done.text

    @property
    def finish_reason(self) -> str:
        """Why it ended."""
        return self.done.finish_reason

    @property
    def steps(self) -> tuple[Step, ...]:
        """The steps that made it; unpacked when they are first asked for."""
        if self._steps is None:
            self._steps, tail = unpack(self._packed, self.done.text, self.done.reply)
            self.done = replace(self.done, tail=tail)
        return self._steps

    @property
    def segments(self) -> tuple[Segment, ...]:
        """The pieces of the text with their origins. Joined they are the text, unless the trace was lost."""
        return tuple(segment for step in self.steps for segment in step.segments) + self.done.tail

    @property
    def packed(self) -> bytes:
        """The steps as the database keeps them."""
        return self._packed if self._steps is None else pack(self._steps, self.done.tail)

    @packed.setter
    def packed(self, value: bytes) -> None:
        self._packed, self._steps = value, None

    def ended(self, done: Done, steps: tuple[Step, ...], model: str) -> None:
        """It is written."""
        self.done, self._steps, self.model = done, steps, model

    def extended(self, done: Done, steps: tuple[Step, ...]) -> None:
        """It was continued: add what came. Step numbers and times go on."""
        before, old = self.steps, self.done
        last = before[-1] if before else None
        shifted = [behind(step, last) for step in steps]
        tail = tuple(replace(s, step=s.step + (last.index if last else 0)) for s in done.tail)
        if shifted:
            shifted[0] = with_tail(shifted[0], old.tail)
        else:
            tail = old.tail + tail
        self.done = replace(done, text=old.text + done.text, token_ids=old.token_ids + done.token_ids, tail=tail)
        self._steps = (*before, *shifted)


def behind(step: Step, last: Step | None) -> Step:
    """A step of a continued reply, numbered and timed on from the last one before."""
    if last is None:
        return step
    segments = tuple(replace(segment, step=segment.step + last.index) for segment in step.segments)
    return replace(step, index=step.index + last.index, at_s=step.at_s + last.at_s, segments=segments)


def with_tail(step: Step, tail: tuple[Segment, ...]) -> Step:
    """The first step of a continued reply, with what was held back at the first end: it is text now."""
    return replace(step, segments=(*tail, *step.segments)) if tail else step


@dataclass(eq=False, slots=True)
class Turn:
    """One question and the versions of its answer; the chosen version counts."""

    prompt: str
    attached: tuple[Attachment, ...] = ()
    parent: Version | None = None  # the answer that it follows
    fork: Fork[Turn] = field(default_factory=Fork)  # the questions in this place, itself among them
    key: int = field(default_factory=new_key)
    created_s: float = field(default_factory=time.time)
    versions: Fork[Version] = field(default_factory=Fork)

    @property
    def replies(self) -> list[Version]:
        """All versions, oldest first."""
        return self.versions.items

    @property
    def answer(self) -> Version | None:
        """The version that counts."""
        return self.versions.chosen

    @property
    def content(self) -> str:
        """What the model gets: the attached files, then the question."""
        return "\n\n".join([*map(fenced, self.attached), *([self.prompt] if self.prompt else [])])

    def answered(self, version: Version) -> None:
        """Add a version and let it count."""
        version.turn = self
        self.versions.add(version)

    def next_number(self) -> int:
        """The number of a new version."""
        return max((version.number for version in self.replies), default=-1) + 1


def fenced(file: Attachment) -> str:
    """A file as a Markdown block that its own text cannot end."""
    longest = run = 0
    for character in file.text:
        run = run + 1 if character == "`" else 0
        longest = max(longest, run)
    fence = "`" * max(3, longest + 1)
    return f"File {file.name}:\n{fence}\n{file.text.rstrip(chr(10))}\n{fence}"


def path(root: Fork[Turn]) -> list[Turn]:
    """The conversation: the chosen turns, from the root on."""
    turns: list[Turn] = []
    turn = root.chosen
    while turn is not None:
        turns.append(turn)
        turn = turn.answer.next.chosen if turn.answer is not None else None
    return turns


def everything(root: Fork[Turn]) -> list[Turn]:
    """All turns of the tree, parents first."""
    found: list[Turn] = []
    waiting = list(reversed(root.items))
    while waiting:
        turn = waiting.pop()
        found.append(turn)
        waiting += [later for version in reversed(turn.replies) for later in reversed(version.next.items)]
    return found
