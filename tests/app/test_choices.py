"""Chosen or not: seen without colours."""

from __future__ import annotations

from pathlib import Path

import pytest

from app.screens.bench import BenchScreen
from app.widgets.choices import Choices
from tests.app.race_world import opened, race_world
from tests.app.tui_world import wait_for


def marks(choices: Choices) -> list[str]:
    return [choices.render_line(y).text[1] for y in range(choices.option_count)]


async def test_the_mark_says_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPECCHAT_HOME", str(tmp_path))
    world = race_world()
    async with world.app.run_test(size=(100, 30)) as pilot:
        await opened(world, pilot, "f6")
        bench = world.app.screen
        assert isinstance(bench, BenchScreen)
        assert marks(bench.sets) == ["X"] + [" "] * (bench.sets.option_count - 1)
        await pilot.press("space")
        await wait_for(pilot, lambda: marks(bench.sets)[0] == " ")
        await pilot.press("down", "space")
        await wait_for(pilot, lambda: marks(bench.sets)[1] == "X")
        assert "▐X▌ code" in world.shown()
        assert "▐ ▌ mixed" in world.shown()
