"""Whether bf16 products make training faster on this machine: measured, since a processor may have them and be no faster."""

from __future__ import annotations

from time import perf_counter

import torch
import torch.nn.functional as F

from engine.training.protocol import Precision

ROWS, WIDE = 512, 1024  # of the product that is timed
TIMES = 3
WORTH = 1.25  # below, float32 is kept: it is exact


def choose(asked: Precision, device: torch.device) -> str:
    """fp32 or bf16."""
    if asked != "auto":
        return asked
    if device.type == "cuda":
        return "bf16" if torch.cuda.is_bf16_supported() else "fp32"
    if device.type != "cpu":
        return "fp32"
    return "bf16" if _seconds(torch.float32) > WORTH * _seconds(torch.bfloat16) else "fp32"


def _seconds(dtype: torch.dtype) -> float:
    """The quickest of a few products forth and back."""
    x = torch.randn((ROWS, WIDE), dtype=dtype).requires_grad_()
    weight = torch.randn((WIDE, WIDE), dtype=dtype).requires_grad_()
    times = []
    for _ in range(TIMES + 1):  # the first one warms up
        begun = perf_counter()
        F.linear(x, weight).float().sum().backward()
        times.append(perf_counter() - begun)
    return min(times[1:])
