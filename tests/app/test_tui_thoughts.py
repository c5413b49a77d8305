"""Replies whose thoughts the chat template opens: there is an end tag alone."""

from __future__ import annotations

from dataclasses import replace

from engine.replay import READY, Trace
from tests.app.tui_world import World, ask, held, scripted, sees, started, wait_for


async def test_thoughts_that_the_template_opened() -> None:
    """Only the end tag is in the reply: what stood before it is folded once it comes, and from the start in the next reply."""
    text = "I wonder.\n\nStill.\n </think> The answer."
    second = held(text, 2, kept=(0,))
    world = World(scripted(text, kept=(0,)), second)
    async with world.app.run_test(size=(80, 30)) as pilot:
        await started(world, pilot)
        await ask(world, pilot, "why?")
        await wait_for(pilot, lambda: "▸ thoughts (" in world.shown())
        await sees(world, pilot, "The answer.")
        assert "I wonder" not in world.shown()
        world.screen.prompt.put("again?")
        await pilot.press("enter")
        await sees(world, pilot, "▸ thinking (")
        assert "I wonder" not in world.shown()
        second.go()
        await wait_for(pilot, lambda: world.rests)
        assert [reply.exact for reply in world.replies] == [text, text]


async def test_thoughts_that_the_engine_says_are_open() -> None:
    """The first reply after the start begins inside them; a reply that shall not think does not."""
    text = "I wonder.\n\nStill.\n </think> The answer."
    first, second = held(text, 2, kept=(0,)), held("At once.", 1, kept=(0,))
    trace = Trace(load=((0.0, replace(READY, opens_thoughts=True)),), replies=(first, second))
    world = World(trace=trace)
    async with world.app.run_test(size=(80, 30)) as pilot:
        await started(world, pilot)
        world.screen.prompt.put("why?")
        await pilot.press("enter")
        await sees(world, pilot, "▸ thinking (")
        assert "I wonder" not in world.shown()
        first.go()
        await wait_for(pilot, lambda: world.rests)
        await sees(world, pilot, "▸ thoughts (", "The answer.")
        assert world.replies[0].exact == text
        world.screen.chat.thinking = False
        world.screen.prompt.put("quick?")
        await pilot.press("enter")
        await wait_for(pilot, lambda: len(world.replies) == 2 and world.replies[1].exact)
        assert "▸ thinking (" not in world.shown()
        second.go()
        await wait_for(pilot, lambda: world.rests)
        await sees(world, pilot, "At once.")
