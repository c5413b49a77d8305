"""Sizes that static passes come in: numbers of rows, and numbers of slots that attention reads. No torch."""

from __future__ import annotations

from bisect import bisect_left

WIDTHS = (1, 2, 3, 4, 5, 6, 8, 12, 16, 24, 32, 48, 65)  # rows: plain, what drafts of a chain need, then trees; 64 nodes and the root
SLOTS = (256, 384, 512, 768, 1024, 1536, 2048, 3072, 4096, 6144, 8192, 12288, 16384, 24576, 32768, 49152, 65536, 98304, 131072)


def width(rows: int) -> int:
    """The smallest width that holds so many rows; as many as asked where none does."""
    return _least(WIDTHS, rows)


def slots(need: int, capacity: int) -> int:
    """Slots that attention reads where `need` are filled, of `capacity`: at most half as many again, and few different numbers over a
    long text, since each needs passes of its own."""
    return min(_least(SLOTS, need), capacity)


def _least(sizes: tuple[int, ...], need: int) -> int:
    at = bisect_left(sizes, need)
    return sizes[at] if at < len(sizes) else need
