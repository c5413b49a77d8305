"""A trace behind the face of the engine: the same `Client` methods, no model. For tests, demos and screenshots.

A trace holds timed events for each command: one list for Load, one for SwapDrafter, one per reply (taken in turn, from the start
again after the last). It is recorded from a real client with `record`, or written by hand (`engine.trace.scripted` makes a reply
out of a text). A `Failed` in a list plays a failure. Reply numbers, seeds and model names are those of the command.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from queue import Empty, SimpleQueue

from engine.catalog.specs import NONE, ModelSpec
from engine.client import Client, Outbox, Stopper
from engine.protocol import (
    Command,
    Done,
    Event,
    Failed,
    Generate,
    Load,
    Notice,
    Prefill,
    Ready,
    Segment,
    Step,
    SwapDrafter,
    Unload,
    Unloaded,
)
from engine.trace import DONE, READY, Timed, Trace, load_trace, save_trace, scripted

__all__ = ["READY", "Recorder", "ReplayClient", "Trace", "load_trace", "record", "save_trace", "scripted"]


class ReplayClient:
    """Plays a trace at `speed` times the recorded pace; `speed=None` never waits. Other methods as `EngineClient`."""

    def __init__(self, trace: Trace, speed: float | None = 1.0) -> None:
        self.trace = trace
        self.sent: list[Command] = []  # every command so far, for tests
        self._speed = speed
        self._commands: SimpleQueue[tuple[int, Command] | None] = SimpleQueue()
        self._outbox = Outbox()
        self._stopper = Stopper()
        self._woken = threading.Event()  # ends the waiting for the next event's time
        self._replies = 0
        self._now = READY
        self._thread = threading.Thread(target=self._run, name="specchat-replay", daemon=True)
        self._started = False

    def send(self, command: Command) -> None:
        """Queue a command."""
        self.sent.append(command)
        if not self._started:
            self._started = True
            self._thread.start()
        self._commands.put((len(self.sent), command))

    def stop(self) -> None:
        """Stop what is running or waiting; a reply then ends with `cancelled`, a load with Failed of that kind."""
        self._stopper.stop(len(self.sent))
        self._woken.set()

    def drain(self) -> list[Event]:
        """All waiting events, oldest first; never waits."""
        return self._outbox.wait()

    def wait(self, timeout_s: float) -> list[Event]:
        """All waiting events; waits up to `timeout_s` for the first."""
        return self._outbox.wait(timeout_s)

    def close(self, timeout_s: float = 2.0) -> None:
        """Stop and let the thread end."""
        self.stop()
        if self._started:
            self._commands.put(None)
            self._thread.join(timeout_s)

    @property
    def alive(self) -> bool:
        """False once the thread has ended."""
        return self._thread.is_alive()

    def _run(self) -> None:
        later: list[tuple[int, Command] | None] = []  # came during a reply and is no swap
        while (item := later.pop(0) if later else self._commands.get()) is not None:
            number, command = item
            match command:
                case Load():
                    self._load(number, command.drafter, self.trace.load, command.target.name)
                case SwapDrafter():
                    self._load(number, command.drafter, self.trace.swap, self._now.target)
                case Generate():
                    self._reply(number, command, later)
                case Unload():
                    self._outbox.put(Unloaded())

    def _play(self, number: int, timed: Sequence[Timed]) -> Iterator[Event]:
        """The events at their time, until stopped."""
        start_s = time.monotonic()
        for at_s, event in timed:
            while self._speed is not None and (left_s := at_s / self._speed - (time.monotonic() - start_s)) > 0:
                if self._stopper.stopped(number):
                    return
                self._woken.clear()
                if not self._stopper.stopped(number):
                    self._woken.wait(left_s)
            if self._stopper.stopped(number):
                return
            yield event

    def _load(self, number: int, drafter: ModelSpec, timed: Sequence[Timed], target: str) -> None:
        for event in self._play(number, timed):
            if isinstance(event, Failed) and event.lost == ("drafter",):
                drafter = NONE  # the target is there all the same: Ready follows
                self._outbox.put(event)
                continue
            if isinstance(event, Ready):
                name = "ngram" if drafter.kind == "auto" else drafter.name
                method = drafter.kind if drafter.kind in ("none", "ngram") else "ngram" if drafter.kind == "auto" else event.method
                event = replace(event, target=target, drafter=name, method="model" if method == "heads" else method)
                self._now = event
            self._outbox.put(event)
            if isinstance(event, (Ready, Failed)):
                return
        self._outbox.put(Failed("Loading was stopped.", "Choose a model to load again.", "cancelled"))

    def _reply(self, number: int, command: Generate, later: list[tuple[int, Command] | None]) -> None:
        assert self.trace.replies, "this trace has no reply"
        timed = self.trace.replies[self._replies % len(self.trace.replies)]
        self._replies += 1
        segments: list[Segment] = []
        for event in self._play(number, timed):
            self._swap(later)
            if isinstance(event, Step):
                segments += event.segments
            if isinstance(event, (Prefill, Step, Failed, Notice)):
                event = replace(event, reply=command.reply)
            elif isinstance(event, Done):
                event = self._done(event, command)
            self._outbox.put(event)
            if isinstance(event, (Done, Failed)):
                return
        last = next((event for _, event in reversed(timed) if isinstance(event, Done)), DONE)
        ids = tuple(token for segment in segments for token in segment.token_ids)
        text = "".join(segment.text for segment in segments)
        self._outbox.put(replace(self._done(last, command), finish_reason="cancelled", text=text, token_ids=ids, stop_id=None))

    def _done(self, event: Done, command: Generate) -> Done:
        return replace(event, reply=command.reply, seed=command.seed, method=self._now.method, drafter=self._now.drafter)

    def _swap(self, later: list[tuple[int, Command] | None]) -> None:
        """Between two steps: a drafter swap is done at once, anything else waits for the end of the reply."""
        while True:
            try:
                item = self._commands.get_nowait()
            except Empty:
                return
            if item is not None and isinstance(item[1], SwapDrafter):
                self._load(item[0], item[1].drafter, self.trace.swap, self._now.target)
            else:
                later.append(item)


class Recorder:
    """A client that passes everything on and keeps what it saw as a trace."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._lists: dict[str, list[list[Timed]]] = {"load": [], "swap": [], "replies": []}
        self._open: list[Timed] | None = None
        self._start_s = 0.0

    def send(self, command: Command) -> None:
        """Pass on; the events from now on answer this command."""
        kind = {Load: "load", SwapDrafter: "swap", Generate: "replies"}.get(type(command))
        if kind is not None:
            self._open = []
            self._lists[kind].append(self._open)
            self._start_s = time.monotonic()
        self._client.send(command)

    def stop(self) -> None:
        """Pass on."""
        self._client.stop()

    def drain(self) -> list[Event]:
        """Pass on and keep."""
        return self._keep(self._client.drain())

    def wait(self, timeout_s: float) -> list[Event]:
        """Pass on and keep."""
        return self._keep(self._client.wait(timeout_s))

    def close(self, timeout_s: float = 2.0) -> None:
        """Pass on."""
        self._client.close(timeout_s)

    def trace(self) -> Trace:
        """What was seen so far: the last load, the last swap, every reply."""
        load, swap = (tuple(lists[-1]) if (lists := self._lists[name]) else ((0.0, READY),) for name in ("load", "swap"))
        return Trace(load, swap, tuple(tuple(reply) for reply in self._lists["replies"]))

    def _keep(self, events: list[Event]) -> list[Event]:
        if self._open is not None:
            at_s = round(time.monotonic() - self._start_s, 4)
            self._open += [(at_s, event) for event in events]
        return events


def record(client: Client) -> Recorder:
    """A client to use in place of this one; its `trace()` is what happened."""
    return Recorder(client)
