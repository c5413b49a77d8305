"""Pictures of the screens as text (tests/app/snapshots): what stands where, and in which look. UPDATE_SNAPSHOTS=1 writes them anew.

Everything that changes by itself is fixed: the engine is replayed without waiting, seeds are given, and the clock is counted.
"""

from __future__ import annotations

import asyncio
import itertools
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from app.chat import ChatOptions
from app.meter import Meter
from engine.catalog.specs import NGRAM
from engine.errors import EngineError
from engine.protocol import Failed, Loading, Memory, Prefill
from engine.trace import READY, Timed, Trace, scripted
from tests.app.screen_text import picture
from tests.app.tui_world import BIG, Machine, World, ask, started, wait_for

RESTS = 25  # equal pictures in a row, while some lines are drawn twice a second only
HERE = Path(__file__).with_name("snapshots")
CODE = (
    "Here is an iterative version. It uses `u64`, so it is exact up to **n = 93**.\n\n```rust\npub fn fib(n: u32) -> u64 {\n"
    "    let (mut a, mut b) = (0u64, 1u64);\n    for _ in 0..n {\n        (a, b) = (b, a + b);\n    }\n    a\n}\n```\n\n"
    "- fast\n- small\n\n| n | fib |\n| --- | --- |\n| 10 | 55 |\n\nThat is all."
)
WIDE = "你好，世界。这是一段较长的中文文字，用来检查换行。 🎉 한국어도 됩니다.\n\n- 一\n- 二 👩‍👩‍👧\n\nEnd."
CARD = Memory(5_200_000_000, 900_000_000, 600_000_000, 6_900_000_000, 12_000_000_000)
MODEL = replace(READY, method="model", memory=CARD, device="cuda:0")


def world(
    *replies: tuple[Timed, ...] | str,
    machine: Machine | None = None,
    load: tuple[Timed, ...] | None = None,
    speed: float | None = None,
    **options: Any,
) -> World:
    """A still world."""
    made = tuple(scripted(reply) if isinstance(reply, str) else reply for reply in replies) or (scripted(CODE),)
    trace = Trace(load or ((0.0, READY),), ((0.0, MODEL),), made)
    settings = ChatOptions(**({"target": BIG, "drafter": NGRAM, "seed": 1} | options))
    new = World(trace=trace, machine=machine, options=settings, speed=speed)
    counted = itertools.count(100)
    new.screen.meter = Meter(lambda: next(counted) / 4)
    return new


async def same(new: World, pilot: Any, name: str) -> None:
    """Compare with the picture of this name, once the screen has come to rest: sooner where it is the picture already."""
    file = HERE / f"{name}.txt"
    wanted = "" if os.environ.get("UPDATE_SNAPSHOTS") or not file.exists() else file.read_text(encoding="utf-8")
    before, rests = "", 0
    for _ in range(200):
        await pilot.pause(0.1)
        now = picture(new.app)
        rests = rests + 1 if now == before else 0
        before = now
        if rests >= (1 if now == wanted else RESTS):
            break
    if os.environ.get("UPDATE_SNAPSHOTS"):
        HERE.mkdir(exist_ok=True)
        file.write_text(before, encoding="utf-8")
    assert before == file.read_text(encoding="utf-8"), f"{name} has changed; UPDATE_SNAPSHOTS=1 accepts it"


async def press(new: World, pilot: Any, *keys: str, until: str = "") -> None:
    await pilot.press(*keys)
    await asyncio.sleep(0)
    if until:
        await wait_for(pilot, lambda: until in new.shown())


SIZES = [(80, 24), (120, 40), (60, 16)]


@pytest.mark.parametrize("size", SIZES, ids=lambda size: f"{size[0]}x{size[1]}")
class TestSizes:
    """The screens at the three sizes."""

    async def test_chat(self, size: tuple[int, int]) -> None:
        new = world()
        async with new.app.run_test(size=size) as pilot:
            await started(new, pilot)
            await ask(new, pilot, "Write an iterative fibonacci in Rust with a test.")
            await same(new, pilot, f"chat-{size[0]}")

    async def test_tokens(self, size: tuple[int, int]) -> None:
        new = world("The iterative version keeps two running values, so it needs no recursion and constant memory.\n\n" * 2)
        async with new.app.run_test(size=size) as pilot:
            await started(new, pilot)
            await ask(new, pilot, "Explain.")
            await press(new, pilot, "ctrl+t", until="Tokens:")
            await same(new, pilot, f"tokens-{size[0]}")

    async def test_drafters(self, size: tuple[int, int]) -> None:
        new = world()
        async with new.app.run_test(size=size) as pilot:
            await started(new, pilot)
            await press(new, pilot, "ctrl+g", until="SEEN HERE")
            await press(new, pilot, "b", "down", until="151,936")
            await same(new, pilot, f"drafters-{size[0]}")

    async def test_steps(self, size: tuple[int, int]) -> None:
        new = world()
        async with new.app.run_test(size=size) as pilot:
            await started(new, pilot)
            await ask(new, pilot, "go")
            await press(new, pilot, "f3", "down", until="Step 2:")
            await same(new, pilot, f"steps-{size[0]}")

    async def test_first_start(self, size: tuple[int, int]) -> None:
        new = world(machine=Machine(()), target=None)
        async with new.app.run_test(size=size) as pilot:
            await wait_for(pilot, lambda: "Models that suit it" in new.shown())
            await same(new, pilot, f"first-{size[0]}")


async def test_panel_below() -> None:
    new = world(load=((0.0, replace(READY, memory=CARD, device="cuda:0")),))
    async with new.app.run_test(size=(80, 24)) as pilot:
        await started(new, pilot)
        await ask(new, pilot, "go")
        await press(new, pilot, "ctrl+s", until="ACCEPTANCE")
        await same(new, pilot, "panel-below")


async def test_settings() -> None:
    new = world(machine=Machine())
    new.machine.kept = {"chat.temp": 0.7, "model.quant": "int8"}
    async with new.app.run_test(size=(80, 24)) as pilot:
        await started(new, pilot)
        await press(new, pilot, "f2", "down", until="Keep the likeliest tokens up to")
        await same(new, pilot, "settings")


async def test_downloads() -> None:
    machine = Machine(("big",))
    machine.hold.clear()
    new = world(machine=machine)
    async with new.app.run_test(size=(80, 24)) as pilot:
        await started(new, pilot)
        await press(new, pilot, "f4", "down", "enter", until="50% 12 MB/s")
        await press(new, pilot, until="22 s left")
        await same(new, pilot, "downloads")
        machine.hold.set()


async def test_targets() -> None:
    new = world(machine=Machine(("big",)))
    async with new.app.run_test(size=(100, 20)) as pilot:
        await started(new, pilot)
        await press(new, pilot, "ctrl+l", until="CONTEXT")
        await same(new, pilot, "targets")


async def test_help() -> None:
    new = world()
    async with new.app.run_test(size=(80, 24)) as pilot:
        await started(new, pilot)
        await wait_for(pilot, lambda: "mem " in new.shown())  # drawn a little later
        await press(new, pilot, "f1", until="Esc closes")
        await same(new, pilot, "help")


async def test_completion() -> None:
    new = world()
    async with new.app.run_test(size=(80, 24)) as pilot:
        await started(new, pilot)
        await press(new, pilot, *"/dr", until="/draft")
        await same(new, pilot, "completion")


@pytest.mark.parametrize(
    ("name", "failed"),
    [
        ("error-memory", Failed("Not enough memory: 3.3 GB are needed, 2.1 GB are free.", "Choose a smaller one.", "memory")),
        ("error-missing", Failed("The file model.safetensors is missing.", "Pull the model again.", "missing_weights")),
    ],
)
async def test_a_load_that_fails(name: str, failed: Failed) -> None:
    new = world(load=((0.0, failed),))
    async with new.app.run_test(size=(80, 24)) as pilot:
        await wait_for(pilot, lambda: failed.message[:20] in new.shown())
        await same(new, pilot, name)


async def test_a_reply_that_is_too_long() -> None:
    numbers = {"needed": 9000.0, "limit": 8192.0, "droppable": 4.0}
    new = world(((0.0, Failed("The prompt is too long.", "Shorten it.", "too_long", numbers=numbers)),))
    async with new.app.run_test(size=(80, 24)) as pilot:
        await started(new, pilot)
        new.screen.prompt.put("a long question")
        await press(new, pilot, "enter", until="Drop the 4 oldest messages")
        await same(new, pilot, "error-long")


async def test_loading_and_reading() -> None:
    new = world(load=((0.0, Loading("Reading weights", 300_000_000, 900_000_000, "B")), (3600.0, READY)), speed=1.0)
    async with new.app.run_test(size=(80, 24)) as pilot:
        await wait_for(pilot, lambda: "Reading weights" in new.shown())
        await same(new, pilot, "loading")
        await pilot.press("escape")


async def test_reading_the_prompt() -> None:
    new = world(((0.0, Prefill(0, 1240, 3100, 1000)), *((3600.0 + at, event) for at, event in scripted("late"))), speed=1.0)
    async with new.app.run_test(size=(80, 24)) as pilot:
        await started(new, pilot)
        new.screen.prompt.put("a question")
        await press(new, pilot, "enter", until="READ 1,240")
        await same(new, pilot, "reading")
        await pilot.press("escape")


async def test_wide_characters() -> None:
    new = world(WIDE)
    async with new.app.run_test(size=(60, 20)) as pilot:
        await started(new, pilot)
        await ask(new, pilot, "用中文回答 🙂")
        await same(new, pilot, "cjk")
        await press(new, pilot, "ctrl+t", until="Tokens:")
        await same(new, pilot, "cjk-tokens")


async def test_hostile_text() -> None:
    new = world("[/] [bold]x[/bold] \x1b]52;c;aGk=\x07 \x1b[2J \x00 \u202eabc <script>alert(1)</script>\n\n" + "x" * 300)
    async with new.app.run_test(size=(80, 24)) as pilot:
        await started(new, pilot)
        await ask(new, pilot, "[/] \x1b[31mred")
        await same(new, pilot, "hostile")


@pytest.mark.parametrize("theme", ["textual-light", "nord"])
async def test_themes(theme: str) -> None:
    machine = Machine()
    machine.kept = {"screen.theme": theme, "screen.tokens": True}
    new = world("Some words in several steps, to see their looks.", machine=machine)
    async with new.app.run_test(size=(80, 20)) as pilot:
        await started(new, pilot)
        await ask(new, pilot, "go")
        await same(new, pilot, f"theme-{theme}")


async def test_no_colour(monkeypatch: pytest.MonkeyPatch) -> None:
    """NO_COLOR: grey only, and the cues tell the classes of tokens apart."""
    monkeypatch.setenv("NO_COLOR", "1")
    machine = Machine()
    machine.kept = {"screen.tokens": True}
    new = world("Some words in several steps, to see their looks.", machine=machine)
    async with new.app.run_test(size=(80, 20)) as pilot:
        await started(new, pilot)
        await ask(new, pilot, "go")
        await same(new, pilot, "no-color")


async def test_not_saved_and_download_in_the_header() -> None:
    machine = Machine(("big",))
    machine.pull_error = EngineError("The disk ran full.", "Free some space.")
    new = world(machine=machine)
    async with new.app.run_test(size=(80, 24)) as pilot:
        await started(new, pilot)
        await press(new, pilot, "f4", "down", "enter", until="failed")
        await same(new, pilot, "download-failed")


async def test_too_small() -> None:
    new = world()
    async with new.app.run_test(size=(50, 12)) as pilot:
        await same(new, pilot, "too-small")


def test_every_picture_has_its_test() -> None:
    """No leftovers."""
    source = "".join(file.read_text(encoding="utf-8") for file in Path(__file__).parent.glob("test_snapshots*.py"))
    for file in HERE.glob("*.txt"):
        name = file.stem
        base = name.rpartition("-")[0] if name.rpartition("-")[2].isdecimal() else name
        assert base in source or base.startswith("theme-"), name
