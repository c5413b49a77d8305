"""The lists of models: compatibility with reasons, memory, experience, the trial, and what a choice does."""

from __future__ import annotations

from dataclasses import replace

import pytest

from app.picks import checked, drafters, expect, fit_about, fit_word, targets
from app.screens.picker import PickerScreen
from app.trial import PROMPT
from engine.catalog.specs import AUTO, NGRAM, NONE, ModelSpec
from engine.protocol import Failed, Generate, Load, LoadOptions, SwapDrafter
from engine.trace import READY, Trace, scripted
from tests.app.tui_world import BIG, SHORT, SMALL, TINY, Machine, World, ask, held, sees, started, stuck, wait_for


def by_name(found):  # type: ignore[no-untyped-def]
    return {pick.spec.name: pick for pick in found.picks}


def test_drafters_say_what_suits_and_why_not() -> None:
    machine = Machine(("big", "small"))
    rows = by_name(drafters(machine.catalog(), machine, LoadOptions(), BIG, replace(READY, target="big")))
    assert list(rows)[:3] == ["none", "auto", "ngram"]
    assert rows["ngram"].speedup == 1.31
    assert (rows["small"].tokenizer, rows["small"].on_disk, rows["small"].rare) == ("same", True, False)
    assert (rows["tiny"].tokenizer, rows["tiny"].on_disk, rows["tiny"].rare) == ("bridge", False, True)
    assert "90 of 100 ids differ" in rows["tiny"].tokenizer_about
    assert "made for other only" in rows["heads-for-other"].blocked
    assert list(rows)[-1] == "heads-for-other"
    assert rows["none"].in_use
    assert "big" not in rows


def test_targets_have_no_heads_and_count_what_is_freed() -> None:
    machine = Machine(("tiny",))
    found = targets(machine.catalog(), machine, LoadOptions(), READY)
    assert [pick.spec.name for pick in found.picks] == ["tiny", "big"]
    assert found.free == 4_000_000_000 + 950_000_000
    assert fit_word(by_name(found)["big"]) == "fits"


@pytest.mark.parametrize(("need", "word", "about"), [(3_400_000_000, "tight", "leaves"), (9_000_000_000, "no room", "more than is free")])
def test_memory_in_words(need: int, word: str, about: str) -> None:
    class Full(Machine):
        def need(self, spec: ModelSpec, options: LoadOptions, *, beside: bool) -> int:
            return need

    machine = Full()
    pick = by_name(drafters(machine.catalog(), machine, LoadOptions(), BIG, READY))["small"]
    assert fit_word(pick) == word
    assert about in fit_about(pick)


def test_size_promises() -> None:
    assert "unlikely" in expect(ModelSpec("x", params=1.0), BIG)
    assert "1/3" in expect(SMALL, BIG)
    assert expect(NGRAM, BIG) == expect(SMALL, None) == ""


async def opened(world: World, pilot, key: str = "ctrl+g") -> PickerScreen:  # type: ignore[no-untyped-def]
    await pilot.press(key)
    await wait_for(pilot, lambda: isinstance(world.app.screen, PickerScreen) and world.app.screen.shown)
    assert isinstance(world.app.screen, PickerScreen)
    return world.app.screen


@pytest.mark.parametrize("size", [(80, 24), (120, 40), (60, 16)])
async def test_choosing_a_drafter_swaps_it(size: tuple[int, int]) -> None:
    """The cursor begins at the one in use; Enter swaps; the prompt has the focus again; the number of tokens is taken, too."""
    world = World(trace=Trace(swap=((0.0, replace(READY, method="model")),), replies=(scripted(SHORT),)))
    async with world.app.run_test(size=size) as pilot:
        await started(world, pilot)
        screen = await opened(world, pilot)
        assert screen.pick is not None
        assert screen.pick.spec == NGRAM
        await sees(world, pilot, "Drafter for big")
        await pilot.press("down", "right", "right", "right", "left")
        await wait_for(pilot, lambda: "◂ 2 ▸" in world.shown())
        await wait_for(pilot, lambda: "151,936 ids, all equal" in world.shown())
        await pilot.press("enter")
        await wait_for(pilot, lambda: world.client.sent[-1] == SwapDrafter(SMALL))
        assert world.screen.chat.k == 2
        await wait_for(pilot, lambda: world.screen.focused is world.screen.prompt)
        await wait_for(pilot, lambda: "draft: small k=2" in world.shown())


async def test_blocked_ones_say_why_and_cannot_be_chosen() -> None:
    world = World(SHORT)
    async with world.app.run_test(size=(90, 30), notifications=True) as pilot:
        await started(world, pilot)
        screen = await opened(world, pilot)
        assert "heads-for-other" not in world.shown()
        await sees(world, pilot, "1 blocked (b)")
        await pilot.press("b", *["down"] * 6)
        await wait_for(pilot, lambda: "x heads-for-other" in world.shown())
        await wait_for(pilot, lambda: "Cannot be used: made for other only" in world.shown())
        assert "blocked (b)" not in world.shown()
        await pilot.press("enter")
        await wait_for(pilot, lambda: any("made for other only" in text for text in world.toasts))
        assert world.app.screen is screen
        await pilot.press("t")
        await wait_for(pilot, lambda: any("cannot be used" in text for text in world.toasts))
        await pilot.press("escape")
        await wait_for(pilot, lambda: world.app.screen is world.screen)
        assert len(world.client.sent) == 1


async def test_while_a_filter_is_on_nothing_is_hidden() -> None:
    world = World(SHORT)
    async with world.app.run_test(size=(90, 30)) as pilot:
        await started(world, pilot)
        await opened(world, pilot)
        await sees(world, pilot, "1 blocked (b)")
        await pilot.press("slash", *"small")
        await wait_for(pilot, lambda: "blocked (b)" not in world.shown())


async def test_filter_and_nothing_found() -> None:
    world = World(SHORT)
    async with world.app.run_test(size=(80, 24)) as pilot:
        await started(world, pilot)
        screen = await opened(world, pilot)
        await pilot.press("slash", *"tin")
        await wait_for(pilot, lambda: [pick.spec.name for pick in screen.shown] == ["tiny"])
        await pilot.press("x")
        await wait_for(pilot, lambda: "Nothing has this name." in world.shown())
        await pilot.press("backspace", "enter", "enter")
        await wait_for(pilot, lambda: world.client.sent[-1] == SwapDrafter(replace(TINY, role="drafter")))


async def test_a_trial_measures_and_restores() -> None:
    """It writes 32 tokens of the last question with that drafter, puts the old one back, and the chat goes on as if nothing was."""
    trace = Trace(replies=(scripted(SHORT), scripted("word " * 31, plain_s=0.06, step_s=0.03)))
    world = World(trace=trace)
    async with world.app.run_test(size=(100, 30)) as pilot:
        await started(world, pilot)
        await ask(world, pilot, "my question")
        screen = await opened(world, pilot)
        await pilot.press("down", "t")
        await wait_for(pilot, lambda: "small" in screen.trials)
        assert [type(command) for command in world.client.sent[-3:]] == [SwapDrafter, Generate, SwapDrafter]
        swap, request, back = world.client.sent[-3:]
        assert (swap, back) == (SwapDrafter(SMALL), SwapDrafter(NGRAM))
        assert isinstance(request, Generate)
        assert (request.max_tokens, request.messages[-1].content) == (32, "my question")
        result = screen.trials["small"]
        await wait_for(pilot, lambda: result.words in world.shown())
        assert result.tau > 1
        assert result.speedup == pytest.approx(result.tok_per_s * 0.06)
        await pilot.press("escape")
        await wait_for(pilot, lambda: world.app.screen is world.screen)
        await ask(world, pilot, "more")
        assert len(world.replies) == 2
        again = await opened(world, pilot)
        assert again.trials["small"] == result


async def test_a_trial_in_an_empty_chat_and_one_that_fails() -> None:
    trace = Trace(swap=((0.0, Failed("No room.", "Choose a smaller one.", "memory")),), replies=(scripted(SHORT),))
    world = World(trace=trace)
    async with world.app.run_test(size=(100, 30)) as pilot:
        await started(world, pilot)
        await opened(world, pilot)
        await pilot.press("down", "t")
        await wait_for(pilot, lambda: "! No room." in world.shown())
        assert not world.screen.lent
        await pilot.press("escape")
        await wait_for(pilot, lambda: world.app.screen is world.screen)
        from app.trial import request_for

        assert request_for(world.screen.chat).messages[-1].content == PROMPT


async def test_a_trial_can_be_stopped() -> None:
    world = World(stuck(scripted("word " * 200), 2), speed=1.0)
    async with world.app.run_test(size=(100, 30)) as pilot:
        await started(world, pilot)
        screen = await opened(world, pilot)
        await pilot.press("down", "t")
        await wait_for(pilot, lambda: "Writing 32 tokens" in world.shown())
        await pilot.press("escape")
        await wait_for(pilot, lambda: not world.screen.lent)
        await wait_for(pilot, lambda: "Stopped." in world.shown())
        assert world.client.sent[-1] == SwapDrafter(NGRAM)
        assert screen.trials == {}


async def test_no_trial_during_a_reply() -> None:
    world = World(held(SHORT * 40, 5))
    async with world.app.run_test(size=(100, 30), notifications=True) as pilot:
        await started(world, pilot)
        world.screen.prompt.put("go")
        await pilot.press("enter")
        await wait_for(pilot, lambda: world.screen.situation.generating)
        await opened(world, pilot)
        await pilot.press("t")
        await wait_for(pilot, lambda: any("a trial would disturb it" in text for text in world.toasts))
        assert "try 32" not in world.shown()


async def test_choosing_a_target_loads_it() -> None:
    world = World(SHORT)
    async with world.app.run_test(size=(100, 30)) as pilot:
        await started(world, pilot)
        screen = await opened(world, pilot, "ctrl+l")
        assert [pick.spec.name for pick in screen.shown] == ["tiny", "big"]
        await pilot.press("up", "enter")
        await wait_for(pilot, lambda: isinstance(world.client.sent[-1], Load) and world.client.sent[-1].target == TINY)
        await wait_for(pilot, lambda: "tiny nf4" in world.shown())


def test_built_in_ones_need_nothing() -> None:
    machine = Machine()
    rows = by_name(drafters(machine.catalog(), machine, LoadOptions(), None, None))
    for spec in (NONE, AUTO, NGRAM):
        assert rows[spec.name].on_disk
        assert fit_about(rows[spec.name]) == "needs none of its own"
    assert rows["small"].tokenizer == "?"


async def test_check_reads_the_tokenizers() -> None:
    """How a pair would be used, or what went wrong; nothing to check for the look-up."""
    world = World(SHORT)
    async with world.app.run_test(size=(100, 30), notifications=True) as pilot:
        await started(world, pilot)
        screen = await opened(world, pilot)
        await pilot.press("c")
        await wait_for(pilot, lambda: any("goes with every target" in text for text in world.toasts))
        await pilot.press("down", "down", "c")
        await wait_for(pilot, lambda: "Checked    would be used as pf" in world.shown())
        await sees(world, pilot, "39,234 tokens; of those in texts: chat 99%  code 94%")
        await pilot.press("up", "c")
        await wait_for(pilot, lambda: "! The process that reads the tokenizers crashed." in world.shown())
        assert screen.pick is not None
        assert screen.pick.spec == SMALL


def test_refusals_in_words() -> None:
    assert checked({"refused": "it lower-cases its text"}) == ["Checked    refused: it lower-cases its text"]
    assert checked({"refused": None, "method": "hydra"}) == ["Checked    would be used as hydra"]
