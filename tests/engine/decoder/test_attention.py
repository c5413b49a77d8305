"""Rows of a verify attend with the same bits however many of them share the pass."""

from __future__ import annotations

import random
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from engine.decoder import linear
from engine.decoder.attention import ancestors, attend_branches, attend_chunk, attend_rows, branches, depths, plan, plan_chunk
from engine.decoder.config import DecoderConfig, Rope
from engine.decoder.kv import aligned
from engine.decoder.target import LeanTarget
from engine.decoder.weights import LayerWeights, Weights

CPU = torch.device("cpu")
# query heads, key heads, head size: SmolLM2-135M, Qwen 0.5B, Qwen 1.5B, Gemma-3-270m, one query head a key head
SHAPES = [(9, 3, 64), (14, 2, 64), (12, 2, 128), (4, 1, 256), (4, 4, 32)]


def slots(window: int | None, base: int = 0) -> Any:
    return SimpleNamespace(window=window, base=base)


def chain(n: int) -> tuple[int, ...]:
    return tuple(range(n - 1))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
@pytest.mark.parametrize("window", [None, 100, 512])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_a_row_has_the_same_bits_in_a_pass_of_any_width(shape: tuple[int, int, int], window: int | None, dtype: torch.dtype) -> None:
    """Across boundaries of 64 slots and of 512, where a kernel splits the keys; behind the rows lies rubbish."""
    heads, kv_heads, dim = shape
    made = torch.Generator().manual_seed(heads)
    rng = random.Random(heads)
    size = aligned(1400)
    keys, values = (torch.randn(kv_heads, size, dim, generator=made).to(dtype) for _ in range(2))
    q = torch.randn(16, heads, dim, generator=made).to(dtype)
    scale = dim**-0.5
    for length in (0, 3, 56, 62, 63, 64, 120, 500, 509, 511, 512, 575, 1020, rng.randint(600, 1300)):
        plans = [plan(length + r, (), window, CPU, dtype) for r in range(16)]
        alone = [attend_rows(q[r : r + 1], keys, values, slots(window), plans[r], scale, None)[0] for r in range(16)]
        for n in (2, 3, 4, 5, 8, 12, 16):
            together = attend_rows(q[:n], keys, values, slots(window), plan(length, chain(n), window, CPU, dtype), scale, None)
            for r in range(n):
                assert torch.equal(together[r], alone[r]), (length, n, r)


@pytest.mark.parametrize("window", [None, 20])
@pytest.mark.parametrize("softcap", [None, 5.0])
def test_a_tree_row_equals_a_plain_softmax_over_what_it_sees(window: int | None, softcap: float | None) -> None:
    made = torch.Generator().manual_seed(1)
    rng = random.Random(2)
    keys, values = (torch.randn(2, 256, 8, generator=made, dtype=torch.float64) for _ in range(2))
    for length in (0, 5, 63, 64, 130):
        parents = tuple(rng.randint(0, i) for i in range(11))
        depth = depths(parents)
        q = torch.randn(12, 4, 8, generator=made, dtype=torch.float64)
        got = attend_rows(q, keys, values, slots(window), plan(length, parents, window, CPU, torch.float64), 0.3, softcap)
        for row in range(12):
            above, at = [], row
            while True:
                above.append(at)
                if at == 0:
                    break
                at = parents[at - 1]
            positions = {slot: slot for slot in range(length)} | {length + r: length + depth[r] for r in above}
            seen = [s for s, p in positions.items() if window is None or p > length + depth[row] - window]
            for head in range(4):
                scores = keys[head // 2, seen] @ q[row, head] * 0.3
                if softcap is not None:
                    scores = softcap * torch.tanh(scores / softcap)
                expected = torch.softmax(scores, 0) @ values[head // 2, seen]
                close = 1e-12 if softcap is None else 1e-6  # with a cap the softmax is float32, as the families do it
                assert torch.allclose(got[row, head * 8 : head * 8 + 8], expected, atol=close)


@pytest.mark.parametrize("base", [0, 64])
@pytest.mark.parametrize("window", [None, 20])
def test_a_chunk_equals_its_rows(window: int | None, base: int) -> None:
    if base and window is None:
        return
    made = torch.Generator().manual_seed(1)
    keys, values = (torch.randn(2, 256, 8, generator=made, dtype=torch.float64) for _ in range(2))
    q = torch.randn(50, 4, 8, generator=made, dtype=torch.float64)
    group = slots(window, base)
    got = attend_chunk(q, keys[:, base:], values[:, base:], base, plan_chunk(50, 130, window, CPU, torch.float64), 0.3, None)
    for row in range(50):
        alone = attend_rows(
            q[row : row + 1], keys[:, base:], values[:, base:], group, plan(130 + row, (), window, CPU, torch.float64), 0.3, None
        )
        assert torch.allclose(got[row], alone[0], atol=1e-12)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
@pytest.mark.parametrize("window", [None, 100])
def test_paths_that_take_turns_see_what_a_chain_sees(window: int | None, dtype: torch.dtype) -> None:
    """Every row of a tree has the bits of the same row in a chain of its own; one mask over all rows at once would miss that."""
    made = torch.Generator().manual_seed(3)
    rng = random.Random(4)
    masked = 0
    for length in (5, 60, 130, 505, 509, 700):
        parents = tuple(rng.randint(max(0, i - 6), i) for i in range(20))
        depth, n = depths(parents), 21
        stored = torch.randn(4, aligned(length + n), 64, generator=made).to(dtype)
        q = torch.randn(n, 6, 64, generator=made).to(dtype)
        shape = plan(length, tuple(range(max(depth))), window, CPU, dtype)
        tree = attend_branches(q, stored, slots(window), length, branches(parents, CPU), shape, 0.125, None)
        flat = attend_rows(q, stored[:2], stored[2:], slots(window), plan(length, parents, window, CPU, dtype), 0.125, None)
        for row in range(n):
            path = [row]
            while path[-1]:
                path.append(parents[path[-1] - 1])
            path.reverse()
            alone = stored.clone()
            alone[:, length : length + len(path)] = stored[:, [length + r for r in path]]
            own = plan(length + depth[row], (), window, CPU, dtype)
            expected = attend_rows(q[row : row + 1], alone[:2], alone[2:], slots(window), own, 0.125, None)[0]
            assert torch.equal(tree[row], expected), (length, row)
            masked += not torch.equal(flat[row], expected)
    assert masked > 0 or dtype == torch.bfloat16  # rarely seen there: the sums are wide and rounded in the end
    assert branches(tuple(range(9)), CPU) == ()


def test_ancestors_and_depths() -> None:
    parents = (0, 0, 1, 3)
    assert depths(parents) == [0, 1, 1, 2, 3]
    assert ancestors(parents).int().tolist() == [
        [1, 0, 0, 0, 0],
        [1, 1, 0, 0, 0],
        [1, 0, 1, 0, 0],
        [1, 1, 0, 1, 0],
        [1, 1, 0, 1, 1],
    ]
    assert ancestors(()).tolist() == [[True]]


# --- a whole model ------------------------------------------------------------------------------------------------------


def packed_target(scheme: str, head: str, window: int | None, context: int = 1200) -> LeanTarget:
    """Two layers of a real width with packed weights, bf16 activations."""
    rope = Rope("default", 10000.0, 64)
    config = DecoderConfig(
        family="llama",
        vocab_size=503,
        hidden_size=192,
        intermediate_size=320,
        n_layers=2,
        n_heads=3,
        n_kv_heads=1,
        head_dim=64,
        norm_eps=1e-6,
        max_position=4096,
        windows=(window, None),
        ropes=(rope, rope),
        attention_scale=64**-0.5,
    )
    made = torch.Generator().manual_seed(5)

    def matrix(n: int, k: int, scheme: str, strength: float = 1.6) -> linear.Linear:
        weight = torch.randn(n, k, generator=made) * strength / k**0.5
        layout = linear.layout_for(scheme, CPU, (n, k))
        return linear.build(linear.pack(weight, layout, torch.bfloat16), None, CPU, torch.bfloat16)

    ones = torch.ones(192, dtype=torch.bfloat16)
    layers = tuple(
        LayerWeights(
            qkv=matrix(320, 192, scheme),
            o=matrix(192, 192, scheme),
            gate_up=matrix(640, 192, scheme),
            down=matrix(192, 320, scheme),
            attn_norm=ones,
            mlp_norm=ones,
        )
        for _ in range(2)
    )
    embed = torch.randn(503, 192, generator=made).bfloat16()
    weights = Weights(config, embed, layers, ones, matrix(503, 192, head, 5.0), scheme, head, CPU, torch.bfloat16, 0)
    return LeanTarget(weights, context)


def _available(scheme: str) -> bool:
    return linear.own_kernels()


@pytest.mark.parametrize("window", [None, 100])
@pytest.mark.parametrize(("scheme", "head"), [("nf4", "int8"), ("nf4", "nf4"), ("int8", "int8")])
def test_the_logits_of_a_row_are_the_same_bits_at_any_width(scheme: str, head: str, window: int | None) -> None:
    """DESIGN's promise on a small whole model: 1 to 16 rows, chains and trees, across slot boundaries."""
    if not (_available(scheme) and _available(head)):
        pytest.skip("this processor lacks the kernel")
    target = packed_target(scheme, head, window)
    assert target.exact
    rng = random.Random(1)
    ids = [rng.randrange(503) for _ in range(700)]
    for length in (0, 40, 60, 250, 500, 505, 620):
        single = []
        target.truncate(0)
        target.prefill(ids[:length])
        for r in range(16):
            single.append(target.verify(torch.tensor(ids[length + r : length + r + 1]), ())[0])
            target.keep((0,))
        assert target.truncate(length) == length
        for n in (2, 3, 4, 5, 8, 12, 16):
            logits = target.verify(torch.tensor(ids[length : length + n]), chain(n))
            for r in range(n):
                assert torch.equal(logits[r], single[r]), (length, n, r)
        for n in (24, 33, 64):  # as wide as the widest tree
            more = [rng.randrange(503) for _ in range(n)]
            logits = target.verify(torch.tensor(ids[length : length + 16] + more), chain(16 + n) if n < 50 else (*chain(16), *([15] * n)))
            for r in range(16):
                assert torch.equal(logits[r], single[r]), (length, n, r)
        for case in range(3):
            true_path_in_a_tree(target, ids, length, single, random.Random(case))


def true_path_in_a_tree(target: LeanTarget, ids: list[int], length: int, single: list[torch.Tensor], rng: random.Random) -> None:
    """The chain's tokens scattered over a random tree: its rows have the bits that they have in plain decoding, and once committed they
    leave the same keys and values."""
    tokens, parents, path = ids[length : length + 1], [], [0]
    while len(path) < 12:
        if rng.random() < 0.4:
            tokens.append(ids[length + len(path)])
            parents.append(path[-1])
            path.append(len(parents))
        else:
            tokens.append(rng.randrange(503))
            parents.append(rng.randint(0, len(parents)))
    logits = target.verify(torch.tensor(tokens), tuple(parents))
    for r, row in enumerate(path):
        assert torch.equal(logits[row], single[r]), (length, r)
    target.keep(tuple(path))
    assert target.length == length + 12
    for r in range(12, 16):
        assert torch.equal(target.verify(torch.tensor(ids[length + r : length + r + 1]), ())[0], single[r])
        target.keep((0,))
    assert target.truncate(length) == length


def test_dense_weights_are_not_called_exact() -> None:
    assert not packed_target("bf16", "bf16", None).exact
