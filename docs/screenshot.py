"""Make docs/chat.svg from a real chat: python docs/screenshot.py [TARGET [DRAFTER]]. The numbers on it are the machine's own."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from app.chat import ChatOptions
from app.tui import SpecChat
from engine.catalog import catalog
from engine.protocol import LoadOptions, Sampling

QUESTIONS = (
    "Write a Python function that returns the average of a list.",
    "Add type hints and a docstring to it, and change nothing else.",
)


async def main(target: str, drafter: str) -> None:
    """Ask, wait, save."""
    names = catalog.load()
    load = LoadOptions(context=4096)
    options = ChatOptions(
        target=names.target(target), drafter=names.drafter(drafter), load=load, sampling=Sampling(temperature=0.0), max_tokens=220
    )
    app = SpecChat(options)
    async with app.run_test(size=(96, 34)) as pilot:
        screen = app.chat_screen
        while screen.loaded.ready is None or screen.loaded.loading:
            await pilot.pause(0.2)
        for question in QUESTIONS:
            screen.prompt.put(question)
            await pilot.press("enter")
            await pilot.pause(1.0)
            while screen.situation.generating:
                await pilot.pause(0.2)
        await pilot.pause(1.0)
        (Path(__file__).parent / "chat.svg").write_text(app.export_screenshot(title="specchat"), encoding="utf-8")
    app.client.close()


if __name__ == "__main__":
    given = sys.argv[1:]
    asyncio.run(main(*given, *("qwen2.5-coder-1.5b", "ngram")[len(given) :]))
