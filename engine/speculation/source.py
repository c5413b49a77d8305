"""What the controller knows of one drafter: how often what it drafts is kept, by position and by rank, and whether it is on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from operator import mul

from engine.speculation.cost import Cost

PRIOR_KEPT = 0.6  # what a drafter is trusted to keep before it has been seen
PRIOR_WEIGHT = 4.0
MEMORY = 0.97  # how fast old steps fade
PROBE_FIRST = 24  # plain steps until an idle drafter is tried again
PROBE_STEPS = 4  # steps of one trial
FALL = 0.5  # nodes of the next group of ranks (2, 3-4, 5-8, 9-16, …) are believed to be kept so much less often


def group(rank: int) -> int:
    """Ranks from 1 in groups that double: 1, 2, 3-4, 5-8, 9-16, …"""
    return (rank - 1).bit_length()


@dataclass(slots=True)
class Source:
    """What is known of one drafter."""

    kept: list[float] = field(default_factory=list)  # [i]: faded count of steps that kept position i+1
    tried: list[float] = field(default_factory=list)  # [i]: … that reached it
    draft: Cost = field(default_factory=lambda: Cost({0: 0.0}))
    branched: bool = False  # it has drafted a tree: nodes are judged by rank
    hit: list[float] = field(default_factory=list)  # [g]: faded count of kept nodes of rank group g
    judged: list[float] = field(default_factory=list)  # [g]: … of all its nodes
    size: int = 0  # the largest size that was best so far
    small: int = 0  # drafts since a larger one was tried
    patience: int = 0  # … until it is tried again
    double: bool = False  # the last one was twice as large, not one node larger
    went: list[float] = field(default_factory=list)  # [i]: faded count of drafts that had a node of rank i + 1
    allowed: list[float] = field(default_factory=list)  # [i]: … that were allowed one; empty where it never stops by itself
    on: bool = True
    idle: int = 0  # plain steps since it was turned off
    wait: int = PROBE_FIRST
    look: int = 0  # idle steps until it is weighed again
    trial: int = 0  # steps left of a trial
    reach: int = 0  # nodes that it may draft
    lost: float = 0.0  # plain steps that the last trial has cost, reading apart
    behind: float = 0.0  # plain steps that it took to read what was written while it did not draft, the last time
    tested: bool = False  # a trial has ended and was not judged yet
    since: int = 0  # the controller's step at the last change
    steps: int = 0
    passed: int = 0  # times that another one drafted instead

    def survivals(self, n: int) -> list[float]:
        """Chance that each of the first n positions is kept when the one before it was; deeper than seen, as the deepest seen."""
        chance, weight = PRIOR_KEPT, PRIOR_WEIGHT * MEMORY**self.steps  # what is believed at first fades, too
        out: list[float] = []
        for kept, tried in zip(self.kept[:n], self.tried, strict=False):
            chance, weight = (kept + weight * chance) / (tried + weight), PRIOR_WEIGHT
            out.append(chance)
        return out + [chance] * (n - len(out))

    def chances(self, n: int) -> list[float]:
        """Chance that each of the first n nodes is kept, by rank."""
        if not self.branched:
            return list(accumulate(self.survivals(n), mul))
        chance, weight = PRIOR_KEPT, PRIOR_WEIGHT * MEMORY**self.steps
        groups: list[float] = []
        for g in range(group(n) + 1):
            if g < len(self.hit):
                chance = (self.hit[g] + weight * chance) / (self.judged[g] + weight)
            groups.append(chance)
            chance, weight = FALL * chance, PRIOR_WEIGHT
        return [groups[group(rank)] for rank in range(1, n + 1)]

    def drafted(self, n: int) -> float:
        """Nodes that it is expected to draft when n are allowed."""
        if not self.allowed:
            return n
        shares = [went / allowed for went, allowed in zip(self.went[:n], self.allowed, strict=False)]
        return sum(shares) + (n - len(shares)) * shares[-1]

    def stopped(self, nodes: int, asked: int) -> None:
        """It drafted so many of the nodes that it was allowed."""
        for counts in (self.went, self.allowed):
            counts[:] = [count * MEMORY for count in counts]
            counts += [0.0] * (asked - len(counts))
        for i in range(asked):
            self.went[i] += i < nodes
            self.allowed[i] += 1.0

    def fade(self, steps: float) -> None:
        """What was seen so far shall weigh at most as much as so many steps."""
        share = min(1.0, steps / self.tried[0]) if self.tried and self.tried[0] > 0 else 1.0
        for counts in (self.kept, self.tried, self.hit, self.judged):
            counts[:] = [count * share for count in counts]

    def begin_trial(self, reach: int) -> None:
        """The next steps draft at most so many nodes; they shall weigh as much as all before them."""
        self.trial, self.reach, self.lost = PROBE_STEPS, reach, 0.0
        self.fade(PROBE_STEPS)

    def learn(self, nodes: int, depth: int, accepted: int, kept: Sequence[int]) -> None:
        """A draft of so many nodes and such a depth was judged; `kept` are the ranks of the kept nodes."""
        self.steps += 1
        self.branched |= nodes > depth
        for counts, size in ((self.kept, depth), (self.tried, depth), (self.hit, group(nodes) + 1), (self.judged, group(nodes) + 1)):
            counts[:] = [count * MEMORY for count in counts]
            counts += [0.0] * (size - len(counts))
        for rank in range(1, nodes + 1):
            self.judged[group(rank)] += 1.0
        for rank in kept:
            self.hit[group(rank)] += 1.0
        for i in range(min(depth, accepted + 1)):
            self.tried[i] += 1.0
            self.kept[i] += i < accepted
