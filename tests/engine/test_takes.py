"""Parts of recorded replies, and a replay by prompt and drafter: limits, swaps in mid-reply, questions that were not recorded."""

from __future__ import annotations

from dataclasses import replace

import pytest

from engine.catalog.specs import NGRAM, NONE, ModelSpec
from engine.protocol import Done, Event, Generate, Load, Message, Notice, Ready, Segment, Step, SwapDrafter, Weigh, Weighed
from engine.replay import ReplayClient, Take, Trace, scripted
from engine.takes import behind, first, ids_of, text_of
from engine.trace import Timed
from tests.engine.test_replay import until
from tests.held import held

TEXT = "one two three four five six seven eight nine ten eleven twelve"
PLAIN = scripted(TEXT, depth=0, kept=(0,), step_s=0.02)
DRAFTED = scripted(TEXT, depth=3, kept=(3, 1, 0, 2), step_s=0.03)
SMALL = ModelSpec("small", role="drafter", repo="org/small")


def steps(timed: tuple[Timed, ...]) -> list[Step]:
    return [event for _, event in timed if isinstance(event, Step)]


def pieces(timed: tuple[Timed, ...]) -> list[Segment]:
    return [segment for step in steps(timed) for segment in step.segments]


@pytest.mark.parametrize("timed", [PLAIN, DRAFTED])
@pytest.mark.parametrize("tokens", range(1, 12))
def test_the_first_tokens(timed: tuple[Timed, ...], tokens: int) -> None:
    """As many tokens as asked for, counts that add up, and an end by length whose text is that of the pieces."""
    cut = first(timed, tokens)
    done = cut[-1][1]
    assert isinstance(done, Done)
    assert done.finish_reason == "length"
    assert done.stop_id is None
    assert done.token_ids == ids_of(pieces(cut)) == tuple(range(tokens))
    assert done.text == text_of(pieces(cut)) == " ".join(TEXT.split()[:tokens])
    assert sum(step.emitted for step in steps(cut)) == tokens
    assert all(step.accepted <= step.drafted and step.accepted < step.emitted for step in steps(cut))


def test_a_limit_that_is_not_reached_changes_nothing() -> None:
    assert first(DRAFTED, 12) == first(DRAFTED, 99) == DRAFTED


@pytest.mark.parametrize("before", range(1, 12))
def test_what_follows_behind_another_drafters_tokens(before: int) -> None:
    """Whatever was written before: together it is the whole text once, steps count on, the clock never goes back."""
    begun = [event for _, event in PLAIN if isinstance(event, Step)][:before]
    shown = [segment for step in begun for segment in step.segments]
    rest = behind(DRAFTED, before, shown, begun[-1])
    assert text_of([*shown, *pieces(rest)]) == TEXT
    assert sum(step.emitted for step in steps(rest)) == 12 - before
    assert [step.index for step in steps(rest)] == list(range(before + 1, before + 1 + len(steps(rest))))
    clock = [begun[-1].at_s, *(step.at_s for step in steps(rest))]
    assert clock == sorted(clock)
    assert [at for at, _ in rest] == sorted(at for at, _ in rest)
    assert rest[0][0] < 0.1
    assert all(s.step == step.index for step in steps(rest) for s in step.segments)
    assert all(step.accepted <= step.drafted for step in steps(rest))


def trace(speed_s: float = 0.02) -> Trace:
    other = "A B C"
    return Trace(
        takes=(
            Take("count", "none", scripted(TEXT, depth=0, kept=(0,), step_s=speed_s)),
            Take("count", "ngram", scripted(TEXT, depth=3, kept=(3, 1, 0, 2), step_s=speed_s)),
            Take("letters", "none", scripted(other, depth=0, kept=(0,), step_s=speed_s)),
        )
    )


def reply(client: ReplayClient, text: str, number: int, max_tokens: int | None = None) -> list[Event]:
    client.send(Generate(number, messages=(Message("user", text),), seed=7, max_tokens=max_tokens))
    return until(client, Done)


def loaded(client: ReplayClient, drafter: ModelSpec) -> Ready:
    client.send(Load(ModelSpec("big"), drafter))
    event = until(client, Ready)[-1]
    assert isinstance(event, Ready)
    return event


def test_replies_are_found_by_prompt_and_drafter() -> None:
    client = ReplayClient(trace(), speed=None)
    loaded(client, NONE)
    seen = reply(client, "letters", 1)
    done = seen[-1]
    assert isinstance(done, Done)
    assert (done.text, done.reply, done.seed, done.drafter) == ("A B C", 1, 7, "none")
    plain = len([event for event in reply(client, "count", 2) if isinstance(event, Step)])
    client.send(SwapDrafter(NGRAM))
    until(client, Ready)
    fast = reply(client, "count", 3)
    assert len([event for event in fast if isinstance(event, Step)]) < plain
    assert fast[-1].text == TEXT  # type: ignore[union-attr]
    assert fast[-1].drafter == "ngram"  # type: ignore[union-attr]
    client.close()


def test_a_limit_of_tokens_is_kept() -> None:
    client = ReplayClient(trace(), speed=None)
    loaded(client, NGRAM)
    done = reply(client, "count", 1, max_tokens=5)[-1]
    assert isinstance(done, Done)
    assert (done.finish_reason, done.token_ids) == ("length", (0, 1, 2, 3, 4))
    client.close()


def test_what_was_not_recorded_is_said_and_answered_always_alike() -> None:
    """Also with a drafter for which there is no recording of this prompt."""
    client = ReplayClient(trace(), speed=None)
    loaded(client, SMALL)
    texts = []
    for number in range(1, 4):
        seen = reply(client, "something else", number)
        notices = [event for event in seen if isinstance(event, Notice)]
        assert len(notices) == 1
        assert notices[0].reply == number
        assert "recording" in notices[0].text
        texts.append(seen[-1].text)  # type: ignore[union-attr]
    assert texts == [TEXT] * 3  # the same one, so that a race on it compares like with like
    client.close()


def test_a_swap_in_mid_reply_goes_on_with_the_other_recording() -> None:
    """The text is whole, the steps are those of both drafters, and the end names the new one."""
    first_take, *others = trace().takes
    plain = held(TEXT, 3, depth=0, kept=(0,))
    client = ReplayClient(Trace(takes=(replace(first_take, timed=plain), *others)), speed=None)
    loaded(client, NONE)
    client.send(Generate(1, messages=(Message("user", "count"),)))
    seen = until(client, Step)
    client.send(SwapDrafter(NGRAM))
    seen += until(client, Done)
    done = seen[-1]
    assert isinstance(done, Done)
    written = [event for event in seen if isinstance(event, Step)]
    assert done.text == TEXT == text_of([segment for step in written for segment in step.segments])
    assert done.token_ids == tuple(range(12))
    assert {step.drafted for step in written} == {0, 3} | {step.drafted for step in written if 0 < step.drafted < 3}
    assert done.drafter == "ngram"
    assert [step.index for step in written] == list(range(1, len(written) + 1))
    client.close()


def test_a_recording_holds_no_logits() -> None:
    client = ReplayClient(trace(), speed=None)
    client.send(Weigh(Generate(0, raw="x"), (), (1, 2)))
    assert until(client, Weighed)[-1] == Weighed(())
    client.close()


def test_compressed_traces_with_takes_survive(tmp_path: object) -> None:
    from pathlib import Path

    from engine.trace import load_trace, save_trace

    path = Path(str(tmp_path)) / "t.json.gz"
    save_trace(trace(), path)
    assert load_trace(path) == trace()
    assert path.read_bytes()[:2] == b"\x1f\x8b"
