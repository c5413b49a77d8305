"""The first start beyond the offers: rows by number, a model of one's own, the demo."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

import app.demo
import app.tui
from app.chat import ChatOptions
from app.screens.name import NameScreen
from app.screens.pull import PullScreen
from engine.catalog.catalog import Catalog
from engine.catalog.specs import ModelSpec
from engine.errors import EngineError
from engine.protocol import Load
from tests.app.tui_world import BIG, Machine, World, started, wait_for

MINE = ModelSpec("mine", path=Path("/models/mine"))
FAR = ModelSpec("far", repo="org/far", size=98_000_000)


class Own(Machine):
    """Knows a folder, a hub id, and a folder that is not there."""

    def catalog(self) -> Catalog:
        class Wide(Catalog):
            def target(self, name: str) -> ModelSpec:
                if name == "/models/mine":
                    return MINE
                if name == "/nowhere":
                    return ModelSpec("nowhere", path=Path("/nowhere"))
                return FAR if name == "org/far" else super().target(name)

        known = super().catalog()
        return Wide(known.targets, known.drafters, known.defaults)


def first(machine: Machine | None = None) -> World:
    return World(machine=machine or Own(on_disk=("mine",)), options=ChatOptions(target=None))


async def offered(world: World, pilot) -> PullScreen:  # type: ignore[no-untyped-def]
    await wait_for(pilot, lambda: isinstance(world.app.screen, PullScreen) and "tiny" in world.shown())
    screen = world.app.screen
    assert isinstance(screen, PullScreen)
    return screen


async def test_a_number_takes_a_row() -> None:
    world = first(Machine(on_disk=("big",)))
    async with world.app.run_test(size=(80, 24)) as pilot:
        await offered(world, pilot)
        assert "2  big" in world.shown()
        await pilot.press("9")  # there is no such row
        await pilot.press("2")
        await started(world, pilot)
        load = world.client.sent[0]
        assert isinstance(load, Load)
        assert load.target == BIG


@pytest.mark.parametrize("size", [(80, 24), (120, 40), (60, 16)])
async def test_a_model_of_ones_own(size: tuple[int, int]) -> None:
    """One that is here is loaded; one of the hub joins the list; a mistake is said, and nothing is left."""
    world = first()
    async with world.app.run_test(size=size) as pilot:
        screen = await offered(world, pilot)
        for said, error in (("/nowhere", "There is nothing at /nowhere."), ("nonsense", "There is no model named 'nonsense'")):
            await pilot.press("3")
            await wait_for(pilot, lambda: isinstance(world.app.screen, NameScreen))
            await pilot.press(*said, "enter")
            await wait_for(pilot, lambda error=error: world.app.screen is screen and error in str(screen._state.content))
        await pilot.press("3")
        await wait_for(pilot, lambda: isinstance(world.app.screen, NameScreen))
        await pilot.press(*"org/far", "enter")
        await wait_for(pilot, lambda: world.app.screen is screen and "3  far" in world.shown())
        assert screen._list.highlighted == 2
        assert world.machine.pulled == []
        await pilot.press("4")
        await wait_for(pilot, lambda: isinstance(world.app.screen, NameScreen))
        await pilot.press(*"/models/mine", "enter")
        await started(world, pilot)
        load = world.client.sent[0]
        assert isinstance(load, Load)
        assert load.target == MINE


async def test_the_demo_is_one_key_away() -> None:
    world = first()
    async with world.app.run_test(size=(80, 24)) as pilot:
        await offered(world, pilot)
        assert "needs no model" in world.shown()
        await pilot.press("4")
        await wait_for(pilot, lambda: world.app.wants_demo)
    assert world.app.return_code == 0


def test_leaving_for_the_demo_opens_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """The terminal is restored in between, and the demo's own end is the end."""
    ran: list[bool] = []

    def run(self: app.tui.SpecChat, mouse: bool = True) -> int:
        ran.append(self.chat_screen.surroundings.demo)
        self.wants_demo = len(ran) == 1
        return 0

    monkeypatch.setattr(app.tui.SpecChat, "run", run)
    world = first()
    assert app.tui.run_chat(replace(ChatOptions(), target=None), world.client, world.machine) == 0
    assert ran == [False, True]


def test_unknown_names_stay_errors() -> None:
    with pytest.raises(EngineError):
        Own().catalog().target("nonsense")
