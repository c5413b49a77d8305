"""Linear layers over packed weights: nf4, int8, or dense, with the promise of row invariance where it can be kept.

A weight (N, K) is first *packed* (`pack`: plain tensors that a cache can store and map) and then *built* into a callable for a
device (`build`). Row invariance means that a row's result has the same bits however many rows share the call (DESIGN 5):

- `nf4_tiles`, `int8_tiles` (`tiles`): our own CPU kernels: exact integer sums, invariant by construction, a weight read once for two to
  four rows, as many as the processor's registers hold.
- `int8` in bf16 on other CPUs: torch's own kernel, whose rows had the same bits wherever it was measured.
- `int8` on a card: exact integer sums, too (`engine.cuda.int8`).
- `nf4` (bitsandbytes: CUDA and others), `int8` elsewhere, `dense`: kernels that may switch by the number of rows; not invariant by
  themselves (`engine.cuda.products` makes them so on a card).
"""

from __future__ import annotations

import functools
import math
import mmap
import sys
from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from engine.decoder import nf4
from engine.decoder.front import Front
from engine.decoder.tiles import Tiles
from engine.kernels import machine
from engine.kernels.task import TILE, ZERO

NF4_BLOCK = nf4.BLOCK
DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32, "fp64": torch.float64}


class Linear(Protocol):
    """x (M, K) -> add + W · front(x), (M, N). `front` is a norm or a gate; both are worked out on the way in where the kernel can."""

    in_features: int
    out_features: int
    row_invariant: bool

    def __call__(self, x: Tensor, front: Front | None = None, add: Tensor | None = None) -> Tensor: ...

    @property
    def nbytes(self) -> int: ...


@dataclass(frozen=True, slots=True)
class Packed:
    """A packed weight as plain tensors. `layout` is nf4 | int8 | nf4_tiles | int8_tiles | dense; `shape` is (N, K)."""

    layout: str
    shape: tuple[int, int]
    tensors: dict[str, Tensor]


# --- packing --------------------------------------------------------------------------------------------------------


def layout_for(scheme: str, device: torch.device, shape: tuple[int, int]) -> str:
    """The layout that a scheme takes for a weight on a device. A shape that a kernel cannot take stays dense."""
    if scheme in ("nf4", "int8") and device.type == "cpu" and own_kernels():
        return f"{scheme}_tiles"
    return "dense" if scheme not in ("nf4", "int8") or (scheme == "nf4" and shape[1] % NF4_BLOCK) else scheme


def pack(weight: Tensor, layout: str, dtype: torch.dtype) -> Packed:
    """Pack a weight (N, K) of any float dtype. `dtype` is what a dense layout stores. Row blocks can be packed apart and joined."""
    n, k = weight.shape
    if layout == "dense":
        return Packed(layout, (n, k), {"weight": weight.to(dtype)})
    if layout.endswith("_tiles"):
        weight = F.pad(weight, (0, -k % NF4_BLOCK, 0, -n % TILE))
    wide, deep = weight.shape
    if layout.startswith("int8"):
        w = weight.float()
        scale = w.abs().amax(1).clamp_min(1e-12) / 127.0  # (N,)
        steps = (w / scale[:, None]).round_().to(torch.int8)
        if layout == "int8":
            return Packed(layout, (n, k), {"weight": steps, "scale": scale})
        return Packed(layout, (n, k), {"weight": _tiles(steps.view(torch.uint8) ^ ZERO).view(wide, deep), "scale": scale})
    codes, absmax = nf4.quantize(weight)
    if layout == "nf4":
        return Packed(layout, (n, k), {"weight": codes, "absmax": absmax})
    tiles = _tiles(torch.stack((codes >> 4, codes & 15), dim=-1).view(wide, deep))  # (tiles, K/4, 16, 4)
    halves = tiles[:, ::2] | (tiles[:, 1::2] << 4)
    scales = absmax.to(torch.bfloat16).view(-1, TILE, deep // NF4_BLOCK).transpose(1, 2)  # (tiles, groups, 16)
    return Packed(layout, (n, k), {"weight": halves.reshape(wide, deep // 2), "absmax": scales.reshape(wide, deep // NF4_BLOCK)})


def join(parts: Iterable[Packed], rows: int) -> Packed:
    """Stack packed row blocks that have `rows` rows together. Each is copied as it comes, so only one stands beside the whole. In tiles
    every block but the last must have a multiple of 16 rows."""
    whole: dict[str, Tensor] = {}
    layout, k, done, at = "", 0, 0, 0
    for part in parts:
        assert not part.layout.endswith("_tiles") or done % TILE == 0
        layout, k, size = part.layout, part.shape[1], 0
        for name, tensor in part.tensors.items():
            if name not in whole:
                most = rows + (-rows % TILE if layout.endswith("_tiles") else 0)
                whole[name] = _room((most, *tensor.shape[1:]), tensor.dtype)
            size = len(tensor)
            whole[name][at : at + size] = tensor
        done, at = done + part.shape[0], at + size
    assert done == rows
    return Packed(layout, (rows, k), whole)


def _room(shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """Memory of its own from the system, which gets it back at once when it is dropped. In the heap, what stays would stand between what
    packing needs for a moment, and leave holes of hundreds of MB."""
    size = math.prod(shape) * dtype.itemsize
    if sys.platform == "win32":
        return torch.frombuffer(mmap.mmap(-1, size), dtype=dtype).view(shape)
    return torch.frombuffer(mmap.mmap(-1, size, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS), dtype=dtype).view(shape)


def _tiles(values: Tensor) -> Tensor:
    """(N, K) bytes -> (N/16, K/4, 16, 4): four neighbours of each of sixteen channels lie together, as the byte product takes them."""
    n, k = values.shape
    return values.view(n // TILE, TILE, k // 4, 4).transpose(1, 2).contiguous()


# --- building -------------------------------------------------------------------------------------------------------


def build(packed: Packed, bias: Tensor | None, device: torch.device, dtype: torch.dtype) -> Linear:
    """Make the callable. `dtype` is that of activations and results."""
    tensors = {name: t.to(device) for name, t in packed.tensors.items()}
    bias = None if bias is None else bias.to(device, dtype)
    if packed.layout == "dense":
        return Dense(tensors["weight"].to(dtype), bias)
    if packed.layout.endswith("_tiles"):
        return Tiles(packed, bias, dtype)
    if packed.layout == "nf4":
        return Nf4(packed.shape, tensors["weight"], tensors["absmax"], bias)
    if device.type == "cuda":
        from engine.cuda import int8

        if int8.possible(device):
            return int8.ExactInt8(tensors["weight"], tensors["scale"], bias, dtype)
    return Int8(tensors["weight"], tensors["scale"], bias, dtype)


class _Plain(ABC):
    """A product whose front and sum are operations of their own."""

    def __call__(self, x: Tensor, front: Front | None = None, add: Tensor | None = None) -> Tensor:
        out = self._product(x if front is None else front(x))
        return out if add is None else add + out

    @abstractmethod
    def _product(self, x: Tensor) -> Tensor: ...


class Dense(_Plain):
    """A plain matrix in a float type."""

    row_invariant = False

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        self.out_features, self.in_features = weight.shape
        self._weight, self._bias = weight, bias

    def _product(self, x: Tensor) -> Tensor:
        return F.linear(x, self._weight, self._bias)

    @property
    def nbytes(self) -> int:
        return self._weight.nbytes


class Nf4(_Plain):
    """4 bit through bitsandbytes' registered operator (fused multi-row kernels on CUDA since 0.50)."""

    row_invariant = False

    def __init__(self, shape: tuple[int, int], weight: Tensor, absmax: Tensor, bias: Tensor | None) -> None:
        import bitsandbytes  # noqa: F401  registers the operator

        self.out_features, self.in_features = shape
        self._weight, self._absmax, self._bias = weight.view(-1, 1), absmax.reshape(-1), bias
        self._op = torch.ops.bitsandbytes.gemm_4bit.default

    def _product(self, x: Tensor) -> Tensor:
        shape = (self.out_features, self.in_features)
        return self._op(x, self._weight, shape, self._absmax, NF4_BLOCK, "nf4", self._bias)

    @property
    def nbytes(self) -> int:
        return self._weight.nbytes + self._absmax.nbytes


class Int8(_Plain):
    """8-bit weights, float activations."""

    row_invariant = False

    def __init__(self, weight: Tensor, scale: Tensor, bias: Tensor | None, dtype: torch.dtype) -> None:
        self.out_features, self.in_features = weight.shape
        self._weight, self._scale, self._bias, self._dtype = weight, scale, bias, dtype
        # torch's kernel for CPUs takes bf16 and measures row-invariant there
        self._native = weight.device.type == "cpu" and dtype == torch.bfloat16 and hasattr(torch, "_weight_int8pack_mm")
        self.row_invariant = self._native
        if self._native:
            self._scale = scale.to(dtype)

    def _product(self, x: Tensor) -> Tensor:
        if self._native:
            out = torch._weight_int8pack_mm(x, self._weight, self._scale)
        else:
            out = (F.linear(x, self._weight.to(x.dtype)).float() * self._scale).to(self._dtype)
        return out if self._bias is None else out + self._bias

    @property
    def nbytes(self) -> int:
        return self._weight.nbytes + self._scale.nbytes


@functools.cache
def own_kernels() -> bool:
    """Whether our kernels run here; tried on a small product."""
    if machine.machine() is None:
        return False
    weight = torch.arange(-2048, 2048, dtype=torch.float32).remainder(255).sub(127).view(64, 64)
    weight[:, 0] = 127.0  # so that the steps are whole numbers
    x = torch.arange(-64, 128, dtype=torch.float32).view(3, 64)
    layer = Tiles(pack(weight, "int8_tiles", torch.float32), None, torch.float32)
    expected = x @ weight.t()
    return bool((layer(x) - expected).abs().max() < 1e-3 * expected.abs().max())
