"""Slots against a dense reference: trees, commits, windows, slides, going back."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from engine.decoder import kv
from engine.decoder.attention import depths
from engine.decoder.kv import ALIGN, LayerSlots, SlotCache, aligned
from engine.decoder.target import LeanTarget
from tests.dense import dense_logits
from tests.tiny import tiny_config, tiny_target

WINDOWS = [None, 12, 70]


@pytest.fixture
def short_slack() -> Iterator[None]:
    """Slides come every 64 tokens instead of every 512, so that a short text has many."""
    before = kv.SLACK, kv.GROW
    kv.SLACK, kv.GROW = 64, 64
    yield
    kv.SLACK, kv.GROW = before


def draft_of(rng: random.Random, n: int, chain: bool = False) -> tuple[list[int], tuple[int, ...]]:
    return [rng.randrange(32) for _ in range(n)], tuple(i if chain else rng.randint(0, i) for i in range(n))


def path_of(parents: tuple[int, ...], row: int) -> list[int]:
    """Rows from the root down to `row`."""
    path = [row]
    while path[0]:
        path.insert(0, parents[path[0] - 1])
    return path


def check(target: LeanTarget, ids: list[int], drafted: list[int], parents: tuple[int, ...]) -> None:
    """Each row of a verify equals the dense logits of its path alone. `ids` ends with the root."""
    rows = [ids[-1], *drafted]
    logits = target.verify(torch.tensor(rows), parents)
    assert logits.dtype == torch.float64
    for row in range(len(rows)):
        text = ids[:-1] + [rows[r] for r in path_of(parents, row)]
        assert torch.allclose(logits[row], dense_logits(target, text)[-1], atol=1e-9), (row, parents)


@pytest.mark.parametrize("window", WINDOWS)
@pytest.mark.parametrize("length", [0, 1, 11, 12, 62, 63, 64, 127, 200])
def test_a_row_of_a_tree_equals_its_path_run_alone(length: int, window: int | None) -> None:
    rng = random.Random(length)
    target = tiny_target(1, tiny_config(window=window))
    ids = [rng.randrange(32) for _ in range(length + 1)]
    target.prefill(ids[:-1])
    for n in (0, 1, 5, 17):
        check(target, ids, *draft_of(rng, n))
    check(target, ids, *draft_of(rng, 20, chain=True))
    assert target.length == length


@pytest.mark.parametrize("window", WINDOWS)
def test_committed_paths_of_many_trees(window: int | None, short_slack: None) -> None:
    """Random trees and random kept paths over several slides; now and then back by some tokens."""
    rng = random.Random(7)
    target = tiny_target(2, tiny_config(window=window), context=900)
    ids = [rng.randrange(32) for _ in range(40)]
    target.prefill(ids[:-1])
    while len(ids) < 520:
        drafted, parents = draft_of(rng, rng.choice([0, 3, 8, 20]), chain=rng.random() < 0.2)
        logits = target.verify(torch.tensor([ids[-1], *drafted]), parents)
        if rng.random() < 0.15:
            check(target, ids, drafted, parents)
        deepest = max(range(len(parents) + 1), key=lambda row: (depths(parents)[row], rng.random()))
        path = path_of(parents, deepest if rng.random() < 0.5 else rng.randint(0, len(parents)))
        target.keep(tuple(path))
        ids += [drafted[row - 1] for row in path[1:]] + [int(logits[path[-1]].argmax())]
        assert target.length == len(ids) - 1
        if rng.random() < 0.1:
            back = rng.randint(0, min(30, target.length))
            left = target.truncate(target.length - back)
            assert left == len(ids) - 1 - back  # a rollback inside the slack never loses anything
            ids = ids[: left + 1]
    check(target, ids, *draft_of(rng, 12))


def test_a_window_is_exact_over_the_real_slides() -> None:
    """With the shipped slack: a text of several thousand tokens, read in chunks and written in steps."""
    rng = random.Random(3)
    target = tiny_target(4, tiny_config(window=70), context=4000)
    ids = [rng.randrange(32) for _ in range(1790)]
    target.prefill(ids[:-1])
    while len(ids) < 2300:
        drafted, parents = draft_of(rng, 63, chain=True)
        target.verify(torch.tensor([ids[-1], *drafted]), parents)
        target.keep(tuple(range(50)))
        ids += drafted[:50]
    assert target.cache.groups[1].base > 0
    check(target, ids, *draft_of(rng, 3))


@pytest.mark.parametrize("window", [3, 12])
def test_a_draft_deeper_than_the_window(window: int) -> None:
    """Its own oldest rows fall out of sight of the deepest."""
    rng = random.Random(window)
    target = tiny_target(5, tiny_config(window=window))
    for length in (0, 2, 60, 130):
        target.truncate(0)
        ids = [rng.randrange(32) for _ in range(length + 1)]
        target.prefill(ids[:-1])
        check(target, ids, *draft_of(rng, 3 * window + 2, chain=True))
        check(target, ids, *draft_of(rng, 30))


@pytest.mark.parametrize("window", WINDOWS)
def test_reading_in_any_parts_gives_the_same_cache(window: int | None) -> None:
    rng = random.Random(9)
    ids = [rng.randrange(32) for _ in range(700)]
    whole = tiny_target(6, tiny_config(window=window), context=1000)
    whole.prefill(ids[:-1])
    parts = tiny_target(6, tiny_config(window=window), context=1000)
    at = 0
    while at < 699:
        n = rng.randint(1, 120)
        parts.prefill(ids[at : min(at + n, 699)])
        at = min(at + n, 699)
    a, b = (t.verify(torch.tensor([ids[-1], 3, 4]), (0, 0)) for t in (whole, parts))
    assert torch.allclose(a, b, atol=1e-10)
    assert torch.allclose(a[0], dense_logits(whole, ids)[-1], atol=1e-9)


def test_chunks_end_at_absolute_places(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where a text was read in part before, the rest is read in the same pieces as in one go."""
    target = tiny_target(6, context=3000)
    pieces: list[tuple[int, int]] = []
    chunk = target._chunk

    def noted(cache: SlotCache, ids: list[int], start: int, *more: Any) -> Any:
        pieces.append((start, start + len(ids)))
        return chunk(cache, ids, start, *more)

    monkeypatch.setattr(target, "_chunk", noted)
    target.prefill([1] * 100)
    target.prefill([1] * 1000)
    target.prefill([])
    assert pieces == [(0, 100), (100, 512), (512, 1024), (1024, 1100)]


# --- going back ---------------------------------------------------------------------------------------------------------


def test_going_back_behind_a_slide_tells_that_all_is_lost() -> None:
    """A window layer has forgotten the beginning; what is left is told, and the cache starts anew, exactly."""
    rng = random.Random(4)
    target = tiny_target(7, tiny_config(window=12), context=4000)
    ids = [rng.randrange(32) for _ in range(3000)]
    target.prefill(ids[:-1])
    assert target.truncate(2999) == 2999  # nothing to do is always possible
    assert target.truncate(100) == 0
    assert target.length == 0
    target.prefill(ids[:100])
    check(target, ids[:101], *draft_of(rng, 4))


def test_the_slack_is_kept_at_every_length() -> None:
    """Back by up to SLACK tokens never means reading the text again, just behind a slide as well."""
    config = tiny_config(window=12)
    cache = SlotCache(config, 10_000, torch.device("cpu"), torch.float64)
    rng = random.Random(2)
    while cache.length < 9000:
        rows = rng.choice([1, 2, 9, 60])
        cache.reserve(rows)
        cache.keep(tuple(range(rows)))
        for group in cache.groups:
            assert group.usable(max(0, cache.length - kv.SLACK))
            assert cache.length - group.base <= group.capacity
            assert group.base % ALIGN == 0


def test_what_can_be_taken_back_follows_from_the_length_alone() -> None:
    """Else a turn after a long reply would read another part of the text again with a drafter than without one."""
    bases = []
    for rows in (1, 3, 16, 40, 60):
        cache = SlotCache(tiny_config(window=12), 6000, torch.device("cpu"), torch.float64)
        seen = []
        while cache.length + rows <= 4800:
            cache.reserve(rows)
            cache.keep(tuple(range(rows)))
            if cache.length % 240 == 0:
                seen.append([group.base for group in cache.groups])
        bases.append(seen)
    assert bases[0][-1][1] > 0
    assert all(seen == bases[0] for seen in bases)


def test_the_store_of_a_window_stays_small() -> None:
    cache = SlotCache(tiny_config(window=70), 100_000, torch.device("cpu"), torch.float64)
    full, window = cache.groups
    assert full.window is None
    for _ in range(100):
        cache.reserve(512)
        cache.keep(tuple(range(512)))
    cache.reserve(64)
    assert window.capacity <= aligned(70) + kv.SLACK + 2 * kv.GROW + ALIGN
    assert full.capacity >= cache.length + 64
    assert full.capacity <= 100_000 + 2 * 512 + ALIGN
    assert cache.nbytes == full.store.nbytes + window.store.nbytes


@pytest.mark.parametrize("window", [None, 12])
def test_numbers_that_are_not_finite_do_not_stay(window: int | None) -> None:
    """One bad pass, read or drafted, must not spoil a later text through slots that its mask hides."""
    rng = random.Random(6)
    target = tiny_target(9, tiny_config(window=window))
    ids = [rng.randrange(1, 32) for _ in range(60)]
    good = target.model.weights.embed[0].clone()
    for bad in ("drafted", "read"):
        target.prefill(ids[:50])
        target.model.weights.embed[0] = float("nan")
        if bad == "drafted":
            assert target.verify(torch.tensor([ids[50], 0, 1, 2, 3, 4]), (0, 1, 2, 3, 4)).isnan().any()
        else:
            target.prefill([0, 0, 0, 0])
        target.model.weights.embed[0] = good
        assert target.truncate(47) == 47
        check(target, ids[:48], [3], (0,))
        target.truncate(0)


def test_no_memory_for_growing_leaves_the_cache_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = random.Random(1)
    target = tiny_target(8, tiny_config(window=12), context=1900)
    ids = [rng.randrange(32) for _ in range(1900)]
    target.prefill(ids[:400])

    def none_left(self: LayerSlots, capacity: int) -> torch.Tensor:
        raise MemoryError

    failures = 0
    while target.length < 1700:
        at = target.length
        with monkeypatch.context() as patch:
            patch.setattr(LayerSlots, "_allocate", none_left)
            try:
                target.verify(torch.tensor(ids[at : at + 65]), tuple(range(64)))
            except MemoryError:
                failures += 1
        target.prefill(ids[at : at + 65])
    assert failures >= 2
    check(target, ids[: target.length + 1], *draft_of(rng, 4))


def test_moving_kept_rows_down() -> None:
    cache = SlotCache(tiny_config(), 100, torch.device("cpu"), torch.float64)
    cache.reserve(20)
    for group in cache.groups:
        group.store.copy_(torch.arange(group.capacity, dtype=torch.float64)[None, None, None, :, None].expand_as(group.store))
    cache.keep((0, 1, 2))
    cache.keep((0, 2, 3, 7))
    for group in cache.groups:
        assert group.store[0, 0, 0, :7, 0].tolist() == [0, 1, 2, 3, 5, 6, 10]
    assert cache.length == 7
