"""What the screen asks of the machine: a bounded queue, longer rests when drawing is slow, no work for what nobody sees."""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest

from app.prompts import read
from app.screens import chat
from app.screens.bench import BenchScreen
from app.screens.chat import PERIOD_CPU_S, PERIOD_S, SLOWEST_S
from app.screens.compare import CompareScreen
from engine.protocol import Event, Step
from tests.app.race_world import WHY, opened, race_world, ran, take
from tests.app.tui_world import World, ask, held, scripted, started, wait_for

PROSE = "\n\n".join("a paragraph of some words that come quickly and are drawn at once " * 4 for _ in range(40))
CODE = "```python\n" + "\n".join(f"total_{n} = measure(row[{n}])  # keep" for n in range(500)) + "\n```\n"


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SPECCHAT_HOME", str(tmp_path / "home"))
    return tmp_path


@pytest.mark.parametrize("text", [PROSE, CODE], ids=["prose", "code"])
async def test_the_queue_is_bounded_at_full_speed_and_nothing_is_lost(text: str) -> None:
    """A replay without pauses: never more events wait than the reply has, in the end none, and all text is there."""
    reply = scripted(text, kept=(0, 1, 4))
    world = World(reply, speed=None)
    async with world.app.run_test(size=(100, 30)) as pilot:
        await started(world, pilot)
        waiting: list[int] = []

        async def watch() -> None:
            while True:
                waiting.append(world.client.waiting)
                await asyncio.sleep(0.002)

        watcher = asyncio.create_task(watch())
        await ask(world, pilot, "go")
        watcher.cancel()
        assert sum(isinstance(event, Step) for _, event in reply) > 500
        assert max(waiting) <= len(reply)
        assert world.client.waiting == 0
        assert world.replies[0].exact == text


async def test_slow_drawing_makes_longer_rests(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where a drawing takes 60 ms, at least four times as long passes until the next."""
    world = World(scripted(PROSE * 20, step_s=0.01), speed=1.0)
    async with world.app.run_test(size=(80, 24)) as pilot:
        await started(world, pilot)
        looked_s: list[float] = []
        take = world.screen.take

        async def slow(events: list[Event]) -> None:
            looked_s.append(time.monotonic())
            await asyncio.sleep(0.06)
            await take(events)

        monkeypatch.setattr(world.screen, "take", slow)
        world.screen.prompt.put("go")
        await pilot.press("enter")
        await wait_for(pilot, lambda: len(looked_s) > 8)
        await pilot.press("escape")
        gaps = sorted(b - a for a, b in pairwise(looked_s[2:9]))
        assert gaps[len(gaps) // 2] >= 0.06 + 4 * 0.06 - 0.02
        await wait_for(pilot, lambda: world.rests)


async def test_a_covered_chat_draws_once_a_second_and_at_once_when_it_is_seen_again() -> None:
    reply = held(PROSE, 3)
    world = World(reply)
    async with world.app.run_test(size=(80, 24)) as pilot:
        await started(world, pilot)
        assert world.screen.period_s == PERIOD_S
        world.screen.prompt.put("go")
        await pilot.press("enter")
        await wait_for(pilot, lambda: world.replies and world.replies[0].exact)
        assert world.screen.period_s == PERIOD_CPU_S  # the recorded model runs on the CPU
        world.screen.loaded.ready = replace(world.screen.loaded.ready, device="cuda")
        assert world.screen.period_s == PERIOD_S
        for key, period_s in (("f1", PERIOD_S), ("f2", SLOWEST_S)):  # a window over a part of it, and a whole screen
            await pilot.press(key)
            await wait_for(pilot, lambda: world.app.screen is not world.screen)
            assert world.screen.period_s == period_s
            await pilot.press("escape")
            await wait_for(pilot, lambda: world.app.screen is world.screen)
        reply.go()
        await wait_for(pilot, lambda: world.rests)
        assert world.replies[0].exact == PROSE


def watched(world: World, cost_s: float = 0.0) -> list[float]:
    """The times at which steps are drawn, from now on; each drawing costs so much processor time more."""
    drawn_s: list[float] = []
    take = world.screen.take

    async def seen(events: list[Event]) -> None:
        if any(isinstance(event, Step) for event in events):
            drawn_s.append(time.monotonic())
            until_s = time.thread_time() + cost_s
            while time.thread_time() < until_s:
                pass
        await take(events)

    world.screen.take = seen  # type: ignore[method-assign]
    return drawn_s


async def test_a_reply_is_drawn_no_more_often_than_it_should() -> None:
    """Without pauses of the engine; a tenth of a second each for its first and last drawing."""
    world = World(scripted(PROSE, step_s=0.004), speed=1.0)
    async with world.app.run_test(size=(80, 24)) as pilot:
        await started(world, pilot)
        drawn_s = watched(world)
        await ask(world, pilot, "go")
        assert len(drawn_s) > 3
        assert len(drawn_s) <= (drawn_s[-1] - drawn_s[0]) / PERIOD_CPU_S + 3


async def test_costly_drawing_beside_a_model_gets_a_share_of_the_time() -> None:
    """So that the model, which waits meanwhile, keeps all but three percent of it, down to one drawing a second."""
    world = World(scripted(PROSE * 3, step_s=0.004), speed=0.5)
    async with world.app.run_test(size=(80, 24)) as pilot:
        await started(world, pilot)
        drawn_s = watched(world, cost_s=0.035)
        world.screen.prompt.put("go")
        await pilot.press("enter")
        await wait_for(pilot, lambda: len(drawn_s) > 3)
        gaps = [b - a for a, b in pairwise(drawn_s)]
        assert sorted(gaps)[len(gaps) // 2] > 0.9
        await pilot.press("escape")
        await wait_for(pilot, lambda: world.rests)


async def test_what_the_screen_does_between_two_drawings_counts_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """Timers, keys, the end of a layout: the model waits for them as well. Here they take more than the whole share, so drawings become
    as rare as they may, however quick the machine is."""
    monkeypatch.setattr(chat, "SHARE_CPU", 0.2)
    world = World(scripted(PROSE * 3, step_s=0.004), speed=0.5)

    def work() -> None:
        until_s = time.thread_time() + 0.03
        while time.thread_time() < until_s:
            pass

    async with world.app.run_test(size=(80, 24)) as pilot:
        await started(world, pilot)
        drawn_s = watched(world)
        world.screen.set_interval(0.1, work)
        world.screen.prompt.put("go")
        await pilot.press("enter")
        await wait_for(pilot, lambda: len(drawn_s) > 6)
        gaps = [b - a for a, b in pairwise(drawn_s)][-3:]  # each drawing waits longer than the one before
        assert sorted(gaps)[1] > 0.9
        await pilot.press("escape")
        await wait_for(pilot, lambda: world.rests)


async def test_the_hidden_chat_does_not_look_for_events() -> None:
    """While a comparison has the engine, the chat below it sleeps; an idle comparison does not draw either."""
    world = race_world()
    async with world.app.run_test(size=(80, 24)) as pilot:
        await opened(world, pilot, "f5")
        screen = world.app.screen
        assert isinstance(screen, CompareScreen)
        await pilot.pause(0.7)  # the last look before it was lent
        drains, drawings = 0, 0
        drain, draw = world.client.drain, screen.draw

        def counted() -> list[Event]:
            nonlocal drains
            drains += 1
            return drain()

        def drawn() -> None:
            nonlocal drawings
            drawings += 1
            draw()

        world.client.drain, screen.draw = counted, drawn  # type: ignore[method-assign]
        await pilot.pause(1.2)
        assert (drains, drawings) == (0, 0)
        screen.prompt.put(WHY)
        await pilot.press("enter")
        await ran(world, pilot)
        assert drains == 0
        assert drawings > 0
        drawings = 0
        await asyncio.sleep(0.8)
        assert drawings == 0


async def test_a_timed_measurement_draws_at_most_twice_a_second(monkeypatch: pytest.MonkeyPatch) -> None:
    world = race_world(take(read("mixed")[0].text, "none", stuck_after=3), speed=1.0)
    async with world.app.run_test(size=(80, 24)) as pilot:
        await opened(world, pilot, "f6")
        screen = world.app.screen
        assert isinstance(screen, BenchScreen)
        await pilot.press("r")
        await wait_for(pilot, lambda: screen.runner is not None and screen.runner.now is not None)
        drawings = 0
        draw = screen._draw

        def drawn() -> None:
            nonlocal drawings
            drawings += 1
            draw()

        monkeypatch.setattr(screen, "_draw", drawn)
        begun_s = time.monotonic()
        await asyncio.sleep(2.0)
        passed_s = time.monotonic() - begun_s
        assert screen.running
        assert 1 <= drawings <= passed_s / 0.5 + 1
        await pilot.press("escape")
        await ran(world, pilot)
