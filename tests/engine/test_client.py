"""Queues between screen and engine, and that nothing of the engine is imported where the screen runs. No model."""

from __future__ import annotations

import subprocess
import sys
import threading
import time

import pytest

from engine.client import EngineClient, Outbox, Stopper, events
from engine.protocol import Event, Failed, Generate, Loading, Message, Notice, Prefill, Unload, Unloaded
from tests.patience import PATIENCE_S, Patience


def test_the_outbox_hands_out_everything_in_order_once() -> None:
    out = Outbox()
    for n in range(5):
        out.put(Notice(str(n)))
    assert [e.text for e in out.wait() if isinstance(e, Notice)] == list("01234")
    assert out.wait() == []


def test_progress_that_nobody_read_is_replaced_and_nothing_else() -> None:
    """A reader that sleeps through a download of hours finds one line, but every decision."""
    out = Outbox()
    for n in range(1000):
        out.put(Loading("Packing", n, 1000))
    out.put(Notice("a"))
    out.put(Prefill(1, 1, 9, 0))
    out.put(Prefill(1, 9, 9, 0))
    out.put(Notice("b"))
    out.put(Notice("b"))
    assert out.wait() == [Loading("Packing", 999, 1000), Notice("a"), Prefill(1, 9, 9, 0), Notice("b"), Notice("b")]
    out.put(Loading("Packing", 1000, 1000))
    assert out.wait() == [Loading("Packing", 1000, 1000)]


def test_waiting_ends_with_the_first_event_or_the_time() -> None:
    out = Outbox()
    begun = time.perf_counter()
    assert out.wait(0.05) == []
    assert time.perf_counter() - begun >= 0.04
    threading.Timer(0.05, lambda: out.put(Notice("x"))).start()
    begun = time.perf_counter()
    assert out.wait(3600.0) == [Notice("x")]
    assert time.perf_counter() - begun < 1800.0


def test_a_writer_and_a_reader_lose_nothing() -> None:
    out = Outbox()
    got: list[Event] = []
    writer = threading.Thread(target=lambda: [out.put(Notice(str(n))) for n in range(5000)])
    writer.start()
    patience = Patience()
    while len(got) < 5000 and patience.left():
        got += out.wait(0.1)
    writer.join()
    assert [e.text for e in got if isinstance(e, Notice)] == [str(n) for n in range(5000)]


def test_a_stop_reaches_what_was_sent_before_and_nothing_after() -> None:
    stopper = Stopper()
    assert not stopper.stopped(1)
    stopper.stop(3)
    assert [stopper.stopped(n) for n in (1, 3, 4)] == [True, True, False]
    stopper.stop(2)  # an older stop that arrives late takes nothing back
    assert stopper.stopped(3)


def test_a_client_that_was_never_used_starts_and_ends_nothing() -> None:
    client = EngineClient()
    assert not client.alive
    assert client.drain() == []
    client.stop()
    client.close()
    assert not client.alive


def test_commands_without_a_model_are_answered() -> None:
    client = EngineClient()
    try:
        client.send(Generate(7, (Message("user", "x"),)))
        client.send(Unload())
        answers: list[Event] = []
        for event in events(client, 0.05):
            answers.append(event)
            if isinstance(event, Unloaded):
                break
        assert isinstance(answers[0], Failed)
        assert (answers[0].kind, answers[0].reply, answers[0].lost) == ("not_loaded", 7, ())
        assert answers[0].hint
        assert client.alive
    finally:
        client.close(PATIENCE_S)
    assert not client.alive


@pytest.mark.parametrize("code", ["import engine.protocol, engine.replay", "from engine.client import EngineClient; EngineClient()"])
def test_the_screens_side_imports_no_torch(code: str) -> None:
    check = "import sys; assert not {'torch', 'transformers', 'numpy', 'bitsandbytes'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", f"{code}; {check}"], check=True, timeout=PATIENCE_S)
