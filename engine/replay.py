"""A trace behind the face of the engine: the same `Client` methods, no model. For tests, the demo and screenshots.

A trace holds timed events for each command: one list for Load, one for SwapDrafter, and replies. Replies are found by prompt and
drafter (`Trace.takes`), or taken in turn, from the start again after the last (`Trace.replies`). Traces are recorded from a real
client (`engine.record`) or written by hand (`engine.trace.scripted`). A `Failed` in a list plays a failure. Reply numbers, seeds and
model names are those of the command.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import replace
from queue import Empty
from textwrap import shorten

from engine.catalog.specs import NONE, ModelSpec
from engine.client import Outbox, Queue, Stopper, ThreadClient
from engine.protocol import (
    Command,
    Done,
    Event,
    Failed,
    Generate,
    Load,
    Look,
    Looked,
    Notice,
    Prefill,
    Ready,
    Segment,
    Step,
    SwapDrafter,
    Unload,
    Unloaded,
    Weigh,
    Weighed,
)
from engine.record import Recorder, record
from engine.takes import behind, first, ids_of, text_of
from engine.trace import DONE, READY, Take, Timed, Trace, load_trace, save_trace, scripted

__all__ = ["READY", "Recorder", "ReplayClient", "Take", "Trace", "load_trace", "record", "save_trace", "scripted"]


class ReplayClient(ThreadClient):
    """Plays a trace at `speed` times the recorded pace; `speed=None` never waits."""

    def __init__(self, trace: Trace, speed: float | None = 1.0) -> None:
        self.trace = trace
        self.sent: list[Command] = []  # every command so far, for tests
        super().__init__(lambda *ends: _Player(self, speed, *ends).run(), "specchat-replay")

    def send(self, command: Command) -> None:
        """Queue a command."""
        self.sent.append(command)
        super().send(command)


class _Player:
    """The thread behind the client."""

    def __init__(self, client: ReplayClient, speed: float | None, commands: Queue, outbox: Outbox, stopper: Stopper) -> None:
        self._client, self._speed = client, speed
        self._commands, self._out, self._stopper = commands, outbox, stopper
        self._later: deque[tuple[int, Command] | None] = deque()  # came during a reply and is no swap
        self._replies = 0
        self._instead: dict[str, str] = {}  # a prompt that was not recorded: the one played for it, the same for each drafter
        self._now = READY

    @property
    def _trace(self) -> Trace:
        """The client's, which a test may replace."""
        return self._client.trace

    def run(self) -> None:
        """Take one command after the other, until None comes."""
        while (item := self._later.popleft() if self._later else self._commands.get()) is not None:
            number, command = item
            match command:
                case Load():
                    self._load(number, command.drafter, command.target.name, self._trace.load)
                case SwapDrafter():
                    self._swap(number, command)
                case Generate():
                    self._reply(number, command)
                case Weigh():
                    self._out.put(Weighed(()))  # a recording holds no logits
                case Look():  # a recording has no tokenizer: words stand for tokens
                    text = "\n\n".join(f"{message.role}: {message.content}" for message in command.prompt.messages)
                    self._out.put(Looked(text, len(text.split()), 0, self._now.context, "none"))
                case Unload():
                    self._out.put(Unloaded())

    # --- loading -----------------------------------------------------------------------------------------------------

    def _swap(self, number: int, command: SwapDrafter) -> None:
        take = next((take for take in self._trace.takes if not take.prompt and take.drafter == command.drafter.name), None)
        self._load(number, command.drafter, self._now.target, take.timed if take else self._trace.swap)

    def _load(self, number: int, drafter: ModelSpec, target: str, timed: Sequence[Timed]) -> None:
        for event in self._play(number, timed):
            if isinstance(event, Failed) and event.lost == ("drafter",):
                drafter = NONE  # the target is there all the same: Ready follows
                self._out.put(event)
                continue
            if isinstance(event, Ready):
                event = self._now = self._named(event, drafter, target)
            self._out.put(event)
            if isinstance(event, (Ready, Failed)):
                return
        self._out.put(Failed("Loading was stopped.", "Choose a model to load again.", "cancelled"))

    @staticmethod
    def _named(event: Ready, drafter: ModelSpec, target: str) -> Ready:
        if event.drafter == drafter.name and event.method != "none":
            return replace(event, target=target)
        kind = "ngram" if drafter.kind == "auto" else drafter.kind
        method = kind if kind in ("none", "ngram") else event.method
        return replace(event, target=target, drafter="ngram" if drafter.kind == "auto" else drafter.name, method=method)

    # --- replies -----------------------------------------------------------------------------------------------------

    def _reply(self, number: int, command: Generate) -> None:
        prompt, timed = self._choose(command)
        segments: list[Segment] = []
        step = Step(command.reply, 0, (), 0, 0, 0, 0, 0.0, 0.0, 0.0, 0.0, 0.0)
        emitted = 0
        whole = True  # one recording from its beginning to its end
        playing = self._play(number, timed)
        while (event := next(playing, None)) is not None:
            if self._swapped() and emitted and (other := self._trace.take(prompt, self._now.drafter)):
                timed, whole = behind(other.timed, emitted, segments, step), False
                if command.max_tokens is not None:
                    timed = first(timed, command.max_tokens - emitted)
                playing = self._play(number, timed)
                continue
            if isinstance(event, Step):
                step, emitted = event, emitted + event.emitted
                segments += event.segments
            if isinstance(event, (Prefill, Step, Failed, Notice)):
                event = replace(event, reply=command.reply)
            elif isinstance(event, Done):
                event = self._done(event, command, () if whole else (*segments, *event.tail))
            self._out.put(event)
            if isinstance(event, (Done, Failed)):
                return
        last = next((event for _, event in reversed(timed) if isinstance(event, Done)), DONE)
        self._out.put(
            replace(self._done(replace(last, text="", token_ids=(), tail=()), command, segments), finish_reason="cancelled", stop_id=None)
        )

    def _choose(self, command: Generate) -> tuple[str, Sequence[Timed]]:
        """The prompt and the recording to play; "" for a reply that comes in turn."""
        trace = self._trace
        if not trace.takes:
            assert trace.replies, "this trace has no reply"
            self._replies += 1
            return "", trace.replies[(self._replies - 1) % len(trace.replies)]
        asked = command.raw if command.raw is not None else command.messages[-1].content if command.messages else ""
        take = trace.take(asked, self._now.drafter)
        if take is None:
            asked = self._instead.setdefault(asked, trace.prompts[len(self._instead) % len(trace.prompts)])
            take = trace.take(asked, self._now.drafter)
            self._out.put(
                Notice(
                    f"This is a recording and knows no answer to that: it plays the one to “{shorten(asked, 70, placeholder='…')}”.",
                    command.reply,
                )
            )
        assert take is not None
        return asked, take.timed if command.max_tokens is None else first(take.timed, command.max_tokens)

    def _done(self, event: Done, command: Generate, segments: Sequence[Segment]) -> Done:
        """The end of this reply; its text is that of the segments, where some are given."""
        event = replace(event, reply=command.reply, seed=command.seed, method=self._now.method, drafter=self._now.drafter)
        return replace(event, text=text_of(segments), token_ids=ids_of(segments)) if segments else event

    def _swapped(self) -> bool:
        """Between two steps: a drafter swap is done at once, anything else waits for the end of the reply."""
        swapped = False
        while True:
            try:
                item = self._commands.get_nowait()
            except Empty:
                return swapped
            if item is not None and isinstance(item[1], SwapDrafter):
                self._swap(item[0], item[1])
                swapped = True
            else:
                self._later.append(item)

    def _play(self, number: int, timed: Sequence[Timed]) -> Iterator[Event]:
        """The events at their time, until stopped."""
        start_s = time.monotonic()
        for at_s, event in timed:
            left_s = 0.0 if self._speed is None else at_s / self._speed - (time.monotonic() - start_s)
            if self._stopper.wait(number, left_s) if left_s > 0 else self._stopper.stopped(number):
                return
            yield event
