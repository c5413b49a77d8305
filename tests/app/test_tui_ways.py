"""More ways out where memory is short: 4 bits, another model, another drafter."""

from __future__ import annotations

from dataclasses import replace

import pytest

from app.chat import ChatOptions
from app.screens.picker import PickerScreen
from engine.catalog.specs import NGRAM
from engine.protocol import Failed, Load, LoadOptions
from engine.replay import Trace
from tests.app.tui_world import BIG, SHORT, SMALL, World, scripted, started, wait_for

NO_MEMORY = Failed("Not enough memory.", "Choose a smaller model.", "memory")


async def test_four_bits_are_a_way_where_they_are_not_in_use() -> None:
    world = World(trace=Trace(load=((0.0, NO_MEMORY),)), options=ChatOptions(target=BIG, drafter=NGRAM, load=LoadOptions(context=512)))
    async with world.app.run_test() as pilot:
        await wait_for(pilot, lambda: world.panels and world.screen.focused is world.panels[0])
        assert "[1] Load it in 4 bits" in world.panels[0].plain
        world.client.trace = Trace(replies=(scripted(SHORT),))
        await pilot.press("1")
        await started(world, pilot)
        last = world.client.sent[-1]
        assert isinstance(last, Load)
        assert (last.options.quant, last.options.context) == ("nf4", 512)
    small = ChatOptions(target=replace(BIG, quant="nf4"), drafter=NGRAM, load=LoadOptions(context=512))
    world = World(trace=Trace(load=((0.0, NO_MEMORY),)), options=small)
    async with world.app.run_test() as pilot:
        await wait_for(pilot, lambda: world.panels and world.screen.focused is world.panels[0])
        assert "4 bits" not in world.panels[0].plain


@pytest.mark.parametrize("swap", [True, False])
async def test_another_one_is_chosen_from_the_list(swap: bool) -> None:
    """The panel of a failed load opens the list of models, that of a failed swap the list of drafters."""
    failed = ((0.0, NO_MEMORY),)
    trace = Trace(swap=failed, replies=(scripted(SHORT),)) if swap else Trace(load=failed)
    options = ChatOptions(target=BIG, drafter=NGRAM, load=LoadOptions(quant="nf4", context=512))
    world = World(trace=trace, options=options)
    async with world.app.run_test() as pilot:
        if swap:
            await started(world, pilot)
            world.screen.prompt.put(f"/draft {SMALL.name}")
            await pilot.press("enter")
        await wait_for(pilot, lambda: world.panels and world.screen.focused is world.panels[0])
        await pilot.press("2" if swap else "1")
        await wait_for(pilot, lambda: isinstance(world.app.screen, PickerScreen))
        screen = world.app.screen
        assert isinstance(screen, PickerScreen)
        assert screen.drafters is swap
