"""The controller with drafters that branch: how many nodes pay, by measured costs, against brute force."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest

from engine.speculation.control import MOST_NODES, SIZES, Controller, Cost
from engine.speculation.source import Source, group
from tests.engine.speculation.test_control import cliff, flat

MOST = 63


def spread_out(rank: int) -> float:
    """Chance that the node of a rank is kept: a head that is sure of nothing, as trees of 64 nodes suit it."""
    return 0.55 / rank**0.9


def sure(rank: int) -> float:
    """A head that drafts nearly a chain."""
    return 0.8**rank


@dataclass
class Forest:
    """Drafts whose nodes are kept with a chance by rank; the tree's first nodes form its trunk."""

    verify: Callable[[int], float]
    draft_s: Callable[[int], float]
    chance: Callable[[int], float]
    seed: int = 1
    control: Controller = field(default_factory=Controller)

    def __post_init__(self) -> None:
        self.rng = random.Random(self.seed)
        self.control.most = MOST
        self.control.measured({w: self.verify(w) for w in (1, 2, 3, 4, 6, 8, 12, 16)})
        self.control.measured_trees({w: self.verify(w) for w in (1, 3, 4, 6, 8, 12, 16, 24, 40, 64)})

    def step(self) -> int:
        n = self.control.budget("heads")
        kept = [rank for rank in range(1, n + 1) if self.rng.random() < self.chance(rank)]
        depth = n if n < 2 else 1 + n.bit_length()
        shake = 1 + 0.05 * self.rng.gauss(0, 1)
        accepted = min(len(kept), depth)
        self.control.learn("heads", n, min(depth, n), accepted, self.draft_s(n), self.verify(n + 1) * shake, 0.0005, kept)
        return n

    def rate(self, n: int) -> float:
        """True tokens/s of a fixed number of nodes."""
        return (1.0 + sum(map(self.chance, range(1, n + 1)))) / (self.verify(n + 1) + (self.draft_s(n) if n else 0.0) + 0.0005)

    @property
    def best(self) -> float:
        return max(map(self.rate, range(MOST + 1)))


def by_level(n: int) -> float:
    """A pass of the head for each level, a little more for each node."""
    return 0.0015 * n.bit_length() + 0.00005 * n


@pytest.mark.parametrize("chance", [spread_out, sure])
@pytest.mark.parametrize("verify", [cliff, flat])
def test_the_number_of_nodes_comes_close_to_the_best(verify: Callable[[int], float], chance: Callable[[int], float]) -> None:
    for seed in range(3):
        forest = Forest(verify, by_level, chance, seed)
        for _ in range(200):
            forest.step()
        sizes = [forest.step() for _ in range(400)]
        rate = len(sizes) / sum(1 / forest.rate(n) for n in sizes)
        assert rate > 0.92 * forest.best, (sizes[-20:], rate, forest.best)


def test_cheap_rows_bring_large_trees_and_dear_ones_small_trees() -> None:
    large, small = Forest(flat, lambda n: 0.0004 * n.bit_length(), spread_out), Forest(cliff, by_level, spread_out)
    sizes = [[forest.step() for _ in range(400)][-100:] for forest in (large, small)]
    assert sum(sizes[0]) / 100 > 30
    assert sum(sizes[1]) / 100 < 8


def test_a_losing_head_is_turned_off() -> None:
    forest = Forest(cliff, lambda n: 0.03, lambda rank: 0.2 / rank)
    sizes = [forest.step() for _ in range(600)]
    assert sum(n > 0 for n in sizes[300:]) < 15
    assert "does not pay" in forest.control.take_notices()[0]


def test_until_it_has_branched_a_source_is_a_chain() -> None:
    control = Controller()
    control.most = MOST
    control.measured({w: flat(w) for w in (1, 2, 4, 8, 16)})
    assert control.best("heads")[0] <= MOST_NODES
    control.learn("heads", 12, 5, 3, 0.001, 0.02, 0.0005, (1, 2, 6))
    assert control.source("heads").branched
    assert control.best("heads")[0] in SIZES


def test_trees_and_chains_have_costs_of_their_own() -> None:
    control = Controller()
    control.measured({1: 0.02, 2: 0.021, 9: 0.03})
    control.measured_trees({1: 0.02, 3: 0.03, 9: 0.05})
    chain, tree = Source(), Source(branched=True)
    assert control.pass_s(chain, 8) == 0.03
    assert control.pass_s(tree, 8) == 0.05
    control.learn("a", 8, 3, 1, 0.001, 0.06, 0.0, (1,))
    assert control.verify.at(9) == 0.03
    assert control.trees.at(9) > 0.05
    control.learn("a", 8, 8, 1, 0.001, 0.04, 0.0)
    assert control.verify.at(9) > 0.03


def test_ranks_stand_in_groups_that_double() -> None:
    assert [group(rank) for rank in (1, 2, 3, 4, 5, 8, 9, 16, 17, 64)] == [0, 1, 2, 2, 3, 3, 4, 4, 5, 6]
    source = Source(branched=True)
    for _ in range(100):
        source.learn(8, 4, 2, (1, 5))
    chances = source.chances(20)
    assert chances[0] > 0.9
    assert chances[1] < 0.1
    assert 0.2 < chances[4] == chances[7] < 0.3  # one of the four
    assert chances[16] == pytest.approx(chances[7] / 4)  # two groups further: believed, not seen
    assert Cost({1: 1.0}).at(5) == 1.0
