"""A panel or a note at the end of the chat and somebody who reads further up: the view stays, unless the person is asked something."""

from __future__ import annotations

import pytest
from textual.pilot import Pilot

from app.widgets.panel import Choice, Panel
from engine.errors import EngineError
from tests.app.test_tui_commands import say
from tests.app.tui_world import World, ask, held, sees, settled, started, wait_for

LONG = "".join(f"Paragraph {n} of a long reply.\n\n" for n in range(60))


async def reading(world: World, pilot: Pilot[int], mode: str) -> int:
    """A chat in which somebody has scrolled up; the row where the view is."""
    await started(world, pilot)
    await ask(world, pilot, "go")
    view = world.screen.transcript
    view.mode = mode
    await wait_for(pilot, lambda: view.below == 0)
    await pilot.press("pageup")
    await wait_for(pilot, lambda: view.below > 0)
    await settled(pilot)
    return round(view.scroll_y)


@pytest.mark.parametrize("mode", ["end", "start", "off"])
async def test_a_panel_does_not_move_a_reader(mode: str) -> None:
    """Nor does a note; the border says that there is something below."""
    world = World(LONG)
    async with world.app.run_test() as pilot:
        place = await reading(world, pilot, mode)
        view = world.screen.transcript
        below = view.below
        await world.screen.trouble(EngineError("The disk is full.", "Make room."), asked=False)
        await world.screen.note("A quiet line.")
        await settled(pilot)
        assert round(view.scroll_y) == place
        assert view.below > below
        await sees(world, pilot, f"{view.below} lines below · ^End follows")
        assert "The disk is full." not in world.shown()
        await pilot.press("ctrl+end")
        await sees(world, pilot, "The disk is full.", "A quiet line.")


async def test_a_panel_in_mid_reply_does_not_move_a_reader_who_follows_nothing() -> None:
    """In the mode off, with the view at its place while the text grows."""
    reply = held(LONG, 60)
    world = World(LONG, reply)
    async with world.app.run_test() as pilot:
        await started(world, pilot)
        await ask(world, pilot, "go")
        view = world.screen.transcript
        view.mode = "off"
        world.screen.prompt.put("again")
        await pilot.press("enter")
        await wait_for(pilot, lambda: view.below > 0)
        await settled(pilot)
        place = round(view.scroll_y)
        await world.screen.trouble(EngineError("The disk is full.", "Make room."), asked=False)
        reply.go()
        await wait_for(pilot, lambda: world.rests)
        await settled(pilot)
        assert round(view.scroll_y) == place


@pytest.mark.parametrize("mode", ["end", "off"])
async def test_a_panel_is_seen_by_those_at_the_end(mode: str) -> None:
    world = World(LONG)
    async with world.app.run_test() as pilot:
        await started(world, pilot)
        await ask(world, pilot, "go")
        world.screen.transcript.mode = mode
        await wait_for(pilot, lambda: world.screen.transcript.below == 0)
        await world.screen.trouble(EngineError("The disk is full.", "Make room."), asked=False)
        await sees(world, pilot, "The disk is full.")


@pytest.mark.parametrize("mode", ["end", "off"])
async def test_a_panel_that_asks_is_gone_to(mode: str) -> None:
    """It takes the keys, so it has to be on the screen; and so is what the person has just called for."""
    world = World(LONG)
    async with world.app.run_test() as pilot:
        await reading(world, pilot, mode)
        await world.screen.panel(Panel("Which way?", choices=(Choice("1", "That one", "leave"),)))
        await sees(world, pilot, "Which way?", "That one")
        assert isinstance(world.screen.focused, Panel)
        await pilot.press("1")
        await pilot.press("pageup")
        await wait_for(pilot, lambda: world.screen.transcript.below > 0)
        await say(world, pilot, "/context")
        await sees(world, pilot, "/prompt shows the text itself.")
