"""Keys that come faster than they are handled, as after a long drawing: each finds what the one before has left."""

from __future__ import annotations

import asyncio

import pytest
from textual import events
from textual.keys import _character_to_key

from app import keys
from tests.app.tui_world import World, ask, started, wait_for

CHARACTERS = {"enter": "\r", "tab": "\t", "escape": "\x1b"}


def type_at_once(world: World, *keys: str) -> None:
    """All of them are there before the first is looked at."""
    for key in keys:
        event = events.Key(_character_to_key(key), key) if len(key) == 1 else events.Key(key, CHARACTERS.get(key))
        event.set_sender(world.app)
        world.app.post_message(event)


@pytest.mark.parametrize(
    ("typed", "text"),
    [
        ("x up y", "ysecond\nline"),
        ("u up up up down", "second\nline"),
        ("u up up up down down down down", "u"),
        ("a b left x", "axb"),
        ("a b c home x end y", "xabcy"),
        ("a ctrl+j b", "a\nb"),
        ("/ d tab", "/draft "),
        ("/ d r enter", "/draft "),
        ("a tab escape b", "ab"),
    ],
)
async def test_typed_at_once(typed: str, text: str) -> None:
    """Text, the cursor, older prompts, line ends, completion, and the way to the transcript and back."""
    world = World("One.", "Two.")
    async with world.app.run_test() as pilot:
        await started(world, pilot)
        await ask(world, pilot, "first")
        await ask(world, pilot, "second\nline")
        type_at_once(world, *typed.split())
        await pilot.pause()
        assert world.screen.prompt.text == text
        assert len(world.requests) == 2


async def test_what_is_typed_behind_enter_stays_in_the_box() -> None:
    world = World("One.")
    async with world.app.run_test() as pilot:
        await started(world, pilot)
        type_at_once(world, *"hi", "enter", *"and")
        await wait_for(pilot, lambda: world.requests and world.rests)
        assert world.requests[0].messages[-1].content == "hi"
        assert world.screen.prompt.text == "and"


async def test_a_paste_has_its_place_among_the_keys() -> None:
    world = World("One.")
    async with world.app.run_test() as pilot:
        await started(world, pilot)
        type_at_once(world, "a")
        world.app.post_message(events.Paste("b\nc"))
        type_at_once(world, "d", "enter")
        await wait_for(pilot, lambda: world.requests)
        assert world.requests[0].messages[-1].content == "ab\ncd"


async def test_a_widget_that_is_stuck_does_not_keep_the_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    """They go on after a moment: ^Q still leaves."""
    monkeypatch.setattr(keys, "LOOKS", 3)
    world = World("One.")
    async with world.app.run_test() as pilot:
        await started(world, pilot)
        free = asyncio.Event()
        world.screen.prompt.call_later(free.wait)
        begun_s = asyncio.get_running_loop().time()
        type_at_once(world, "a", "ctrl+q")
        while world.app.is_running and world.app.return_code is None:
            await asyncio.sleep(0.01)
        assert asyncio.get_running_loop().time() - begun_s >= 3 * keys.LOOK_S
        free.set()
    assert world.app.return_code == 0
