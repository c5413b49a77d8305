"""A stand-in for the installed command in tests of whole processes: `python -m tests.app.cli_replay ARGS`, engine replayed.

Variables: REPLAY_TEXT the reply, REPLAY_LOAD_S and REPLAY_STEP_S how slow it is, REPLAY_STUCK after how many steps it stays under way
until it is stopped, and says so.
"""

from __future__ import annotations

import contextlib
import os
import sys

import app.run
from app.cli import main
from engine.protocol import Event, Loading, Step
from engine.replay import READY, ReplayClient, Trace, scripted
from tests.held import stuck

load_s, step_s = float(os.environ.get("REPLAY_LOAD_S", 0)), float(os.environ.get("REPLAY_STEP_S", 0.001))
reply = scripted(os.environ.get("REPLAY_TEXT", "one two three"), step_s=step_s, prefill_s=step_s)


after = int(os.environ.get("REPLAY_STUCK", 0))
if after:
    reply = stuck(reply, after)


def sign(text: str) -> None:
    """Tell the test how far things are."""
    with contextlib.suppress(OSError):
        print(text, file=sys.stderr, flush=True)


class Client(ReplayClient):
    """Says STUCK once the last step before the long wait was taken in."""

    seen = 0

    def wait(self, timeout_s: float) -> list[Event]:
        if after and self.seen == after:
            self.seen += 1
            sign("STUCK")
        events = super().wait(timeout_s)
        self.seen += sum(isinstance(event, Step) for event in events)
        return events


def client() -> ReplayClient:
    sign("ENGINE")  # all is set up
    return Client(Trace(load=((0.0, Loading("reading weights", 1, 4, "files")), (load_s, READY)), replies=(reply,)))


app.run.LOAD_NOTE_S = 3600.0  # on a busy machine a load may take long
app.run.EngineClient = client  # type: ignore[misc, assignment]
main()
