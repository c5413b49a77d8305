"""What the host does in a step does not grow with the text: lines of Python, bytes that it allocates, ids of the text that it touches.

Three counters, since each sees what the others miss: a loop runs lines, a copied list or string costs bytes, and a comparison of the
whole text costs neither. Whole replies go through the session, with text, statistics, penalties, bridge and every kind of drafter.
"""

from __future__ import annotations

import statistics
import sys
import tracemalloc
from collections.abc import Callable, Iterator
from copy import copy
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any, SupportsIndex

import pytest

import engine
from engine import session
from engine.decoder.target import LeanTarget
from engine.drafters.cross import Cross
from engine.drafters.model import ModelDrafter
from engine.drafters.ngram import Ngram
from engine.drafters.stacked import Stacked
from engine.protocol import Generate, Sampling
from engine.speculation.draft import Context, Draft, Drafter
from tests.engine.drafters.heads.worlds import make_heads
from tests.toy_tokenizers import LINES, Chat, byte_level, cross, model, of, sentencepiece

SHORT, LONG = 200, 4000  # characters of the prompt
STEPS, FIRST = 11, 4  # calls between the steps of a reply, and those that are left out: before the first step, or filling caches
OURS = str(Path(engine.__file__).parent)
CONTEXT = 2600
GREEDY, SAMPLED = Sampling(0.0, 1.0, 0, 0.0, 1.0), Sampling(0.8, 0.95, 0, 0.0, 1.2)
TARGET, OTHER = (byte_level, 420), (sentencepiece, 420)
Make = Callable[[LeanTarget], Drafter | None]


class Touched(list[int]):
    """A list that counts what is read of it at once."""

    count = 0

    def __getitem__(self, at: SupportsIndex | slice) -> Any:
        got = super().__getitem__(at)
        self.count += len(got) if isinstance(got, list) else 1
        return got

    def __iter__(self) -> Iterator[int]:
        for token in super().__iter__():
            self.count += 1
            yield token

    def __eq__(self, other: object) -> bool:
        self.count += len(self)
        return super().__eq__(other)

    def __ne__(self, other: object) -> bool:
        return not self == other

    def __contains__(self, token: object) -> bool:
        self.count += len(self)
        return super().__contains__(token)

    __hash__ = None  # type: ignore[assignment]


@dataclass
class Work:
    """Of each step: lines of ours and calls of anybody's, most bytes above those before it, ids that were touched."""

    lines: list[int] = field(default_factory=list)
    nbytes: list[int] = field(default_factory=list)
    touched: list[int] = field(default_factory=list)
    ids: Touched | None = None
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
        assert self.ids is not None
        if self._begun:
            self.lines.append(self._now)
            self.nbytes.append(tracemalloc.get_traced_memory()[1] - self._before)
            self.touched.append(self.ids.count)
        tracemalloc.reset_peak()
        self._begun, self._now, self.ids.count, self._before = True, 0, 0, tracemalloc.get_traced_memory()[0]

    @property
    def usual(self) -> tuple[float, float, float]:
        """Medians: a table that grows now and then costs much in that step only."""
        lines, nbytes, touched = (statistics.median(counts[FIRST:]) for counts in (self.lines, self.nbytes, self.touched))
        return lines, nbytes, touched


def work(make: Make, size: int, sampling: Sampling, monkeypatch: pytest.MonkeyPatch) -> tuple[float, float, float]:
    """The usual work of a step behind a prompt of `size` characters."""
    counted = Work()

    def context(ids: list[int], *more: Any, **other: Any) -> Context:
        counted.ids = Touched(ids)
        return Context(counted.ids, *more, **other)

    monkeypatch.setattr(session, "Context", context)
    tokenizer, side = of(TARGET)
    endless = copy(tokenizer)
    endless.eos_ids = frozenset()
    target = model(1, side, context=CONTEXT, plain=True)
    chat = Chat(target, endless).use(make(target))
    prompt = "".join(f"{n} {line}" for n in range(200) for line in LINES)[:size]
    command = Generate(1, raw=prompt, sampling=sampling, seed=5, stop=("\x00\x00",), k=4)
    with counted:
        done = chat.session.reply(command, chat.events.append, lambda: len(counted.lines) == STEPS, counted.step)
    assert done.prompt_tokens > size / 8
    assert len(chat.steps) == STEPS - 1
    return counted.usual


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
CASES = [(name, GREEDY) for name in DRAFTERS] + [(name, SAMPLED) for name in ("none", "a model that does not", "pf", "in line")]
CASES.append(("slrs", Sampling(0.8, 1.0, 1, 0.0, 1.2)))  # its trees are as large as the law is wide


def grows(short: tuple[float, ...], long: tuple[float, ...]) -> list[str]:
    """What grew: one text is twenty times as long as the other, and the steps are not the same ones."""
    slack = {"lines": 300, "bytes": 1500, "ids": 40}
    return [name for (name, more), a, b in zip(slack.items(), short, long, strict=True) if b > 1.3 * a + more]


@pytest.mark.parametrize(("name", "sampling"), CASES, ids=[f"{name}, T = {sampling.temperature}" for name, sampling in CASES])
def test_a_step_costs_the_host_as_much_behind_a_short_text_as_behind_a_long_one(
    name: str, sampling: Sampling, monkeypatch: pytest.MonkeyPatch
) -> None:
    short, long = (work(DRAFTERS[name], size, sampling, monkeypatch) for size in (SHORT, LONG))
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
    short, long = (work(lambda target: drafter(), size, GREEDY, monkeypatch) for size in (SHORT, LONG))
    assert what in grows(short, long), (short, long)
