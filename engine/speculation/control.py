"""How much to draft: one more node only while it is expected to pay, and nothing where speculation loses (DESIGN 9).

It knows measured costs (a pass by its number of rows, drafting by the number of nodes, the host's share) and, per drafter, how often
position i is kept when position i-1 was. Expected tokens per second of every length follow; the best length wins. Trees count by nodes:
their drafters put the nodes in order of trust, so that the first n of them are the tree of n nodes, and what is learned is how often the
node of each rank is kept. A drafter that loses is turned off with hysteresis; it is tried again, ever more rarely, and plain passes are
timed again now and then.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

from engine.speculation.cost import KNOWN, Cost
from engine.speculation.source import PROBE_FIRST, PROBE_STEPS, Source

MOST_NODES = 15  # of a chain
SIZES = (*range(1, 17), *range(20, 65, 4))  # numbers of nodes that are weighed
GAIN_ON = 1.04  # an idle drafter must promise this much to come back
GAIN_OFF = 1.0
PROBE_MOST = 384  # plain steps, at most, until an idle drafter is tried again
PROBE_LEAST, GAIN_LOST = 2, 0.9  # a trial ends after so many steps where no more than this is promised
FAIR_STEPS = 8  # drafts that an unknown drafter may try before it is judged
REPLY_STEPS = 5.0  # drafts that all earlier replies weigh together when one begins: another text may be drafted much better or worse
LOOK_EVERY = 8  # plain steps, at most, between two looks whether a trial may begin
PROBE_SHARE = 0.02  # of the time may go into trials
PLAIN_SHARE = 0.01  # of the time may be lost to plain steps that are timed while drafting pays: the less it pays, the more often
PLAIN_LEAST, PLAIN_EVERY = 12, 64  # drafted steps after which a plain one is timed, at least and at most
DRAFT_KNOWN = 8  # drafts of a size until a change of what they cost is one of the machine, or of all that is drafted
PLAIN_TELLS = 0.75  # power of a change of the plain step by which passes go with it that were measured since the last one
NEWS_EVERY = 16  # times that a drafter yields to a better one until it drafts all the same
LARGER_FIRST = 8  # drafts until twice the size is tried
SETTLED = 24  # steps that a drafter must stay on until it counts: a trial may have been lucky


class Controller:
    """Decides the budget of each source. Lives as long as the target; `k` fixes the length and switches it off."""

    def __init__(self) -> None:
        self.verify = Cost()
        self.trees = Cost()  # of passes whose rows branch: where each row must see its ancestors in their own slots these cost more
        self.other = Cost()  # the host's share of plain steps (0) and of drafted ones (1)
        self.sources: dict[str, Source] = {}
        self.steps = 0
        self.drafted = 0  # steps since the last plain one
        self.begun = True  # a reply has begun, and no step of it is over: whoever drafts has just read everything
        self.k: int | None = None
        self.most = MOST_NODES
        self.notices: list[str] = []
        self._said: dict[str, bool] = {}  # drafters: on or off, as last announced

    def measured(self, costs: dict[int, float]) -> None:
        """Seconds of a pass by its number of rows, timed at load."""
        self.verify = Cost(costs)

    def measured_trees(self, costs: dict[int, float]) -> None:
        """… of passes whose rows branch."""
        self.trees = Cost(costs)

    def source(self, name: str) -> Source:
        return self.sources.setdefault(name, Source())

    def begin(self) -> None:
        """A reply begins. What earlier ones have taught counts, but not for long; who was off is tried again soon, if it may cost that."""
        for source in self.sources.values():
            source.fade(REPLY_STEPS)
            source.wait, source.look = min(source.wait, PROBE_FIRST), 0
        self.begun = True

    @property
    def plain_s(self) -> float:
        """Seconds of a plain step, as measured."""
        return self.verify.at(1) + self.other.at(0)

    def pass_s(self, source: Source, nodes: float) -> float:
        """Expected seconds of verifying so many nodes of this source."""
        return (self.trees if source.branched and self.trees.known else self.verify).at(nodes + 1)

    def gains(self, name: str, sizes: Sequence[int]) -> list[float]:
        """Expected tokens/s with so many drafted nodes of this source, relative to plain, for each of the sizes."""
        source, plain_s, other_s = self.source(name), self.plain_s, self.other.at(1)
        tokens = list(accumulate(source.chances(max(sizes)), initial=1.0))
        drafted = [source.drafted(n) for n in sizes]
        seconds = [self.pass_s(source, n) + other_s + source.draft.at(n) for n in drafted]
        return [tokens[n] * plain_s / s if s > 0 else 1.0 for n, s in zip(sizes, seconds, strict=True)]

    def best(self, name: str) -> tuple[int, float]:
        """The best number of nodes from 1 up, and its expected gain; the smaller among equals."""
        most = max(self.most if self.source(name).branched else min(self.most, MOST_NODES), 1)
        sizes = [n for n in SIZES if n < most] + [most]
        gains = self.gains(name, sizes)
        gain = max(gains)
        return sizes[gains.index(gain)], gain

    def worth(self, name: str) -> tuple[float, float]:
        """Seconds that one more kept token of this source saves, and seconds that one more row costs; (0, 0) with a fixed length."""
        if self.k is not None:
            return 0.0, 0.0
        return self.plain_s / max(self.best(name)[1], 1.0), max(self.verify.at(4) - self.verify.at(1), 0.0) / 3

    def yields(self, name: str, rival: str) -> bool:
        """Whether another source should draft instead of this one, since it promises more; now and then not, for news of this one."""
        source, other = self.source(name), self.sources.get(rival)
        if self.k is not None or other is None or not (source.on and other.on) or self.best(rival)[1] <= self.best(name)[1]:
            return False
        source.passed += 1
        return source.passed % NEWS_EVERY != 0

    def budget(self, name: str) -> int:
        """How many nodes this source may draft now."""
        if self.most <= 0:
            return 0
        if self.k is not None:
            return min(self.k, self.most)
        source = self.source(name)
        if not (source.on or source.trial or source.tested) and source.idle + 1 < max(source.wait, source.look):
            source.idle += 1  # weighing takes longer than that, and a small target's step is short
            return 0
        k, gain = self.best(name)
        if self.drafted >= min(max(PLAIN_LEAST, (1.0 - 1.0 / max(gain, 1.0)) / PLAIN_SHARE), PLAIN_EVERY):
            return 0  # everything is weighed against plain: know what it costs now
        if 0 < source.trial <= PROBE_STEPS - PROBE_LEAST and gain < GAIN_LOST:
            source.trial, source.tested = 0, True
        if source.trial > 0:
            return min(k, source.reach)
        if source.tested:  # a trial has just ended: only new experience can turn it on again
            source.tested = False
            if gain > GAIN_ON:
                source.on, source.since = True, self.steps
        elif source.on and source.steps >= FAIR_STEPS and gain < GAIN_OFF:
            source.on, source.since, source.idle, source.look = False, self.steps, 0, 0
        self._tell(name, source, gain)
        if source.on:
            return self._larger(source, k)
        source.idle += 1
        for nodes in (k, 1):  # one node is a cheap trial, and tells what drafting costs now
            if source.idle >= max(source.wait, self._dear(source, nodes)):
                source.idle, source.look, source.wait = 0, 0, min(2 * source.wait, PROBE_MOST)
                source.begin_trial(nodes)
                return nodes
        source.look = source.idle + LOOK_EVERY
        return 0

    def _larger(self, source: Source, k: int) -> int:
        """k, but now and then one more node or twice as many: what was timed once in a bad moment looks dear for ever, and the levels of
        a tree make drafting no straight line, so only a trial tells what they cost. Ever more rarely while that changes nothing."""
        most = self.most if source.branched else min(self.most, MOST_NODES)
        if k >= most:
            return k
        if k > source.size:
            source.size, source.patience = k, LARGER_FIRST
        source.small += 1
        if source.small < source.patience:
            return k
        source.small, source.patience, source.double = 0, min(2 * source.patience, PROBE_MOST), not source.double
        return min(2 * k if source.double else k + 1, most)

    def _dear(self, source: Source, k: int) -> float:
        """Plain steps that must pass before a trial of length k costs no more than its share; one that loses ends early."""
        if self.plain_s <= 0.0:
            return 0.0
        loss_s = PROBE_LEAST * (source.draft.at(k) + self.pass_s(source, k) - self.verify.at(1))
        return max(loss_s / self.plain_s, source.lost + (0.0 if self.begun else source.behind)) / PROBE_SHARE

    def _tell(self, name: str, source: Source, gain: float) -> None:
        """Say what has changed: off at once, on when it has lasted. The kinds of a look-up are one drafter: off when all of them are."""
        if source.on and self.steps - source.since >= SETTLED:
            source.wait = PROBE_FIRST
        elif source.on:
            return
        drafter = _drafter(name)
        on = any(part.on for other, part in self.sources.items() if _drafter(other) == drafter)
        if on == self._said.get(drafter, True):
            return
        self._said[drafter] = on
        found = "pays again" if on else "does not pay here"
        self.notices.append(f"{drafter} {found} (expected {gain:.2f}x): it is {'on' if on else 'off for now'}.")

    def learn(
        self,
        name: str,
        nodes: int,
        depth: int,
        accepted: int,
        draft_s: float,
        verify_s: float,
        other_s: float,
        kept: Sequence[int] | None = None,
        asked: int = 0,
        read_s: float = 0.0,
    ) -> None:
        """One step is over. Without nodes it was a plain one, whoever was asked to draft. `kept` are the rows of the kept nodes; a chain
        keeps its first ones. `asked`: a drafter that may stop by itself is judged by what it was allowed; what it leaves out is not
        kept, but costs nothing either. `read_s`: part of the drafting time that went into text which was written while it did not draft."""
        self.steps += 1
        self.begun = False
        draft_s -= read_s
        size = max(nodes, asked)
        self.drafted = self.drafted + 1 if size else 0
        passes = self.trees if nodes > depth else self.verify
        factor = passes.add(nodes + 1, verify_s)
        self.other.add(1 if size else 0, other_s)
        if passes.times(nodes + 1) <= KNOWN:  # perhaps this size alone was timed wrong; plain that is too cheap is tried, and corrected
            factor = 1.0 if nodes else min(factor, 1.0)
        if nodes:
            self.verify.cap(1, passes.at(nodes + 1))
            for cost in (self.verify, self.trees):
                cost.follow(factor)
        else:
            self.trees.add(1, verify_s)
            for cost in (self.verify, self.trees, *(source.draft for source in self.sources.values())):
                cost.follow(factor, PLAIN_TELLS)
                cost.settle()
        if not size:
            return
        source = self.source(name)
        factor = source.draft.add(nodes, draft_s)
        if source.draft.times(nodes) > DRAFT_KNOWN:
            source.draft.follow(factor)
            source.draft.settle()  # many drafts may come before a plain step: what was measured before this one goes with the next, too
        source.learn(size, max(depth, asked), accepted, range(1, accepted + 1) if kept is None else kept)
        if asked:
            source.stopped(nodes, asked)
        if read_s > 0.0:
            source.behind = read_s / max(self.plain_s, 1e-6)
        if source.trial > 0:
            pass_s = self.pass_s(source, nodes)
            moment = max(verify_s / pass_s, 1.0) if pass_s > 0.0 else 1.0  # how much slower than usual all was
            source.lost += (draft_s / moment + pass_s + self.other.at(1)) / max(self.plain_s, 1e-6) - (accepted + 1)
            source.trial -= 1
            source.tested = source.trial == 0

    def take_notices(self) -> list[str]:
        """Decisions since the last call, one sentence each."""
        notices, self.notices = self.notices, []
        return notices


def _drafter(source: str) -> str:
    """The drafter of a source: some tell kinds of drafts apart, as "ngram, short matches"."""
    return source.partition(",")[0]
