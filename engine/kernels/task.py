"""What a product's kernel is told: how weights lie in memory, and one table of 64-bit fields, made by `tiles.Tiles`, read by the compiled
code."""

from __future__ import annotations

from enum import IntEnum

GROUP = 64  # weights of a channel that share a scale
TILE = 16  # channels stored together
ZERO = 128  # the unsigned byte of a weight that stands for 0


class Field(IntEnum):
    """Place in the table. The first are addresses."""

    WEIGHTS = 0
    SCALES = 1  # of each 64 weights, bf16; nf4 only
    TABLE = 2  # the sixteen levels as bytes, four times; nf4 only
    PARTS = 3  # scratch, see `rows`
    STARTS = 4
    STEPS = 5
    VALUES = 6
    BIAS = 7  # (N) float32, padded to whole tiles
    CHANNEL = 8  # (N) float32: factor of each channel, likewise
    ADD = 9  # (M, N) in the type of the result, or 0: what the product is added to
    OUT = 10
    NORM = 11  # (K) float32: weight of the norm
    EPS = 12  # of the norm, the bits of a float32
    M = 13
    N = 14
    K = 15
    NARROW = 16  # 1: the result is bf16, 0: float32
    SOURCE = 17  # place in rows.SOURCES

    @property
    def at(self) -> int:
        """Offset in bytes."""
        return 8 * self


COUNT = len(Field)
