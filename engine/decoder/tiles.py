"""Linear layers on our own CPU kernels (`engine.kernels`): 4 or 8 bits, exact integer sums, a norm or gate on the way in, a sum on the way
out.

A layer is called like any other, or bound: a task of its own at fixed addresses, for a list of kernels (`program`).
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from engine.decoder import nf4
from engine.decoder.front import Front, RmsNorm
from engine.kernels import machine
from engine.kernels.task import COUNT, GROUP, TILE, ZERO, Field

if TYPE_CHECKING:
    from engine.decoder.linear import Packed

NF4_ONE = 113  # bytes away from it stands the level 1: of all numbers up to 127 the one that rounds the sixteen levels best
_PLAIN = {torch.float32: 0, torch.bfloat16: 1}  # places in `engine.kernels.rows.SOURCES`
_BF16 = 1
_SOURCES = {"norm": 2, "silu": 3, "gelu": 4}


def padded(shape: tuple[int, int]) -> tuple[int, int]:
    """(N, K) in whole tiles."""
    return shape[0] + -shape[0] % TILE, shape[1] + -shape[1] % GROUP


class Tiles:
    """4 or 8 bits through our own kernels: no operator, one call with prepared addresses."""

    row_invariant = True

    def __init__(self, packed: Packed, bias: Tensor | None, dtype: torch.dtype) -> None:
        self.out_features, self.in_features = packed.shape
        compiled = machine.machine()
        assert compiled is not None
        four = packed.layout == "nf4_tiles"
        weight = packed.tensors["weight"].contiguous()
        wide = weight.shape[0]  # channels, padded to whole tiles
        scale = torch.full((wide,), 1.0 / NF4_ONE) if four else packed.tensors["scale"].float()
        offset = torch.zeros(wide) if bias is None else F.pad(bias.float(), (0, wide - self.out_features))
        groups = packed.tensors["absmax"].contiguous() if four else scale
        self._dtype = dtype
        self._out = torch.bfloat16 if dtype == torch.bfloat16 else torch.float32
        self.kernel = compiled.nf4 if four else compiled.int8
        self._held = (weight, groups, _levels(), offset, scale)  # what the addresses below point at
        self._deep = padded(packed.shape)[1]
        self._task = np.zeros(COUNT, dtype=np.int64)
        for field, tensor in zip((Field.WEIGHTS, Field.SCALES, Field.TABLE, Field.BIAS, Field.CHANNEL), self._held, strict=True):
            self._task[field] = tensor.data_ptr()
        self._task[Field.N], self._task[Field.K], self._task[Field.NARROW] = self.out_features, self._deep, self._out == torch.bfloat16
        self._address = self._task.ctypes.data

    def __call__(self, x: Tensor, front: Front | None = None, add: Tensor | None = None) -> Tensor:
        task, deep = self._task, self._deep
        source = _PLAIN.get(x.dtype, -1)
        if front is not None and source == _BF16 and deep == self.in_features:
            source = _before(task, front)
        elif front is not None:
            return self(front(x), None, add)
        if source < 0:
            return self(x.float(), None, add)
        if add is not None and (add.dtype != self._out or self._dtype != self._out):
            return add + self(x, front)
        x = x.contiguous() if deep == self.in_features else F.pad(x, (0, deep - self.in_features))
        rows = x.shape[0]
        out = torch.empty((rows, self.out_features), dtype=self._out)
        before = None if add is None else add.contiguous()
        scratch = torch.empty(self.scratch(rows), dtype=torch.uint8)
        _lay(task, rows, deep, scratch.data_ptr())
        task[Field.ADD] = 0 if before is None else before.data_ptr()
        task[Field.OUT], task[Field.SOURCE] = out.data_ptr(), source
        self.kernel(self._address, x.data_ptr(), torch.get_num_threads())
        return out if self._out == self._dtype else out.to(self._dtype)

    def scratch(self, rows: int) -> int:
        """Bytes that a call with so many rows needs for the time."""
        return rows * (6 * self._deep + self._deep // 8 + 4)

    def bind(self, rows: int, scratch: int, out: int, front: Front | None = None, add: int = 0) -> np.ndarray:
        """A task of its own for `rows` rows of bf16 at fixed addresses, for a list of kernels; (fields,) int64."""
        assert self._out == torch.bfloat16 == self._dtype
        assert self._deep == self.in_features
        task = self._task.copy()
        task[Field.SOURCE] = _BF16 if front is None else _before(task, front)
        _lay(task, rows, self._deep, scratch)
        task[Field.OUT], task[Field.ADD] = out, add
        return task

    @property
    def bindable(self) -> bool:
        """Whether `bind` can be used: bf16 in and out, whole groups of columns."""
        return self._out == torch.bfloat16 and self._deep == self.in_features

    @property
    def nbytes(self) -> int:
        return sum(t.nbytes for t in self._held)


def _before(task: np.ndarray, front: Front) -> int:
    """Tell a task what stands in front of the product; returns the kernels' number of it."""
    if isinstance(front, RmsNorm):
        task[Field.NORM], task[Field.EPS] = front.address, front.eps_bits
    return _SOURCES[front.name]


def _lay(task: np.ndarray, rows: int, deep: int, scratch: int) -> None:
    """Places of the kernel's intermediate numbers, from address `scratch` on."""
    parts = scratch + 4 * rows * deep
    starts = parts + 2 * rows * deep
    task[Field.VALUES], task[Field.PARTS], task[Field.STARTS], task[Field.STEPS] = scratch, parts, starts, starts + rows * (deep // 8)
    task[Field.M] = rows


@functools.cache
def _levels() -> Tensor:
    """The sixteen levels as unsigned bytes, four times: a register of the look-up. On normally distributed weights their rounding
    changes the squared error that four bits have anyway by less than half a percent (a test says so)."""
    return torch.tensor([round(NF4_ONE * level) + ZERO for level in nf4.LEVELS], dtype=torch.uint8).repeat(4)
