"""Noise as a pure function of (reply seed, index of the token in the reply, stream, token id).

Because nothing is drawn in order, every row of a verify, any drafter and any run see the same numbers (DESIGN 6; the coupling is
that of Daliri, Musco and Suresh, arXiv 2408.07978). The mixing function is splitmix64's finaliser.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

PICK, PROPOSE, ACCEPT, RESIDUAL = range(4)  # streams: the ratio rule must never reuse a proposal's noise

_MASK = (1 << 64) - 1
_GOLDEN = 0x9E3779B97F4A7C15
_M1, _M2 = 0xBF58476D1CE4E5B9, 0x94D049BB133111EB
_SCALE = 2.0**-53


def _mix(z: int) -> int:
    z = (z + _GOLDEN) & _MASK
    z = ((z ^ (z >> 30)) * _M1) & _MASK
    z = ((z ^ (z >> 27)) * _M2) & _MASK
    return z ^ (z >> 31)


def key(seed: int, index: int, stream: int) -> int:
    """64-bit key of one position."""
    return _mix(_mix(seed & _MASK) ^ _mix((index << 3 | stream) & _MASK))


def uniform(seed: int, index: int, stream: int = ACCEPT, which: int = 0) -> float:
    """One number in (0, 1)."""
    return ((_mix((key(seed, index, stream) + which * _GOLDEN) & _MASK) >> 11) + 0.5) * _SCALE


def gumbel(seed: int, index: int, ids: np.ndarray, stream: int = PICK) -> np.ndarray:
    """Standard Gumbel noise of each token id (n,), float64."""
    with np.errstate(over="ignore"):
        z = np.uint64(key(seed, index, stream)) + ids.astype(np.uint64) * np.uint64(_GOLDEN) + np.uint64(_GOLDEN)
        z = (z ^ (z >> np.uint64(30))) * np.uint64(_M1)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(_M2)
        z = z ^ (z >> np.uint64(31))
    u = ((z >> np.uint64(11)).astype(np.float64) + 0.5) * _SCALE
    return -np.log(-np.log(u))


def gumbel_all(seed: int, index: int, vocab_size: int, device: torch.device, stream: int = PICK) -> Tensor:
    """The same noise for a whole vocabulary (V,), float64, made on the device. Its last bits are the device's own."""
    ids = torch.arange(vocab_size, device=device)
    z = _signed(key(seed, index, stream) + _GOLDEN) + ids * _signed(_GOLDEN)
    z = (z ^ _shift(z, 30)) * _signed(_M1)
    z = (z ^ _shift(z, 27)) * _signed(_M2)
    z = z ^ _shift(z, 31)
    u = (_shift(z, 11).double() + 0.5) * _SCALE
    return -torch.log(-torch.log(u))


def _signed(x: int) -> int:
    x &= _MASK
    return x - (1 << 64) if x >> 63 else x


def _shift(z: Tensor, n: int) -> Tensor:
    """Logical shift right of int64."""
    return (z >> n) & ((1 << (64 - n)) - 1)
