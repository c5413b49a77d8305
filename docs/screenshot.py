"""Make the pictures of the README from the demo: python docs/screenshot.py [NAME …]. Without names all of them.

The screens play the recording, so the pictures are the same on every machine; the numbers on them are those of the recording.
"""

from __future__ import annotations

import asyncio
import os
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from textual.pilot import Pilot

from app.demo import demo
from app.tui import SpecChat

HERE = Path(__file__).parent
WIDE, NARROW = (120, 38), (80, 24)
PATIENCE_S = 900.0
Scene = Callable[[SpecChat, Pilot[int]], Awaitable[None]]


async def until(pilot: Pilot[int], true: Callable[[], object]) -> None:
    """Let the application run until this is so."""
    end_s = time.monotonic() + PATIENCE_S
    while not true():
        if time.monotonic() > end_s:
            raise SystemExit("The screen did not come so far.")
        await pilot.pause(0.05)


async def answered(app: SpecChat, pilot: Pilot[int], questions: int = 1) -> None:
    """Ask what the demo offers."""
    chat = app.chat_screen
    await until(pilot, lambda: chat.loaded.ready is not None and not chat.loaded.loading)
    for n in range(1, questions + 1):
        await pilot.press("enter")
        await until(pilot, lambda n=n: len(chat.chat.turns) == n and not chat.situation.generating)  # type: ignore[misc]
    await pilot.pause(0.5)


async def chat(app: SpecChat, pilot: Pilot[int]) -> None:
    """A question and its answer, beside the numbers."""
    await answered(app, pilot)


async def tokens(app: SpecChat, pilot: Pilot[int]) -> None:
    """The same, token by token."""
    await answered(app, pilot)
    await pilot.press("ctrl+t")
    await pilot.pause(0.5)


async def compare(app: SpecChat, pilot: Pilot[int]) -> None:
    """A race that has ended."""
    await answered(app, pilot)
    await pilot.press("f5")
    await until(pilot, lambda: app.screen is not app.chat_screen)
    await pilot.press("enter", "t")
    await until(pilot, lambda: getattr(app.screen, "runner", None) is not None and not app.screen.running)  # type: ignore[attr-defined]
    await pilot.pause(1.0)


async def bench(app: SpecChat, pilot: Pilot[int]) -> None:
    """A report."""
    await answered(app, pilot, 0)
    await pilot.press("f6")
    await until(pilot, lambda: app.screen is not app.chat_screen)
    await pilot.press("r")
    await until(pilot, lambda: getattr(app.screen, "runner", None) is not None and not app.screen.running)  # type: ignore[attr-defined]
    await pilot.pause(1.5)


async def drafters(app: SpecChat, pilot: Pilot[int]) -> None:
    """The choice of drafters."""
    await answered(app, pilot)
    await pilot.press("ctrl+g")
    await until(pilot, lambda: app.screen is not app.chat_screen)
    await pilot.pause(1.0)


async def steps(app: SpecChat, pilot: Pilot[int]) -> None:
    """The steps of a reply."""
    await answered(app, pilot)
    await pilot.press("f3")
    await until(pilot, lambda: app.screen is not app.chat_screen)
    await pilot.pause(0.5)


SCENES: dict[str, tuple[Scene, tuple[int, int]]] = {
    "chat": (chat, WIDE),
    "tokens": (tokens, WIDE),
    "compare": (compare, WIDE),
    "bench": (bench, WIDE),
    "drafters": (drafters, NARROW),
    "steps": (steps, NARROW),
}


async def picture(name: str) -> None:
    """One scene into one file."""
    scene, size = SCENES[name]
    options, client, machine = demo()
    app = SpecChat(options, client, machine)
    async with app.run_test(size=size) as pilot:
        await scene(app, pilot)
        (HERE / f"{name}.svg").write_text(app.export_screenshot(title="specchat --demo"), encoding="utf-8")
    client.close()
    print(f"docs/{name}.svg")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as home:
        os.environ["SPECCHAT_HOME"] = home  # reports of the demo are not kept among the person's own
        for wanted in sys.argv[1:] or SCENES:
            asyncio.run(picture(wanted))
