"""Confidence intervals for rates and speed-ups: the bootstrap over prompts, with a fixed seed, so that a report stays the same.

A prompt is drawn as a whole, for a drafter and for plain decoding together (paired): prompts differ far more than repeats of one do.
With fewer than three prompts nothing can be said about others, and there is no interval.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from functools import lru_cache

RESAMPLES = 1000
LEAST = 3  # prompts
LEVEL = 0.95
Unit = tuple[int, float]  # emitted tokens, seconds of decoding: all repeats of one prompt


def rate_interval(units: Mapping[int, Unit]) -> tuple[float, float] | None:
    """Tokens/s: low and high."""
    return _interval([(*unit, 1.0, 1.0) for unit in units.values()])


def speedup_interval(units: Mapping[int, Unit], plain: Mapping[int, Unit]) -> tuple[float, float] | None:
    """Rate / plain rate over the prompts that both have: low and high."""
    return _interval([(*units[prompt], *plain[prompt]) for prompt in units if prompt in plain])


def _interval(rows: list[tuple[int, float, float, float]]) -> tuple[float, float] | None:
    rows = [row for row in rows if row[1] > 0 and row[2] > 0 and row[3] > 0]
    if len(rows) < LEAST:
        return None
    ratios = sorted(_ratio([rows[i] for i in drawn]) for drawn in _draws(len(rows)))
    cut = round((1 - LEVEL) / 2 * (len(ratios) - 1))
    return ratios[cut], ratios[-1 - cut]


def _ratio(rows: list[tuple[int, float, float, float]]) -> float:
    emitted, decode_s, plain_emitted, plain_s = (sum(column) for column in zip(*rows, strict=True))
    return emitted / decode_s / (plain_emitted / plain_s)


@lru_cache(maxsize=8)
def _draws(n: int) -> tuple[tuple[int, ...], ...]:
    """The same draws for every lane of a report."""
    draw = random.Random(n)
    return tuple(tuple(draw.choices(range(n), k=n)) for _ in range(RESAMPLES))
