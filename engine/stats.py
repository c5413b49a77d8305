"""The definitions of every number that specchat shows, in one place; pure arithmetic over Step events.

A step drafts d tokens deep, keeps a of them and emits a+1 tokens: the last is the target's own. Words and formulas: DESIGN 2
and 12. Screen, `--json`, bench and tests all count through `Tally`.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from engine.protocol import Step

NOW_WINDOW_S = 2.0
NOW_MIN_STEPS = 8


@dataclass(frozen=True, slots=True)
class Stats:
    """Totals of one reply. Times in seconds, rates per second, shares and `kept` in 0–1."""

    ttft_s: float  # from asking to the first visible token; 0 when none became visible
    prefill_s: float
    decode_s: float
    tok_per_s: float  # emitted / decode_s
    steps: int
    tau: float  # (emitted, + 1 when a stop id ended the reply) / steps
    drafted: int  # sum of the depths of the verified drafts
    accepted: int  # drafted tokens that were kept
    kept: float  # accepted / drafted
    nodes: int
    per_position: tuple[float, ...]  # [i]: steps that kept i+1 / steps at least that deep
    draft_s: float
    verify_s: float
    bridge_s: float
    other_s: float


class Tally:
    """Counts steps as they come. `ttft_s` and `prefill_s` are told from outside, since they lie before the first step."""

    def __init__(self) -> None:
        self.ttft_s = 0.0
        self.prefill_s = 0.0
        self.steps = self.emitted = self.drafted = self.accepted = self.nodes = self.stops = 0
        self.draft_s = self.verify_s = self.bridge_s = self.other_s = self.decode_s = 0.0
        self._reached: list[int] = []  # [i]: steps that drafted at least i+1 deep
        self._kept: list[int] = []  # [i]: steps that kept at least i+1
        self._tried: list[int] = []  # [i]: steps that drafted i+1 deep and kept the i before
        self._recent: deque[tuple[float, int]] = deque()  # (at_s, emitted) inside the window

    def add(self, step: Step) -> None:
        """Count one step."""
        self.steps += 1
        self.emitted += step.emitted
        self.drafted += step.drafted
        self.accepted += step.accepted
        self.nodes += step.nodes
        self.draft_s += step.draft_s
        self.verify_s += step.verify_s
        self.bridge_s += step.bridge_s
        self.other_s += step.other_s
        while len(self._reached) < step.drafted:
            self._reached.append(0)
            self._kept.append(0)
            self._tried.append(0)
        for i in range(step.drafted):
            self._reached[i] += 1
            self._tried[i] += step.accepted >= i
            self._kept[i] += step.accepted > i
        self._recent.append((step.at_s, step.emitted))
        self.decode_s = max(self.decode_s, step.at_s)
        while len(self._recent) > NOW_MIN_STEPS + 1 and self._recent[1][0] <= step.at_s - NOW_WINDOW_S:
            self._recent.popleft()

    def stopped(self) -> None:
        """A stop id ended the reply: it counts for tau, since a pass was spent on it."""
        self.stops += 1

    @property
    def now(self) -> float | None:
        """Tokens/s over the last 2 s and at least 8 steps; None before that."""
        if len(self._recent) <= NOW_MIN_STEPS:
            return None
        span_s = self._recent[-1][0] - self._recent[0][0]
        emitted = sum(n for _, n in list(self._recent)[1:])
        return emitted / span_s if span_s > 0 else None

    @property
    def tok_per_s(self) -> float:
        return self.emitted / self.decode_s if self.decode_s > 0 else 0.0

    @property
    def tau(self) -> float:
        return (self.emitted + self.stops) / self.steps if self.steps else 0.0

    @property
    def kept(self) -> float:
        return self.accepted / self.drafted if self.drafted else 0.0

    @property
    def if_reached(self) -> tuple[float, ...]:
        """[i]: steps that kept i+1 / steps that drafted as deep and kept the i before: how good the drafter is at that place."""
        return tuple(k / t if t else 0.0 for k, t in zip(self._kept, self._tried, strict=True))

    def stats(self) -> Stats:
        """The totals so far."""
        return Stats(
            ttft_s=self.ttft_s,
            prefill_s=self.prefill_s,
            decode_s=self.decode_s,
            tok_per_s=self.tok_per_s,
            steps=self.steps,
            tau=self.tau,
            drafted=self.drafted,
            accepted=self.accepted,
            kept=self.kept,
            nodes=self.nodes,
            per_position=tuple(k / r for k, r in zip(self._kept, self._reached, strict=True)),
            draft_s=self.draft_s,
            verify_s=self.verify_s,
            bridge_s=self.bridge_s,
            other_s=self.other_s,
        )
