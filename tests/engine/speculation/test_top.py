"""Candidates for a drafter that branches: the first of them is what would be picked, the others come in order."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch

from engine.errors import EngineError
from engine.speculation.sampling import Filters, Picker, Row

FILTERS = [
    Filters(),
    Filters(temperature=0.7),
    Filters(temperature=1.0, top_p=0.9),
    Filters(temperature=1.3, top_k=5),
    Filters(temperature=0.8, min_p=0.1, repeat_penalty=1.4),
    Filters(repeat_penalty=1.4),
]


def logits(rows: int, vocab: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(rows, vocab, generator=torch.Generator().manual_seed(seed)) * 3


@pytest.mark.parametrize("filters", FILTERS, ids=str)
def test_the_first_candidate_is_the_pick(filters: Filters) -> None:
    """A head that agrees with its target is always right with its first child."""
    for seed in range(40):
        picker = Picker(filters, seed, [3, 4])
        rows = [Row(seed + i, (i, 5)) for i in range(6)]
        values = logits(6, 200, seed)
        ids, chances = picker.top(values, rows, 4)
        assert ids[:, 0].tolist() == picker.pick(values, rows)
        assert all(a >= b for row in chances.tolist() for a, b in itertools.pairwise(row))
        assert (chances <= 0).all()
        assert chances.dtype == np.float32
        for row in ids:
            real = row[row >= 0]
            assert len(set(real.tolist())) == len(real)


def test_greedy_chances_are_the_law_of_the_logits() -> None:
    values = logits(3, 50)
    ids, chances = Picker(Filters(), 0).top(values, [Row(0)] * 3, 7)
    law, best = torch.log_softmax(values, -1).topk(7)
    assert ids.tolist() == best.tolist()
    assert np.allclose(chances, law.numpy())


def test_ties_go_to_the_lowest_ids_however_many_there_are() -> None:
    values = torch.zeros(2, 500)
    values[1, 490:] = 1.0
    ids, chances = Picker(Filters(), 0).top(values, [Row(0)] * 2, 12)
    assert ids[0].tolist() == list(range(12))
    assert ids[1].tolist() == [*range(490, 500), 0, 1]
    assert (chances[0] == chances[0, 0]).all()


def test_more_candidates_than_tokens() -> None:
    assert Picker(Filters(), 0).top(logits(1, 5), [Row(0)], 9)[0].shape == (1, 5)
    ids, chances = Picker(Filters(temperature=1.0), 0).top(logits(1, 5), [Row(0)], 9)
    assert sorted(ids[0, :5].tolist()) == list(range(5))
    assert ids[0, 5:].tolist() == [-1] * 4
    assert (chances[0, 5:] == -np.inf).all()


def test_what_the_filters_take_out_is_no_candidate() -> None:
    ids, _ = Picker(Filters(temperature=1.0, top_k=3), 0).top(logits(1, 50), [Row(0)], 6)
    assert sorted(ids[0, :3].tolist()) == sorted(logits(1, 50)[0].topk(3).indices.tolist())
    assert ids[0, 3:].tolist() == [-1] * 3


def test_noise_is_keyed_by_the_targets_ids() -> None:
    """A smaller vocabulary draws the same token as the whole one, where the whole one would draw it."""
    names = torch.tensor(sorted(torch.randperm(300, generator=torch.Generator().manual_seed(1))[:120].tolist()))
    for filters in FILTERS:
        for seed in range(20):
            picker = Picker(filters, seed, [int(names[3]), 7])
            small = logits(2, 120, seed)
            whole = torch.full((2, 300), -1e9)
            whole[:, names] = small
            rows = [Row(seed), Row(seed + 1, (int(names[9]),))]
            ids, chances = picker.top(small, rows, 3, names)
            expected, wanted = picker.top(whole, rows, 3)
            assert ids.tolist() == expected.tolist()
            assert np.allclose(chances, wanted, atol=1e-4)


def test_without_noise_the_seed_does_not_matter() -> None:
    for filters in FILTERS[1:4]:
        a, b = (Picker(filters, seed).top(logits(2, 80), [Row(0)] * 2, 5, noisy=False)[0].tolist() for seed in (1, 2))
        assert a == b == logits(2, 80).topk(5).indices.tolist()


@pytest.mark.parametrize("filters", FILTERS, ids=str)
def test_numbers_that_are_none(filters: Filters) -> None:
    values = logits(2, 40)
    values[1] = float("nan")
    with pytest.raises(EngineError) as error:
        Picker(filters, 0).top(values, [Row(0)] * 2, 3)
    assert error.value.kind == "not_finite"
