"""The noise is a pure function of seed, index, stream and token, and looks like noise."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from engine.speculation.noise import ACCEPT, PICK, PROPOSE, RESIDUAL, gumbel, gumbel_all, key, uniform

MASK = (1 << 64) - 1
GOLDEN, M1, M2 = 0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB
SEEDS = (0, 1, 0x9E3779B97F4A7C15 >> 1, (1 << 63) - 1, 1 << 62)


def reference(seed: int, index: int, token: int, stream: int) -> float:
    """splitmix64 with Python's unbounded integers, then the inverse of the Gumbel distribution."""

    def mix(z: int) -> int:
        z = (z + GOLDEN) & MASK
        z = (z ^ (z >> 30)) * M1 & MASK
        z = (z ^ (z >> 27)) * M2 & MASK
        return z ^ (z >> 31)

    place = mix(mix(seed & MASK) ^ mix((index << 3 | stream) & MASK))
    u = ((mix((place + token * GOLDEN) & MASK) >> 11) + 0.5) * 2.0**-53
    return -math.log(-math.log(u))


@pytest.mark.parametrize("seed", SEEDS)
def test_both_makers_agree_with_unbounded_integers(seed: int) -> None:
    """64-bit products wrap around in numpy and in torch's signed integers alike."""
    ids = np.array([0, 1, 2, 255, 32_000, 151_935, 151_935, 7])
    for index in (0, 1, 513, 1 << 20):
        for stream in (PICK, PROPOSE, ACCEPT, RESIDUAL):
            expected = [reference(seed, index, int(i), stream) for i in ids]
            assert gumbel(seed, index, ids, stream) == pytest.approx(expected, rel=1e-12, abs=1e-12)
            whole = gumbel_all(seed, index, 151_936, torch.device("cpu"), stream)
            assert whole[torch.from_numpy(ids)].tolist() == pytest.approx(expected, rel=1e-12, abs=1e-12)
            assert whole.dtype == torch.float64
            assert torch.isfinite(whole).all()


def test_the_type_of_the_ids_does_not_matter() -> None:
    for kind in (np.int32, np.int64, np.uint32):
        assert (gumbel(5, 3, np.arange(9, dtype=kind)) == gumbel(5, 3, np.arange(9))).all()


def test_a_negative_or_large_seed_is_taken_modulo_64_bits() -> None:
    assert key(-1, 0, PICK) == key(MASK, 0, PICK)
    assert key(1 << 64, 0, PICK) == key(0, 0, PICK)


def test_no_two_places_share_a_key() -> None:
    keys = {key(seed, index, stream) for seed in range(1 << 40, (1 << 40) + 20) for index in range(500) for stream in range(4)}
    assert len(keys) == 20 * 500 * 4


def test_uniform_is_open_and_differs_by_sibling() -> None:
    drawn = [uniform(3, index, ACCEPT, which) for index in range(2000) for which in range(4)]
    assert all(0.0 < u < 1.0 for u in drawn)
    assert len(set(drawn)) == len(drawn)
    assert abs(np.mean(drawn) - 0.5) < 4 * (1 / 12 / len(drawn)) ** 0.5
    siblings = np.array(drawn).reshape(2000, 4)
    assert np.abs(np.corrcoef(siblings.T) - np.eye(4)).max() < 4 / 2000**0.5


@pytest.mark.parametrize("along", ["tokens", "indices", "seeds"])
def test_it_is_gumbel_along_every_axis(along: str) -> None:
    """Mean, variance and all of the distribution (Kolmogorov-Smirnov), whichever counter runs."""
    n = 20_000
    if along == "tokens":
        g = gumbel(1234, 5, np.arange(n))
    elif along == "indices":
        g = np.array([gumbel(1234, index, np.array([17]))[0] for index in range(n)])
    else:
        g = np.array([gumbel(seed, 5, np.array([17]))[0] for seed in range(n)])
    assert abs(g.mean() - 0.5772156649) < 4 * (math.pi**2 / 6 / n) ** 0.5
    assert abs(g.var() - math.pi**2 / 6) < 0.15
    cdf = np.exp(-np.exp(-np.sort(g)))
    distance = np.abs(cdf - (np.arange(n) + 0.5) / n).max()
    assert distance < 1.95 / n**0.5  # p = 0.001


def test_neighbours_and_streams_are_uncorrelated() -> None:
    ids = np.arange(20_000)
    rows = [gumbel(9, 4, ids, stream) for stream in range(4)] + [gumbel(9, 5, ids), gumbel(10, 4, ids), np.roll(gumbel(9, 4, ids), 1)]
    off = np.corrcoef(np.stack(rows)) - np.eye(len(rows))
    assert np.abs(off).max() < 4 / len(ids) ** 0.5


def test_the_largest_noise_picks_a_token_as_often_as_its_probability() -> None:
    """Gumbel-max over seeds: a chi-square test, and over indices of one seed."""
    p = np.array([0.5, 0.2, 0.15, 0.1, 0.04, 0.01])
    n = 12_000
    for axis in range(2):
        counts = np.zeros(len(p))
        for i in range(n):
            seed, index = (i, 3) if axis == 0 else (77, i)
            counts[np.argmax(np.log(p) + gumbel(seed, index, np.arange(len(p))))] += 1
        assert ((counts - n * p) ** 2 / (n * p)).sum() < 20.5  # 5 degrees of freedom, p = 0.001
