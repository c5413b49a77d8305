"""Chats on a replayed engine without a terminal, each in a process of its own, to be killed. Reads a folder per line, forks, says the pid.

A killed chat leaves `log` in its folder: `sent` when the question goes to the engine, `N` when N characters of the reply have come, and
a dot for each twentieth of a second in which its screen could act, another thread too, and a database beside its own be written.
"""

from __future__ import annotations

import asyncio
import os
import sqlite3
import sys
from contextlib import closing
from pathlib import Path

from app.chat import ChatOptions
from app.tui import SpecChat
from engine.catalog.specs import NGRAM
from engine.protocol import Command, Event, Generate, Step
from engine.replay import ReplayClient, Trace, scripted
from tests.app.tui_world import BIG, Machine

TICK_S = 0.05
TEXT = "".join(f"word{n} and more.{chr(10) * 2 if n % 9 == 8 else ' '}" for n in range(4000))
REPLY = scripted(TEXT, step_s=0.01)  # longer than any test waits
QUESTION = "What do I lose?"


class Logged(ReplayClient):
    """Says what it was asked and what was taken from it."""

    def __init__(self, log: int) -> None:
        super().__init__(Trace(replies=(REPLY,)), 1.0)
        self._log, self._length = log, 0

    def send(self, command: Command) -> None:
        if isinstance(command, Generate):
            os.write(self._log, b"sent\n")
        super().send(command)

    def drain(self) -> list[Event]:
        events = super().drain()
        new = sum(len(s.text) for event in events if isinstance(event, Step) for s in event.segments)
        if new:
            self._length += new
            os.write(self._log, f"{self._length}\n".encode())
        return events


def write(path: Path) -> None:
    """What a save costs on this machine now."""
    with closing(sqlite3.connect(path)) as db, db:
        db.execute("CREATE TABLE IF NOT EXISTS ticks (at REAL)")
        db.execute("INSERT INTO ticks VALUES (1.0)")


def chat(folder: Path) -> None:
    """Ask one question, and go on until killed."""
    log = os.open(folder / "log", os.O_CREAT | os.O_WRONLY | os.O_APPEND)

    app = SpecChat(ChatOptions(target=BIG, drafter=NGRAM), Logged(log), Machine(chats=folder / "chats.db"))

    async def person(pilot: object) -> None:
        screen = app.chat_screen
        while screen.loaded.ready is None:
            await pilot.pause(0.02)  # type: ignore[attr-defined]
        screen.prompt.put(QUESTION)
        await pilot.press("enter")  # type: ignore[attr-defined]
        while True:
            await asyncio.gather(asyncio.sleep(TICK_S), asyncio.to_thread(write, folder / "beside.db"))
            os.write(log, b".\n")

    app.run(headless=True, auto_pilot=person)


def main() -> None:
    for line in sys.stdin:
        pid = os.fork()
        if pid == 0:
            sys.stdin.close()
            chat(Path(line.strip()))
            os._exit(1)
        print(pid, flush=True)


if __name__ == "__main__":
    main()
