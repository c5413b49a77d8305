"""What can be measured beside a target: also models that nobody bound to it, once a check has found them sound."""

from __future__ import annotations

import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import app.bench_command
from app.beside import Judge, others
from app.screens.bench import BenchScreen
from app.screens.compare import CompareScreen
from app.screens.pick import PickScreen
from engine.catalog.catalog import Catalog
from engine.catalog.specs import NGRAM, NONE, ModelSpec
from engine.errors import EngineError
from tests.app.race_world import opened, race_trace, ran
from tests.app.tui_world import BIG, HEADS, SMALL, TINY, Machine, World, wait_for

LARGE = ModelSpec("large", repo="org/large", params=1.0)


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SPECCHAT_HOME", str(tmp_path / "home"))
    return tmp_path


def test_others_are_here_small_and_not_known_yet() -> None:
    known = Catalog({"big": BIG, "tiny": TINY, "large": LARGE}, {"small": SMALL, "heads-for-other": HEADS, "ngram": NGRAM})
    here = {"big", "tiny", "small", "large", "heads-for-other"}
    assert [spec.name for spec in others(known, lambda spec: spec.name in here, BIG, ())] == ["tiny", "small"]
    assert [spec.role for spec in others(known, lambda spec: spec.name in here, BIG, (SMALL,))] == ["drafter"]
    assert others(known, lambda spec: False, BIG, ()) == []
    unknown = replace(BIG, params=0.0)
    assert "large" in [spec.name for spec in others(known, lambda spec: spec.name in here, unknown, ())]


def test_the_judge_tells_of_the_sound_ones_and_asks_once() -> None:
    asked: list[str] = []

    def check(spec: ModelSpec, stop: threading.Event) -> dict[str, Any]:
        asked.append(spec.name)
        if spec == LARGE:
            raise EngineError("It cannot be read.")
        return {"refused": "It changes the text." if spec == SMALL else None}

    verdicts: dict[str, str] = {}
    for _ in range(2):
        told: list[str] = []
        judge = Judge(check, verdicts)
        judge.start([TINY, SMALL, LARGE], lambda spec, told=told: told.append(spec.name))  # type: ignore[misc]
        if judge._thread is not None:
            judge._thread.join(10)
        assert told == ["tiny"]
    assert verdicts == {"tiny": "", "small": "It changes the text.", "large": "It cannot be read."}
    assert asked == ["tiny", "small", "large"]


def test_a_stopped_judge_says_nothing_and_can_be_asked_again() -> None:
    begun = threading.Event()

    def check(spec: ModelSpec, stop: threading.Event) -> dict[str, Any]:
        begun.set()
        assert stop.wait(10)
        raise EngineError("Stopped.", kind="cancelled")

    verdicts: dict[str, str] = {}
    judge = Judge(check, verdicts)
    judge.start([TINY, SMALL], lambda spec: pytest.fail("told"))
    assert begun.wait(10)
    judge.stop()
    assert judge._thread is not None
    assert not judge._thread.is_alive()
    assert verdicts == {}


class Picky(Machine):
    """Says of every model that it is refused."""

    def check(self, target: ModelSpec, drafter: ModelSpec, stop: threading.Event | None = None) -> dict[str, Any]:
        return {"refused": "It changes the text."}


def names(screen: PickScreen) -> list[str]:
    return [screen.list.get_option_at_index(n).value for n in range(screen.list.option_count)]


@pytest.mark.parametrize("sound", [True, False])
async def test_the_comparison_offers_what_is_sound(sound: bool) -> None:
    """`tiny` is bound to no target; a check decides. It is offered, not chosen."""
    world = World(trace=race_trace(), machine=Machine() if sound else Picky())
    async with world.app.run_test(size=(100, 30)) as pilot:
        await opened(world, pilot, "f5")
        compare = world.app.screen
        assert isinstance(compare, CompareScreen)
        await pilot.press("d")
        await wait_for(pilot, lambda: isinstance(world.app.screen, PickScreen))
        await wait_for(pilot, lambda: "tiny" in compare.ground.verdicts)
        pick = world.app.screen
        assert isinstance(pick, PickScreen)
        if sound:
            await wait_for(pilot, lambda: names(pick)[-1:] == ["tiny"])
            assert "checked: it goes with this target" in world.shown()
            await pilot.press("end", "space", "enter")
            await wait_for(pilot, lambda: world.app.screen is compare)
            assert [spec.name for spec in compare.drafters] == ["ngram", "small", "tiny"]
        else:
            await pilot.pause(0.2)
            assert names(pick) == ["ngram", "small"]


async def test_the_benchmark_offers_what_is_sound_and_measures_alone() -> None:
    """The check runs while one chooses; a measurement stops it."""
    stopped = threading.Event()

    class Slow(Machine):
        def check(self, target: ModelSpec, drafter: ModelSpec, stop: threading.Event | None = None) -> dict[str, Any]:
            assert stop is not None
            if stop.wait(20):
                stopped.set()
                raise EngineError("Stopped.", kind="cancelled")
            return {"refused": None}

    world = World(trace=race_trace(), machine=Slow())
    async with world.app.run_test(size=(100, 30)) as pilot:
        await opened(world, pilot, "f6")
        await pilot.press("r")
        await wait_for(pilot, stopped.is_set)
        await ran(world, pilot)
    world = World(trace=race_trace())
    async with world.app.run_test(size=(100, 30)) as pilot:
        await opened(world, pilot, "f6")
        bench = world.app.screen
        assert isinstance(bench, BenchScreen)
        await wait_for(pilot, lambda: bench.drafters.option_count == 3)
        assert bench.drafters.selected == ["ngram", "small"]


def test_the_command_line_takes_them_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without -d: look-up, what is made for the target, and what a check finds sound; `most` of them, and no check more than needed."""
    machine = Machine(on_disk=("big", "tiny", "small", "large"))
    known = replace(machine.catalog(), targets={"big": BIG, "tiny": TINY, "other": replace(TINY, name="other", params=0.2)})
    machine.disk.add("other")
    asked: list[str] = []

    def facts(target: str, drafter: str) -> dict[str, Any]:
        asked.append(drafter)
        if "tiny" in drafter:
            raise EngineError("It cannot be read.")
        return {"refused": None}

    monkeypatch.setattr(app.bench_command, "facts", facts)
    monkeypatch.setattr(app.bench_command, "on_disk", machine.on_disk)
    assert [spec.name for spec in app.bench_command.there(known, BIG)] == ["ngram", "small", "other"]
    assert len(asked) == 2
    assert [spec.name for spec in app.bench_command.there(known, BIG, 2)] == ["ngram", "small"]
    assert len(asked) == 2
    assert NONE not in app.bench_command.there(known, BIG)
