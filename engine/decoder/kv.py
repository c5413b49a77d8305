"""Keys and values of committed tokens, and of the rows of the pass under way.

Slots are preallocated and grow in buckets; the number of committed tokens is one host integer. A pass writes its rows behind the
committed ones; `keep` moves the kept rows down and forgets the rest (nothing moves for a chain). Layers with a sliding window hold
the window, some slack for rolling back, and the rows of a pass, still laid out by absolute position.
"""

from __future__ import annotations

import torch
from torch import Tensor

from engine.decoder.config import DecoderConfig

ALIGN = 64  # attention reads whole stretches of 64 slots, so that its sums are grouped by absolute position alone
GROW = 512
SLACK = 1024  # how far a sliding layer can be rolled back without reading the text again


def aligned(n: int) -> int:
    """n rounded up to a whole stretch."""
    return -(-n // ALIGN) * ALIGN


class LayerSlots:
    """Slots of all layers that share one window: `store` is (layers, 2, kv heads, capacity, D); slot = position - base."""

    def __init__(self, n_layers: int, window: int | None, config: DecoderConfig, device: torch.device, dtype: torch.dtype) -> None:
        self.window = window
        self.base = 0
        self._make = (n_layers, 2, config.n_kv_heads)
        self._tail, self._device, self._dtype = config.head_dim, device, dtype
        self.store = self._allocate(GROW)

    def _allocate(self, capacity: int) -> Tensor:
        return torch.zeros((*self._make, capacity, self._tail), device=self._device, dtype=self._dtype)

    @property
    def capacity(self) -> int:
        return self.store.shape[3]

    def reserve(self, length: int, rows: int, limit: int) -> None:
        """Make room for `rows` behind `length` committed tokens, up to a context of `limit`."""
        need = aligned(length + rows) - self.base
        if need <= self.capacity:
            return
        self._enlarge(max(need, min(self._most(rows, limit), 2 * self.capacity)))

    def fill(self, rows: int, limit: int) -> None:
        """Make all the room that passes of `rows` will ever need: from now on the addresses stay."""
        self._enlarge(max(self.capacity, self._most(rows, limit)))

    def _most(self, rows: int, limit: int) -> int:
        most = aligned(limit + rows)
        if self.window is not None:
            most = min(most, aligned(self.window) + SLACK + GROW + max(GROW, aligned(rows)) + ALIGN)
        return most

    def _enlarge(self, capacity: int) -> None:
        larger = self._allocate(capacity)
        larger[:, :, :, : self.capacity] = self.store
        self.store = larger

    def slide(self, length: int) -> None:
        """Forget what no row can see from here on, or after going back by SLACK. What is forgotten follows from the length alone, so
        that it is the same with any drafter."""
        if self.window is None:
            return
        base = (length - self.window - SLACK) // GROW * GROW
        if base > self.base:
            held = self.store[:, :, :, base - self.base : length - self.base].clone()
            self.store[:, :, :, : held.shape[3]] = held
            self.store[:, :, :, held.shape[3] :] = 0
            self.base = base

    def clear(self, first: int, last: int) -> None:
        """Empty the slots of positions [first, last). A mask hides what lies behind the text, but not if it is no number."""
        self.store[:, :, :, max(0, first - self.base) : max(0, last - self.base)] = 0

    def usable(self, length: int) -> bool:
        """Whether the first `length` tokens are enough to go on from, or earlier ones would be missing."""
        return self.base == 0 or (self.window is not None and length - self.window >= self.base)

    def move(self, sources: list[int], target: int) -> None:
        """Copy the slots of absolute positions `sources` to `target`, target + 1, …"""
        index = torch.tensor([s - self.base for s in sources], device=self._device)
        at = target - self.base
        self.store[:, :, :, at : at + len(sources)] = self.store.index_select(3, index)


class SlotCache:
    """The cache of one model. `length` tokens are committed; `limit` is the context."""

    def __init__(self, config: DecoderConfig, limit: int, device: torch.device, dtype: torch.dtype) -> None:
        self.length = 0
        self.limit = limit
        self._written = 0  # no slot behind this position was written since it was last empty
        windows = sorted(set(config.windows), key=lambda w: (w is not None, w))
        self.groups = [LayerSlots(config.windows.count(w), w, config, device, dtype) for w in windows]
        counters = dict.fromkeys(windows, 0)
        self._where: list[tuple[LayerSlots, int]] = []  # layer -> (its group, its place there)
        for window in config.windows:
            self._where.append((self.groups[windows.index(window)], counters[window]))
            counters[window] += 1

    def reserve(self, rows: int) -> None:
        """Make room for a pass of `rows`."""
        self._written = max(self._written, self.length + rows)
        for group in self.groups:
            group.reserve(self.length, rows, self.limit)

    def fill(self, rows: int) -> None:
        """Make all the room that passes of `rows` will need up to the limit."""
        for group in self.groups:
            group.fill(rows, self.limit)

    def layer(self, index: int) -> tuple[LayerSlots, Tensor]:
        """The group of a layer, and its slots (2 · kv heads, capacity, D): the keys of all heads, then the values."""
        group, place = self._where[index]
        return group, group.store[place].flatten(0, 1)

    def keep(self, rows: tuple[int, ...]) -> None:
        """Commit rows of the last pass, in order; row r stands at position length + r."""
        first = next((i for i, row in enumerate(rows) if row != i), None)
        if first is not None:
            for group in self.groups:
                group.move([self.length + r for r in rows[first:]], self.length + first)
        self.length += len(rows)
        for group in self.groups:
            group.slide(self.length)

    def truncate(self, length: int) -> int:
        """Go back to the first `length` tokens; returns what is really left (0 where a sliding layer has forgotten too much)."""
        assert length <= self.length
        if length < self.length and not all(group.usable(length) for group in self.groups):
            length = 0
        if self._written > length:
            for group in self.groups:
                group.clear(length, self._written)
            self._written = length
        if length == 0:
            for group in self.groups:
                group.base = 0
        self.length = length
        return length

    @property
    def nbytes(self) -> int:
        return sum(group.store.nbytes for group in self.groups)
