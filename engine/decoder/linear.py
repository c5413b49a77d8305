"""Linear layers over packed weights: nf4, int8, or dense, with the promise of row invariance where it can be kept.

A weight (N, K) is first *packed* (`pack`: plain tensors that a cache can store and map) and then *built* into a callable for a
device (`build`). Row invariance means that a row's result has the same bits however many rows share the call (DESIGN 5):

- `nf4_cpu`: bitsandbytes' fused kernel for CPUs with AVX512-BF16, called directly with prepared pointers; invariant (tested).
- `int8` on a CPU with VNNI: each activation row becomes two int8 rows (15 bits), multiplied in exact integer arithmetic by oneDNN.
  Integer sums have no rounding, so invariance does not depend on the kernel, and rows are nearly free up to 8.
- `nf4` (CUDA and others), `dense`: kernels that switch by the number of rows; not invariant.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from engine.decoder import nf4

NF4_BLOCK = nf4.BLOCK
NF4_TILE = 32  # output rows that the CPU kernel handles at once
DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32, "fp64": torch.float64}


class Linear(Protocol):
    """x (M, K) -> (M, N)."""

    in_features: int
    out_features: int
    row_invariant: bool

    def __call__(self, x: Tensor) -> Tensor: ...

    @property
    def nbytes(self) -> int: ...


@dataclass(frozen=True, slots=True)
class Packed:
    """A packed weight as plain tensors. `layout` is nf4 | nf4_cpu | int8 | dense; `shape` is (N, K)."""

    layout: str
    shape: tuple[int, int]
    tensors: dict[str, Tensor]


# --- packing --------------------------------------------------------------------------------------------------------


def layout_for(scheme: str, device: torch.device, shape: tuple[int, int]) -> str:
    """The layout that a scheme takes for a weight on a device. Shapes that a kernel cannot take stay dense."""
    if scheme == "nf4" and shape[1] % NF4_BLOCK == 0:
        return "nf4_cpu" if device.type == "cpu" and nf4_kernel() is not None else "nf4"
    return "int8" if scheme == "int8" else "dense"


def pack(weight: Tensor, layout: str, dtype: torch.dtype) -> Packed:
    """Pack a weight (N, K) of any float dtype. `dtype` is what a dense layout stores. Row blocks can be packed apart and joined."""
    n, k = weight.shape
    if layout == "dense":
        return Packed(layout, (n, k), {"weight": weight.to(dtype)})
    if layout == "int8":
        w = weight.float()
        scale = w.abs().amax(1).clamp_min(1e-12) / 127.0  # (N,)
        return Packed(layout, (n, k), {"weight": (w / scale[:, None]).round_().to(torch.int8), "scale": scale})
    if layout == "nf4_cpu" and n % NF4_TILE:
        weight = F.pad(weight, (0, 0, 0, -n % NF4_TILE))
    codes, absmax = nf4.quantize(weight)
    if layout == "nf4":
        return Packed(layout, (n, k), {"weight": codes, "absmax": absmax})
    return Packed(layout, (n, k), {"weight": _tile(codes), "absmax": absmax.t().contiguous().to(torch.bfloat16)})


def join(parts: list[Packed]) -> Packed:
    """Stack packed row blocks. In `nf4_cpu` every block but the last must have a multiple of 32 rows."""
    if len(parts) == 1:
        return parts[0]
    first = parts[0]
    assert all(p.layout == first.layout and p.shape[1] == first.shape[1] for p in parts)
    assert first.layout != "nf4_cpu" or all(p.shape[0] % NF4_TILE == 0 for p in parts[:-1])
    tensors = {
        name: torch.cat([p.tensors[name] for p in parts], dim=1 if first.layout == "nf4_cpu" and name == "absmax" else 0)
        for name in first.tensors
    }
    return Packed(first.layout, (sum(p.shape[0] for p in parts), first.shape[1]), tensors)


def _tile(codes: Tensor) -> Tensor:
    """bitsandbytes' storage order (N, K/2) -> the order of its CPU kernel (N, K/2), in place of its own slow converter.

    In a tile of 32 rows, for each pair of columns, byte j holds (row j//2, column j%2) in its low half and the same of row 16 + j//2
    in its high half.
    """
    n, half = codes.shape
    pairs = torch.stack((codes >> 4, codes & 15), dim=-1)  # (N, K/2, 2)
    pairs = pairs.view(n // NF4_TILE, 2, 16, half, 2).permute(1, 0, 3, 2, 4)  # (half of the tile, tile, pair, row, column)
    return (pairs[0] | (pairs[1] << 4)).reshape(n, half)


# --- building -------------------------------------------------------------------------------------------------------


def build(packed: Packed, bias: Tensor | None, device: torch.device, dtype: torch.dtype) -> Linear:
    """Make the callable. `dtype` is that of activations and results."""
    tensors = {name: t.to(device) for name, t in packed.tensors.items()}
    bias = None if bias is None else bias.to(device, dtype)
    if packed.layout == "dense":
        return Dense(tensors["weight"].to(dtype), bias)
    if packed.layout == "nf4_cpu":
        return Nf4Cpu(packed.shape, tensors["weight"], tensors["absmax"], bias, dtype)
    if packed.layout == "nf4":
        return Nf4(packed.shape, tensors["weight"], tensors["absmax"], bias)
    if device.type == "cpu" and int8_exact():
        return Int8Exact(tensors["weight"], tensors["scale"], bias, dtype)
    return Int8(tensors["weight"], tensors["scale"], bias, dtype)


class Dense:
    """A plain matrix in a float type."""

    row_invariant = False

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        self.out_features, self.in_features = weight.shape
        self._weight, self._bias = weight, bias

    def __call__(self, x: Tensor) -> Tensor:
        return F.linear(x, self._weight, self._bias)

    @property
    def nbytes(self) -> int:
        return self._weight.nbytes


class Nf4:
    """4 bit through bitsandbytes' registered operator (fused multi-row kernels on CUDA since 0.50)."""

    row_invariant = False

    def __init__(self, shape: tuple[int, int], weight: Tensor, absmax: Tensor, bias: Tensor | None) -> None:
        import bitsandbytes  # noqa: F401  registers the operator

        self.out_features, self.in_features = shape
        self._weight, self._absmax, self._bias = weight.view(-1, 1), absmax.reshape(-1), bias
        self._op = torch.ops.bitsandbytes.gemm_4bit.default

    def __call__(self, x: Tensor) -> Tensor:
        shape = (self.out_features, self.in_features)
        return self._op(x, self._weight, shape, self._absmax, NF4_BLOCK, "nf4", self._bias)

    @property
    def nbytes(self) -> int:
        return self._weight.nbytes + self._absmax.nbytes


class Nf4Cpu:
    """4 bit through bitsandbytes' AVX512-BF16 kernel, called directly: its Python operator costs more than a small layer."""

    row_invariant = True

    def __init__(self, shape: tuple[int, int], weight: Tensor, absmax: Tensor, bias: Tensor | None, dtype: torch.dtype) -> None:
        self.out_features, self.in_features = shape
        self._weight, self._absmax, self._bias, self._dtype = weight.contiguous(), absmax.contiguous(), bias, dtype
        self._width = weight.shape[0]  # rows, padded to whole tiles
        kernel = nf4_kernel()
        assert kernel is not None
        self._kernel = kernel
        self._pointers = (self._weight.data_ptr(), self._absmax.data_ptr())

    def __call__(self, x: Tensor) -> Tensor:
        if x.dtype != torch.bfloat16:
            x = x.to(torch.bfloat16)
        x = x.contiguous()
        rows = x.shape[0]
        out = torch.empty((rows, self._width), dtype=torch.bfloat16)
        k, n = self.in_features, self._width
        self._kernel(rows, n, k, x.data_ptr(), *self._pointers, out.data_ptr(), NF4_BLOCK, k, n)
        if self._width != self.out_features:
            out = out[:, : self.out_features]
        if self._bias is not None:
            out = out.add_(self._bias)
        return out if self._dtype == torch.bfloat16 else out.to(self._dtype)

    @property
    def nbytes(self) -> int:
        return self._weight.nbytes + self._absmax.nbytes


class Int8:
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

    def __call__(self, x: Tensor) -> Tensor:
        if self._native:
            out = torch._weight_int8pack_mm(x, self._weight, self._scale)
        else:
            out = (F.linear(x, self._weight.to(x.dtype)).float() * self._scale).to(self._dtype)
        return out if self._bias is None else out + self._bias

    @property
    def nbytes(self) -> int:
        return self._weight.nbytes + self._scale.nbytes


class Int8Exact:
    """8-bit weights, 15-bit activations, exact integer products.

    A row x with scale s = max|x| / 127 is split as x = s·(hi + lo/254), both int8; the two are rows of one u8 x s8 product (zero point
    128), so a token costs two rows of a kernel that is bound by reading the weight.
    """

    row_invariant = True

    def __init__(self, weight: Tensor, scale: Tensor, bias: Tensor | None, dtype: torch.dtype) -> None:
        self.out_features, self.in_features = weight.shape
        self._weight = torch.ops.onednn.qlinear_prepack(weight, None)
        self._scale, self._bias, self._dtype = scale.float(), bias, dtype
        self._zeros = torch.zeros(self.out_features, dtype=torch.int32)
        self._op = torch.ops.onednn.qlinear_pointwise.default

    def __call__(self, x: Tensor) -> Tensor:
        rows = x.shape[0]
        x = x.float()
        step = x.abs().amax(1, keepdim=True).clamp_min_(1e-20).div_(127.0)  # (M, 1)
        x = x / step
        hi = x.round()
        lo = x.sub_(hi).mul_(254.0).round_()
        both = torch.cat((hi, lo)).add_(128.0).to(torch.uint8)  # (2M, K)
        sums = self._op(both, 1.0, 128, self._weight, self._scale, self._zeros, None, 1.0, 0, torch.float32, "none", [], "")  # (2M, N)
        out = sums[rows:].mul_(1.0 / 254.0).add_(sums[:rows]).mul_(step)  # each operation rounds alone: no fused tail that differs
        if self._bias is not None:
            out += self._bias
        return out.to(self._dtype)

    @property
    def nbytes(self) -> int:
        return self.in_features * self.out_features + 12 * self.out_features


# --- what this machine can do ---------------------------------------------------------------------------------------


@functools.cache
def nf4_kernel() -> Callable[..., None] | None:
    """bitsandbytes' CPU kernel, where the library has it and the processor runs it; else None."""
    try:
        from bitsandbytes.cextension import lib
        from bitsandbytes.functional import has_avx512bf16

        if not has_avx512bf16():
            return None
        kernel = lib.gemv_4bit_inference_cpu_nf4_bf16
        kernel.restype = None
        kernel.argtypes = [ctypes.c_int64] * 3 + [ctypes.c_void_p] * 4 + [ctypes.c_int64] * 3
        return kernel
    except (ImportError, AttributeError, OSError, RuntimeError):
        return None


@functools.cache
def int8_exact() -> bool:
    """True where oneDNN's int8 product is there, fast (VNNI) and exact; tried on a small product."""
    if "VNNI" not in _cpu_flags() or not hasattr(torch.ops.onednn, "qlinear_pointwise"):
        return False
    try:
        weight = torch.arange(-2048, 2048, dtype=torch.int32).remainder(255).sub(127).to(torch.int8).view(64, 64)
        layer = Int8Exact(weight, torch.ones(64), None, torch.float32)
        x = torch.arange(-64, 128, dtype=torch.float32).view(3, 64)
        return torch.allclose(layer(x), x @ weight.float().t(), rtol=1e-4)
    except (RuntimeError, TypeError):
        return False


@functools.cache
def _cpu_flags() -> str:
    try:
        return torch.backends.cpu.get_cpu_capability() + (" VNNI" if torch.cpu._is_vnni_supported() else "")
    except AttributeError:
        return ""
