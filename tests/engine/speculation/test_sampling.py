"""Filters against a slow plain reference, and picks that depend on a row alone."""

from __future__ import annotations

import itertools
import math
import random
import sys

import numpy as np
import pytest
import torch

from engine.errors import EngineError
from engine.speculation import noise
from engine.speculation.sampling import FIRST_TOP, Filters, Picker, Row

ROW = [Row(0)]


def reference(logits: torch.Tensor, f: Filters, seen: set[int] = frozenset()) -> np.ndarray:  # type: ignore[assignment]
    """The law of one row, token by token, with whole sorts: penalty -> temperature -> top-k -> top-p -> min-p."""
    scores = [float(x) for x in logits.double()]
    for i in seen:
        scores[i] = scores[i] / f.repeat_penalty if scores[i] > 0 else scores[i] * f.repeat_penalty
    scores = [x / f.temperature for x in scores]
    left = sorted(range(len(scores)), key=lambda i: (-scores[i], i))  # best first, ties by the lowest id
    if f.top_k > 0:
        left = left[: f.top_k]
    masses = np.exp(np.array([scores[i] for i in left]) - scores[left[0]])
    masses = masses / masses.sum()
    if f.top_p < 1.0:
        total, count = 0.0, 0
        for mass in masses:
            total += mass
            count += 1
            if total >= f.top_p:
                break
        left, masses = left[:count], masses[:count]
    if f.min_p > 0.0:
        good = masses >= f.min_p * masses[0]
        left, masses = [i for i, g in zip(left, good, strict=True) if g], masses[good]
    law = np.zeros(len(scores))
    law[left] = masses / masses.sum()
    return law


GRID = [
    Filters(temperature, top_p, top_k, min_p, penalty)
    for temperature, top_p, top_k, min_p, penalty in itertools.product((0.6, 1.3), (1.0, 0.9, 0.3), (0, 1, 7, 600), (0.0, 0.08), (1.0, 1.4))
]


@pytest.mark.parametrize("spread", [0.3, 1.5, 6.0])
def test_every_mix_of_filters_equals_the_reference(spread: float) -> None:
    """Flat laws need far more than the first 256 ids; the growing top-n must not be a cap."""
    made = torch.Generator().manual_seed(int(spread * 10))
    logits = torch.randn(3, 1100, generator=made, dtype=torch.float64) * spread
    seen = {3, 500, 501, 1099, int(logits[0].argmax())}
    for f in GRID:
        laws = Picker(f, 1, seen).laws(logits, ROW * 3)
        for r in range(3):
            expected = reference(logits[r], f, seen if f.repeat_penalty != 1.0 else set())
            assert (laws[r].numpy() > 0).tolist() == (expected > 0).tolist(), f
            assert np.abs(laws[r].numpy() - expected).max() < 1e-9, f


def test_the_reference_is_not_trivial() -> None:
    """The grid above has laws of one id, of some, of more than 256 and of all."""
    logits = torch.randn(1100, generator=torch.Generator().manual_seed(3), dtype=torch.float64) * 0.3
    sizes = {int((reference(logits, f) > 0).sum()) for f in GRID}
    assert min(sizes) == 1
    assert max(sizes) == 1100
    assert any(FIRST_TOP < size < 1100 for size in sizes)


def test_top_p_beyond_the_first_ids_is_exact_in_float32_too() -> None:
    logits = torch.randn(1, 50_000, generator=torch.Generator().manual_seed(2)) * 0.5
    for top_p in (0.1, 0.5, 0.95, 0.9999999):
        law = Picker(Filters(1.0, top_p=top_p), 1).laws(logits, ROW)[0].numpy()
        expected = reference(logits[0], Filters(1.0, top_p=top_p))
        assert abs(int((law > 0).sum()) - int((expected > 0).sum())) <= 2  # the last id or two hang on rounding
        assert np.abs(law - expected).sum() < 1e-3


def test_the_penalty_is_that_of_transformers() -> None:
    from transformers import RepetitionPenaltyLogitsProcessor

    logits = torch.randn(2, 64, generator=torch.Generator().manual_seed(4), dtype=torch.float64) * 3
    seen = [1, 2, 3, 3, 60, 5]
    expected = RepetitionPenaltyLogitsProcessor(1.3)(torch.tensor([seen, seen]), logits.clone())
    picker = Picker(Filters(repeat_penalty=1.3), 1, seen)
    untouched = logits.clone()
    assert torch.equal(picker._penalised(logits, ROW * 2), expected)
    assert torch.equal(logits, untouched)
    assert picker.pick(logits, ROW * 2) == expected.argmax(-1).tolist()


def test_the_penalty_sees_the_path_of_each_row_and_later_the_committed_tokens() -> None:
    from transformers import RepetitionPenaltyLogitsProcessor

    logits = torch.randn(3, 64, generator=torch.Generator().manual_seed(5), dtype=torch.float64) * 3
    rows = [Row(0), Row(1, (7,)), Row(2, (7, 9, 9))]
    picker = Picker(Filters(repeat_penalty=1.3), 1, [1, 2])
    got = picker._penalised(logits, rows)
    for r, row in enumerate(rows):
        expected = RepetitionPenaltyLogitsProcessor(1.3)(torch.tensor([[1, 2, *row.path]]), logits[r : r + 1].clone())
        assert torch.equal(got[r : r + 1], expected)
    picker.see([7, 9])
    assert torch.equal(picker._penalised(logits[2:], [Row(3)]), got[2:])


def test_a_narrow_drafter_may_hear_of_ids_that_it_lacks() -> None:
    """A drafter's vocabulary may end before the target's; the penalty is told target ids."""
    logits = torch.randn(1, 50, generator=torch.Generator().manual_seed(6))
    filters = Filters(repeat_penalty=1.5)
    assert Picker(filters, 1, [3, 49, 50, 1000]).pick(logits, ROW) == Picker(filters, 1, [3, 49]).pick(logits, ROW)


def test_greedy_takes_the_lowest_id_among_equals() -> None:
    logits = torch.zeros(2, 1000)
    logits[0, [700, 41, 900]] = 2.0
    assert Picker(Filters(), 1).pick(logits, ROW * 2) == [41, 0]
    assert Picker(Filters(), 1).laws(logits, ROW * 2).argmax(-1).tolist() == [41, 0]


def test_a_temperature_of_almost_nothing_is_greedy() -> None:
    logits = torch.randn(1, 100, generator=torch.Generator().manual_seed(1)) * 30
    for temperature in (1e-45, 1e-12, 1e-6, 1e-5):
        assert Picker(Filters(temperature, top_p=0.9), 1).pick(logits, ROW) == [int(logits.argmax())]


def bf16_rows(count: int, vocab_size: int, seed: int) -> torch.Tensor:
    """Logits as a bf16 head gives them: many equal values. Sharp and flat rows in turn."""
    made = torch.Generator().manual_seed(seed)
    spread = torch.tensor([3.0 if r % 2 == 0 else 0.5 for r in range(count)])[:, None]
    return (torch.randn(count, vocab_size, generator=made) * spread).bfloat16().float()


@pytest.mark.parametrize(
    "filters",
    [Filters(1.0, top_p=0.6), Filters(1.0, top_k=50), Filters(0.8, top_k=40, top_p=0.9), Filters(1.0, top_p=0.5, min_p=0.02)],
    ids=str,
)
def test_what_a_row_keeps_does_not_depend_on_its_neighbours(filters: Filters) -> None:
    """A flat row makes the whole call look at more ids; a tie at the cut of a sharp row must not fall otherwise for it."""
    logits = bf16_rows(8, 40_000, 1)
    picker = Picker(filters, 1)
    together = picker._survivors(logits / filters.temperature)
    for r in range(8):
        values, ids = picker._survivors(logits[r : r + 1] / filters.temperature)[0]
        assert sorted(ids.tolist()) == sorted(together[r][1].tolist())
        assert values.tolist() == together[r][0].tolist() == (logits[r, ids] / filters.temperature).double().tolist()
    last = [values[-1] for values, _ in together]
    scaled = (logits / filters.temperature).double()
    outside = [int((scaled[r] == last[r]).sum()) - int((together[r][0] == last[r]).sum()) for r in range(8)]
    assert any(outside) or filters.min_p  # there were ties at a cut


@pytest.mark.parametrize("filters", [Filters(1.0, top_p=0.9), Filters(1.0, top_k=240), Filters(1.0, top_k=600, top_p=0.9)], ids=str)
def test_a_cut_through_many_equal_values_keeps_the_lowest_ids(filters: Filters) -> None:
    """The equal values go on behind what is looked at first, whatever the neighbours make the call look at."""
    logits = torch.full((2, 20_000), -30.0)
    order = torch.randperm(20_000, generator=torch.Generator().manual_seed(3))
    logits[0, order[:200]] = torch.linspace(3.0, 2.0, 200)
    logits[0, order[200:700]] = 1.5  # five hundred equal ones
    logits[1] = torch.randn(20_000, generator=torch.Generator().manual_seed(4)) * 0.1
    expected = set(np.flatnonzero(reference(logits[0], filters)).tolist())
    assert 200 < len(expected) < 700
    for rows in (logits[:1], logits):
        assert set(Picker(filters, 1)._survivors(rows)[0][1].tolist()) == expected


@pytest.mark.parametrize(
    "filters",
    [Filters(), Filters(1.0), Filters(1.0, top_p=0.95), Filters(0.7, top_k=40, top_p=0.9), Filters(1.0, min_p=0.05, repeat_penalty=1.2)],
    ids=str,
)
def test_picks_are_the_same_for_any_number_of_rows(filters: Filters) -> None:
    logits = bf16_rows(16, 151_936, 2) * 3
    rows = [Row(i // 2, tuple(range(i))) for i in range(16)]
    picker = Picker(filters, 12345, [1, 2, 3])
    alone = [picker.pick(logits[r : r + 1], rows[r : r + 1])[0] for r in range(16)]
    for n in (2, 3, 5, 8, 16):
        assert picker.pick(logits[:n], rows[:n]) == alone[:n]
    assert picker.pick(logits[9:12], rows[9:12]) == alone[9:12]


@pytest.mark.parametrize("filters", [Filters(1.0), Filters(0.8, top_p=0.9), Filters(1.2, top_k=6), Filters(1.0, min_p=0.1)], ids=str)
def test_picks_follow_the_filtered_law(filters: Filters) -> None:
    """Chi-square over seeds, and over the indices of one seed."""
    logits = torch.randn(1, 24, generator=torch.Generator().manual_seed(8)) * 1.5
    law = Picker(filters, 0).laws(logits, ROW)[0].numpy()
    n = 4000
    for axis in range(2):
        counts = np.zeros(24)
        if axis == 0:
            for seed in range(n):
                counts[Picker(filters, seed).pick(logits, ROW)[0]] += 1
        else:
            picks = Picker(filters, 99).pick(logits.expand(n, -1), [Row(i) for i in range(n)])
            np.add.at(counts, picks, 1)
        assert counts[law == 0].sum() == 0
        few = law * n < 5
        observed, expected = np.append(counts[~few], counts[few].sum()), np.append(law[~few], law[few].sum()) * n
        good = expected > 0
        statistic = ((observed[good] - expected[good]) ** 2 / expected[good]).sum()
        degrees = good.sum() - 1
        assert statistic < degrees + 3.7 * math.sqrt(2 * degrees) + 6  # beyond p = 0.001


def test_another_stream_or_index_picks_apart() -> None:
    logits = torch.zeros(1, 500)
    picker = Picker(Filters(1.0), 1)
    picks = {picker.pick(logits, [Row(index)], stream)[0] for index in range(20) for stream in range(4)}
    assert len(picks) > 60
    assert picker.pick(logits, [Row(3)], noise.PROPOSE) == picker.pick(logits, [Row(3)], noise.PROPOSE)


BROKEN = [
    Filters(),
    Filters(1.0),
    Filters(1.0, top_p=0.9),
    Filters(1.0, top_k=5),
    Filters(1.0, min_p=0.1),
    Filters(1.0, top_p=0.9, min_p=0.1),
    Filters(1.0, top_p=0.9, top_k=20, repeat_penalty=1.2),
]


@pytest.mark.parametrize("filters", BROKEN, ids=str)
@pytest.mark.parametrize("bad", [float("nan"), float("inf"), "all -inf"])
def test_numbers_that_are_not_finite_are_an_error_and_never_a_token(filters: Filters, bad: float | str) -> None:
    logits = torch.randn(2, 1000, generator=torch.Generator().manual_seed(9))
    if isinstance(bad, str):
        logits[1] = float("-inf")
    else:
        logits[1, 77] = bad
    for ask in (Picker(filters, 1).pick, Picker(filters, 1).laws):
        with pytest.raises(EngineError) as caught:
            ask(logits, ROW * 2)
        assert caught.value.kind == "not_finite"
        assert caught.value.hint


@pytest.mark.parametrize("filters", BROKEN, ids=str)
def test_masked_ids_are_no_error_and_never_picked(filters: Filters) -> None:
    logits = torch.full((1, 1000), float("-inf"))
    logits[0, [5, 600]] = torch.tensor([1.0, 0.5])
    for seed in range(30):
        assert Picker(filters, seed).pick(logits, ROW)[0] in (5, 600)
    law = Picker(filters, 1).laws(logits, ROW)[0]
    assert law.sum().item() == pytest.approx(1.0)
    assert law[[i for i in range(1000) if i not in (5, 600)]].sum() == 0


def test_the_penalty_looks_only_once_at_what_was_seen() -> None:
    """The same numbers as with the whole set at each pick, for vocabularies of two sizes; and no more work behind a long text."""
    rng = random.Random(3)
    picker = Picker(Filters(repeat_penalty=1.3), 0, [5, 5, 7])
    seen = {5, 7}
    lines: list[int] = []
    for _ in range(40):
        new = [rng.randrange(3000) for _ in range(rng.randrange(30))]
        picker.see(new)
        seen.update(new)
        for vocab_size in (2000, 3000):
            logits = torch.randn(2, vocab_size, generator=torch.Generator().manual_seed(len(seen)))
            path = (rng.randrange(2000), 7)
            expected = logits.clone()
            for row, ids in enumerate((seen, seen | set(path))):
                for i in ids:
                    if i < vocab_size:
                        expected[row, i] *= 1.3 if logits[row, i] <= 0 else 1 / 1.3
            found = picker.pick(logits, [Row(0), Row(1, path)])
            assert torch.allclose(picker._penalised(logits, [Row(0), Row(1, path)]), expected)
            assert found == expected.argmax(-1).tolist()
        count = 0

        def trace(*_: object) -> object:
            nonlocal count
            count += 1
            return trace

        picker.see([1, 2])
        seen |= {1, 2}
        sys.settrace(trace)  # type: ignore[arg-type]
        picker.pick(logits[:1], [Row(0)])
        sys.settrace(None)
        lines.append(count)
    assert len(seen) > 500
    assert max(lines) < 100, lines


@pytest.mark.parametrize("inside", [True, False])
def test_columns_are_kept_in_and_out_of_inference_mode(inside: bool) -> None:
    """Draft heads choose in inference mode, the target's picks are made outside; both grow the same columns."""
    picker = Picker(Filters(temperature=0.0, repeat_penalty=1.3), 7)
    logits = torch.ones((1, 600))
    for step in range(4):
        picker.see(range(step * 100, step * 100 + 100))
        with torch.inference_mode(inside == (step % 2 == 0)):
            (chosen,) = picker.pick(logits, [Row(step)])
        assert chosen >= step * 100 + 100  # of equal logits those that were seen are less likely
