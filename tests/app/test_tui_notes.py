"""Notes in the transcript: what loading a pair of models has to say, once per session."""

from __future__ import annotations

from dataclasses import replace

from engine.replay import READY, Trace
from tests.app.tui_world import SHORT, World, scripted, started, wait_for


async def test_a_note_about_a_pair_is_said_once_however_often_it_is_swapped() -> None:
    """Back and forth between two drafters: each sentence about a pair once; the line that says who drafts comes each time."""
    few = "Few tokens of small begin as big would go on."
    swap = ((0.0, replace(READY, drafter="small", method="pf", notes=(few,))),)
    world = World(trace=Trace(swap=swap, replies=(scripted(SHORT),)))
    async with world.app.run_test() as pilot:
        await started(world, pilot)
        for count in range(1, 4):
            world.screen.prompt.put("/draft small")
            await pilot.press("enter")
            await wait_for(pilot, lambda count=count: world.notes.count("Drafter: small (pf)") == count)
        assert world.notes.count(few) == 1
