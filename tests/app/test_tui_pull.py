"""First start and missing models: offers, a download with progress, stopping, errors. Nothing is fetched without Enter."""

from __future__ import annotations

from app.chat import ChatOptions
from app.screens.pull import PullScreen, time_left
from engine.catalog.specs import AUTO, NGRAM, NONE, ModelSpec
from engine.errors import EngineError
from engine.protocol import Load, SwapDrafter
from tests.app.tui_world import BIG, SHORT, SMALL, TINY, Machine, World, ask, sees, started, wait_for
from tests.patience import PATIENCE_S


def pulling(world: World) -> bool:
    return isinstance(world.app.screen, PullScreen)


async def test_first_start_offers_pulls_loads_and_chats() -> None:
    """The screen says what the machine has and what suits it; Enter fetches with a bar; then one can chat."""
    machine = Machine(on_disk=())
    machine.hold.clear()
    world = World(SHORT, machine=machine, options=ChatOptions(target=None))
    async with world.app.run_test(size=(80, 24)) as pilot:
        await wait_for(pilot, lambda: pulling(world) and "tiny" in world.shown())
        shown = world.shown()
        for text in (
            "small models run well on the CPU",
            "A processor, 8 cores",
            "16 GB",
            "98 MB",
            "1.1 GB",
            "recommended",
            "before you press Enter",
        ):
            assert text in shown
        assert machine.pulled == []
        assert world.client.sent == []
        await pilot.press("enter")
        await wait_for(pilot, lambda: "Downloading tiny" in world.shown() and "50%" in world.shown())
        await sees(world, pilot, "49 MB of 98 MB · 12 MB/s · 22 s left")
        machine.hold.set()
        await started(world, pilot)
        assert machine.pulled == ["tiny"]
        load = world.client.sent[0]
        assert isinstance(load, Load)
        assert (load.target, load.drafter) == (TINY, AUTO)
        await wait_for(pilot, lambda: world.screen.focused is world.screen.prompt)
        await ask(world, pilot, "hi")
        assert world.replies[0].exact == SHORT


async def test_another_offer_can_be_chosen() -> None:
    world = World(machine=Machine(on_disk=("big",)), options=ChatOptions(target=None))
    async with world.app.run_test() as pilot:
        await wait_for(pilot, lambda: pulling(world) and "on this machine" in world.shown())
        await pilot.press("down", "enter")
        await started(world, pilot)
        assert world.machine.pulled == []
        load = world.client.sent[0]
        assert isinstance(load, Load)
        assert load.target == BIG


async def test_escape_stops_the_download_then_leaves() -> None:
    machine = Machine(on_disk=())
    machine.hold.clear()
    world = World(machine=machine, options=ChatOptions(target=None))
    async with world.app.run_test() as pilot:
        await wait_for(pilot, lambda: pulling(world) and "tiny" in world.shown())
        await pilot.press("enter")
        await wait_for(pilot, lambda: "Downloading tiny" in world.shown())
        await pilot.press("escape")
        await wait_for(pilot, lambda: "Stopped. What was fetched is kept" in world.shown())
        assert pulling(world)
        await pilot.press("escape")
        await wait_for(pilot, lambda: not pulling(world) and world.panels)
        assert "No model is loaded." in world.panels[0].plain
        assert machine.pulled == []
        assert world.client.sent == []


async def test_a_failed_download_says_why_and_can_be_tried_again() -> None:
    machine = Machine(on_disk=())
    machine.pull_error = EngineError("There is not enough room on the disk.", "Free 1.2 GB.", kind="disk_full")
    world = World(machine=machine, options=ChatOptions(target=None))
    async with world.app.run_test() as pilot:
        await wait_for(pilot, lambda: pulling(world) and "tiny" in world.shown())
        await pilot.press("enter")
        await wait_for(pilot, lambda: "! There is not enough room on the disk." in world.shown())
        await sees(world, pilot, "Free 1.2 GB.")
        machine.pull_error = None
        await pilot.press("enter")
        await started(world, pilot)
        assert machine.pulled == ["tiny"]


async def test_a_bug_in_the_download_is_no_success() -> None:
    machine = Machine(on_disk=())
    machine.pull = lambda *_: 1 / 0  # type: ignore[method-assign, assignment, return-value]
    world = World(machine=machine, options=ChatOptions(target=None))
    async with world.app.run_test(size=(100, 30)) as pilot:
        await wait_for(pilot, lambda: pulling(world) and "tiny" in world.shown())
        await pilot.press("enter")
        await wait_for(pilot, lambda: "The download of tiny failed: ZeroDivisionError" in world.shown())


async def test_a_chosen_target_that_is_missing_comes_first() -> None:
    """With its drafter, both are fetched; and others are offered below."""
    world = World(machine=Machine(on_disk=()), options=ChatOptions(target=BIG, drafter=SMALL))
    async with world.app.run_test() as pilot:
        await wait_for(pilot, lambda: pulling(world) and "tiny" in world.shown())
        await sees(world, pilot, "big + small", "1.6 GB")
        await pilot.press("enter")
        await started(world, pilot)
        assert world.machine.pulled == ["big", "small"]
        load = world.client.sent[0]
        assert isinstance(load, Load)
        assert (load.target, load.drafter) == (BIG, SMALL)


async def test_a_refused_drafter_does_not_keep_the_target_away() -> None:
    world = World(machine=Machine(on_disk=("big",)), options=ChatOptions(target=BIG, drafter=SMALL))
    async with world.app.run_test() as pilot:
        await wait_for(pilot, lambda: pulling(world) and "small" in world.shown())
        await pilot.press("escape")
        await started(world, pilot)
        load = world.client.sent[0]
        assert isinstance(load, Load)
        assert (load.target, load.drafter) == (BIG, NONE)


async def test_commands_fetch_what_is_missing() -> None:
    """`/draft` and `/model` with something that is not there open the same screen, for that one alone; Esc changes nothing."""
    world = World(machine=Machine(on_disk=("big",)))
    async with world.app.run_test() as pilot:
        await started(world, pilot)
        world.screen.prompt.put("/draft small")
        await pilot.press("enter")
        await wait_for(pilot, lambda: pulling(world) and "small" in world.shown())
        assert "tiny" not in world.shown()
        await pilot.press("escape")
        await wait_for(pilot, lambda: not pulling(world))
        assert len(world.client.sent) == 1
        world.screen.prompt.put("/draft small")
        await pilot.press("enter")
        await wait_for(pilot, lambda: pulling(world))
        await pilot.press("enter")
        await wait_for(pilot, lambda: world.client.sent[-1] == SwapDrafter(SMALL))
        world.screen.prompt.put("/model tiny")
        await pilot.press("enter")
        await wait_for(pilot, lambda: pulling(world) and "tiny" in world.shown())
        await pilot.press("enter")
        await wait_for(pilot, lambda: isinstance(world.client.sent[-1], Load))
        assert world.machine.pulled == ["small", "tiny"]


async def test_offline_never_downloads() -> None:
    """A missing target is an error with a hint; without a target, what is on the machine can be chosen and the rest refuses."""
    world = World(machine=Machine(on_disk=()), options=ChatOptions(target=BIG, drafter=NGRAM, offline=True))
    async with world.app.run_test(size=(100, 30)) as pilot:
        await wait_for(pilot, lambda: world.panels)
        assert "--offline forbids the download: big." in world.panels[0].plain
        assert "specchat pull big" in world.panels[0].plain
    world = World(machine=Machine(on_disk=("big",)), options=ChatOptions(target=None, offline=True))
    async with world.app.run_test(size=(100, 30)) as pilot:
        await wait_for(pilot, lambda: pulling(world) and "tiny" in world.shown())
        await pilot.press("enter")
        await wait_for(pilot, lambda: "--offline forbids the download." in world.shown())
        await pilot.press("down", "enter")
        await started(world, pilot)
        assert world.machine.pulled == []


async def test_a_path_that_is_not_there_is_an_error() -> None:
    from pathlib import Path

    gone = ModelSpec("mine", path=Path("/nowhere/mine.gguf"))
    world = World(machine=Machine(on_disk=()), options=ChatOptions(target=gone, drafter=NGRAM))
    async with world.app.run_test() as pilot:
        await wait_for(pilot, lambda: world.panels)
        assert "There is nothing at /nowhere/mine.gguf." in world.panels[0].plain


async def test_a_broken_catalog_is_said() -> None:
    machine = Machine(on_disk=())
    machine.catalog_error = EngineError("models.toml, line 3: unknown key quamt.", "Did you mean quant?", kind="config")
    world = World(machine=machine, options=ChatOptions(target=None))
    async with world.app.run_test() as pilot:
        await wait_for(pilot, lambda: "models.toml, line 3: unknown key quamt." in world.shown())
        await sees(world, pilot, "Did you mean quant?")
        await pilot.press("escape")
        await wait_for(pilot, lambda: not pulling(world))


async def test_quitting_during_a_download_stops_it() -> None:
    machine = Machine(on_disk=())
    machine.hold.clear()
    world = World(machine=machine, options=ChatOptions(target=None))
    async with world.app.run_test() as pilot:
        await wait_for(pilot, lambda: pulling(world) and "tiny" in world.shown())
        await pilot.press("enter")
        await wait_for(pilot, lambda: "Downloading tiny" in world.shown())
        screen = world.app.screen
        assert isinstance(screen, PullScreen)
        download = screen.download
        assert download is not None
        await pilot.press("ctrl+q")
    download._thread.join(PATIENCE_S)
    assert not download._thread.is_alive()
    assert machine.pulled == []


def test_time_left() -> None:
    assert [time_left(s) for s in (0.4, 59, 60, 185, 3600, 4800)] == ["0 s", "59 s", "1:00 min", "3:05 min", "1:00 h", "1:20 h"]
