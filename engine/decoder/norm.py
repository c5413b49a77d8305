"""RMS norm, fast where torch has no fused kernel for it.

On the CPU `F.rms_norm` is about ten small operations. The layer norm of [x, -x] is the same thing in one kernel: its mean is zero and its
variance the mean square of x. That kernel works row by row, so rows do not see each other (tested).
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor


class RmsNorm:
    """x (…, H) -> x / rms(x) · weight (H,)."""

    __slots__ = ("_eps", "_size", "_twice", "_weight")

    def __init__(self, weight: Tensor, eps: float) -> None:
        self._weight, self._eps = weight, eps
        self._size = weight.shape[0]
        self._twice = torch.cat((weight, weight)) if weight.device.type == "cpu" else None

    def __call__(self, x: Tensor) -> Tensor:
        if self._twice is None:
            return F.rms_norm(x, (self._size,), self._weight, self._eps)
        both = torch.cat((x, -x), dim=-1)
        return F.layer_norm(both, (2 * self._size,), self._twice, None, self._eps)[..., : self._size]
