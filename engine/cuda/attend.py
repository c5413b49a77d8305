"""Attention in the order of each row's text by our own kernels (`kernels`), where Triton is installed and they give what they should.

Reads what the text has, not whole buckets; keys and values are shared by the query heads of a group, and a long text is read by many
programs at once.
"""

from __future__ import annotations

import functools
import importlib.util
import logging
from typing import Any

import torch
from torch import Tensor

BLOCK = 64  # slots that a program reads at once
PART = 256  # … that one program goes through; parts of a text are read side by side
CLOSE = 0.02  # of the largest value: how far the trial may be off in bf16
log = logging.getLogger(__name__)


def attend(
    q: Tensor, slots: Tensor, at: Tensor, depth: Tensor, paths: Tensor | None, window: int | None, scale: float, softcap: float | None
) -> Tensor:
    """q (W, Hq, D) over slots (2·Hkv, S, D), of which `at` (1,) are committed -> (W, Hq·D).

    Row r stands `depth[r]` (W,) behind the root; its ancestors and itself are rows `paths[r, :depth[r] + 1]` (W, W) of this pass, or, of a
    chain, without `paths`, the rows up to it. Keys and values of the pass are in their slots already. Numbers are int64.
    """
    kernels = _kernels()
    rows, heads, dim = q.shape
    kv_heads, capacity = slots.shape[0] // 2, slots.shape[1]
    count, padded = -(-capacity // PART), _power(dim)
    out = torch.empty((rows, heads, count, dim), dtype=torch.float32, device=q.device)
    tops, sums = torch.empty((2, rows, heads, count), dtype=torch.float32, device=q.device)
    result = torch.empty((rows, heads * dim), dtype=q.dtype, device=q.device)
    assert q.stride(2) == slots.stride(2) == 1
    kernels.parts[(rows, kv_heads, count)](
        q,
        slots,
        at,
        depth,
        at if paths is None else paths,
        out,
        tops,
        sums,
        q.stride(0),
        q.stride(1),
        slots.stride(0),
        slots.stride(1),
        rows,
        window or 0,
        float(scale),
        float(softcap or 0.0),
        KV_HEADS=kv_heads,
        GROUP=heads // kv_heads,
        GROUP_PAD=max(16, _power(heads // kv_heads)),
        DIM=dim,
        DIM_PAD=padded,
        BLOCK=BLOCK,
        PART=PART,
        PARTS=count,
        TREE=paths is not None,
        PRECISION="ieee",
    )
    kernels.join[(rows, heads)](
        out, tops, sums, at, depth, result, window or 0, HEADS=heads, DIM=dim, DIM_PAD=padded, PART=PART, PARTS=count
    )
    return result


def _power(n: int) -> int:
    return max(16, 1 << (n - 1).bit_length())


@functools.cache
def _kernels() -> Any:
    from engine.cuda import kernels

    return kernels


@functools.cache
def possible(device: torch.device, dtype: torch.dtype) -> bool:
    """Whether the kernels run here and agree with the plain sums; tried on a small tree."""
    if dtype not in (torch.bfloat16, torch.float16, torch.float32) or importlib.util.find_spec("triton") is None:
        return False
    try:
        return _agrees(device, dtype)
    except Exception as error:  # a compiler that is missing, too old a card: whatever it is, there is the other way
        log.info("no own attention on %s: %s", device, error)
        return False


def _agrees(device: torch.device, dtype: torch.dtype) -> bool:
    made = torch.Generator().manual_seed(0)
    q = torch.randn(3, 4, 64, generator=made).to(device, dtype)
    slots = torch.randn(4, 512, 64, generator=made).to(device, dtype)
    at, depth = torch.tensor([300], device=device), torch.tensor([0, 1, 1], device=device)
    paths = torch.tensor([[0, 0, 0], [0, 1, 0], [0, 2, 0]], device=device)
    got = attend(q, slots, at, depth, paths, None, 0.125, None).view(3, 4, 64).cpu().double()
    for row in range(3):
        seen = list(range(300)) + [300 + int(i) for i in paths[row, : int(depth[row]) + 1]]
        k, v = slots.cpu().double()[:2, seen], slots.cpu().double()[2:, seen]
        for head in range(4):
            weights = torch.softmax(k[head // 2] @ q[row, head].cpu().double() * 0.125, dim=0)
            exact = weights @ v[head // 2]
            if not (got[row, head] - exact).abs().max() <= CLOSE * exact.abs().max():
                return False
    return True
