"""Downloads that go on in the background, and the screen that shows, begins, stops and deletes them."""

from __future__ import annotations

import time

import pytest

from app.chat import ChatOptions
from app.downloads import Downloads, share
from app.screens.downloads import DownloadsScreen
from app.screens.picker import PickerScreen
from engine.catalog.progress import Progress
from engine.errors import EngineError
from tests.app.tui_world import BIG, SHORT, SMALL, TINY, Machine, World, ask, sees, started, wait_for
from tests.patience import Patience


def until(downloads: Downloads, condition) -> list:  # type: ignore[no-untyped-def,type-arg]
    ended, patience = [], Patience()
    while not condition():
        assert patience.left()
        if (one := downloads.look()) is not None:
            ended.append(one)
        time.sleep(0.01)
    return ended


def test_one_after_the_other() -> None:
    machine = Machine(())
    machine.hold.clear()
    downloads = Downloads(machine)
    for spec in (BIG, TINY, BIG, TINY):
        downloads.add(spec)
    until(downloads, lambda: downloads.progress is not None)
    assert downloads.current == BIG
    assert downloads.state(BIG, on_disk=False) == "50% 12 MB/s"
    assert downloads.state(TINY, on_disk=False) == "waiting"
    assert downloads.badge == "↓ 50% 12 MB/s +1"
    machine.hold.set()
    ended = until(downloads, lambda: not downloads.busy)
    assert [(one.spec, one.error) for one in ended] == [(BIG, None), (TINY, None)]
    assert machine.pulled == ["big", "tiny"]
    assert downloads.badge == ""
    assert downloads.state(BIG, on_disk=True) == "here"


def test_stopping_and_trying_again() -> None:
    """Both the running one and one that waits can be stopped; what follows goes on; adding it again begins anew."""
    machine = Machine(())
    machine.hold.clear()
    downloads = Downloads(machine)
    for spec in (BIG, TINY, SMALL):
        downloads.add(spec)
    downloads.stop("tiny")
    downloads.stop("big")
    assert downloads.current == SMALL
    assert [downloads.state(spec, on_disk=False) for spec in (BIG, TINY)] == ["stopped", "stopped"]
    downloads.add(BIG)
    assert downloads.state(BIG, on_disk=False) == "waiting"
    machine.hold.set()
    until(downloads, lambda: not downloads.busy)
    assert set(machine.pulled) == {"small", "big"}


def test_a_failure_is_kept_until_the_next_try() -> None:
    machine = Machine(())
    machine.pull_error = EngineError("The disk is full.", "Free some space.")
    downloads = Downloads(machine)
    downloads.add(TINY)
    ended = until(downloads, lambda: not downloads.busy)
    assert ended[0].error is machine.pull_error
    assert downloads.state(TINY, on_disk=False) == "failed"
    machine.pull_error = None
    downloads.add(TINY)
    until(downloads, lambda: not downloads.busy)
    assert downloads.errors == {}


def test_words_for_progress() -> None:
    assert share(None) == "connecting"
    assert share(Progress("f", 5_000_000, 0, 0.0, None, "hub")) == "5 MB"
    assert share(Progress("f", 5, 10, 9.0, None, "hub", "stalled: nothing has come for 7 s")) == "50% stalled"
    assert share(Progress("f", 5, 10, 9.0, None, "hub", "retrying: the connection broke")) == "50% retrying"


async def opened(world: World, pilot) -> DownloadsScreen:  # type: ignore[no-untyped-def]
    await started(world, pilot)
    await pilot.press("f4")
    await wait_for(pilot, lambda: isinstance(world.app.screen, DownloadsScreen))
    assert isinstance(world.app.screen, DownloadsScreen)
    return world.app.screen


@pytest.mark.parametrize("size", [(80, 24), (120, 40), (60, 16)])
async def test_fetch_in_the_background(size: tuple[int, int]) -> None:
    """Enter begins, the chat shows it in the header meanwhile, its end is said, and the list knows."""
    machine = Machine(("big",))
    machine.hold.clear()
    world = World(SHORT, machine=machine)
    async with world.app.run_test(size=size, notifications=True) as pilot:
        screen = await opened(world, pilot)
        await sees(world, pilot, "1.1 GB taken · 214.0 GB free")
        names = [spec.name for spec in screen._specs]
        assert names[0] == "big"
        await pilot.press(*["down"] * names.index("tiny"), "enter")
        await wait_for(pilot, lambda: "49 MB of 98 MB, 22 s left" in world.shown())
        await wait_for(pilot, lambda: "50% 12 MB/s" in world.shown())
        await pilot.press("escape")
        await wait_for(pilot, lambda: "↓ 50% 12 MB/s" in world.shown().split("\n")[0])
        await ask(world, pilot, "chat goes on")
        machine.hold.set()
        await wait_for(pilot, lambda: "tiny is on this machine now." in world.toasts)
        assert "↓" not in world.shown().split("\n")[0]
        screen = await opened(world, pilot)
        assert [spec.name for spec in screen._specs][:2] == ["tiny", "big"]


async def test_stop_and_failure_on_the_screen() -> None:
    machine = Machine(("big",))
    machine.hold.clear()
    world = World(SHORT, machine=machine)
    async with world.app.run_test(size=(90, 24), notifications=True) as pilot:
        screen = await opened(world, pilot)
        await pilot.press(*["down"] * [spec.name for spec in screen._specs].index("tiny"), "enter")
        await wait_for(pilot, lambda: "50%" in world.shown())
        await pilot.press("s")
        await wait_for(pilot, lambda: "stopped" in world.shown())
        machine.pull_error = EngineError("The hub cannot be reached.", "Check the connection.")
        machine.hold.set()
        await pilot.press("enter")
        await wait_for(pilot, lambda: "! The hub cannot be reached." in world.shown() and "failed" in world.shown())
        await sees(world, pilot, "Check the connection.")
        assert any("The hub cannot be reached." in text for text in world.toasts)


async def test_delete_asks_and_spares_what_is_in_use() -> None:
    world = World(SHORT)
    async with world.app.run_test(size=(90, 24), notifications=True) as pilot:
        screen = await opened(world, pilot)
        names = [spec.name for spec in screen._specs]
        await pilot.press(*["down"] * names.index("big"), "x")
        await wait_for(pilot, lambda: any("big is in use" in text for text in world.toasts))
        await pilot.press(*["up"] * (names.index("big") - names.index("tiny")), "x")
        await wait_for(pilot, lambda: "Delete tiny?" in world.shown())
        await pilot.press("n")
        await wait_for(pilot, lambda: world.app.screen is screen)
        assert "tiny" in world.machine.disk
        await pilot.press("x")
        await wait_for(pilot, lambda: "Delete tiny?" in world.shown())
        await pilot.press("y")
        await wait_for(pilot, lambda: "tiny" not in world.machine.disk)
        await wait_for(pilot, lambda: any("tiny deleted, 98 MB freed." in text for text in world.toasts))
        await wait_for(pilot, lambda: [spec.name for spec in screen._specs][-1] == "tiny" or not screen._disk.get("tiny"))


async def test_offline_forbids_and_the_command_begins_at_once() -> None:
    world = World(SHORT, machine=Machine(("big",)), options=ChatOptions(target=BIG, offline=True))
    async with world.app.run_test(size=(90, 24), notifications=True) as pilot:
        await started(world, pilot)
        world.screen.prompt.put("/downloads tiny")
        await pilot.press("enter")
        await wait_for(pilot, lambda: "--offline forbids downloads." in world.toasts)
        assert world.machine.pulled == []


async def test_the_picker_fetches_through_it() -> None:
    world = World(SHORT, machine=Machine(("big",)))
    async with world.app.run_test(size=(90, 24), notifications=True) as pilot:
        await started(world, pilot)
        await pilot.press("ctrl+g")
        await wait_for(pilot, lambda: isinstance(world.app.screen, PickerScreen) and world.app.screen.shown)
        await pilot.press("d")
        await wait_for(pilot, lambda: any("needs no files" in text for text in world.toasts))
        await pilot.press("down", "d")
        await wait_for(pilot, lambda: isinstance(world.app.screen, DownloadsScreen))
        await wait_for(pilot, lambda: world.machine.pulled == ["small"])
        await wait_for(pilot, lambda: "small is on this machine now." in world.toasts)
