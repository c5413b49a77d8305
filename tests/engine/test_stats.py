"""The definitions of DESIGN 12 against traces counted by hand."""

from __future__ import annotations

from pathlib import Path

import pytest

from engine.protocol import Done, Step
from engine.replay import load_trace
from engine.stats import NOW_MIN_STEPS, Tally

HAND = Path(__file__).parents[1] / "data" / "traces" / "hand_counted.json"


def step(index: int, emitted: int, drafted: int = 0, accepted: int = 0, at_s: float = 0.0, nodes: int | None = None) -> Step:
    return Step(1, index, (), emitted, drafted, accepted, drafted if nodes is None else nodes, 0.01, 0.02, 0.003, 0.004, at_s)


def test_hand_counted_trace() -> None:
    """Four steps: all kept with a bonus; one of four kept; no draft; the draft's last token is the stop id."""
    trace = load_trace(HAND)
    tally = Tally()
    for _, event in trace.replies[0]:
        if isinstance(event, Step):
            tally.add(event)
        elif isinstance(event, Done):
            assert event.stop_id is not None
            tally.stopped()
            tally.prefill_s = event.prefill_s
            assert len(event.token_ids) == 10
    stats = tally.stats()
    assert stats.steps == 4
    assert tally.emitted == 5 + 2 + 1 + 2
    assert stats.drafted == 4 + 4 + 0 + 3
    assert stats.accepted == 4 + 1 + 0 + 3
    assert stats.kept == pytest.approx(8 / 11)
    assert stats.tau == pytest.approx((10 + 1) / 4)
    assert stats.per_position == pytest.approx((3 / 3, 2 / 3, 2 / 3, 1 / 2))
    assert tally.if_reached == pytest.approx((3 / 3, 2 / 3, 2 / 2, 1 / 1))
    assert stats.nodes == 4 + 9 + 0 + 3
    assert stats.decode_s == pytest.approx(0.2)
    assert stats.tok_per_s == pytest.approx(10 / 0.2)
    assert stats.prefill_s == pytest.approx(0.125)
    assert (stats.draft_s, stats.verify_s) == (pytest.approx(0.04), pytest.approx(0.12))
    assert (stats.bridge_s, stats.other_s) == (pytest.approx(0.004), pytest.approx(0.036))


def test_nothing_counted() -> None:
    """No number is better than a wrong one: zeros, and no rate."""
    tally = Tally()
    stats = tally.stats()
    assert (stats.tau, stats.kept, stats.tok_per_s, stats.per_position, tally.now) == (0.0, 0.0, 0.0, (), None)


def test_plain_decoding_has_tau_one() -> None:
    """Also when a stop id ends it: the last pass emits nothing but counts."""
    tally = Tally()
    for index in range(1, 8):
        tally.add(step(index, 1, at_s=index * 0.1))
    tally.add(step(8, 0, at_s=0.8))
    tally.stopped()
    assert tally.tau == 1.0
    assert tally.kept == 0.0
    assert tally.tok_per_s == pytest.approx(7 / 0.8)


def test_now_needs_eight_steps() -> None:
    """Blank until eight intervals are seen, then emitted / time between the first and the last of them."""
    tally = Tally()
    for index in range(1, NOW_MIN_STEPS + 1):
        tally.add(step(index, 3, at_s=index * 0.1))
        assert tally.now is None
    tally.add(step(9, 3, at_s=0.9))
    assert tally.now == pytest.approx(8 * 3 / 0.8)


def test_now_forgets_after_two_seconds() -> None:
    """Twenty fast steps, then slow ones: after two seconds only the slow count."""
    tally = Tally()
    at_s = 0.0
    for index in range(1, 21):
        at_s += 0.01
        tally.add(step(index, 5, at_s=at_s))
    assert tally.now == pytest.approx(500)
    for index in range(21, 46):
        at_s += 0.1
        tally.add(step(index, 1, at_s=at_s))
    assert tally.now == pytest.approx(10)
    assert tally.tok_per_s == pytest.approx((100 + 25) / at_s)


def test_now_with_steps_slower_than_the_window() -> None:
    """Eight steps count even if they took longer than two seconds."""
    tally = Tally()
    for index in range(1, 21):
        tally.add(step(index, 2, at_s=index * 1.0))
    assert tally.now == pytest.approx(2.0)


def test_tree_counts_depth_and_nodes_apart() -> None:
    tally = Tally()
    tally.add(step(1, 3, drafted=5, accepted=2, at_s=0.1, nodes=25))
    assert tally.kept == pytest.approx(2 / 5)
    assert tally.nodes == 25
    assert tally.stats().per_position == (1.0, 1.0, 0.0, 0.0, 0.0)
