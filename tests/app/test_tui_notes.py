"""Notes in the transcript: what loading a pair of models has to say, once per session."""

from __future__ import annotations

from dataclasses import replace

from engine.replay import READY, Trace
from tests.app.tui_world import SHORT, World, ask, scripted, sees, started, wait_for


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


async def test_a_fixed_length_that_makes_it_slower_is_said_once_for_each_drafter_and_length() -> None:
    """Steps of 31 ms that bring 1.2 tokens, plain ones of 20 ms; with the controller on, or for a few tokens, nothing is said."""
    losing = scripted("word " * 60, kept=(0, 0, 0, 0, 1), plain_s=0.02)
    few = scripted("too few words", kept=(0,), plain_s=0.02)
    swap = ((0.0, replace(READY, drafter="small", method="pf")),)
    world = World(trace=Trace(swap=swap, replies=(losing, losing, losing, few, losing, losing)))
    said = "With /k {} this drafter is slower than plain decoding (0.76x): /k auto decides live, /draft off turns it off."
    async with world.app.run_test() as pilot:
        await started(world, pilot)
        await ask(world, pilot, "live")
        assert not any("slower" in note for note in world.notes)
        for k, question in ((4, "one"), (4, "the same"), (3, "few"), (3, "another length")):
            world.screen.chat.k = k
            await ask(world, pilot, question)
            found = [note for note in world.notes if "slower" in note]
            assert found == [said.format(4), said.format(3)][: 1 + (question == "another length")]
        world.screen.prompt.put("/draft small")
        await pilot.press("enter")
        await wait_for(pilot, lambda: any(note.startswith("Drafter: small") for note in world.notes))
        await ask(world, pilot, "another drafter")
        assert [note for note in world.notes if "slower" in note] == [said.format(4), said.format(3), said.format(3)]


async def test_a_fixed_length_that_pays_is_no_matter() -> None:
    world = World(scripted("word " * 60, plain_s=0.03))
    async with world.app.run_test() as pilot:
        await started(world, pilot)
        world.screen.chat.k = 4
        await ask(world, pilot, "why?")
        assert not any("slower" in note for note in world.notes)


async def test_what_had_to_be_read_again_is_said() -> None:
    """After a reply whose prompt of 2,000 tokens is in the cache, and then is not; a new chat has read nothing before."""
    first = scripted(SHORT, prompt_tokens=2000)
    kept, lost = scripted(SHORT, prompt_tokens=2100, reused=2000), scripted(SHORT, prompt_tokens=2200, reused=4)
    world = World(first, kept, lost, scripted(SHORT, prompt_tokens=2000))
    async with world.app.run_test(size=(100, 30)) as pilot:
        await started(world, pilot)
        for question in ("one", "two", "three"):
            await ask(world, pilot, question)
        said = [turn.answer.numbers if turn.answer is not None else "" for turn in world.screen.chat.turns]
        assert ["re-read" in numbers for numbers in said] == [False, False, True]
        await sees(world, pilot, "re-read 2,096 tokens · seed ")
        await pilot.press("ctrl+n")
        await ask(world, pilot, "four")
        assert "re-read" not in world.shown()
