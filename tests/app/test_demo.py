"""`specchat --demo`: the recording that ships, and every screen on it."""

from __future__ import annotations

from importlib import resources
from pathlib import Path

import pytest

from app import results
from app.bench import WARM_UP_PROMPT
from app.cli import invoke
from app.demo import FILE, demo, recorded
from app.prompts import read
from app.screens.compare import CompareScreen
from app.tui import SpecChat
from engine.catalog.specs import NGRAM
from engine.errors import EngineError
from engine.protocol import Done, Ready, Step
from tests.app.race_world import ran
from tests.app.tui_world import World, ask, sees, started, wait_for


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SPECCHAT_HOME", str(tmp_path / "home"))
    return tmp_path


class DemoWorld(World):
    """The demo as `specchat --demo` opens it, at this speed."""

    def __init__(self, speed: float | None = None) -> None:
        options, self.client, self.machine = demo(speed)  # type: ignore[assignment]
        self.app = SpecChat(options, self.client, self.machine)
        self.watch()


def test_the_recording_is_small_whole_and_the_same_with_every_drafter() -> None:
    """Below 200 kB; the mixed set, a follow-up and the warm-up, each with three drafters and one text; steps that add up."""
    assert len(resources.files("app").joinpath(FILE).read_bytes()) < 200_000
    trace = recorded()
    drafters = {take.drafter for take in trace.takes}
    assert len(drafters) >= 3
    assert {"none", "ngram"} < drafters
    assert {prompt.text for prompt in read("mixed")} | {WARM_UP_PROMPT} <= set(trace.prompts)
    assert trace.prompts[-1] == WARM_UP_PROMPT
    assert isinstance(trace.load[-1][1], Ready)
    for prompt in trace.prompts:
        takes = [take for take in trace.takes if take.prompt == prompt]
        assert {take.drafter for take in takes} == drafters
        ends = {(event.text, event.token_ids) for take in takes for _, event in take.timed if isinstance(event, Done)}
        assert len(ends) == 1
        for take in takes:
            steps = [event for _, event in take.timed if isinstance(event, Step)]
            assert sum(step.emitted for step in steps) == len(next(iter(ends))[1])
            assert [at for at, _ in take.timed] == sorted(at for at, _ in take.timed)


@pytest.mark.parametrize("size", [(80, 24), (120, 40), (60, 16)])
async def test_a_first_minute(size: tuple[int, int], home: Path) -> None:
    """The question is in the box; Enter, another drafter, the tokens, a race, the report kept. Everything says DEMO."""
    world = DemoWorld()
    async with world.app.run_test(size=size, notifications=True) as pilot:
        await started(world, pilot)
        await wait_for(pilot, lambda: "Enter asks: Write a Python function" in world.shown())
        assert "DEMO" in world.shown().split("\n")[0]
        await pilot.press("enter")
        await wait_for(pilot, lambda: world.screen.chat.last is not None and world.rests)
        assert world.screen.chat.last is not None
        assert "def " in world.screen.chat.last.text
        await wait_for(pilot, lambda: "Enter asks: Add type hints" in world.shown())
        world.screen.prompt.put("/draft ngram")
        await pilot.press("enter")
        await wait_for(pilot, lambda: world.screen.loaded.ready is not None and world.screen.loaded.ready.drafter == "ngram")
        await pilot.press("ctrl+t")
        await wait_for(pilot, lambda: world.screen.tokens_on)
        await pilot.press("f5")
        await wait_for(pilot, lambda: isinstance(world.app.screen, CompareScreen))
        assert "DEMO" in world.shown().split("\n")[0]
        await pilot.press("enter")
        await ran(world, pilot)
        await sees(world, pilot, "All four texts are identical")
        await pilot.press("s")
        await wait_for(pilot, lambda: results.entries())
        (entry,) = results.entries()
        assert "DEMO" in entry.report["notes"][0]
        assert entry.report["machine"] == entry.report["versions"] == {}
        assert "DEMO" in (entry.folder / "report.md").read_text()


async def test_an_unknown_question_says_that_this_is_a_recording() -> None:
    world = DemoWorld()
    async with world.app.run_test(size=(80, 24)) as pilot:
        await started(world, pilot)
        await ask(world, pilot, "What is the capital of Peru?")
        assert any("This is a recording" in note for note in world.notes)


async def test_a_race_on_an_unknown_question_plays_one_text_in_all_lanes() -> None:
    """Whatever was asked before: the lanes show the same recording with each drafter, and the texts agree."""
    world = DemoWorld()
    async with world.app.run_test(size=(80, 24)) as pilot:
        await started(world, pilot)
        await ask(world, pilot, "What is your name?")
        await ask(world, pilot, "Why is the sky blue?")
        await pilot.press("f5")
        await wait_for(pilot, lambda: isinstance(world.app.screen, CompareScreen))
        await pilot.press("enter")
        await wait_for(pilot, lambda: "All four texts are identical" in world.shown())
        await sees(world, pilot, "DEMO: This is a recording and knows no answer to that")
        world.app.screen.prompt.put(world.machine.suggestions[0])  # type: ignore[attr-defined]
        await pilot.press("enter")
        await ran(world, pilot)
        await sees(world, pilot, "All four texts are identical")
        assert "knows no answer" not in world.shown()


async def test_nothing_is_kept_and_nothing_is_touched(home: Path) -> None:
    """No chats, no state, no downloads, no deletions."""
    world = DemoWorld()
    async with world.app.run_test(size=(80, 24)) as pilot:
        await started(world, pilot)
        await ask(world, pilot, read("mixed")[0].text)
        await pilot.pause(0.3)
    data = home / "home" / "data"
    assert not data.exists() or list(data.iterdir()) == []
    with pytest.raises(EngineError, match="downloads nothing"):
        world.machine.pull(NGRAM, lambda now: None, lambda: False)
    with pytest.raises(EngineError, match="deletes nothing"):
        world.machine.remove(world.machine.target)  # type: ignore[attr-defined]


def test_without_a_terminal_it_is_a_usage_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert invoke(["--demo"]) == 2
    assert "needs a terminal" in capsys.readouterr().err
    assert invoke(["--demo", "bench"]) == 2
    assert "no meaning with a command" in capsys.readouterr().err
