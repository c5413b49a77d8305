"""What the host does in a step does not grow with the text: lines of Python, bytes that it allocates, ids of the text that it touches.

Three counters, since each sees what the others miss: a loop runs lines, a copied list or string costs bytes, and a comparison of the
whole text costs neither. Whole replies go through the session, with text, statistics, penalties, bridge and every kind of drafter. First
the prompt is long, then the reply, which drafters and bridge keep in lists of their own: what is read of those counts as touched, too.
"""

from __future__ import annotations

import statistics
import sys
import tracemalloc
from collections.abc import Callable, Iterator
from copy import copy
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import FrameType
from typing import Any, SupportsIndex

import pytest

import engine
from engine import session
from engine.bridge.align import Follower, Line
from engine.decoder.target import LeanTarget
from engine.drafters.companion import Companion
from engine.drafters.cross import Cross
from engine.drafters.model import ModelDrafter
from engine.drafters.ngram import Ngram
from engine.drafters.stacked import Stacked
from engine.protocol import Generate, Sampling, Verify
from engine.speculation import verify
from engine.speculation.draft import Context, Draft, Drafter, Needs, Verdict, chain
from engine.text import Detokenizer
from tests.engine.drafters.heads.worlds import make_heads
from tests.toy_tokenizers import LINES, Chat, byte_level, cross, model, of, sentencepiece

SHORT, LONG = 200, 4000  # characters of the prompt, or of the reply
STEPS, FIRST = 11, 4  # calls between the steps of a reply, and those that are left out: before the first step, or filling caches
WRITTEN = 15  # tokens of a draft that only makes the reply longer
KEEPERS = ("engine.drafters", "engine.bridge", "engine.speculation", "engine.text")  # modules whose objects keep lists of the text
OURS = str(Path(engine.__file__).parent)
CONTEXT = 2600
GREEDY, SAMPLED = Sampling(0.0, 1.0, 0, 0.0, 1.0), Sampling(0.8, 0.95, 0, 0.0, 1.2)
TARGET, OTHER = (byte_level, 420), (sentencepiece, 420)
Make = Callable[[LeanTarget], Drafter | None]


class Reading:
    """For a list or a text that counts what is read of it at once; all of them count together."""

    count = 0

    def __getitem__(self, at: SupportsIndex | slice) -> Any:
        got = super().__getitem__(at)  # type: ignore[misc]
        Reading.count += len(got) if isinstance(at, slice) else 1
        return got

    def __iter__(self) -> Iterator[Any]:
        for one in super().__iter__():  # type: ignore[misc]
            Reading.count += 1
            yield one

    def __eq__(self, other: object) -> bool:
        return self[:] == other

    def __ne__(self, other: object) -> bool:
        return self[:] != other

    def __contains__(self, one: object) -> bool:
        return one in self[:]

    def __add__(self, more: Any) -> Any:
        return self[:] + more

    def __radd__(self, before: Any) -> Any:
        return before + self[:]

    def copy(self) -> Any:
        return self[:]

    __hash__ = None  # type: ignore[assignment]


class Touched(Reading, list[Any]):
    """A list of ids, or of pieces of text."""


class TouchedText(Reading, bytearray):
    """A text in bytes. Looking at how it begins or ends does not count."""

    def __bytes__(self) -> bytes:
        return bytes(self[:])

    def removeprefix(self, start: Any) -> Any:
        return self[:].removeprefix(start)


def watch(*things: Any) -> None:
    """From now on it counts what is read of all ids and texts that these objects keep, and those objects that they hold."""
    seen = set[int]()
    left = list(things)
    while left:
        thing = left.pop()
        if id(thing) in seen:
            continue
        seen.add(id(thing))
        if isinstance(thing, list | tuple):
            left += [one for one in thing if type(one).__module__.startswith(KEEPERS)]
            continue
        for name, value in list(getattr(thing, "__dict__", {}).items()):
            if type(value) is list and value and isinstance(value[0], int | str):
                setattr(thing, name, Touched(value))
            elif type(value) is bytearray:
                setattr(thing, name, TouchedText(value))
            elif isinstance(value, list | tuple) or type(value).__module__.startswith(KEEPERS):
                left.append(value)


@dataclass
class Work:
    """Of each step: lines of ours and calls of anybody's, most bytes above those before it, ids that were touched."""

    lines: list[int] = field(default_factory=list)
    nbytes: list[int] = field(default_factory=list)
    touched: list[int] = field(default_factory=list)
    _now: int = 0
    _before: int = 0
    _begun: bool = False

    def __enter__(self) -> Work:
        tracemalloc.start()
        sys.settrace(self._trace)
        return self

    def __exit__(self, *_: object) -> None:
        sys.settrace(None)
        tracemalloc.stop()

    def _trace(self, frame: FrameType, event: str, _: object) -> Any:
        self._now += 1
        return self._trace if frame.f_code.co_filename.startswith(OURS) else None

    def step(self) -> None:
        """One step has ended, another begins."""
        if self._begun:
            self.lines.append(self._now)
            self.nbytes.append(tracemalloc.get_traced_memory()[1] - self._before)
            self.touched.append(Reading.count)
        else:
            sys.settrace(self._trace)
        tracemalloc.reset_peak()
        self._begun, self._now, Reading.count, self._before = True, 0, 0, tracemalloc.get_traced_memory()[0]

    def rest(self) -> None:
        """Count no more, until the next call of `step`."""
        sys.settrace(None)
        self._begun = False

    def usual(self, start: int = 0) -> tuple[float, ...]:
        """Medians of the steps behind the first `start`: a table that grows now and then costs much in that step only."""
        at = slice(start + FIRST, start + STEPS)
        return tuple(statistics.median(counts[at]) for counts in (self.lines, self.nbytes, self.touched))


class Written:
    """Stands in front of a drafter and makes the reply longer by `ids`, which that one follows: they are kept, whatever the target says."""

    name = method = "written"
    needs = Needs()

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.ids: list[int] = []
        for rule in ("match", "ratio"):
            monkeypatch.setattr(verify, rule, self._kept_by(getattr(verify, rule)))

    def _kept_by(self, real: Callable[..., verify.Walk]) -> Callable[..., verify.Walk]:
        def walk(draft: Draft, *more: Any) -> verify.Walk:
            if not self.ids:
                return real(draft, *more)
            count = len(draft.tokens) + 1
            kept, self.ids = self.ids[:count], self.ids[count:]
            return tuple(range(count)), tuple(kept)

        return walk

    def propose(self, ctx: Context) -> Draft:
        return chain(self.ids[:-1][:WRITTEN], self.name)

    def sync(self, ctx: Context) -> None: ...

    def commit(self, ctx: Context, verdict: Verdict) -> None: ...

    def memory(self) -> int:
        return 0

    def close(self) -> None: ...


TEXT = "".join(f"{n} {line}" for n in range(200) for line in LINES)
COMMAND = Generate(1, seed=5, stop=("\x00\x00",), k=4)


def endless(make: Make, monkeypatch: pytest.MonkeyPatch) -> tuple[Chat, list[Any]]:
    """A chat whose replies do not end, and what keeps their text beside the drafter, as far as it is there already."""
    keepers: list[Any] = []

    def context(ids: list[int], *more: Any, **other: Any) -> Context:
        ctx = Context(Touched(ids), *more, **other)
        keepers.append(ctx.picker)
        return ctx

    def detokenizer(*more: Any) -> Detokenizer:
        keepers.append(Detokenizer(*more))
        return keepers[-1]

    monkeypatch.setattr(session, "Context", context)
    monkeypatch.setattr(session, "Detokenizer", detokenizer)
    tokenizer, side = of(TARGET)
    tokenizer = copy(tokenizer)
    tokenizer.eos_ids = frozenset()
    target = model(1, side, context=CONTEXT, plain=True)
    return Chat(target, tokenizer).use(make(target)), keepers


def work(make: Make, size: int, sampling: Sampling, rule: Verify, monkeypatch: pytest.MonkeyPatch) -> tuple[float, ...]:
    """The usual work of a step behind a prompt of `size` characters."""
    counted = Work()
    chat, _ = endless(make, monkeypatch)
    command = replace(COMMAND, raw=TEXT[:size], sampling=sampling, verify=rule)
    with counted:
        done = chat.session.reply(command, chat.events.append, lambda: len(counted.lines) == STEPS, counted.step)
    assert done.prompt_tokens > size / 8
    assert len(chat.steps) == STEPS - 1
    return counted.usual()


def work_in_reply(make: Make, sampling: Sampling, rule: Verify, monkeypatch: pytest.MonkeyPatch) -> tuple[tuple[float, ...], ...]:
    """The usual work of a step where the reply has `SHORT` characters, and where the same reply has `LONG`."""
    counted = Work()
    with monkeypatch.context() as patch:
        chat, keepers = endless(make, patch)
        drafter, written = chat.session.loaded.drafter, Written(patch)
        chat.use(Stacked([written] if drafter is None else [written, drafter]))

        def course() -> Iterator[None]:
            for text in (TEXT[:SHORT], TEXT[SHORT:LONG]):
                counted.rest()
                written.ids = chat.tokenizer.encode(text, special=False)
                while written.ids:
                    yield
                watch(drafter, chat.session.control, *keepers)
                counted.step()
                for _ in range(STEPS):
                    yield
                    counted.step()
                assert drafter is None or isinstance(drafter, Ngram) or any(step.drafted for step in chat.steps[-STEPS:])

        at = course()
        command = replace(COMMAND, raw=TEXT[:40], sampling=sampling, verify=rule)
        with counted:
            done = chat.session.reply(command, chat.events.append, lambda: len(counted.lines) == 2 * STEPS, lambda: next(at, None))
    assert len(done.text) > LONG
    return counted.usual(), counted.usual(STEPS)


def little(seed: int) -> Make:
    """A model with the target's own vocabulary; of seed 1 it agrees with the target."""
    side = of(TARGET)[1]
    return lambda target: ModelDrafter("little", model(seed, side, context=CONTEXT, plain=True), target.vocab_size)


def bridged(how: str) -> Cross:
    (_, target), (tokenizer, drafter) = of(TARGET), of(OTHER)
    return cross(how, target, drafter, tokenizer, model(2, drafter, context=CONTEXT, plain=True))


DRAFTERS: dict[str, Make] = {
    "none": lambda target: None,
    "look-up": lambda target: Ngram(),
    "a model that agrees": little(1),
    "a model that does not": little(9),
    "slem": lambda target: bridged("slem"),
    "tli": lambda target: bridged("tli"),
    "pf": lambda target: bridged("pf"),
    "slrs": lambda target: bridged("slrs"),
    "in line": lambda target: Stacked([Ngram(min_match=4), bridged("auto")]),
    "medusa": lambda target: make_heads("medusa", target),
    "eagle2": lambda target: make_heads("eagle2", target),
}
CASES: list[tuple[str, Sampling, Verify]] = [(name, GREEDY, "match") for name in DRAFTERS]
CASES += [(name, SAMPLED, "match") for name in ("none", "a model that does not", "pf", "in line")]
CASES += [(name, SAMPLED, "ratio") for name in ("none", "a model that does not", "slem", "tli", "pf", "in line")]
CASES.append(("slrs", Sampling(0.8, 1.0, 1, 0.0, 1.2), "match"))  # its trees are as large as the law is wide
CASES.append(("slrs", Sampling(0.8, 1.0, 2, 0.0, 1.2), "ratio"))
ALL = pytest.mark.parametrize(
    ("name", "sampling", "rule"), CASES, ids=[f"{name}, T = {sampling.temperature}, {rule}" for name, sampling, rule in CASES]
)


def grows(short: tuple[float, ...], long: tuple[float, ...]) -> list[str]:
    """What grew: one text is twenty times as long as the other, and the steps are not the same ones."""
    slack = {"lines": 300, "bytes": 1500, "ids": 40}
    return [name for (name, more), a, b in zip(slack.items(), short, long, strict=True) if b > 1.3 * a + more]


@ALL
def test_a_step_costs_the_host_as_much_behind_a_short_text_as_behind_a_long_one(
    name: str, sampling: Sampling, rule: Verify, monkeypatch: pytest.MonkeyPatch
) -> None:
    short, long = (work(DRAFTERS[name], size, sampling, rule, monkeypatch) for size in (SHORT, LONG))
    assert grows(short, long) == [], (short, long)


@ALL
def test_and_as_much_in_a_long_reply_as_in_a_short_one(
    name: str, sampling: Sampling, rule: Verify, monkeypatch: pytest.MonkeyPatch
) -> None:
    short, long = work_in_reply(DRAFTERS[name], sampling, rule, monkeypatch)
    assert grows(short, long) == [], (short, long)


class Loops(Ngram):
    def propose(self, ctx: Context) -> Draft:
        assert sum(token >= 0 for token in self._ids) == len(ctx.ids)
        return super().propose(ctx)


class Copies(Ngram):
    def propose(self, ctx: Context) -> Draft:
        assert self._ids[:-1] != []
        return super().propose(ctx)


class Compares(Ngram):
    def propose(self, ctx: Context) -> Draft:
        assert ctx.ids == self._ids
        return super().propose(ctx)


@pytest.mark.parametrize(("drafter", "what"), [(Loops, "lines"), (Copies, "bytes"), (Compares, "ids")])
def test_a_drafter_that_reads_the_whole_text_is_found_out(drafter: type[Ngram], what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    short, long = (work(lambda target: drafter(), size, GREEDY, "match", monkeypatch) for size in (SHORT, LONG))
    assert what in grows(short, long), (short, long)


@pytest.mark.parametrize("drafter", [Loops, Copies, Compares])
def test_in_a_reply_too(drafter: type[Ngram], monkeypatch: pytest.MonkeyPatch) -> None:
    short, long = work_in_reply(lambda target: drafter(), GREEDY, "match", monkeypatch)
    assert "ids" in grows(short, long), (short, long)


COPIES: dict[str, tuple[type, str, Callable[[Any], object]]] = {
    "text that the bridge keeps": (Follower, "extend", lambda follower: bytes(follower.read)),
    "ids that the bridge keeps": (Follower, "sync", lambda follower: [] + follower.ids),
    "ends of the target's ids": (Line, "follow", lambda line: line.ends[:-1]),
    "what the small model has read": (Companion, "align", lambda side: tuple(side._held)),
    "the words so far": (Detokenizer, "push", lambda detokenizer: detokenizer.text),
}


@pytest.mark.parametrize("what", COPIES)
def test_one_copy_of_the_reply_in_each_step_is_found_out(what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    kind, name, copies = COPIES[what]
    real = getattr(kind, name)
    monkeypatch.setattr(kind, name, lambda self, *more: (copies(self), real(self, *more))[1])
    short, long = work_in_reply(DRAFTERS["slem"], GREEDY, "match", monkeypatch)
    assert "ids" in grows(short, long), (short, long)
