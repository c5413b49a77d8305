"""Chats on a replayed engine without a terminal, each in a process of its own, to be killed. Reads a folder per line, forks, says the pid.

A killed chat leaves `log` in its folder: `sent` when the question goes to the engine, `N` when N characters of the reply have come, and
a dot for each twentieth of a second in which the process really ran.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from pathlib import Path

from app.chat import ChatOptions
from app.tui import SpecChat
from engine.catalog.specs import NGRAM
from engine.protocol import Command, Event, Generate, Step
from engine.replay import ReplayClient, Trace, scripted
from tests.app.tui_world import BIG, Machine

TICK_S = 0.05
TEXT = "".join(f"word{n} and more.{chr(10) * 2 if n % 9 == 8 else ' '}" for n in range(400))
QUESTION = "What do I lose?"


class Logged(ReplayClient):
    """Says what it was asked and what was taken from it."""

    def __init__(self, log: int) -> None:
        super().__init__(Trace(replies=(scripted(TEXT, step_s=0.01),)), 1.0)
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


def chat(folder: Path) -> None:
    """Ask one question, and go on until killed."""
    log = os.open(folder / "log", os.O_CREAT | os.O_WRONLY | os.O_APPEND)

    def ticks() -> None:
        while True:
            time.sleep(TICK_S)
            os.write(log, b".\n")

    threading.Thread(target=ticks, daemon=True).start()
    app = SpecChat(ChatOptions(target=BIG, drafter=NGRAM), Logged(log), Machine(chats=folder / "chats.db"))

    async def person(pilot: object) -> None:
        screen = app.chat_screen
        while screen.loaded.ready is None:
            await pilot.pause(0.02)  # type: ignore[attr-defined]
        screen.prompt.put(QUESTION)
        await pilot.press("enter")  # type: ignore[attr-defined]
        await pilot.pause(3600)  # type: ignore[attr-defined]

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
