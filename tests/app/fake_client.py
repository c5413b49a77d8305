"""A client that answers at once from functions: what each drafter does with each prompt is written in the test."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from engine.catalog.specs import NONE, ModelSpec
from engine.protocol import Command, Done, Event, Failed, Generate, Load, Memory, Ready, Sampling, Segment, Step, SwapDrafter

SAMPLING = Sampling(0.7, 0.95, 0, 0.0, 1.0)
TARGET = ModelSpec("big")


def steps_for(command: Generate, ids: Sequence[int], widths: Sequence[int], step_s: float, drafted: int) -> list[Step]:
    """A reply of `ids`, the first `widths[0]` of them emitted by step 1, and so on; each step drafts `drafted` deep."""
    assert sum(widths) == len(ids)
    steps, at = [], 0
    for index, width in enumerate(widths, start=1):
        tokens = ids[at : at + width]
        at += width
        origins = ["kept"] * (width - 1) + ["correction" if drafted else "plain"]
        segments = tuple(Segment(f" {t}", o, (t,), 0, index) for t, o in zip(tokens, origins, strict=True))  # type: ignore[arg-type]
        steps.append(Step(command.reply, index, segments, width, drafted, width - 1, drafted, 0.001, step_s, 0.0, 0.0, at_s=index * step_s))
    return steps


def done_for(command: Generate, ids: Sequence[int], ready: Ready, stop_id: int | None = None) -> Done:
    """The end of such a reply."""
    return Done(
        command.reply, "stop", "".join(f" {t}" for t in ids), tuple(ids), stop_id, command.seed, 12, 3, 0.05, SAMPLING, None, Memory(),
        method=ready.method, drafter=ready.drafter,
    )  # fmt: skip


class FakeClient:
    """Answers every command inside `send`."""

    def __init__(self, reply: Callable[[Generate, Ready], list[Event]], fail: dict[str, Failed] | None = None) -> None:
        self.sent: list[Command] = []
        self.closed = self.stops = 0
        self._reply, self._fail = reply, fail or {}
        self._events: list[Event] = []
        self._ready = self._loaded(TARGET, NONE)

    @staticmethod
    def _loaded(target: ModelSpec, drafter: ModelSpec) -> Ready:
        method = drafter.kind if drafter.kind in ("none", "ngram") else "model"
        return Ready(target.name, drafter.name, method, "cpu", "nf4", "int8", "nf4", 4096, SAMPLING, True, Memory(), ("a note",))

    def send(self, command: Command) -> None:
        self.sent.append(command)
        if isinstance(command, (Load, SwapDrafter)):
            if failed := self._fail.get(command.drafter.name):
                self._events.append(failed)
                return
            target = command.target if isinstance(command, Load) else ModelSpec(self._ready.target)
            self._ready = self._loaded(target, command.drafter)
            self._events.append(self._ready)
        elif isinstance(command, Generate):
            self._events += self._reply(command, self._ready)

    def stop(self) -> None:
        self.stops += 1

    def drain(self) -> list[Event]:
        events, self._events = self._events, []
        return events

    def wait(self, timeout_s: float) -> list[Event]:
        return self.drain()

    def close(self, timeout_s: float = 2.0) -> None:
        self.closed += 1
