"""The numbers of the reply under way, or of the last one, from events; everything is counted by `engine.stats.Tally`.

Only what the engine cannot know is measured here: the time from Enter (or from Ready, when the model was still loading) to the
first visible text. The speed-up is measured where the same question was answered without a drafter before; else `plain_s` of the last
reply makes an estimate, until the target changes.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass

from engine.protocol import Done, Loading, Memory, Prefill, Ready, Step
from engine.stats import Stats, Tally

NO_MEMORY = Memory()
RATE_S = 0.25  # between two samples of the present rate
RATES = 240  # samples kept: a minute


@dataclass(frozen=True, slots=True)
class Numbers:
    """One look at the meter. None = not known, and then nothing is shown."""

    state: str  # LOAD, READ, GEN, idle
    stage: str = ""
    done: int = 0
    total: int = 0
    unit: str = ""
    reused: int = 0
    now: float | None = None  # tok/s
    average: float | None = None
    ttft_s: float | None = None
    tau: float | None = None
    kept: float | None = None  # 0–1
    speedup: float | None = None
    measured: bool = False  # the speed-up; else it is an estimate
    memory: Memory = NO_MEMORY
    on_card: bool = False  # the device has memory of its own
    context: float | None = None  # share of the context in use, 0–1


@dataclass(frozen=True, slots=True)
class Overlay:
    """What the panel shows beside `numbers`."""

    numbers: Numbers
    stats: Stats
    emitted: int
    prompt_tokens: int
    reused_tokens: int
    context: int  # tokens that fit
    rates: tuple[float, ...]  # tok/s, a sample every `RATE_S`, the newest last


class Meter:
    """Takes events, gives `Numbers`."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._tally = Tally()
        self._asked_s = 0.0
        self._prefill: Prefill | None = None
        self._loading: Loading | None = None
        self._plain_s: float | None = None
        self._question: Hashable = None
        self._plain_rates: dict[Hashable, float] = {}  # tok/s without a drafter, by question
        self._rates: deque[float] = deque(maxlen=RATES)
        self._sampled_s = 0.0
        self._memory = NO_MEMORY
        self._context = 0
        self._on_card = False
        self._drafting = False
        self.writing = False  # between `asked` and `done` or `gave_up`

    def loading(self, event: Loading) -> None:
        """A load goes on."""
        self._loading = event

    def loaded(self, ready: Ready, same_target: bool) -> None:
        """A load has ended well."""
        self._loading = None
        self._memory = ready.memory
        self._context = ready.context
        self._on_card = ready.device.startswith("cuda")
        if not same_target:
            self._plain_s, self._prefill, self._tally = None, None, Tally()
            self._plain_rates.clear()
            self._rates.clear()

    def load_failed(self) -> None:
        """A load has ended."""
        self._loading = None

    def asked(self, question: Hashable = None) -> None:
        """The person waits for a reply from now on. Replies to an equal `question` can be compared with each other."""
        self._tally = Tally()
        self._question = question
        self._rates.clear()
        self._sampled_s = 0.0
        self._asked_s = self._clock()
        self._prefill = None
        self.writing = True

    def reading(self, event: Prefill) -> None:
        """The prompt is read."""
        self._loading, self._prefill = None, event

    def step(self, event: Step) -> None:
        """Count a step. Draft heads that came in mid-reply have read the text by then."""
        self._loading = None
        self._tally.add(event)
        if event.at_s - self._sampled_s >= RATE_S and (now := self._tally.now) is not None:
            self._sampled_s = event.at_s
            self._rates.append(now)

    def visible(self) -> None:
        """Text of this reply is on the screen."""
        if not self._tally.ttft_s:
            self._tally.ttft_s = self._clock() - self._asked_s

    def done(self, event: Done) -> None:
        """The reply has ended."""
        self.writing = False
        self._tally.prefill_s = event.prefill_s
        if event.stop_id is not None:
            self._tally.stopped()
        self._plain_s = event.plain_s or self._plain_s
        if event.method == "none" and event.finish_reason != "cancelled" and self._question is not None:
            self._plain_rates[self._question] = self._tally.tok_per_s
        self._memory = event.memory
        self._prefill = Prefill(event.reply, event.prompt_tokens, event.prompt_tokens, event.reused_tokens)

    def took(self, steps: Sequence[Step], done: Done, ttft_s: float, plain_rate: float = 0.0) -> None:
        """A whole reply of a comparison became the chat's; `plain_rate` is that of plain decoding there, in tok/s."""
        self.asked((done.reply, done.seed, done.token_ids))  # equal to no other question
        if plain_rate:
            self._plain_rates[self._question] = plain_rate
        for step in steps:
            self.step(step)
        self._tally.ttft_s = ttft_s
        self.done(done)

    def gave_up(self) -> None:
        """The reply will not come."""
        self.writing = False

    def cleared(self) -> None:
        """A new chat: nothing is in the context."""
        self._tally, self._prefill = Tally(), None
        self._plain_rates.clear()
        self._rates.clear()

    @property
    def prompt_tokens(self) -> int:
        """Tokens of the prompt, as far as they are known."""
        return self._prefill.total if self._prefill else 0

    @property
    def speedup(self) -> float | None:
        """Average rate / plain rate, once both are known and something was drafted."""
        if not self._plain_rate or not self._tally.drafted or not self._tally.tok_per_s:
            return None
        return self._tally.tok_per_s / self._plain_rate

    @property
    def _plain_rate(self) -> float:
        """Plain tok/s: measured on this very question, else estimated; 0 when not known."""
        return self._plain_rates.get(self._question) or (1 / self._plain_s if self._plain_s else 0.0)

    def numbers(self) -> Numbers:
        """What to show now."""
        tally, prefill = self._tally, self._prefill
        if self._loading is not None and not _running(self.writing, tally):
            loading = self._loading
            return Numbers("LOAD", loading.stage, loading.done, loading.total, loading.unit, memory=self._memory)
        if self.writing and not tally.steps:
            if prefill is None:
                return Numbers("READ", memory=self._memory)
            return Numbers("READ", "", prefill.done, prefill.total, "tok", prefill.reused, memory=self._memory)
        used = (prefill.total if prefill else 0) + tally.emitted
        return Numbers(
            "GEN" if self.writing else "idle",
            now=tally.now if self.writing else None,
            average=tally.tok_per_s or None,
            ttft_s=tally.ttft_s or None,
            tau=tally.tau if tally.drafted else None,
            kept=tally.kept if tally.drafted else None,
            speedup=self.speedup,
            measured=bool(self._plain_rates.get(self._question)),
            memory=self._memory,
            on_card=self._on_card,
            context=used / self._context if self._context and used else None,
        )

    def overlay(self) -> Overlay:
        """All of it, for the panel."""
        prefill = self._prefill
        return Overlay(
            self.numbers(),
            self._tally.stats(),
            self._tally.emitted,
            prefill.total if prefill else 0,
            prefill.reused if prefill else 0,
            self._context,
            tuple(self._rates),
        )


def _running(writing: bool, tally: Tally) -> bool:
    """A reply is being written: its numbers go before those of a drafter that loads beside it."""
    return writing and tally.steps > 0
