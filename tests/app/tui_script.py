"""A chat on a replayed engine in the terminal it is started in; for tests of whole terminals, and to look at.

An argument names the database of chats; without one they are in memory.
"""

from __future__ import annotations

import sys
from pathlib import Path

from app.chat import ChatOptions
from app.tui import run_chat
from engine.catalog.specs import NGRAM
from engine.replay import ReplayClient, Trace, scripted
from tests.app.tui_world import BIG, Machine, stuck

NASTY = "Here is a reply with \x1b]52;c;aGVsbG8=\x07 an escape in it.\n\n" + "word " * 400

if __name__ == "__main__":
    client = ReplayClient(Trace(replies=(stuck(scripted(NASTY), 30),)), 1.0)  # until it is stopped
    machine = Machine(chats=Path(sys.argv[1]) if len(sys.argv) > 1 else None)
    sys.exit(run_chat(ChatOptions(target=BIG, drafter=NGRAM), client, machine))
