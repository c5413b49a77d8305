"""What a training says: its lines, its numbers, its screen."""

from __future__ import annotations

from pathlib import Path

from rich.console import Console

from app import train
from app.screens.train import Screen
from engine.catalog.specs import ModelSpec
from engine.protocol import Loading
from engine.training.protocol import Answering, Judged, Learning, Measured, Plan, Remark, Stage, Trained

PLAN = Plan(ModelSpec("tiny\x1b[31m"), Path("/heads"), name="tiny-hydra++")
JUDGED = Judged(200, 1.625, (0.48, 0.31, 0.2), 1.24, True, 4)
DONE = Trained(Path("/heads"), "mine", "hydra++", Measured(1.7, (0.5, 0.4), 1200, True, 1.25), 60_000, 900, 3000.0, 120_000_000)


def test_lines() -> None:
    assert train.line(Stage("Training the heads")) == "Training the heads"
    assert train.line(Remark("x")) == "note: x"
    assert train.line(Loading("Packing weights", 1, 2)) is None
    assert train.line(Answering(1200, 50_000, 9, 212.4, 230.0)) == "data: 1,200 of 50,000 tokens in 9 replies · 212 tok/s · 3:50 min left"
    assert train.line(Answering(1200, 0, 9, 212.4, 0.0)) == "data: 1,200 tokens in 9 replies · 212 tok/s"
    text = train.line(Learning(120, 900, 1.25, 2.1041, 1e-3, 410.0, 550.0))
    assert text == "training: step 120 of 900 · pass 1.2 · loss 2.104 · 410 tok/s · 9:10 min left"
    assert train.line(Learning(3, 0, 0.1, 2.0, 1e-3, 410.0, 0.0)) == "training: step 3 (timing) · pass 0.1 · loss 2.000 · 410 tok/s"
    assert train.line(JUDGED) == "trial: tau 1.62 on held-out topics, right by position 48% 31% 20%, expected 1.24x · the best so far"
    worse = Judged(220, 1.6, (0.4,), 0.0, False, 2)
    assert (train.line(worse) or "").endswith("right by position 40% · ends after 2 more without a better one")
    assert (train.line(Judged(220, 1.6, (0.4,), 0.0, False, 0)) or "").endswith("· ends here")


def test_the_summary() -> None:
    text = train.summary(DONE)
    assert "specchat run -d mine 'PROMPT'" in text
    assert "tau 1.70 ± 0.00, kept by position 50% 40%, expected 1.25x" in text
    assert "near-ties" not in text
    from dataclasses import replace

    other = replace(DONE, name="", measured=replace(DONE.measured, same_text=False))
    assert "-d '/heads'" in train.summary(other)
    assert "near-ties" in train.summary(other)
    assert train.as_json(DONE)["tau"] == 1.7
    assert train.as_json(other)["name"] is None


def test_curves() -> None:
    assert train.curve([]) == ""
    assert train.curve([1.0]) == "▁"
    assert train.curve([0.0, 0.5, 1.0]) == "▁▅█" or train.curve([0.0, 0.5, 1.0]) == "▁▄█"
    long = train.curve([float(i) for i in range(1000)])
    assert len(long) == train.CURVE
    assert (long[0], long[-1]) == ("▁", "█")


def test_the_state() -> None:
    state = train.State(PLAN)
    assert state.share == 0.0
    state.take(Loading("Packing", 3, 4))
    assert state.share == 0.75
    state.take(Stage("Data"))
    assert state.loading is None
    state.take(Answering(10, 40, 2, 5.0, 6.0))
    assert (state.share, state.left_s) == (0.25, 6.0)
    state.take(Stage("Training"))
    assert state.answering is None
    state.take(Learning(5, 0, 0.1, 3.0, 1e-4, 10.0, 0.0))
    assert (state.share, state.left_s) == (0.0, None)
    state.take(Learning(5, 10, 0.1, 2.0, 1e-4, 10.0, 7.0))
    assert (state.share, state.left_s, state.losses) == (0.5, 7.0, [3.0, 2.0])
    state.take(JUDGED)
    state.take(Judged(220, 1.5, (0.4,), 0.0, False, 3))
    assert state.best == JUDGED
    assert state.taus == [1.625, 1.5]


def test_the_screen_shows_it_all_and_nothing_foreign() -> None:
    console = Console(width=100, record=True, force_terminal=True)
    screen = Screen(train.State(PLAN), console)
    for event in (
        Stage("Training the heads"),
        Learning(450, 900, 1.5, 2.0, 1e-3, 400.0, 65.0),
        JUDGED,
        Remark("note \x1b]0;title\x07 [bold]not markup[/bold]"),
    ):
        screen.show(event)
    screen.close()
    console.print(screen.draw())
    text = console.export_text()
    for wanted in ("Training the heads", "step 450 of 900", "1.62 now", "best 1.62, expected 1.24x", "1: 48%", "1:05 min left", "--resume"):
        assert wanted in text, wanted
    assert "[bold]not markup[/bold]" in text
    assert "\x1b]0" not in text
    assert "\x1b[31m" not in console.export_text(clear=False)
