"""Records what a client answers as a trace, while it is used: a client around a client."""

from __future__ import annotations

import time

from engine.client import Client
from engine.protocol import Command, Event, Generate, Load, SwapDrafter
from engine.trace import READY, Timed, Trace

KINDS = (Load, SwapDrafter, Generate)


class Recorder:
    """A client that passes everything on and keeps what it saw as a trace."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self.answers: list[tuple[Command, list[Timed]]] = []  # each command so far, and what came until the next
        self._start_s = 0.0

    def send(self, command: Command) -> None:
        """Pass on; the events from now on answer this command."""
        self.answers.append((command, []))
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
        load, swap, replies = ([tuple(timed) for command, timed in self.answers if isinstance(command, kind)] for kind in KINDS)
        return Trace(load[-1] if load else ((0.0, READY),), swap[-1] if swap else ((0.0, READY),), tuple(replies))

    def _keep(self, events: list[Event]) -> list[Event]:
        if self.answers:
            at_s = round(time.monotonic() - self._start_s, 4)
            self.answers[-1][1].extend((at_s, event) for event in events)
        return events


def record(client: Client) -> Recorder:
    """A client to use in place of this one; its `trace()` is what happened."""
    return Recorder(client)
