"""Sizes that static passes come in: numbers of rows, and numbers of slots that attention reads. No torch."""

from __future__ import annotations

from bisect import bisect_left

WIDTHS = (1, 2, 3, 4, 5, 6, 8, 12, 16, 24, 32, 48, 65)  # rows: plain, what drafts of a chain need, then trees; 64 nodes and the root
SLOTS = tuple(512 << i for i in range(10))  # each needs passes of its own, so there are few over a long text


def width(rows: int) -> int:
    """The smallest width that holds so many rows; as many as asked where none does."""
    return _least(WIDTHS, rows)


def slots(need: int, capacity: int) -> int:
    """Slots that attention reads where `need` are filled, of `capacity`."""
    return min(_least(SLOTS, need), capacity)


def _least(sizes: tuple[int, ...], need: int) -> int:
    at = bisect_left(sizes, need)
    return sizes[at] if at < len(sizes) else need
