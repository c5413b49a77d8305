"""Replayed replies that are under way for as long as a test needs, whatever the speed of the machine."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from engine.protocol import Step
from engine.trace import Timed, scripted


@dataclass(frozen=True, slots=True)
class Meanwhile:
    """An event that nobody knows: the player looks for a stop and for a swap before the next one."""


class Held(tuple[Timed, ...]):
    """What is replayed, held before its events of these numbers, at each until `go` is called: under way for as long as a test needs.

    A stop ends it, and a swap is done meanwhile, as in the middle of any reply. In place of the recorded pace everything comes at once.
    """

    at: tuple[int, ...]
    _going: threading.Semaphore

    def __new__(cls, timed: Sequence[Timed], *at: int) -> Held:
        new = super().__new__(cls, timed)
        new.at, new._going = at, threading.Semaphore(0)
        return new

    def go(self) -> None:
        """Play on."""
        self._going.release()

    def __iter__(self) -> Iterator[Timed]:
        for number, (_, event) in enumerate(super().__iter__()):
            while number in self.at and not self._going.acquire(timeout=0.01):
                yield 0.0, Meanwhile()  # type: ignore[misc]
            yield 0.0, event


def step_number(timed: Sequence[Timed], step: int) -> int:
    """Which event this step is, the first being step 1."""
    return next(n for n, (_, event) in enumerate(timed) if isinstance(event, Step) and event.index == step)


def held(text: str, *steps: int, **looks: Any) -> Held:
    """A scripted reply that is held once it has made so many steps."""
    timed = scripted(text, **looks)
    return Held(timed, *(step_number(timed, step + 1) for step in steps))


def stuck(timed: Sequence[Timed], steps: int) -> tuple[Timed, ...]:
    """The same reply (at speed 1), which takes an hour for what follows so many steps: it ends when it is stopped."""
    at = step_number(timed, steps + 1)
    return tuple((0.0 if number < at else 3600.0, event) for number, (_, event) in enumerate(timed))
