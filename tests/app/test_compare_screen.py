"""The comparison on the screen: lanes, agreement, grades, replay, choosing, keeping, and the way back into the chat."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
from textual.pilot import Pilot

from app import results
from app.compare import timeline, whole_steps
from app.screens.bench import BenchScreen
from app.screens.compare import CompareScreen
from app.screens.pick import PickScreen
from app.widgets.lanes import LaneText
from engine.catalog.specs import NONE
from engine.protocol import Failed, SwapDrafter
from engine.trace import Take
from tests.app.race_world import KEPT, OTHER, TEXT, WHY, opened, opened_by, race_trace, race_world, ran, take
from tests.app.tui_world import World, ask, sees, started, wait_for


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SPECCHAT_HOME", str(tmp_path / "home"))
    return tmp_path


def compare(world: World) -> CompareScreen:
    screen = world.app.screen
    assert isinstance(screen, CompareScreen)
    return screen


async def raced(world: World, pilot: Pilot[int]) -> None:
    """Start, open the comparison, run it on the known question, and wait for its end."""
    await opened(world, pilot, "f5")
    compare(world).prompt.put(WHY)
    await pilot.press("enter")
    await ran(world, pilot)


def lane_texts(world: World) -> list[str]:
    return [str(lane._text.content) for lane in compare(world).query(LaneText) if lane.has_class("-used")]


@pytest.mark.parametrize("size", [(80, 24), (120, 40), (60, 16)])
async def test_a_race_of_the_last_question(size: tuple[int, int]) -> None:
    """F5, Enter: three lanes with equal texts; the fastest is marked; nothing is wider than the window."""
    world = race_world()
    async with world.app.run_test(size=size) as pilot:
        await started(world, pilot)
        await ask(world, pilot, WHY)
        await pilot.press("f5")
        await wait_for(pilot, lambda: isinstance(world.app.screen, CompareScreen))
        assert compare(world).prompt.text == WHY
        await pilot.press("enter")
        await ran(world, pilot)
        await sees(world, pilot, "All three texts are identical", "wins by", "live")
        shown = world.shown()
        assert [lane.title for lane in compare(world).lanes] == ["none", "ngram", "small"]
        assert lane_texts(world) == [TEXT] * 3
        assert len(shown.split("\n")) == size[1]
        assert sum(lane.display for lane in compare(world).query(LaneText)) == (3 if size[0] >= 110 else 1)
        assert ("TOK/S ALONG THE REPLY" in shown) is (size[0] >= 110)


async def test_lanes_run_one_at_a_time_with_the_same_command() -> None:
    world = race_world()
    async with world.app.run_test(size=(120, 40)) as pilot:
        await opened_by(world, pilot, "/compare small ngram")
        compare(world).prompt.put(WHY)
        await pilot.press("enter")
        await ran(world, pilot)
        asked = [command for command in world.requests if command.messages[-1].content == WHY]
        assert len(asked) == 3
        assert len({(command.messages, command.sampling, command.seed, command.max_tokens) for command in asked}) == 1
        assert [c.drafter.name for c in world.client.sent if isinstance(c, SwapDrafter)][:3] == ["none", "small", "ngram"]


async def test_a_live_race_shows_text_a_timed_one_only_numbers() -> None:
    """Enter: text while it runs. b: three rounds, and no text before the end."""
    world = race_world(take(WHY, "none", stuck_after=3), speed=1.0)
    async with world.app.run_test(size=(120, 40)) as pilot:
        await opened(world, pilot, "f5")
        compare(world).prompt.put(WHY)
        await pilot.press("enter")
        await wait_for(pilot, lambda: "The sky" in lane_texts(world)[0])
        assert compare(world).running
        await sees(world, pilot, "numbers marked live")
        await pilot.press("escape")
        await ran(world, pilot)
    world = race_world(speed=4.0)
    async with world.app.run_test(size=(120, 40)) as pilot:
        await opened(world, pilot, "f5")
        compare(world).prompt.put(WHY)
        await pilot.press("b")
        while compare(world).runner is None or compare(world).running:
            await pilot.pause(0.05)
            if compare(world).running:
                assert lane_texts(world) == ["", "", ""]
        await ran(world, pilot)
        assert lane_texts(world) == [TEXT] * 3
        await sees(world, pilot, "3 x timed")
        assert all(lane.rounds == 3 for lane in compare(world).lanes)


async def test_another_text_is_named() -> None:
    """The agreement line says where; it is no longer claimed that all are the same."""
    world = race_world(take(WHY, "small", OTHER))
    async with world.app.run_test(size=(120, 40)) as pilot:
        await raced(world, pilot)
        await sees(
            world, pilot, "small differs from plain at token 7: the end of the text instead of ' parts'", "ngram: identical (23 tokens)."
        )


async def test_replay_shows_what_was_there_at_that_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """The moments of the lanes are those of the recording; r plays them side by side and ends by itself."""
    world = race_world(*(take(WHY, drafter, step_s=0.5) for drafter in KEPT))
    clock_s = 1000.0
    for name in ("compare", "compare_view"):
        monkeypatch.setattr(f"app.screens.{name}.time", SimpleNamespace(monotonic=lambda: clock_s))
    async with world.app.run_test(size=(120, 40)) as pilot:
        await raced(world, pilot)
        screen = compare(world)
        assert screen.runner is not None
        assert screen.runner.result is not None
        plain, _, small = (lane.runs[0] for lane in screen.runner.result.lanes)
        for run in (plain, small):
            moments = timeline(run)
            assert "".join(segment.text for _, segments in moments for segment in segments) == TEXT
            assert [at for at, _ in moments] == sorted(at for at, _ in moments)
            assert moments[-1][0] == pytest.approx(moments[0][0] + run.steps[-1].at_s - run.steps[0].at_s)
            assert tuple(s for step in whole_steps(run) for s in step.segments) == run.answer.segments
        early_s, late_s = timeline(small)[-1][0], timeline(plain)[-1][0]
        assert early_s < late_s
        ends: list[tuple[float, Callable[[], None]]] = []
        monkeypatch.setattr(screen, "set_timer", lambda after_s, then: ends.append((after_s, then)))
        await pilot.press("r")
        await sees(world, pilot, "here they start together")
        assert lane_texts(world) == ["", "", ""]
        clock_s += (early_s + late_s) / 2
        await wait_for(pilot, lambda: lane_texts(world)[2] == TEXT and lane_texts(world)[0] not in ("", TEXT))
        ((after_s, end),) = ends
        assert after_s > late_s
        end()
        await wait_for(pilot, lambda: screen.played_s is None)
        await wait_for(pilot, lambda: lane_texts(world) == [TEXT] * 3)


async def test_drafters_are_chosen_up_to_three() -> None:
    world = race_world()
    async with world.app.run_test(size=(80, 24)) as pilot:
        await opened(world, pilot, "f5")
        await pilot.press("d")
        await wait_for(pilot, lambda: isinstance(world.app.screen, PickScreen))
        await pilot.press("space", "enter")
        await wait_for(pilot, lambda: isinstance(world.app.screen, CompareScreen))
        assert [spec.name for spec in compare(world).drafters] == ["small"]
        assert "ngram" not in world.shown()


async def test_the_winner_goes_into_the_chat() -> None:
    """u on a lane: its reply becomes another version of the answer, its drafter that of the chat, and the chat is saved so."""
    world = race_world()
    async with world.app.run_test(size=(120, 40)) as pilot:
        await started(world, pilot)
        await ask(world, pilot, WHY)
        await pilot.press("f5")
        await wait_for(pilot, lambda: isinstance(world.app.screen, CompareScreen))
        await pilot.press("enter")
        await ran(world, pilot)
        screen = compare(world)
        assert screen.runner is not None
        assert screen.runner.result is not None
        plain, run = screen.runner.result.lanes[0].tally.tok_per_s, screen.runner.result.lanes[2].runs[0]
        screen.chosen = 2
        await pilot.press("u")
        await wait_for(pilot, lambda: world.app.screen is world.screen and not world.screen.loaded.loading)
        assert world.screen.loaded.ready is not None
        assert world.screen.loaded.ready.drafter == "small"
        (turn,) = world.screen.chat.turns
        assert [version.text for version in turn.replies] == [TEXT, TEXT]
        answer = turn.answer
        assert answer is not None
        assert answer.done.drafter == "small"
        assert tuple(token for segment in answer.segments for token in segment.token_ids) == answer.done.token_ids
        await wait_for(pilot, lambda: "version 2/2" in world.shown())
        numbers = world.screen.meter.numbers()
        assert (numbers.tau, numbers.kept) == pytest.approx((run.answer.stats.tau, run.answer.stats.kept))
        assert numbers.measured
        assert numbers.speedup == pytest.approx(run.answer.stats.tok_per_s / plain)
        await wait_for(pilot, lambda: f"τ {run.answer.stats.tau:.2f}" in world.shown())
        await ask(world, pilot, "And now?")
        assert world.requests[-1].messages[1].content == TEXT


async def test_a_new_prompt_becomes_a_new_turn_and_plain_can_win() -> None:
    world = race_world()
    async with world.app.run_test(size=(80, 24)) as pilot:
        await started(world, pilot)
        world.screen.prompt.put(WHY)
        await pilot.press("f5")
        await wait_for(pilot, lambda: isinstance(world.app.screen, CompareScreen))
        await pilot.press("enter")
        await ran(world, pilot)
        compare(world).chosen = 0
        await pilot.press("u")
        await wait_for(pilot, lambda: world.app.screen is world.screen and not world.screen.loaded.loading)
        assert world.screen.loaded.drafter == NONE
        assert world.screen.prompt.text == ""
        assert [turn.prompt for turn in world.screen.chat.turns] == [WHY]


async def test_leaving_puts_the_own_drafter_back_and_without_a_race_nothing_is_loaded() -> None:
    world = race_world()
    async with world.app.run_test(size=(80, 24)) as pilot:
        await opened(world, pilot, "f5")
        sent = len(world.client.sent)
        await pilot.press("escape")
        await wait_for(pilot, lambda: world.app.screen is world.screen)
        assert len(world.client.sent) == sent
        await pilot.press("f5")
        await wait_for(pilot, lambda: isinstance(world.app.screen, CompareScreen))
        compare(world).prompt.put(WHY)
        await pilot.press("enter")
        await ran(world, pilot)
        await pilot.press("escape")
        await wait_for(pilot, lambda: world.app.screen is world.screen and not world.screen.loaded.loading)
        assert world.screen.loaded.ready is not None
        assert world.screen.loaded.ready.drafter == "ngram"
        assert world.screen.chat.turns == []


async def test_the_prompt_can_be_changed_and_letters_in_it_are_letters() -> None:
    world = race_world()
    async with world.app.run_test(size=(80, 24)) as pilot:
        await opened(world, pilot, "f5")
        screen = compare(world)
        await pilot.press("p")
        await wait_for(pilot, lambda: screen.focused is screen.prompt)
        screen.prompt.put("")
        await pilot.press(*"drbus", "ctrl+j", "x", "escape")
        assert screen.prompt.text == "drbus\nx"
        await wait_for(pilot, lambda: screen.focused is None)
        assert world.app.screen is screen
        screen.prompt.put(" ")
        await pilot.press("enter")
        await pilot.pause()
        assert screen.runner is None


async def test_the_race_is_kept_and_goes_on_to_the_benchmark() -> None:
    """s keeps the result; F6 opens the benchmark with the same drafters, and it can run at once."""
    world = race_world()
    async with world.app.run_test(size=(120, 40), notifications=True) as pilot:
        await raced(world, pilot)
        await pilot.press("s")
        await wait_for(pilot, lambda: len(results.entries()) == 1)
        assert any("Kept in" in toast for toast in world.toasts)
        assert results.entries()[0].report["agreement"]["identical"] is True
        await pilot.press("f6")
        await wait_for(pilot, lambda: isinstance(world.app.screen, BenchScreen))
        await pilot.press("r")
        await ran(world, pilot)
        await wait_for(pilot, lambda: len(results.entries()) == 2)
        await pilot.press("escape")
        await wait_for(pilot, lambda: world.app.screen is world.screen and not world.screen.loaded.loading)
        assert world.screen.loaded.ready is not None
        assert world.screen.loaded.ready.drafter == "ngram"


async def test_a_lane_that_fails_is_said() -> None:
    failed = Take("", "small", ((0.0, Failed("Another vocabulary.", "Take another.", "vocabulary")),))
    world = race_world(failed)
    async with world.app.run_test(size=(80, 24)) as pilot:
        await raced(world, pilot)
        await sees(world, pilot, "! small: Another vocabulary.", "Both texts are identical")


async def test_a_stop_in_the_first_lane_leaves_nothing_to_compare() -> None:
    world = race_world(take(WHY, "none", stuck_after=3), speed=1.0)
    async with world.app.run_test(size=(80, 24)) as pilot:
        await opened(world, pilot, "f5")
        compare(world).prompt.put(WHY)
        await pilot.press("enter")
        await wait_for(pilot, lambda: "The sky" in lane_texts(world)[0])
        await pilot.press("escape")
        await ran(world, pilot)
        await sees(world, pilot, "There are no two texts to compare.")
        await pilot.press("escape")
        await wait_for(pilot, lambda: world.app.screen is world.screen and not world.screen.loaded.loading)
        world.client.trace = race_trace()
        await ask(world, pilot, WHY)
        assert world.screen.chat.last is not None


async def test_not_without_a_model_nor_during_a_reply() -> None:
    world = race_world(*(take(WHY, drafter, stuck_after=3) for drafter in KEPT), speed=1.0)
    async with world.app.run_test(size=(80, 24), notifications=True) as pilot:
        await started(world, pilot)
        world.screen.prompt.put(WHY)
        await pilot.press("enter")
        await wait_for(pilot, lambda: world.screen.situation.generating)
        await pilot.press("f5", "f6")
        await wait_for(pilot, lambda: any("Not while a reply is written" in toast for toast in world.toasts))
        assert world.app.screen is world.screen
        await pilot.press("escape")
        await wait_for(pilot, lambda: world.rests)


async def test_hostile_text_in_a_lane_is_shown_as_text() -> None:
    nasty = "\x1b]52;c;aGk=\x07 [bold]x[/] [/] \u202eabc\x00 end"
    world = race_world(*(take(WHY, drafter, nasty) for drafter in ("none", "ngram", "small")))
    async with world.app.run_test(size=(120, 40)) as pilot:
        await raced(world, pilot)
        await pilot.press("t")
        await pilot.pause()
        await sees(world, pilot, "[bold]x[/]")
        shown = world.shown()
        assert not [c for c in shown if c in "\x1b\x07\u202e\x00"]
