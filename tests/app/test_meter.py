"""The numbers of a reply: states, waiting time, estimates, and what is dropped when the row gets narrow."""

from __future__ import annotations

from dataclasses import replace

import pytest

from app.meter import Meter, Numbers
from app.widgets.line import HeaderBar
from app.widgets.status_line import memory_text, status
from engine.protocol import Done, Loading, Memory, Prefill, Step
from engine.trace import DONE, READY, scripted

CARD = Memory(device_used=6_900_000_000, device_total=12_000_000_000)
FULL = Numbers("GEN", now=61.2, average=58.4, ttft_s=0.21, tau=3.41, kept=0.48, speedup=2.09, memory=CARD, on_card=True, context=0.09)


class Clock:
    now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


def test_a_reply_from_load_to_end() -> None:
    """LOAD, READ with what is reused, GEN, idle; TTFT is from asking to visible; the estimate comes with the first Done."""
    clock = Clock()
    meter = Meter(clock)
    meter.loading(Loading("reading weights", 1, 4, "bytes"))
    assert meter.numbers() == Numbers("LOAD", "reading weights", 1, 4, "bytes")
    meter.loaded(READY, same_target=False)
    assert meter.numbers().state == "idle"
    meter.asked()
    assert meter.numbers().state == "READ"
    meter.reading(Prefill(1, 1240, 3100, 1000))
    now = meter.numbers()
    assert (now.state, now.done, now.total, now.reused) == ("READ", 1240, 3100, 1000)
    steps = [event for _, event in scripted("word " * 40, step_s=0.02) if isinstance(event, Step)]
    meter.step(steps[0])
    clock.now_s += 0.25
    meter.visible()
    clock.now_s += 5.0
    meter.visible()
    for step in steps[1:]:
        meter.step(step)
    now = meter.numbers()
    assert now.state == "GEN"
    assert now.ttft_s == pytest.approx(0.25)
    assert now.average == pytest.approx(sum(step.emitted for step in steps) / steps[-1].at_s)
    assert now.speedup is None
    assert now.context == pytest.approx((3100 + sum(step.emitted for step in steps)) / 8192)
    done: Done = replace(DONE, reply=1, prompt_tokens=3100, reused_tokens=1000, plain_s=0.05, stop_id=2, prefill_s=0.2)
    meter.done(done)
    now = meter.numbers()
    assert (now.state, now.now) == ("idle", None)
    assert now.speedup == pytest.approx(now.average * 0.05 if now.average else 0)
    assert now.tau == pytest.approx((sum(step.emitted for step in steps) + 1) / len(steps))
    meter.loaded(READY, same_target=True)
    assert meter.numbers().average == now.average
    meter.loaded(READY, same_target=False)
    assert meter.numbers() == Numbers("idle", memory=READY.memory)
    assert meter.speedup is None


def test_plain_decoding_shows_no_acceptance() -> None:
    meter = Meter()
    meter.loaded(READY, same_target=False)
    meter.asked()
    for _, event in scripted("a b c d e", depth=0):
        if isinstance(event, Step):
            meter.step(event)
        elif isinstance(event, Done):
            meter.done(event)
    now = meter.numbers()
    assert now.average is not None
    assert (now.tau, now.kept, now.speedup) == (None, None, None)


def test_a_drafter_that_loads_during_a_reply_does_not_hide_its_numbers() -> None:
    meter = Meter()
    meter.loaded(READY, same_target=False)
    meter.asked()
    meter.step(Step(1, 1, (), 1, 0, 0, 0, 0.0, 0.1, 0.0, 0.0, 0.1))
    meter.loading(Loading("reading the drafter"))
    assert meter.numbers().state == "GEN"


def test_status_line_at_80_columns() -> None:
    assert status(FULL, 80).plain == " GEN 61 now 58 avg | TTFT 0.2s | τ 3.4 kept 48% | 2.1x est  VRAM 6.9/12G  ctx 9%"


@pytest.mark.parametrize(
    ("width", "gone"),
    [
        (85, ()),
        (84, ("tok/s",)),
        (80, ("tok/s",)),
        (78, ("tok/s", "ctx")),
        (70, ("tok/s", "ctx", "VRAM")),
        (58, ("tok/s", "ctx", "VRAM", "avg")),
        (51, ("tok/s", "ctx", "VRAM", "avg", "TTFT")),
        (39, ("tok/s", "ctx", "VRAM", "avg", "TTFT", "kept")),
        (30, ("tok/s", "ctx", "VRAM", "avg", "TTFT", "kept", "est")),
    ],
)
def test_drop_order(width: int, gone: tuple[str, ...]) -> None:
    """Context, memory, average, TTFT, kept, speed-up; the row is exactly as wide as the window."""
    line = status(FULL, width)
    assert line.cell_length == width
    words = ("tok/s", "ctx", "VRAM", "avg", "TTFT", "kept", "est")
    assert tuple(word for word in words if word not in line.plain) == gone
    assert line.plain.startswith(" GEN 61 now")


def test_waiting_lines() -> None:
    read = Numbers("READ", done=1240, total=3100, unit="tok", reused=1000)
    assert status(read, 80).plain.rstrip() == " READ 1,240/3,100 tok (1,000 reused)" + " " * 34 + "████░░░░░░"
    assert status(Numbers("READ"), 60).plain.strip() == "READ the prompt"
    load = Numbers("LOAD", "reading weights", 245_000_000, 491_000_000, "bytes")
    assert status(load, 60).plain.strip() == "LOAD reading weights 245 MB/491 MB"
    assert status(Numbers("LOAD", "layers\x1b", 3, 28, "layers"), 60).plain.strip() == "LOAD layers␛ 3/28 layers"
    assert status(Numbers("LOAD", "importing"), 60).plain.strip() == "LOAD importing"


def test_memory() -> None:
    assert memory_text(Memory(), False) == ""
    assert memory_text(Memory(900_000_000, 300_000_000, 50_000_000, 3_000_000_000, 16_000_000_000), False) == "mem 1.2G"
    assert memory_text(CARD, True) == "VRAM 6.9/12G"


def test_slow_rates_have_a_digit_more() -> None:
    assert "3.4 tok/s" in status(Numbers("idle", average=3.44), 60).plain


@pytest.mark.parametrize("width", [60, 80, 120])
def test_header_fits_any_width(width: int) -> None:
    header = HeaderBar()
    header._shown = ("ready", "A-very-long-model-name-that-nobody-wants-to-read-in-full-24B", "nf4", "another-rather-long-drafter-name k=5")
    line = header.line(width)
    assert line.cell_length == width
    assert " specchat" in line.plain
    assert "A-very-long" in line.plain
    assert "another" in line.plain
