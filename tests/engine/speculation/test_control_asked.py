"""Drafters that stop by themselves: judged by what they were allowed, so that neither their caution nor their silence flatters them."""

from __future__ import annotations

import random

import pytest

from engine.drafters.companion import Companion
from engine.speculation.control import FAIR_STEPS, Controller

PASS_S, ROW_S, DRAFT_S = 0.020, 0.002, 0.004


def controller() -> Controller:
    made = Controller()
    made.measured({n: PASS_S + ROW_S * (n - 1) for n in range(1, 17)})
    return made


def test_what_it_leaves_out_counts_as_not_kept() -> None:
    control = controller()
    for _ in range(40):
        control.learn("little", 1, 1, 1, DRAFT_S, PASS_S + ROW_S, 0.0, asked=3)
    first, second, _ = control.source("little").survivals(3)
    assert first > 0.95
    assert second < 0.2
    assert control.source("little").drafted(3) == pytest.approx(1.0)  # but it costs no more than it drafts
    gain = control.gains("little", [3])[0]
    assert gain == pytest.approx((1 + first + first * second + first * second**2) * PASS_S / (PASS_S + ROW_S + DRAFT_S), rel=0.05)
    other = controller()
    for _ in range(40):
        other.learn("little", 1, 1, 1, DRAFT_S, PASS_S + ROW_S, 0.0)
    assert other.source("little").survivals(2)[1] > 0.5  # never tried


def test_passes_that_led_to_no_draft_are_paid_for() -> None:
    """A drafter whose words cannot be handed over costs time at every step: it is turned off like any other that loses."""
    control = controller()
    steps = 0
    while steps < 3 * FAIR_STEPS and (asked := control.budget("mute")):
        control.learn("mute", 0, 0, 0, 3 * DRAFT_S, PASS_S, 0.0, asked=asked)
        steps += 1
    assert FAIR_STEPS <= steps < 3 * FAIR_STEPS
    assert "mute does not pay here" in control.take_notices()[0]
    assert control.plain_s == pytest.approx(PASS_S)


def test_the_expected_gain_is_the_one_that_comes() -> None:
    """A drafter that knows when it is right: of its drafts 60 % stop at one token, kept every other time; the rest are kept whole."""
    control, rng = controller(), random.Random(4)
    control.k = 3
    seconds = tokens = 0.0
    gains = []
    for _ in range(4000):
        nodes = 3 if rng.random() < 0.4 else 1
        kept = 3 if nodes == 3 else int(rng.random() < 0.5)
        verify_s, draft_s = PASS_S + ROW_S * nodes, DRAFT_S * nodes
        control.learn("wise", nodes, nodes, kept, draft_s, verify_s, 0.0, asked=3)
        seconds += verify_s + draft_s
        tokens += kept + 1
        gains += control.gains("wise", [3])
    assert sum(gains) / len(gains) == pytest.approx(tokens * PASS_S / seconds, rel=0.03)


def test_what_one_more_token_is_worth() -> None:
    control = controller()
    assert control.worth("little") == pytest.approx((PASS_S / control.best("little")[1], ROW_S))
    control.k = 4
    assert control.worth("little") == (0.0, 0.0)


def test_a_drafter_goes_on_while_it_is_likely_enough_to_be_kept() -> None:
    side = Companion.__new__(Companion)
    side.worth, side.pass_s = (0.0, 0.0), 1.0
    assert side.pays(0.0)  # a fixed length: whatever it costs
    side.worth, side.pass_s = (0.020, 0.002), 0.005
    assert [side.pays(sure) for sure in (1.0, 0.51, 0.49, 0.1)] == [True, True, False, False]
    side.pass_s = 0.0
    side.measured(2, 0.010)
    assert side.pass_s == pytest.approx(0.005)
    side.measured(0, 0.010)
    side.measured(1, 0.015)
    assert side.pass_s == pytest.approx(0.006)
