"""The replay client behaves like the engine's face: order, pace, stop, failure, swap in mid-reply, JSON and back."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path

from engine.catalog.specs import NGRAM, NONE, ModelSpec
from engine.protocol import Done, Event, Failed, Generate, Load, Loading, Prefill, Ready, Step, SwapDrafter, Unload, Unloaded
from engine.replay import READY, ReplayClient, Trace, load_trace, record, save_trace, scripted
from engine.stats import Tally
from tests.held import held, stuck
from tests.patience import Patience

TARGET = ModelSpec("small", repo="org/small")
TEXT = "One two three four five six seven eight nine ten.\n\nA second paragraph, with `code`.\n"


def until(client: ReplayClient, *kinds: type) -> list[Event]:
    """Events up to and with the first of these kinds."""
    seen: list[Event] = []
    patience = Patience()
    while patience.left():
        seen += client.wait(0.05)
        if any(isinstance(event, kinds) for event in seen):
            return seen
    raise AssertionError(f"no {kinds} in {seen}")


def test_load_then_reply() -> None:
    """A load ends with Ready under the asked names, a reply with Done whose text is the segments joined."""
    client = ReplayClient(Trace(load=((0.0, Loading("reading", 1, 2, "MB")), (0.0, READY)), replies=(scripted(TEXT),)), speed=None)
    client.send(Load(TARGET, NGRAM))
    ready = until(client, Ready)[-1]
    assert isinstance(ready, Ready)
    assert (ready.target, ready.drafter, ready.method) == ("small", "ngram", "ngram")
    client.send(Generate(reply=7, seed=99))
    seen = until(client, Done)
    assert [type(event) for event in seen[:1]] == [Prefill]
    done = seen[-1]
    assert isinstance(done, Done)
    steps = [event for event in seen if isinstance(event, Step)]
    assert {event.reply for event in steps} == {7}
    assert (done.reply, done.seed, done.finish_reason, done.drafter) == (7, 99, "stop", "ngram")
    assert done.text == TEXT == "".join(segment.text for step in steps for segment in step.segments)
    client.send(Unload())
    assert until(client, Unloaded)
    client.close()
    assert not client.alive


def test_scripted_counts_add_up() -> None:
    """Emitted = accepted + one own token per step, the stop id counted as one."""
    for depth, kept in ((4, (4, 1, 3, 0, 2)), (0, (0,)), (2, (2,))):
        timed = scripted(TEXT, depth=depth, kept=kept)
        done = timed[-1][1]
        assert isinstance(done, Done)
        tally = Tally()
        for _, event in timed:
            if isinstance(event, Step):
                tally.add(event)
                assert event.emitted == sum(len(segment.token_ids) for segment in event.segments)
                assert event.accepted == sum(segment.origin == "kept" for segment in event.segments)
        tally.stopped()
        assert tally.emitted == len(done.token_ids)
        assert tally.emitted + 1 == tally.accepted + tally.steps


def test_stop_keeps_the_text() -> None:
    """A stopped reply is Done with what was emitted so far."""
    client = ReplayClient(Trace(replies=(stuck(scripted(TEXT * 50), 5),)))
    client.send(Generate(reply=1))
    seen = until(client, Step)
    client.stop()
    seen += until(client, Done)
    done = seen[-1]
    assert isinstance(done, Done)
    assert done.finish_reason == "cancelled"
    assert done.text
    assert done.text == "".join(segment.text for event in seen if isinstance(event, Step) for segment in event.segments)
    assert len(done.text) < len(TEXT * 50)
    client.close()


def test_stop_right_after_send_and_stop_while_idle() -> None:
    """A stop hits the command that is waiting, and never the one that comes later."""
    client = ReplayClient(Trace(replies=(scripted(TEXT, step_s=0.01),)), speed=50)
    client.stop()
    client.send(Generate(reply=1))
    client.stop()
    first = until(client, Done)[-1]
    assert isinstance(first, Done)
    assert first.finish_reason == "cancelled"
    client.stop()
    time.sleep(0.05)
    client.send(Generate(reply=2))
    second = until(client, Done)[-1]
    assert isinstance(second, Done)
    assert second.finish_reason == "stop"
    client.close()


def test_stopped_load_fails() -> None:
    client = ReplayClient(Trace(load=((0.0, Loading("reading")), (3600.0, READY))))
    client.send(Load(TARGET, NONE))
    until(client, Loading)
    client.stop()
    failed = until(client, Failed)[-1]
    assert isinstance(failed, Failed)
    assert failed.kind == "cancelled"
    client.close()


def test_pace() -> None:
    """At speed 1 the events come at their times, at speed 10,000 those of an hour in less than a second."""
    for speed, at_s, least_s in ((1.0, 0.4, 0.35), (10_000.0, 3600.0, 0.35)):
        client = ReplayClient(Trace(replies=(((0.0, Prefill(0, 0, 4, 0)), (at_s, scripted("x")[-1][1])),)), speed)
        start_s = time.monotonic()
        client.send(Generate(reply=1))
        until(client, Done)
        assert time.monotonic() - start_s >= least_s
        client.close()


def test_scripted_failure_has_the_reply_number() -> None:
    failed = Failed("The question is too long.", "Shorten it.", "too_long", numbers={"needed": 9000, "limit": 8192, "droppable": 2})
    client = ReplayClient(Trace(replies=(((0.0, failed),), scripted(TEXT))), speed=None)
    client.send(Generate(reply=3))
    assert until(client, Failed)[-1] == replace(failed, reply=3)
    client.send(Generate(reply=4, trim=True))
    assert isinstance(until(client, Done)[-1], Done)
    client.close()


def test_swap_during_a_reply() -> None:
    """Ready comes between two steps, and the reply goes on to its end."""
    reply = held(TEXT * 5, 3)
    client = ReplayClient(Trace(replies=(reply,)))
    client.send(Load(TARGET, NONE))
    until(client, Ready)
    client.send(Generate(reply=1))
    until(client, Step)
    client.send(SwapDrafter(NGRAM))
    seen = until(client, Ready)
    reply.go()
    seen += until(client, Done)
    kinds = [type(event) for event in seen]
    assert kinds.index(Ready) < kinds.index(Done)
    assert Step in kinds[kinds.index(Ready) :]
    assert seen[-1].drafter == "ngram"  # type: ignore[union-attr]
    client.close()


def test_record_and_json_round_trip(tmp_path: Path) -> None:
    """What a recorder saw plays again, event by event, through a file."""
    load = ((0.0, Loading("x", 1, 3, "B")), (0.0, READY))
    source = ReplayClient(Trace(load=load, replies=(scripted(TEXT, step_s=0.001),)), speed=None)
    recorder = record(source)
    recorder.send(Load(TARGET, NONE))
    seen: list[Event] = []
    while not any(isinstance(event, Ready) for event in seen):
        seen += recorder.wait(0.05)
    recorder.send(Generate(reply=0, seed=5))
    while not any(isinstance(event, Done) for event in seen):
        seen += recorder.wait(0.05)
    recorder.close()
    path = tmp_path / "trace.json"
    save_trace(recorder.trace(), path)
    trace = load_trace(path)
    assert trace == recorder.trace()
    assert [event for _, event in (*trace.load, *trace.replies[0])] == seen


def test_every_event_survives_json(tmp_path: Path) -> None:
    failed = Failed("No.", "Yes.", "memory", "detail", {"needed": 3.0}, None, ("drafter",))
    trace = Trace(load=((0.1, failed),), swap=((0.2, Unloaded()),), replies=(scripted(TEXT, finish_reason="length"), ()))
    save_trace(trace, tmp_path / "t.json")
    assert load_trace(tmp_path / "t.json") == trace
