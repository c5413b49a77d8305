"""Drives a client for commands without a screen: one command at a time, events up to its answer, failures as exceptions.

`run`, `bench` and (later) `compare` speak to the engine only through this, so they count and stop in the same way.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from app.console import Interrupt
from engine.client import Client
from engine.errors import EngineError
from engine.protocol import (
    Command,
    Done,
    Event,
    Failed,
    Generate,
    Load,
    Loading,
    Notice,
    Prefill,
    Ready,
    Segment,
    Step,
    SwapDrafter,
    Unloaded,
    Weigh,
    Weighed,
)
from engine.stats import Stats, Tally

POLL_S = 0.1
STOP_WAIT_S = 4.0  # how long a stopped engine may take to answer; importing torch is the longest stretch without a look


@dataclass(frozen=True, slots=True)
class Answer:
    """One reply, whole or stopped."""

    done: Done
    segments: tuple[Segment, ...]
    stats: Stats


def cancelled() -> EngineError:
    """The answer when a person stops a command before there is anything to show."""
    return EngineError("Stopped.", kind="cancelled")


class Driver:
    """One command after the other on one client. Stops when `interrupt` says so."""

    def __init__(self, client: Client, interrupt: Interrupt, note: Callable[[str], None] = lambda text: None) -> None:
        self._client = client
        self._interrupt = interrupt
        self._note = note  # sentences for the person: notes of a load, decisions of the controller
        interrupt.on_stop = client.stop

    def load(self, command: Load | SwapDrafter, progress: Callable[[Loading], None] = lambda event: None) -> Ready:
        """Send a Load or SwapDrafter and wait for what is ready."""
        for event in self._events(command):
            if isinstance(event, Loading):
                progress(event)
            elif isinstance(event, Ready):
                for text in event.notes:
                    self._note(text)
                return event
        raise cancelled()

    def reply(
        self,
        command: Generate,
        ready: Ready,
        text: Callable[[str], None] = lambda text: None,
        progress: Callable[[Prefill | Step], None] = lambda event: None,
    ) -> Answer:
        """Send a Generate; `text` gets the clean text as it comes. When stopped, the answer holds what came."""
        tally = Tally()
        segments: list[Segment] = []
        prefill = Prefill(command.reply, 0, 0, 0)
        sent_s = time.monotonic()
        for event in self._events(command):
            if isinstance(event, Prefill):
                prefill = event
                progress(event)
            elif isinstance(event, Step):
                tally.add(event)
                segments += event.segments
                if new := "".join(segment.text for segment in event.segments):
                    tally.ttft_s = tally.ttft_s or time.monotonic() - sent_s
                    text(new)
                progress(event)
            elif isinstance(event, Done):
                tally.prefill_s = event.prefill_s
                if event.stop_id is not None:
                    tally.stopped()
                return Answer(event, tuple(segments), tally.stats())
        done = Done(
            command.reply,
            "cancelled",
            "".join(segment.text for segment in segments),
            tuple(token for segment in segments for token in segment.token_ids),
            None,
            command.seed,
            prefill.total,
            prefill.reused,
            0.0,
            ready.sampling,
            None,
            ready.memory,
            method=ready.method,
            drafter=ready.drafter,
        )
        return Answer(done, tuple(segments), tally.stats())

    def weigh(self, command: Weigh) -> tuple[float, ...]:
        """Ask how near some tokens are to each other; () where that is not known."""
        for event in self._events(command):
            if isinstance(event, Weighed):
                return event.logits
        raise cancelled()

    def _events(self, command: Command) -> Iterator[Event]:
        """Events up to the answer; ends early when a stopped engine does not answer in time."""
        if self._interrupt.stopped.is_set():
            raise cancelled()
        self._client.send(command)
        give_up_s: float | None = None
        while True:
            stopped = self._interrupt.stopped.is_set()
            if stopped:
                self._client.stop()  # again: the first may have come between two commands
                give_up_s = give_up_s or time.monotonic() + STOP_WAIT_S
            events = self._client.wait(POLL_S)
            for event in events:
                if isinstance(event, Notice):
                    self._note(event.text)
                elif isinstance(event, Failed):
                    raise EngineError(event.message, event.hint, kind=event.kind, detail=event.detail, numbers=event.numbers)
                yield event
                if isinstance(event, (Ready, Done, Unloaded, Weighed)):
                    return
            if give_up_s is not None and time.monotonic() > give_up_s:
                return
            if not events and not getattr(self._client, "alive", True):
                raise EngineError(
                    "The engine has ended unexpectedly.", "specchat.log says why; `specchat doctor` shows where.", kind="internal"
                )
