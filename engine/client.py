"""The face of the engine: starts its thread, sends commands, hands out events. No torch in the calling thread, ever.

`Client` is what the screen and the command line program against; `EngineClient` drives the real engine, `engine.replay` a
recorded trace, both on a thread of their own. The outbox never blocks the engine.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator
from queue import SimpleQueue
from typing import Protocol

from engine.logs import log_failure
from engine.protocol import Command, Event, Failed, Loading, Prefill


class Client(Protocol):
    """Commands in, events out."""

    def send(self, command: Command) -> None: ...
    def stop(self) -> None: ...
    def drain(self) -> list[Event]: ...
    def wait(self, timeout_s: float) -> list[Event]: ...
    def close(self, timeout_s: float = 2.0) -> None: ...


class Outbox:
    """Events on their way out; safe for one writer and one reader, and the writer never waits.

    It is bounded by what the reader asked for: a command has one answer, a reply at most one Step per token of the context, and
    progress (Loading, Prefill) replaces progress that nobody has read yet.
    """

    def __init__(self) -> None:
        self._events: deque[Event] = deque()
        self._ready = threading.Condition()

    def put(self, event: Event) -> None:
        """Add an event; never waits for the reader."""
        with self._ready:
            if isinstance(event, (Loading, Prefill)) and self._events and type(self._events[-1]) is type(event):
                self._events[-1] = event
            else:
                self._events.append(event)
            self._ready.notify()

    def __len__(self) -> int:
        return len(self._events)

    def wait(self, timeout_s: float = 0.0) -> list[Event]:
        """All events that are waiting, oldest first; waits up to `timeout_s` for the first."""
        with self._ready:
            if not self._events and timeout_s > 0:
                self._ready.wait(timeout_s)
            events = list(self._events)
            self._events.clear()
        return events


class Stopper:
    """Who may go on: a stop reaches every command that was sent before it, running or waiting, and none after."""

    def __init__(self) -> None:
        self._stopped = 0
        self._changed = threading.Condition()

    def stop(self, sent: int) -> None:
        """Stop all commands up to this number."""
        with self._changed:
            self._stopped = max(self._stopped, sent)
            self._changed.notify_all()

    def stopped(self, number: int) -> bool:
        """Whether the command of this number shall end."""
        return number <= self._stopped

    def wait(self, number: int, timeout_s: float) -> bool:
        """Let time pass, up to `timeout_s`; True as soon as the command of this number shall end."""
        with self._changed:
            return self._changed.wait_for(lambda: self.stopped(number), timeout_s)


Queue = SimpleQueue[tuple[int, Command] | None]
Serve = Callable[[Queue, Outbox, Stopper], None]  # takes commands until None comes; runs on a thread of its own


class ThreadClient:
    """A `Client` whose commands are served on a daemon thread, begun with the first of them."""

    def __init__(self, serve: Serve, name: str) -> None:
        self._commands: Queue = SimpleQueue()
        self._outbox = Outbox()
        self._stopper = Stopper()
        self._sent = 0
        self._thread = threading.Thread(target=serve, args=(self._commands, self._outbox, self._stopper), name=name, daemon=True)
        self._started = False

    def send(self, command: Command) -> None:
        """Queue a command. Answers come as events."""
        if not self._started:
            self._started = True
            self._thread.start()
        self._sent += 1
        self._commands.put((self._sent, command))

    def stop(self) -> None:
        """Stop what is running or waiting, at the next step, chunk or tensor. What was written so far is kept."""
        self._stopper.stop(self._sent)

    def drain(self) -> list[Event]:
        """All waiting events, oldest first; never waits."""
        return self._outbox.wait()

    def wait(self, timeout_s: float) -> list[Event]:
        """All waiting events; waits up to `timeout_s` for the first."""
        return self._outbox.wait(timeout_s)

    def close(self, timeout_s: float = 2.0) -> None:
        """Stop and let the thread end; it is a daemon, so a stuck kernel cannot hold the process."""
        self.stop()
        if self._started:
            self._commands.put(None)
            self._thread.join(timeout_s)

    @property
    def alive(self) -> bool:
        """False once the thread has died or was closed."""
        return self._thread.is_alive()

    @property
    def waiting(self) -> int:
        """How many events nobody has read yet."""
        return len(self._outbox)


class EngineClient(ThreadClient):
    """The engine on its own thread, which imports, loads and runs everything with a tensor (DESIGN 10)."""

    def __init__(self) -> None:
        super().__init__(_serve, "specchat-engine")


def _serve(commands: Queue, outbox: Outbox, stopper: Stopper) -> None:
    try:
        from engine.thread import serve
    except Exception as error:  # a broken or missing library; the thread must say so before it ends
        log_failure(error)
        hint = "`specchat doctor` says what is missing; installing specchat again repairs it."
        outbox.put(Failed(f"The engine cannot start: {type(error).__name__}: {error}", hint, "internal"))
        return
    serve(commands, outbox, stopper)


def events(client: Client, poll_s: float = 0.1) -> Iterator[Event]:
    """Events as they come, for callers without a timer of their own (command line, tests)."""
    while True:
        yield from client.wait(poll_s)
