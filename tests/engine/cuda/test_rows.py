"""Static passes against the ordinary way, on the CPU: the same buffers and the same code as on a card, run instead of captured."""

from __future__ import annotations

import random

import pytest
import torch

from engine.cuda import buckets
from engine.cuda.recorder import EagerRecorder
from engine.cuda.rows import StaticRows
from engine.decoder.kv import aligned
from engine.decoder.target import LeanTarget
from engine.speculation.draft import Needs
from tests.tiny import Adversary, tiny_config, tiny_target, write

CPU = torch.device("cpu")
TREE = (0, 0, 1, 1, 2, 4, 0, 7)


def static(target: LeanTarget, same_shapes: bool = False) -> LeanTarget:
    """Puts static passes into a target. `same_shapes`: neither rows nor slots are rounded up, so the bits can be the ordinary ones."""
    exactly = {"width": lambda rows: rows, "slots": lambda need, capacity: aligned(need)} if same_shapes else {}
    target.static = StaticRows(target.model, target.cache, EagerRecorder(CPU), **exactly)  # type: ignore[arg-type]
    return target


def pair(dtype: torch.dtype, window: int | None, same_shapes: bool, length: int) -> tuple[LeanTarget, LeanTarget, list[int]]:
    """The ordinary and the static one with the same text of `length` + 1 tokens, the last one being the root."""
    rng = random.Random(length)
    ids = [rng.randrange(32) for _ in range(length + 1)]
    ordinary, other = (tiny_target(1, tiny_config(window=window), context=1200, dtype=dtype) for _ in range(2))
    for target in (ordinary, static(other, same_shapes)):
        target.model.fused = None
        target.prefill(ids[:-1])
    return ordinary, other, ids


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("window", [None, 12, 70])
@pytest.mark.parametrize("length", [0, 5, 63, 64, 127, 200])
def test_chains_have_the_same_bits(dtype: torch.dtype, window: int | None, length: int) -> None:
    ordinary, other, ids = pair(dtype, window, True, length)
    for width in (1, 2, 3, 4, 5, 8, 16, 17):
        tokens = torch.tensor([ids[-1], *range(1, width)])
        a, b = (target.verify(tokens, tuple(range(width - 1))) for target in (ordinary, other))
        assert a.dtype == b.dtype == torch.float32
        if window is None:
            assert torch.equal(a, b), width
        else:  # ordinary rows read from the first stretch that they see on, which groups their sums otherwise
            assert torch.allclose(a, b, atol=1e-5 if dtype == torch.float32 else 0.3), width


@pytest.mark.parametrize("window", [None, 12, 70])
@pytest.mark.parametrize("length", [0, 1, 11, 62, 63, 64, 130, 300])
def test_any_tree_and_width_up_to_rounding(window: int | None, length: int) -> None:
    ordinary, other, ids = pair(torch.float64, window, False, length)
    rng = random.Random(length)
    for n in (0, 1, 3, 6, 9, 23, 40, 64):
        for parents in (tuple(range(n)), tuple(rng.randint(0, i) for i in range(n))):
            tokens = torch.tensor([ids[-1], *(rng.randrange(32) for _ in range(n))])
            a, b = (target.verify(tokens, parents) for target in (ordinary, other))
            assert a.shape == b.shape == (n + 1, 32)
            assert torch.allclose(a, b, atol=1e-10), parents
    assert other.static is not None
    assert 0 < len(other.static) <= 2 * len(buckets.WIDTHS)


@pytest.mark.parametrize("window", [None, 12])
def test_a_row_of_a_tree_has_the_bits_of_its_chain(window: int | None) -> None:
    """By construction: it attends in the order of its text. Products may tell numbers of rows apart, so all passes have 9 here."""
    for length in (3, 60, 62, 120):
        _, other, ids = pair(torch.float32, window, False, length)
        assert other.static is not None
        other.static._width = lambda rows: 9
        tree = other.verify(torch.tensor([ids[-1], 3, 4, 5, 6, 7, 8, 9, 10]), TREE)
        for row in range(9):
            path = [row]
            while path[0]:
                path.insert(0, TREE[path[0] - 1])
            chain = [ids[-1], 3, 4, 5, 6, 7, 8, 9, 10]
            alone = other.verify(torch.tensor([chain[r] for r in path]), tuple(range(len(path) - 1)))
            assert torch.equal(tree[row], alone[-1]), (length, row)


def test_hidden_states_come_along() -> None:
    ordinary, other, ids = pair(torch.float64, None, False, 40)
    for needs in (Needs(taps=(1,)), Needs(final=True), Needs(taps=(0, 1), final=True)):
        tokens = torch.tensor([ids[-1], 5, 6])
        for target in (ordinary, other):
            target.needs = needs
            target.verify(tokens, (0, 1))
        assert ordinary.taps is not None
        assert other.taps is not None
        assert ordinary.taps.shape == other.taps.shape
        assert torch.allclose(ordinary.taps, other.taps, atol=1e-10)


def test_results_outlive_the_next_pass() -> None:
    _, other, ids = pair(torch.float32, None, False, 20)
    first = other.verify(torch.tensor(ids[-1:]), ())
    copy = first.clone()
    other.verify(torch.tensor([(ids[-1] + 1) % 32]), ())
    assert torch.equal(first, copy)


def test_a_drafter_reads_on_in_static_passes() -> None:
    ordinary, other, _ = pair(torch.float64, None, False, 20)
    for ids in ([1], [2, 3], [4], [5, 6, 7, 8, 9, 10, 11]):
        a, b = ordinary.next(ids), other.next(ids)
        assert a.shape == b.shape == (1, 32)
        assert torch.allclose(a, b, atol=1e-10)
    assert ordinary.length == other.length


@pytest.mark.parametrize("window", [None, 70])
def test_whole_replies_with_adversarial_trees(window: int | None) -> None:
    """Long enough that slots grow and a window slides; commits, moves and cuts happen between static passes."""
    config = tiny_config(window=window)
    plain = write(tiny_target(3, config, context=700), [1, 2, 3], None, max_tokens=400)
    target = static(tiny_target(3, config, context=700))
    drafter = Adversary(random.Random(1), 32, plain.ids, 3)
    run = write(target, [1, 2, 3], drafter, max_tokens=400, k=12)
    assert run.ids == plain.ids
    assert sum(step.accepted for step in run.steps) > 50
    assert target.static is not None
    assert not target.static.trouble


def test_growing_slots_are_recorded_anew() -> None:
    target = static(tiny_target(1, context=1200))
    target.prefill(list(range(20)))
    target.verify(torch.tensor([1]), ())
    before = target.cache.groups[0].store
    target.prefill([3] * 600)
    assert target.cache.groups[0].store is not before
    ordinary = tiny_target(1, context=1200)
    ordinary.prefill([*range(20), *[3] * 600])
    assert torch.allclose(target.verify(torch.tensor([1]), ()), ordinary.verify(torch.tensor([1]), ()), atol=1e-10)


def test_slots_made_at_once_stay_where_they_are() -> None:
    for window in (None, 70):
        target = static(tiny_target(1, tiny_config(window=window), context=3000))
        target.cache.fill(512)
        stores = [group.store for group in target.cache.groups]
        rng = random.Random(5)
        target.prefill([rng.randrange(32) for _ in range(2935)])
        for _ in range(60):
            target.verify(torch.tensor([rng.randrange(32) for _ in range(65)]), tuple(range(64)))
            target.keep((0,))
        assert target.length == 2995
        assert all(group.store is store for group, store in zip(target.cache.groups, stores, strict=True))


class Refusing(EagerRecorder):
    def record(self, run: object) -> object:  # type: ignore[override]
        raise RuntimeError("operation not permitted when stream is capturing\nmore")


def test_a_device_that_refuses_goes_the_ordinary_way() -> None:
    ordinary, other, ids = pair(torch.float32, None, True, 30)
    other.static = StaticRows(other.model, other.cache, Refusing(CPU))
    tokens = torch.tensor([ids[-1], 4, 5])
    assert torch.equal(ordinary.verify(tokens, (0, 0)), other.verify(tokens, (0, 0)))
    assert other.static.trouble == "operation not permitted when stream is capturing"


def test_attention_that_fails_gives_way_to_the_librarys(monkeypatch: pytest.MonkeyPatch) -> None:
    ordinary, other, ids = pair(torch.float64, None, False, 30)

    def fails(*_: object) -> torch.Tensor:
        raise Exception("out of resource: shared memory")

    monkeypatch.setattr("engine.cuda.attend.attend", fails)
    other.static = StaticRows(other.model, other.cache, EagerRecorder(CPU), slots=None)
    tokens = torch.tensor([ids[-1], 4, 5])
    assert torch.allclose(ordinary.verify(tokens, (0, 0)), other.verify(tokens, (0, 0)), atol=1e-10)
    assert (other.static.trouble, len(other.static)) == ("", 1)


def test_buckets() -> None:
    assert [buckets.width(n) for n in (1, 5, 7, 9, 65, 80)] == [1, 5, 8, 12, 65, 80]
    assert buckets.slots(100, 4000) == 512
    assert buckets.slots(3000, 3072) == 3072
    assert buckets.slots(3000, 3008) == 3008
    assert all(n <= buckets.slots(n, 1 << 20) <= max(512, 2 * n) for n in range(1, 131072, 97))
