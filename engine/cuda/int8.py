"""8-bit weights on a card: whole numbers in, whole numbers out, so that a row's sums are exact and the same at any number of rows.

Each row of activations is split into two parts of 8 bits, x ≈ s · (high + low / 254), which together keep about fifteen bits; both go
through one integer product (`torch._int_mm`), whose sums are exact in any order. Weights stay at one byte and are read once.
"""

from __future__ import annotations

import functools

import torch
import torch.nn.functional as F
from torch import Tensor

from engine.decoder.front import Front

LEAST = 32  # rows of the integer product: cuBLAS takes no fewer than 17
WHOLE = 16  # columns and channels must come in multiples of this
PART = 254.0  # the low part counts in steps of 1/254 of a high one's


class ExactInt8:
    """x (M, K) -> W · x, weights (N, K) int8 with a scale (N,) each."""

    row_invariant = True

    def __init__(self, weight: Tensor, scale: Tensor, bias: Tensor | None, dtype: torch.dtype) -> None:
        self.out_features, self.in_features = weight.shape
        n, k = weight.shape
        self._weight = F.pad(weight, (0, -k % WHOLE, 0, -n % WHOLE)).contiguous()
        self._scale, self._bias, self._dtype = scale.float(), bias, dtype

    def __call__(self, x: Tensor, front: Front | None = None, add: Tensor | None = None) -> Tensor:
        out = self._product(x if front is None else front(x))
        return out if add is None else add + out

    def _product(self, x: Tensor) -> Tensor:
        rows, x = x.shape[0], x.float()
        step = x.abs().amax(1, keepdim=True).clamp_min(1e-30) / 127.0  # (M, 1)
        x = x / step
        high = x.round()
        both = torch.cat((high, ((x - high) * PART).round())).to(torch.int8)  # (2M, K)
        both = F.pad(both, (0, self._weight.shape[1] - self.in_features, 0, max(0, LEAST - 2 * rows)))
        sums = torch._int_mm(both, self._weight.t())[: 2 * rows, : self.out_features].float()
        out = ((sums[:rows] + sums[rows:] / PART) * step * self._scale).to(self._dtype)
        return out if self._bias is None else out + self._bias

    @property
    def nbytes(self) -> int:
        return self._weight.nbytes + self._scale.nbytes


@functools.cache
def possible(device: torch.device) -> bool:
    """Whether the integer product runs here; tried on a small one."""
    a = torch.arange(-1024, 1024, device=device).remainder(255).sub(127).to(torch.int8).view(LEAST, 64)
    try:
        return torch.equal(torch._int_mm(a, a.t()).cpu(), (a.cpu().long() @ a.cpu().long().t()).int())
    except (RuntimeError, AttributeError):
        return False
