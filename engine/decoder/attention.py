"""Attention over the slots: one way for the rows of a verify, one for reading a prompt.

Verify puts the rows in the *batch* dimension (keys and values expanded with stride 0) and always passes a mask over whole stretches of
64 slots that start at a place given by the row's own position: the sums of a row are then grouped the same way however many rows share
the pass, which is what makes its result the same bits (DESIGN 5). In a tree a row's ancestors stand at other slots than in plain
decoding; where the bits matter the paths therefore take turns in the slots (`attend_branches`). Query heads that share a key head form
the query axis, so that keys are never copied. Reading a prompt is ordinary causal attention in chunks.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from engine.decoder.kv import ALIGN, LayerSlots, aligned


@dataclass(frozen=True, slots=True)
class Stretch:
    """Rows that see the same stretch of slots in layers of one window: rows [first, last), slots [low, high), additive mask."""

    first: int
    last: int
    low: int
    high: int
    mask: Tensor  # (rows, 1, 1, high - low)


@functools.lru_cache(maxsize=256)
def ancestors(parents: tuple[int, ...]) -> Tensor:
    """(n+1, n+1) bool: row r sees row j of the same pass, itself included. `parents[i]` is the parent row of row i+1."""
    n = len(parents) + 1
    sees = torch.eye(n, dtype=torch.bool)
    for row, parent in enumerate(parents, start=1):
        sees[row] |= sees[parent]
    return sees


def depths(parents: tuple[int, ...]) -> list[int]:
    """Depth of each row, the root 0."""
    depth = [0]
    for parent in parents:
        depth.append(depth[parent] + 1)
    return depth


def plan(length: int, parents: tuple[int, ...], window: int | None, device: torch.device, dtype: torch.dtype) -> list[Stretch]:
    """Masks for the rows of one verify behind `length` committed tokens, for layers of one window."""
    depth = depths(parents)
    rows = len(depth)
    high = aligned(length + rows)
    lows = [0 if window is None else max(0, length + d - window + 1) // ALIGN * ALIGN for d in depth]
    low = min(lows)
    slots = torch.arange(low, high)
    committed = slots < length
    if window is None:
        visible = committed.expand(rows, -1).clone()
    else:
        first_seen = torch.tensor([length + d - window + 1 for d in depth])
        visible = committed & (slots >= first_seen[:, None])
    visible[:, length - low : length - low + rows] = ancestors(parents)
    if window is not None and max(depth) >= window:  # a draft deeper than the window: its own oldest rows fall out of sight
        at = torch.tensor(depth)
        visible[:, length - low : length - low + rows] &= at[None, :] > at[:, None] - window
    mask = torch.zeros(visible.shape, dtype=dtype).masked_fill_(~visible, float("-inf")).to(device)
    stretches: list[Stretch] = []
    for row in range(rows):  # rows whose stretches begin at the same slot share a call
        if stretches and stretches[-1].low == lows[row]:
            last = stretches.pop()
            stretches.append(Stretch(last.first, row + 1, last.low, high, last.mask))
        else:
            stretches.append(Stretch(row, row + 1, lows[row], high, mask))
    return [
        Stretch(s.first, s.last, s.low, s.high, mask[s.first : s.last, s.low - low :].contiguous()[:, None, None, :]) for s in stretches
    ]


def attend_rows(
    q: Tensor, keys: Tensor, values: Tensor, group: LayerSlots, stretches: list[Stretch], scale: float, softcap: float | None
) -> Tensor:
    """q (M, Hq, D) against slots (Hkv, S, D) -> (M, Hq·D)."""
    rows, heads, dim = q.shape
    kv_heads = keys.shape[0]
    q = q.view(rows, kv_heads, heads // kv_heads, dim)
    if len(stretches) == 1:
        return _attend(q, keys, values, group.base, stretches[0], scale, softcap).reshape(rows, heads * dim)
    parts = [_attend(q[s.first : s.last], keys, values, group.base, s, scale, softcap) for s in stretches]
    return torch.cat(parts).reshape(rows, heads * dim)


def _attend(q: Tensor, keys: Tensor, values: Tensor, base: int, s: Stretch, scale: float, softcap: float | None) -> Tensor:
    rows = s.last - s.first
    k = keys[:, s.low - base : s.high - base].expand(rows, -1, -1, -1)  # (M, Hkv, W, D), stride 0 over rows
    v = values[:, s.low - base : s.high - base].expand(rows, -1, -1, -1)
    mask = s.mask.expand(-1, k.shape[1], q.shape[2], -1)
    return _sdpa(q, k, v, mask, scale, softcap)


@dataclass(frozen=True, slots=True)
class Branch:
    """A path of a tree from the root to a leaf. Rows of it that an earlier path has, too, are attended with that one."""

    rows: Tensor  # (depth + 1,) rows of the pass, the root first
    fresh: Tensor  # (…) the last ones of them, which no earlier path has
    laid: int  # so many of `rows` stand in their slots already, when the paths are taken in order

    @property
    def first(self) -> int:
        """Depth of the first fresh row."""
        return len(self.rows) - len(self.fresh)


@functools.lru_cache(maxsize=256)
def branches(parents: tuple[int, ...], device: torch.device) -> tuple[Branch, ...]:
    """The paths of a tree in the order of their leaves; none for a chain, whose rows stand in the right slots as they are."""
    if parents == tuple(range(len(parents))):
        return ()
    leaves = [row for row in range(1, len(parents) + 1) if row not in parents]
    done: set[int] = set()
    before: list[int] = []
    out: list[Branch] = []
    for leaf in leaves:
        path = [leaf]
        while path[-1] != 0:
            path.append(parents[path[-1] - 1])
        path.reverse()
        laid = next((i for i, (a, b) in enumerate(zip(path, before, strict=False)) if a != b), min(len(path), len(before)))
        fresh = [row for row in path if row not in done]
        out.append(Branch(torch.tensor(path, device=device), torch.tensor(fresh, device=device), laid))
        done.update(fresh)
        before = path
    return tuple(out)


def attend_branches(
    q: Tensor,
    slots: Tensor,
    group: LayerSlots,
    length: int,
    paths: tuple[Branch, ...],
    stretches: list[Stretch],
    scale: float,
    softcap: float | None,
) -> Tensor:
    """A tree whose rows have the same bits as in plain decoding: the paths take turns in the slots behind the `length` committed ones,
    so that each row sees its ancestors just where they would stand in a chain. `stretches` are those of a chain of the tree's depth.

    q (M, Hq, D), slots (2·Hkv, S, D) with the pass's rows written behind the committed ones -> (M, Hq·D).
    """
    at, rows, kv_heads = length - group.base, q.shape[0], slots.shape[0] // 2
    written = slots[:, at : at + rows].clone()
    out = torch.empty((rows, q.shape[1] * q.shape[2]), dtype=q.dtype, device=q.device)
    for path in paths:
        slots[:, at + path.laid : at + len(path.rows)] = written[:, path.rows[path.laid :]]
        out[path.fresh] = attend_rows(
            q[path.fresh], slots[:kv_heads], slots[kv_heads:], group, _between(stretches, path.first, len(path.rows)), scale, softcap
        )
    slots[:, at : at + rows] = written
    return out


def _between(stretches: list[Stretch], first: int, last: int) -> list[Stretch]:
    """The stretches of rows [first, last), counted from 0 again."""
    return [
        Stretch(max(s.first, first) - first, min(s.last, last) - first, s.low, s.high, s.mask[max(first - s.first, 0) : last - s.first])
        for s in stretches
        if s.last > first and s.first < last
    ]


def plan_chunk(n: int, length: int, window: int | None, device: torch.device, dtype: torch.dtype) -> Stretch:
    """Causal mask (n, slots) for a chunk of n rows behind `length` committed tokens, for layers of one window."""
    low = 0 if window is None else max(0, length - window + 1)
    at = torch.arange(length, length + n, device=device)[:, None]
    slots = torch.arange(low, length + n, device=device)[None, :]
    visible = slots <= at
    if window is not None:
        visible &= slots > at - window
    mask = torch.zeros(visible.shape, device=device, dtype=dtype).masked_fill_(~visible, float("-inf"))
    return Stretch(0, n, low, length + n, mask)


def attend_chunk(q: Tensor, keys: Tensor, values: Tensor, base: int, seen: Stretch, scale: float, softcap: float | None) -> Tensor:
    """Causal attention of a chunk q (n, Hq, D) over slots (Hkv, S, D) that begin at position `base` -> (n, Hq·D)."""
    n, heads, dim = q.shape
    k, v = (slots[:, seen.low - base : seen.high - base] for slots in (keys, values))
    repeat = heads // k.shape[0]
    if repeat > 1:
        k, v = k.repeat_interleave(repeat, 0), v.repeat_interleave(repeat, 0)
    out = _sdpa(q.transpose(0, 1)[None], k[None], v[None], seen.mask, scale, softcap)  # (1, Hq, n, D)
    return out[0].transpose(0, 1).reshape(n, heads * dim)


def attend_texts(
    q: Tensor, keys: Tensor, values: Tensor, slots: Tensor, lengths: Tensor, window: int | None, scale: float, softcap: float | None
) -> Tensor:
    """One row for each of several texts: q (M, Hq, D) over the slots (Hkv, S, D) that `slots` (M, W) names, in order, of which the
    first `lengths` (M,) count -> (M, Hq·D)."""
    rows, heads, dim = q.shape
    kv_heads = keys.shape[0]
    at = torch.arange(slots.shape[1], device=q.device)
    visible = at < lengths[:, None]
    if window is not None:
        visible &= at >= lengths[:, None] - window
    mask = torch.zeros(visible.shape, dtype=q.dtype, device=q.device).masked_fill_(~visible, float("-inf"))
    k, v = (part[:, slots].transpose(0, 1) for part in (keys, values))  # (M, Hkv, W, D)
    q = q.view(rows, kv_heads, heads // kv_heads, dim)
    return _sdpa(q, k, v, mask[:, None, None].expand(-1, kv_heads, q.shape[2], -1), scale, softcap).reshape(rows, heads * dim)


def _sdpa(q: Tensor, k: Tensor, v: Tensor, mask: Tensor, scale: float, softcap: float | None) -> Tensor:
    if softcap is None:
        return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=scale)
    scores = softcap * torch.tanh((q @ k.transpose(-1, -2)) * (scale / softcap)) + mask
    return torch.softmax(scores.float(), dim=-1).to(q.dtype) @ v
