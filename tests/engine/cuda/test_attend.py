"""Our own attention, in Triton's interpreter: what it sums, and that the bits are a row's own. Skipped without Triton, and on a card.

The interpreter cannot multiply bf16, so that type is left to the tests on a card.
"""

from __future__ import annotations

import os
import random

import pytest
import torch
from torch import Tensor

from engine.cuda import attend as own
from engine.cuda.recorder import EagerRecorder
from engine.cuda.rows import StaticRows
from engine.decoder.attention import depths
from tests.tiny import tiny_config, tiny_target

if torch.cuda.is_available():
    pytest.skip("tests/gpu has the compiled kernels", allow_module_level=True)
os.environ["TRITON_INTERPRET"] = "1"  # before anything imports it
pytest.importorskip("triton")


def paths_of(parents: tuple[int, ...]) -> tuple[Tensor, Tensor]:
    """Depth (W,) and ancestors by depth (W, W)."""
    depth, width = depths(parents), len(parents) + 1
    paths = torch.zeros((width, width), dtype=torch.int64)
    for row, parent in enumerate(parents, start=1):
        paths[row, : depth[row]] = paths[parent, : depth[row]]
        paths[row, depth[row]] = row
    return torch.tensor(depth), paths


@pytest.mark.parametrize("window", [None, 3, 70])
@pytest.mark.parametrize("softcap", [None, 5.0])
@pytest.mark.parametrize(("heads", "kv_heads", "dim"), [(4, 2, 16), (6, 2, 24), (3, 3, 64)])
def test_rows_of_a_tree_see_their_own_text(window: int | None, softcap: float | None, heads: int, kv_heads: int, dim: int) -> None:
    made = torch.Generator().manual_seed(dim)
    parents = (0, 0, 1, 1, 2)
    depth, paths = paths_of(parents)
    qkv = torch.randn(6, heads + 2 * kv_heads, dim, generator=made)
    slots = torch.randn(2 * kv_heads, 320, dim, generator=made)
    for committed in (0, 63, 255):
        got = own.attend(qkv[:, :heads], slots, torch.tensor([committed]), depth, paths, window, dim**-0.5, softcap).view(6, heads, dim)
        for row in range(6):
            seen = [*range(committed), *(committed + int(i) for i in paths[row, : int(depth[row]) + 1])]
            seen = seen if window is None else seen[-window:]
            for head in range(heads):
                of = head // (heads // kv_heads)
                scores = slots[of, seen].double() @ qkv[row, head].double() * dim**-0.5
                scores = scores if softcap is None else softcap * torch.tanh(scores / softcap)
                exact = torch.softmax(scores, 0) @ slots[kv_heads + of, seen].double()
                assert torch.allclose(got[row, head].double(), exact, atol=1e-5), (committed, row, head)


def test_static_passes_with_it() -> None:
    rng = random.Random(1)
    for window in (None, 12):
        ordinary, other = (tiny_target(1, tiny_config(window=window), context=600, dtype=torch.float32) for _ in range(2))
        other.static = StaticRows(other.model, other.cache, EagerRecorder(torch.device("cpu")), slots=None)
        ids = [rng.randrange(32) for _ in range(261)]
        for target in (ordinary, other):
            target.model.fused = None
            target.prefill(ids[:-1])
        for parents in ((), (0, 1, 2), (0, 0, 1, 2, 2)):
            tokens = torch.tensor([ids[-1], *range(3, 3 + len(parents))])
            assert torch.allclose(ordinary.verify(tokens, parents), other.verify(tokens, parents), atol=1e-4)
        assert len(other.static) == 3
        other.prefill([1] * 100)
        other.verify(torch.tensor([5]), ())
        assert len(other.static) == 3  # another length alone needs no new pass
        other.prefill([1] * 200)
        other.verify(torch.tensor([6]), ())
        assert len(other.static) == 1  # but slots that have grown do


def test_bits_of_a_row_are_its_own() -> None:
    """However many rows share the pass, wherever its ancestors lie."""
    made = torch.Generator().manual_seed(0)
    heads, kv_heads, dim, committed = 4, 2, 16, 250
    parents = (0, 0, 1, 1, 2, 4, 6, 7, 8)
    depth, paths = paths_of(parents)
    width = len(parents) + 1
    q, kv = torch.randn(width, heads, dim, generator=made), torch.randn(width, 2 * kv_heads, dim, generator=made)
    slots = torch.randn(2 * kv_heads, 512, dim, generator=made)
    slots[:, committed : committed + width] = kv.transpose(0, 1)
    at = torch.tensor([committed])
    tree = own.attend(q, slots, at, depth, paths, None, 0.25, None)
    for row in range(width):
        path = paths[row, : int(depth[row]) + 1]
        chain = slots.clone()
        chain[:, committed : committed + len(path)] = kv[path].transpose(0, 1)
        plain = own.attend(q[path[-1:]], chain, at + len(path) - 1, torch.tensor([0]), None, None, 0.25, None)
        assert torch.equal(plain[0], tree[row]), row


def test_it_is_tried_before_it_is_used() -> None:
    assert own.possible(torch.device("cpu"), torch.float32)
    assert not own.possible(torch.device("cpu"), torch.float64)
    own.possible.cache_clear()
