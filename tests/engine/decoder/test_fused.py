"""The fused attention of a verify against plain arithmetic in float64, and against the way through torch."""

from __future__ import annotations

import random

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from engine.decoder import linear
from engine.decoder.attention import ancestors, depths
from engine.decoder.config import DecoderConfig, Rope
from engine.decoder.front import RmsNorm
from engine.decoder.fused import FusedRows, usable
from engine.decoder.kv import SlotCache
from engine.decoder.linear import Dense
from engine.decoder.rope import RopeTable, rotate_
from engine.decoder.weights import LayerWeights, Weights

pytestmark = pytest.mark.skipif(not linear.own_kernels(), reason="our kernels do not run on this processor")
CPU, BF16 = torch.device("cpu"), torch.bfloat16
# heads, key heads, dimensions, turning ones, norms
SHAPES = [(6, 2, 64, 64, False), (4, 4, 32, 32, False), (4, 1, 128, 128, True)]
SHAPES += [(8, 2, 96, 64, False), (3, 3, 64, 0, False), (14, 2, 64, 64, True)]


def model(heads: int, kv_heads: int, dim: int, rotary: int, normed: bool, window: int | None) -> Weights:
    """Two layers, the first with the window; only what attention reads means anything."""
    rope = Rope("default", 10_000.0, rotary) if rotary else None
    config = DecoderConfig(
        family="llama",
        vocab_size=64,
        hidden_size=64,
        intermediate_size=64,
        n_layers=2,
        n_heads=heads,
        n_kv_heads=kv_heads,
        head_dim=dim,
        norm_eps=1e-6,
        max_position=4096,
        windows=(window, None),
        ropes=(rope, rope),
        attention_scale=dim**-0.5,
        qk_norm=normed,
    )
    made = torch.Generator().manual_seed(dim)
    one = Dense(torch.eye(64, dtype=BF16), None)
    norm = (torch.rand(dim, generator=made) + 0.5).to(BF16) if normed else None
    layer = LayerWeights(one, one, one, one, torch.ones(64), torch.ones(64), q_norm=norm, k_norm=norm)
    return Weights(config, torch.zeros(64, 64), (layer, layer), torch.ones(64), one, "bf16", "bf16", CPU, BF16, 0)


def expected(
    weights: Weights, table: RopeTable | None, qkv: Tensor, before: Tensor, parents: tuple[int, ...], length: int, window: int | None
) -> Tensor:
    """float64: qkv (M, Hq + 2·Hkv, D) over `before` (2·Hkv, length, D) -> (M, Hq·D)."""
    config = weights.config
    heads, kv = config.n_heads, config.n_kv_heads
    x = qkv.double()
    turning = x[:, : heads + kv]
    if config.qk_norm:
        turning = RmsNorm(weights.layers[0].q_norm.double(), config.norm_eps)(turning)  # type: ignore[union-attr]
    position = torch.tensor([length + d for d in depths(parents)])
    if table is not None:
        turning = rotate_(turning.clone(), table.cos[position].double()[:, None], table.sin[position].double()[:, None])
    q, k = turning[:, :heads], turning[:, heads:].to(BF16).double()
    keys = torch.cat((before[:kv].double(), k.transpose(0, 1)), 1)
    values = torch.cat((before[kv:].double(), x[:, heads + kv :].transpose(0, 1)), 1)
    sees = torch.cat((torch.ones(len(position), length, dtype=torch.bool), ancestors(parents)), 1)
    if window is not None:
        sees &= torch.cat((torch.arange(length), position))[None, :] > position[:, None] - window
    group = heads // kv
    keys, values = keys.repeat_interleave(group, 0), values.repeat_interleave(group, 0)
    scores = torch.einsum("mhd,hsd->hms", q, keys) * config.attention_scale
    weight = F.softmax(scores.masked_fill(~sees, float("-inf")), -1)
    return torch.einsum("hms,hsd->mhd", weight, values).reshape(len(position), -1)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("window", [None, 7, 100])
def test_it_is_attention(shape: tuple[int, int, int, int, bool], window: int | None) -> None:
    weights = model(*shape, window)
    config = weights.config
    assert usable(weights)
    tables = {rope: RopeTable(rope, config, 2048, 2048, CPU, BF16) for rope in config.ropes if rope is not None}
    fused, rng = FusedRows(weights, tables), random.Random(1)
    made = torch.Generator().manual_seed(2)
    width = config.n_heads + 2 * config.n_kv_heads
    for length in (0, 1, 15, 64, 300, 1700):
        for n in (0, 1, 3, 12):
            parents = tuple(rng.randint(max(0, i - 3), i) for i in range(n))
            cache = SlotCache(config, 2048, CPU, BF16)
            for _ in range(length // 512):  # as a prompt is read: the sliding layers slide
                cache.reserve(512)
                cache.keep(tuple(range(512)))
            cache.reserve(length % 512)
            cache.keep(tuple(range(length % 512)))
            before = []
            for layer in (0, 1):
                group, slots = cache.layer(layer)
                whole = torch.randn(2 * config.n_kv_heads, length, config.head_dim, generator=made).to(BF16)
                slots[:, : length - group.base] = whole[:, group.base :]
                before.append(whole)
            cache.reserve(n + 1)
            begun = fused.begin(cache, parents)
            for layer in (0, 1):
                qkv = (torch.randn(n + 1, width, config.head_dim, generator=made) * 2).to(BF16)
                got = begun(layer, qkv.reshape(n + 1, -1))
                rope = config.ropes[layer]
                want = expected(weights, tables[rope] if rope else None, qkv, before[layer], parents, length, config.windows[layer])
                assert torch.allclose(got.double(), want, atol=0.03, rtol=0.02), (length, n, layer)
                group, slots = cache.layer(layer)
                written = slots[config.n_kv_heads :, length - group.base : length - group.base + n + 1]
                assert torch.equal(written.transpose(0, 1), qkv[:, config.n_heads + config.n_kv_heads :])


def test_not_finite_numbers_come_through() -> None:
    weights = model(6, 2, 64, 64, False, None)
    fused = FusedRows(weights, {rope: RopeTable(rope, weights.config, 128, 128, CPU, BF16) for rope in weights.config.ropes if rope})
    cache = SlotCache(weights.config, 128, CPU, BF16)
    cache.reserve(2)
    qkv = torch.randn(2, 10 * 64).to(BF16)
    qkv[1, 5] = float("nan")
    out = fused.begin(cache, (0,))(0, qkv)
    assert torch.isfinite(out[0]).all()
    assert torch.isnan(out[1, :64]).all()


def test_other_models_take_the_way_through_torch() -> None:
    from dataclasses import replace

    weights = model(6, 2, 64, 64, False, None)
    assert usable(weights)
    assert not usable(replace(weights, dtype=torch.float32))
    assert not usable(replace(weights, config=replace(weights.config, attention_softcap=30.0)))
    assert not usable(replace(weights, config=replace(weights.config, head_dim=40)))
    assert not usable(replace(weights, device=torch.device("meta")))
