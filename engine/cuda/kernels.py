# mypy: disable-error-code="no-untyped-def"
"""Attention of the rows of a verify, written in Triton: imported only where that is installed.

`parts`: one program per row, key head and part of the text; it goes through its part in blocks, in the order of the row's text, wherever
the keys lie. `join`: one program per row and query head adds the parts up, first to last. What a row sums, and in which order, follows from
its own position alone, so it has the same bits at any number of rows and in any tree. The length of the text is read on the device: one
recorded pass serves every length.
"""

from __future__ import annotations

import importlib
from typing import Any

triton: Any = importlib.import_module("triton")
tl: Any = importlib.import_module("triton.language")


@triton.jit
def parts(
    q,
    slots,
    at,
    depth,
    paths,
    out,
    tops,
    sums,
    q_row,
    q_head,
    slot_head,
    slot_slot,
    width,
    window,
    scale,
    cap,
    KV_HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    GROUP_PAD: tl.constexpr,
    DIM: tl.constexpr,
    DIM_PAD: tl.constexpr,
    BLOCK: tl.constexpr,
    PART: tl.constexpr,
    PARTS: tl.constexpr,
    TREE: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """q (W, Hq, D), slots (2·Hkv, S, D) -> out (W, Hq, PARTS, D), tops and sums (W, Hq, PARTS), float32. `window` 0: all; `cap` 0: none."""
    row = tl.program_id(0)
    head = tl.program_id(1)
    part = tl.program_id(2)
    committed = tl.load(at)
    last = committed + tl.load(depth + row)  # the row's own place in its text
    first = tl.where(window > 0, tl.maximum(last - window + 1, 0), 0)
    start = tl.maximum(part * PART, first // BLOCK * BLOCK)
    end = tl.minimum(part * PART + PART, last + 1)
    queries = tl.arange(0, GROUP_PAD)
    dims = tl.arange(0, DIM_PAD)
    here = (queries[:, None] < GROUP) & (dims[None, :] < DIM)
    x = tl.load(q + row * q_row + (head * GROUP + queries[:, None]) * q_head + dims[None, :], mask=here, other=0.0)
    top = tl.full((GROUP_PAD,), float("-inf"), tl.float32)
    total = tl.zeros((GROUP_PAD,), tl.float32)
    mixed = tl.zeros((GROUP_PAD, DIM_PAD), tl.float32)
    for block in range(start, end, BLOCK):
        places = block + tl.arange(0, BLOCK)
        visible = (places <= last) & (places >= first)
        lies = places
        if TREE:
            behind = places - committed
            own = tl.load(paths + row * width + behind, mask=(behind >= 0) & (places <= last), other=0)
            lies = tl.where(behind < 0, places, committed + own)
        spots = lies[:, None] * slot_slot + dims[None, :]
        there = visible[:, None] & (dims[None, :] < DIM)
        k = tl.load(slots + head * slot_head + spots, mask=there, other=0.0)
        v = tl.load(slots + (KV_HEADS + head) * slot_head + spots, mask=there, other=0.0)
        scores = tl.dot(x, tl.trans(k), input_precision=PRECISION) * scale
        if cap > 0:
            scores = cap * (1.0 - 2.0 / (tl.exp(2.0 * scores / cap) + 1.0))
        scores = tl.where(visible[None, :], scores, float("-inf"))
        higher = tl.maximum(top, tl.max(scores, 1))
        shrink = tl.exp(top - higher)
        weights = tl.exp(scores - higher[:, None])
        total = total * shrink + tl.sum(weights, 1)
        mixed = mixed * shrink[:, None] + tl.dot(weights.to(v.dtype), v, input_precision=PRECISION)
        top = higher
    at_part = (row * KV_HEADS * GROUP + head * GROUP + queries) * PARTS + part
    tl.store(tops + at_part, top, mask=queries < GROUP)
    tl.store(sums + at_part, total, mask=queries < GROUP)
    tl.store(out + at_part[:, None] * DIM + dims[None, :], mixed, mask=here & (dims[None, :] + start < dims[None, :] + end))


@triton.jit
def join(
    out,
    tops,
    sums,
    at,
    depth,
    result,
    window,
    HEADS: tl.constexpr,
    DIM: tl.constexpr,
    DIM_PAD: tl.constexpr,
    PART: tl.constexpr,
    PARTS: tl.constexpr,
):
    """Parts -> result (W, Hq·D) in its own type."""
    row = tl.program_id(0)
    head = tl.program_id(1)
    last = tl.load(at) + tl.load(depth + row)
    first = tl.where(window > 0, tl.maximum(last - window + 1, 0), 0)
    dims = tl.arange(0, DIM_PAD)
    base = (row * HEADS + head) * PARTS
    top = float("-inf")
    total = 0.0
    mixed = tl.zeros((DIM_PAD,), tl.float32)
    for part in range(first // PART, last // PART + 1):
        other = tl.load(tops + base + part)
        higher = tl.maximum(top, other)
        shrink = tl.exp(top - higher)
        share = tl.exp(other - higher)
        total = total * shrink + tl.load(sums + base + part) * share
        values = tl.load(out + (base + part) * DIM + dims, mask=dims < DIM, other=0.0)
        mixed = mixed * shrink + values * share
        top = higher
    tl.store(result + (row * HEADS + head) * DIM + dims, (mixed / total).to(result.dtype.element_ty), mask=dims < DIM)
