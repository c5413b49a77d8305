"""The benchmark on the screen: choosing, running, the report, keeping it; the list of results."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from app import results
from app.prompts import read
from app.screens.bench import BenchScreen
from app.screens.report import ReportScreen
from app.screens.results import ResultsScreen
from engine.protocol import Failed, SwapDrafter
from engine.trace import Take
from tests.app.race_world import TEXT, WHY, opened, opened_by, race_world, ran, take
from tests.app.tui_world import ask, sees, started, wait_for


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SPECCHAT_HOME", str(tmp_path / "home"))
    return tmp_path


@pytest.mark.parametrize("size", [(80, 24), (120, 40), (60, 16)])
async def test_from_the_key_to_a_kept_report(size: tuple[int, int]) -> None:
    """F6, r: the mixed set with both drafters; the report is drawn and in the folder; the chat has its drafter again."""
    world = race_world()
    async with world.app.run_test(size=size, notifications=True) as pilot:
        await opened(world, pilot, "f6")
        assert isinstance(world.app.screen, BenchScreen)
        await wait_for(pilot, lambda: "6 prompts x 4 lanes = 24 replies" in world.shown())
        await pilot.press("plus", "right", "minus", "r")
        await ran(world, pilot)
        await sees(world, pilot, "none, first", "SPEED-UP")
        (entry,) = results.entries()
        assert [row["drafter"] for row in entry.report["rows"]] == ["none", "ngram", "small", "none"]
        assert all(row["same_text"] for row in entry.report["rows"])
        assert entry.report["settings"]["max_tokens"] == 256
        replies = [command for command in world.requests if command.max_tokens == 256]
        assert len(replies) == 24
        assert {command.sampling.temperature for command in replies} == {0.0}
        await pilot.press("escape")
        await wait_for(pilot, lambda: world.app.screen is world.screen)
        await wait_for(pilot, lambda: world.client.sent[-1] == SwapDrafter(world.screen.loaded.drafter))
        await wait_for(pilot, lambda: world.screen.loaded.ready is not None and world.screen.loaded.ready.drafter == "ngram")


async def test_the_command_chooses_sets_and_drafters() -> None:
    """/bench SET NAME: what is named is chosen; nothing is measured before r."""
    world = race_world()
    async with world.app.run_test(size=(120, 40)) as pilot:
        await opened_by(world, pilot, "/bench code story small")
        screen = world.app.screen
        assert isinstance(screen, BenchScreen)
        assert screen.sets.selected == ["code", "story"]
        assert screen.drafters.selected == ["small"]
        assert not world.requests
        await pilot.press("tab", "space", "r")  # takes the only drafter away
        await pilot.pause()
        assert screen.runner is None
        await pilot.press("escape")
        await wait_for(pilot, lambda: world.app.screen is world.screen)


async def test_nothing_is_drawn_but_numbers_and_a_stop_keeps_what_there_is() -> None:
    world = race_world(take(read("mixed")[1].text, "none", stuck_after=3), speed=1.0)
    async with world.app.run_test(size=(80, 24)) as pilot:
        await opened(world, pilot, "f6")
        await pilot.press("r")
        screen = world.app.screen
        assert isinstance(screen, BenchScreen)
        await wait_for(pilot, lambda: screen.runner is not None and screen.runner.lanes[0].rounds >= 1)
        await wait_for(pilot, lambda: "lane 1 of 4: none, first" in world.shown())
        assert "scatter" not in world.shown()
        await pilot.press("escape")
        await ran(world, pilot)
        (entry,) = results.entries()
        assert entry.report["stopped"] is True
        await sees(world, pilot, "Stopped before the end")
        assert entry.report["rows"][0]["tok_per_s"]


async def test_the_chat_does_not_listen_meanwhile() -> None:
    """All events of a measurement are read by it alone: the chat shows no reply, no notice, no other drafter."""
    world = race_world()
    async with world.app.run_test(size=(80, 24)) as pilot:
        await opened(world, pilot, "f6")
        before = (world.screen.chat.turns, len(world.replies), world.notes, world.screen.loaded.ready)
        await pilot.press("r")
        await ran(world, pilot)
        assert (world.screen.chat.turns, len(world.replies), world.notes, world.screen.loaded.ready) == before
        await pilot.press("escape")
        await wait_for(pilot, lambda: world.app.screen is world.screen and not world.screen.loaded.loading)
        await ask(world, pilot, WHY)
        assert world.screen.chat.last is not None
        assert world.screen.chat.last.text == TEXT


async def test_a_failing_lane_is_said_and_the_others_are_measured() -> None:
    failed = Take("", "small", ((0.0, Failed("Another vocabulary.", "Take another.", "vocabulary")),))
    world = race_world(failed)
    async with world.app.run_test(size=(120, 40)) as pilot:
        await opened(world, pilot, "f6")
        await pilot.press("r")
        await ran(world, pilot)
        await sees(world, pilot, "small", "failed", "Another vocabulary.", "ngram")


async def test_an_unwritable_folder_costs_only_the_keeping(home: Path) -> None:
    (home / "home" / "data").mkdir(parents=True)
    (home / "home" / "data" / "bench").write_text("in the way")
    world = race_world()
    async with world.app.run_test(size=(80, 24), notifications=True) as pilot:
        await opened(world, pilot, "f6")
        await pilot.press("r")
        await ran(world, pilot)
        await sees(world, pilot, "none, first")
        assert any("The result is not kept." in toast for toast in world.toasts)


async def test_results_are_listed_opened_compared_and_deleted() -> None:
    """Two runs; the list has both, Enter opens one, c puts two side by side, x deletes after a question."""
    world = race_world()
    async with world.app.run_test(size=(100, 30), notifications=True) as pilot:
        for _ in range(2):
            await opened(world, pilot, "f6")
            await pilot.press("r")
            await ran(world, pilot)
            await pilot.press("escape")
            await wait_for(pilot, lambda: world.app.screen is world.screen and not world.screen.loaded.loading)
        world.screen.prompt.put("/results")
        await pilot.press("enter")
        await wait_for(pilot, lambda: isinstance(world.app.screen, ResultsScreen))
        screen = world.app.screen
        assert isinstance(screen, ResultsScreen)
        assert len(screen.entries) == 2
        await wait_for(pilot, lambda: "6 prompts  big:" in world.shown())
        await pilot.press("enter")
        await wait_for(pilot, lambda: isinstance(world.app.screen, ReportScreen) and "KEPT BY POSITION" in world.shown())
        await pilot.press("y", "f", "escape")
        await wait_for(pilot, lambda: world.app.screen is screen)
        assert "# Benchmark" in world.app.clipboard
        assert any("report" in toast for toast in world.toasts)
        await pilot.press("c", "down", "c")
        await wait_for(pilot, lambda: isinstance(world.app.screen, ReportScreen) and "B / A" in world.shown())
        await sees(world, pilot, "1.00x")
        await pilot.press("escape")
        await wait_for(pilot, lambda: world.app.screen is screen)
        await pilot.press("x")
        await wait_for(pilot, lambda: "cannot be undone" in world.shown())
        await pilot.press("escape")
        await wait_for(pilot, lambda: world.app.screen is screen)
        assert len(results.entries()) == 2
        await pilot.press("x")
        await wait_for(pilot, lambda: "cannot be undone" in world.shown())
        await pilot.press("y")
        await wait_for(pilot, lambda: len(results.entries()) == 1 and world.app.screen is screen)
        await pilot.press("escape")
        await wait_for(pilot, lambda: world.app.screen is world.screen)


async def test_no_results_say_how_to_get_some() -> None:
    world = race_world()
    async with world.app.run_test(size=(60, 16)) as pilot:
        await started(world, pilot)
        world.screen.prompt.put("/results")
        await pilot.press("enter")
        await wait_for(pilot, lambda: "Nothing is kept yet" in world.shown())


async def test_a_hostile_report_is_shown_as_text(home: Path) -> None:
    """A report of someone else, with escapes and markup in its names."""
    world = race_world()
    async with world.app.run_test(size=(120, 40)) as pilot:
        await opened(world, pilot, "f6")
        await pilot.press("r")
        await ran(world, pilot)
        (entry,) = results.entries()
        report = json.loads((entry.folder / "report.json").read_text())
        nasty = "\x1b]52;c;aGk=\x07[bold][/]\u202e"
        report["rows"][1]["drafter"] = report["settings"]["target"] = nasty
        report["notes"] = [nasty]
        results.delete(entry)
        results.save(report)
        world.app.push_screen(ReportScreen(report, None))
        await wait_for(pilot, lambda: isinstance(world.app.screen, ReportScreen) and "NOTES" in world.shown())
        await sees(world, pilot, "[bold][/]")
        shown = world.shown()
        assert not [c for c in shown if c in "\x1b\x07\u202e"]


async def test_leaving_during_a_measurement_asks_first() -> None:
    """^Q: Esc goes on, y leaves; without a measurement it leaves at once."""
    world = race_world(take(read("mixed")[0].text, "none", stuck_after=3), speed=1.0)
    async with world.app.run_test(size=(80, 24)) as pilot:
        await opened(world, pilot, "f6")
        await pilot.press("r")
        screen = world.app.screen
        assert isinstance(screen, BenchScreen)
        await wait_for(pilot, lambda: screen.running)
        await pilot.press("ctrl+q")
        await wait_for(pilot, lambda: "A measurement is under way." in world.shown())
        await pilot.press("escape")
        await wait_for(pilot, lambda: world.app.screen is screen)
        assert screen.running
        await pilot.press("ctrl+q")
        await wait_for(pilot, lambda: "A measurement is under way." in world.shown())
        await pilot.press("y")
        await wait_for(pilot, lambda: world.app.return_code == 0)
    assert world.app.return_code == 0
