"""A training on a thread of its own: events come out, and it can be stopped. No torch in the calling thread, ever."""

from __future__ import annotations

import os
import threading
from collections import deque

from engine.logs import log_failure
from engine.protocol import Failed
from engine.training.protocol import Answering, Event, Learning, Loading, Plan

LATEST = (Answering, Learning, Loading)  # of these only the newest that nobody has read yet matters


class TrainClient:
    """Runs one plan. Ends with Trained, Stopped or Failed."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._events: deque[Event] = deque()
        self._ready = threading.Condition()
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._serve, name="specchat-training", daemon=True)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def stop(self) -> None:
        """End at the next step; what was done is written first."""
        self._stopped.set()

    def wait(self, timeout_s: float) -> list[Event]:
        """All waiting events, oldest first; waits up to `timeout_s` for the first."""
        with self._ready:
            if not self._events:
                self._ready.wait(timeout_s)
            events = list(self._events)
            self._events.clear()
        return events

    def close(self, timeout_s: float) -> None:
        """Stop and let the thread end."""
        self.stop()
        if self._thread.is_alive():
            self._thread.join(timeout_s)

    @property
    def alive(self) -> bool:
        """False before the start and once the thread has ended."""
        return self._thread.is_alive()

    def _put(self, event: Event) -> None:
        with self._ready:
            if isinstance(event, LATEST) and self._events and type(self._events[-1]) is type(event):
                self._events[-1] = event
            else:
                self._events.append(event)
            self._ready.notify()

    def _serve(self) -> None:
        os.environ["HF_HUB_OFFLINE"] = "1"  # before the imports below: libraries look for updates on the hub otherwise
        os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
        os.environ.setdefault("GOMP_SPINCOUNT", "20000")  # as in engine.thread
        try:
            from engine.training.serve import serve
        except Exception as error:  # a broken or missing library
            log_failure(error)
            hint = "`specchat doctor` says what is missing; installing specchat again repairs it."
            self._put(Failed(f"Training cannot start: {type(error).__name__}: {error}", hint, "internal"))
            return
        self._put(serve(self._plan, self._put, self._stopped.is_set))
