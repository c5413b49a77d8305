"""What stands in front of a matrix product: an RMS norm, or the gate of a feed-forward layer.

Products that can work them out on the way in do so (`linear.Tiles`); for others they are called. On the CPU `F.rms_norm` is about ten
small operations; the layer norm of [x, -x] is the same thing in one kernel: its mean is zero and its variance the mean square of x.
All of this goes row by row, so rows do not see each other (tested).
"""

from __future__ import annotations

import struct
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor


class Front(Protocol):
    """x -> what the product takes. `name` is one of the kernels' sources: norm, silu, gelu."""

    @property
    def name(self) -> str: ...

    def __call__(self, x: Tensor) -> Tensor: ...


class RmsNorm:
    """x (…, H) -> x / rms(x) · weight (H,)."""

    __slots__ = ("_eps", "_kept", "_size", "_twice", "_weight", "address", "eps_bits")
    name = "norm"

    def __init__(self, weight: Tensor, eps: float) -> None:
        self._weight, self._eps = weight, eps
        self._size = weight.shape[0]
        on_cpu = weight.device.type == "cpu"
        self._twice = torch.cat((weight, weight)) if on_cpu else None
        self._kept = weight.float().contiguous() if on_cpu else None
        self.address = self._kept.data_ptr() if self._kept is not None else 0  # of the weight in float32, for kernels
        self.eps_bits = struct.unpack("<i", struct.pack("<f", eps))[0]

    def __call__(self, x: Tensor) -> Tensor:
        if self._twice is None:
            return F.rms_norm(x, (self._size,), self._weight, self._eps)
        both = torch.cat((x, -x), dim=-1)
        return F.layer_norm(both, (2 * self._size,), self._twice, None, self._eps)[..., : self._size]


class Gate:
    """gate | up (…, 2K) -> act(gate) · up (…, K). `name` is silu, or gelu in its tanh form."""

    __slots__ = ("name",)

    def __init__(self, name: str) -> None:
        assert name in ("silu", "gelu")
        self.name = name

    def __call__(self, x: Tensor) -> Tensor:
        gate, up = x.chunk(2, dim=-1)
        return (F.silu(gate) if self.name == "silu" else F.gelu(gate, approximate="tanh")).mul_(up)
