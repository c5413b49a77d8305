"""How much to draft: one more node only while it is expected to pay, and nothing where speculation loses (DESIGN 9).

It knows measured costs (a pass by its number of rows, drafting by the number of nodes, the host's share) and, per drafter, how often
position i is kept when position i-1 was. Expected tokens per second of every length follow; the best length wins. A drafter that loses
is turned off with hysteresis; it is tried again, ever more rarely, and plain passes are timed again now and then.
"""

from __future__ import annotations

from dataclasses import dataclass, field

MOST_NODES = 15
GAIN_ON = 1.04  # an idle drafter must promise this much to come back
GAIN_OFF = 1.0
PRIOR_KEPT = 0.6  # what a drafter is trusted to keep before it has been seen
PRIOR_WEIGHT = 4.0
MEMORY = 0.97  # how fast old steps fade
PROBE_FIRST, PROBE_MOST = 24, 384  # plain steps until an idle drafter is tried again
PROBE_STEPS = 4  # steps of one trial
QUIET = 100  # steps between two announcements of one drafter


class Cost:
    """Seconds by size, measured: a running mean per size that follows the machine, straight lines between and behind."""

    def __init__(self, measured: dict[int, float] | None = None) -> None:
        self._mean: dict[int, float] = dict(measured or {})

    def add(self, size: int, seconds: float) -> None:
        """One more measurement. A single slow pass (another program, a page fault) moves the mean only a little."""
        old = self._mean.get(size)
        self._mean[size] = seconds if old is None else old + 0.1 * (min(seconds, 3.0 * old) - old)

    @property
    def known(self) -> bool:
        """Whether anything was measured."""
        return bool(self._mean)

    def at(self, size: int) -> float:
        """Expected seconds; 0 when nothing was measured yet."""
        if not self._mean:
            return 0.0
        if size in self._mean:
            return self._mean[size]
        below = max((s for s in self._mean if s < size), default=None)
        above = min((s for s in self._mean if s > size), default=None)
        if below is None:
            assert above is not None
            return self._mean[above]
        if above is None:
            second = max((s for s in self._mean if s < below), default=None)
            slope = (self._mean[below] - self._mean[second]) / (below - second) if second is not None else 0.0
            return self._mean[below] + max(slope, 0.0) * (size - below)
        share = (size - below) / (above - below)
        return self._mean[below] + share * (self._mean[above] - self._mean[below])


@dataclass(slots=True)
class Source:
    """What is known of one drafter."""

    kept: list[float] = field(default_factory=list)  # [i]: faded count of steps that kept position i+1
    tried: list[float] = field(default_factory=list)  # [i]: … that reached it
    draft: Cost = field(default_factory=Cost)
    on: bool = True
    idle: int = 0  # plain steps since it was turned off
    wait: int = PROBE_FIRST
    trial: int = 0  # steps left of a trial
    tested: bool = False  # a trial has ended and was not judged yet
    told: int | None = None  # when its last change was announced
    steps: int = 0

    def survival(self, i: int) -> float:
        """Chance that position i (from 0) is kept when the one before it was; deeper than seen, as the deepest seen."""
        if not self.tried:
            return PRIOR_KEPT
        i = min(i, len(self.tried) - 1)
        prior = PRIOR_KEPT if i == 0 else self.survival(i - 1)
        return (self.kept[i] + PRIOR_WEIGHT * prior) / (self.tried[i] + PRIOR_WEIGHT)

    def learn(self, depth: int, accepted: int) -> None:
        """A draft of `depth` was judged."""
        self.steps += 1
        for counts in (self.kept, self.tried):
            for i in range(len(counts)):
                counts[i] *= MEMORY
            while len(counts) < depth:
                counts.append(0.0)
        for i in range(min(depth, accepted + 1)):
            self.tried[i] += 1.0
            self.kept[i] += i < accepted


class Controller:
    """Decides the budget of each source. Lives as long as the target; `k` fixes the length and switches it off."""

    def __init__(self) -> None:
        self.verify = Cost()
        self.other = Cost()
        self.sources: dict[str, Source] = {}
        self.k: int | None = None
        self.most = MOST_NODES
        self.notices: list[str] = []

    def measured(self, costs: dict[int, float]) -> None:
        """Seconds of a pass by its number of rows, timed at load."""
        self.verify = Cost(costs)

    def source(self, name: str) -> Source:
        return self.sources.setdefault(name, Source())

    @property
    def plain_s(self) -> float:
        """Seconds of a plain step, as measured."""
        return self.verify.at(1) + self.other.at(1)

    def gain(self, name: str, k: int) -> float:
        """Expected tokens/s with k drafted tokens of this source, relative to plain."""
        source = self.source(name)
        tokens, alive = 1.0, 1.0
        for i in range(k):
            alive *= source.survival(i)
            tokens += alive
        seconds = self.verify.at(k + 1) + self.other.at(1) + source.draft.at(k)
        return tokens * self.plain_s / seconds if seconds > 0 else 1.0

    def best(self, name: str) -> tuple[int, float]:
        """The best length from 1 up, and its expected gain."""
        gains = [(self.gain(name, k), -k) for k in range(1, max(self.most, 1) + 1)]
        gain, k = max(gains)
        return -k, gain

    def budget(self, name: str) -> int:
        """How many nodes this source may draft now."""
        if self.most <= 0:
            return 0
        if self.k is not None:
            return min(self.k, self.most)
        source = self.source(name)
        k, gain = self.best(name)
        if source.trial > 0:
            return k
        if source.on:
            if source.steps >= PROBE_STEPS and gain < GAIN_OFF:
                source.on, source.idle = False, 0
                self._tell(source, f"{name} does not pay here (expected {gain:.2f}x): drafting is off, plain decoding goes on.")
                return 0
            return k
        if source.tested:  # a trial has just ended: only new experience can turn it on again
            source.tested = False
            if gain > GAIN_ON:
                source.on, source.wait = True, PROBE_FIRST
                self._tell(source, f"{name} pays again (expected {gain:.2f}x): drafting is on.")
                return k
        source.idle += 1
        if source.idle >= source.wait:
            source.idle, source.wait, source.trial = 0, min(2 * source.wait, PROBE_MOST), PROBE_STEPS
            return k
        return 0

    def _tell(self, source: Source, text: str) -> None:
        """Say it, unless it was said a moment ago."""
        if source.told is None or source.steps + source.idle - source.told > QUIET:
            self.notices.append(text)
        source.told = source.steps + source.idle

    def learn(self, name: str, nodes: int, depth: int, accepted: int, draft_s: float, verify_s: float, other_s: float) -> None:
        """One step is over. `name` is empty for a plain step."""
        self.verify.add(nodes + 1, verify_s)
        self.other.add(1, other_s)
        if not name:
            return
        source = self.source(name)
        source.draft.add(nodes, draft_s)
        source.learn(depth, accepted)
        if source.trial > 0:
            source.trial -= 1
            source.tested = source.trial == 0

    def take_notices(self) -> list[str]:
        """Decisions since the last call, one sentence each."""
        notices, self.notices = self.notices, []
        return notices
