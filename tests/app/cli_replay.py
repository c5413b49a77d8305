"""A stand-in for the installed command in tests of whole processes: `python -m tests.app.cli_replay ARGS`, engine replayed.

Variables: REPLAY_TEXT the reply, REPLAY_LOAD_S and REPLAY_STEP_S how slow it is.
"""

from __future__ import annotations

import contextlib
import os
import sys

import app.run
from app.cli import main
from engine.protocol import Loading
from engine.replay import READY, ReplayClient, Trace, scripted

load_s, step_s = float(os.environ.get("REPLAY_LOAD_S", 0)), float(os.environ.get("REPLAY_STEP_S", 0.001))
reply = scripted(os.environ.get("REPLAY_TEXT", "one two three"), step_s=step_s, prefill_s=step_s)


def client() -> ReplayClient:
    with contextlib.suppress(OSError):
        print("ENGINE", file=sys.stderr, flush=True)  # the sign for the test that all is set up
    return ReplayClient(Trace(load=((0.0, Loading("reading weights", 1, 4, "files")), (load_s, READY)), replies=(reply,)))


app.run.EngineClient = client  # type: ignore[misc, assignment]
main()
