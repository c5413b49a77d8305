"""The panel of numbers: what it says, where it stands, and that nobody computes it while it is hidden."""

from __future__ import annotations

from dataclasses import replace

import pytest

from app.meter import Meter, Numbers, Overlay
from app.widgets.stats_panel import bar, panel, sparkline
from engine.protocol import Memory, Prefill, Step
from engine.stats import Tally
from engine.trace import DONE, READY, scripted
from tests.app.test_meter import CARD, FULL
from tests.app.tui_world import SHORT, World, ask, sees, started, wait_for
from tests.app.tui_world import scripted as reply


def overlay(numbers: Numbers = FULL, *, depth: int = 4, **more) -> Overlay:  # type: ignore[no-untyped-def]
    tally = Tally()
    for _, event in scripted("word " * 60, depth=depth, step_s=0.05):
        if isinstance(event, Step):
            tally.add(event)
    values = {"emitted": tally.emitted, "prompt_tokens": 312, "reused_tokens": 100, "context": 8192}
    values |= {"rates": (10.0, 20.0, 30.0, 40.0)} | more
    return Overlay(numbers, values.pop("stats", tally.stats()), **values)


def test_everything_in_one_column() -> None:
    text = panel(overlay(), replace(READY, device="cuda:0"), 31, beside=True).plain
    assert max(map(len, text.split("\n"))) <= 31
    for part in (
        "now 61.2   avg 58.4 tok/s", "TTFT 0.21 s (prompt 312)", "of these 100 reused", "2.09x plain 27.9 (est.)",
        "τ 2.90 tok/step  kept 49%", "67% of the text",
        "pos 1", "81%", "draft ", "verify", "other", "VRAM", "6.9/12G", "373/8,192", "cuda:0", "21 steps", "61 tok",
    ):  # fmt: skip
        assert part in text, part
    assert "bridge" not in text


def test_measured_and_estimated() -> None:
    assert "(measured)" in panel(overlay(replace(FULL, measured=True)), READY, 31, beside=True).plain


def test_bridge_trees_and_deep_drafts() -> None:
    """The bridge has its own share, a tree says how many nodes it had, positions behind the eighth are summed up."""
    stats = replace(overlay().stats, bridge_s=0.2, nodes=999, per_position=tuple(1 / n for n in range(1, 13)))
    text = panel(overlay(stats=stats), READY, 31, beside=True).plain
    assert "bridge" in text
    assert "999 nodes in trees" in text
    assert "pos 8" in text
    assert "pos 9" not in text
    assert "4 deeper, at last 8%" in text


def test_before_anything_was_written() -> None:
    nothing = Overlay(Numbers("idle"), Tally().stats(), 0, 0, 0, 0, ())
    text = panel(nothing, None, 31, beside=True).plain
    for part in ("nothing written yet", "nothing drafted", "no step yet", "no model"):
        assert part in text
    assert "plain decoding" in panel(nothing, READY, 31, beside=True).plain


@pytest.mark.parametrize("width", [58, 78, 107])
def test_two_columns_have_the_given_width(width: int) -> None:
    rows = panel(overlay(), READY, width, beside=False).plain.split("\n")
    assert len(rows) <= 9
    assert any("by position 81 57 38 19 %" in row for row in rows)
    assert max(map(len, rows)) <= width


def test_bars_and_sparklines() -> None:
    assert [bar(share, 4) for share in (0.0, 0.5, 1.0, 2.0, -1.0)] == ["    ", "██  ", "████", "████", "    "]
    assert bar(1 / 16, 2) == "▏ "
    assert sparkline((0.0, 50.0, 100.0), 10) == "▁▅█"
    assert sparkline(tuple(float(n) for n in range(100)), 4) == "▂▄▆█"
    assert (sparkline((), 5), sparkline((0.0,), 5)) == ("", "▁")


def test_rates_are_those_of_the_definition() -> None:
    """Samples of `Tally.now`, a quarter of a second apart; a new question begins anew."""
    meter, tally = Meter(), Tally()
    meter.asked()
    seen = []
    for _, event in scripted("word " * 120, step_s=0.1):
        if isinstance(event, Step):
            meter.step(event)
            tally.add(event)
            seen.append(tally.now)
    rates = meter.overlay().rates
    assert 5 < len(rates) < len(seen) / 2
    assert set(rates) <= set(seen)
    meter.asked()
    assert meter.overlay().rates == ()


def test_the_speedup_is_measured_where_the_same_question_was_answered_without_a_drafter() -> None:
    meter = Meter()
    meter.loaded(READY, same_target=False)
    for question, depth, method in (("a", 0, "none"), ("a", 4, "ngram"), ("b", 4, "ngram")):
        meter.asked(question)
        meter.reading(Prefill(1, 10, 10, 0))
        for _, event in scripted("word " * 40, depth=depth, step_s=0.02):
            if isinstance(event, Step):
                meter.step(event)
        meter.done(replace(DONE, method=method, plain_s=0.05, memory=Memory()))
        now = meter.numbers()
        if question == "a" and depth:
            assert now.measured
            assert now.speedup == pytest.approx(3.0, rel=0.1)
        elif depth:
            assert not now.measured
            assert now.speedup == pytest.approx(7.1, rel=0.1)


async def test_wide_windows_have_the_panel_narrow_ones_on_demand() -> None:
    world = World(SHORT)
    async with world.app.run_test(size=(120, 40), notifications=True) as pilot:
        await started(world, pilot)
        await ask(world, pilot, "hello")
        await wait_for(pilot, lambda: "ACCEPTANCE" in world.shown())
        assert world.screen.panel_of_numbers.size.height == world.screen.transcript.size.height
        await pilot.resize_terminal(80, 24)
        await wait_for(pilot, lambda: "ACCEPTANCE" not in world.shown())
        await sees(world, pilot, "tok/s")
        await pilot.press("ctrl+s")
        await wait_for(pilot, lambda: "ACCEPTANCE" in world.shown())
        assert world.screen.transcript.size.height >= 8
        await pilot.press("ctrl+s")
        await wait_for(pilot, lambda: "tok/s" not in world.shown().split("\n")[-2])
        await pilot.press("ctrl+s")
        await wait_for(pilot, lambda: "tok/s" in world.shown().split("\n")[-2])
        await pilot.resize_terminal(60, 16)
        await pilot.press("ctrl+s")
        await wait_for(pilot, lambda: any("needs a window" in text for text in world.toasts))
        assert world.screen.transcript.size.height >= 8


async def test_a_hidden_panel_does_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither the panel nor the hidden status line is computed during a reply."""
    world = World(reply("word " * 300, step_s=0.005), speed=1.0)
    async with world.app.run_test(size=(80, 24)) as pilot:
        await started(world, pilot)
        calls: list[str] = []
        whole, line = world.screen.meter.overlay, world.screen.status.show
        monkeypatch.setattr(world.screen.meter, "overlay", lambda: calls.append("panel") or whole())
        monkeypatch.setattr(world.screen.status, "show", lambda numbers: calls.append("line") or line(numbers))
        await ask(world, pilot, "go")
        assert "panel" not in calls
        assert "line" in calls
        await pilot.press("ctrl+s", "ctrl+s")
        await pilot.pause()
        calls.clear()
        await ask(world, pilot, "go")
        assert calls == []


def test_card_memory() -> None:
    numbers = replace(FULL, memory=replace(CARD, target=5_200_000_000, drafter=900_000_000, kv=600_000_000))
    text = panel(overlay(numbers), READY, 40, beside=True).plain
    assert "target 5.2 GB  draft 900 MB" in text
