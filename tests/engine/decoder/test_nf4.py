"""Quantizing to NF4 gives bitsandbytes' own bits."""

from __future__ import annotations

import pytest
import torch

from engine.decoder import nf4


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("shape", [(1, 64), (33, 128), (96, 1536)])
def test_the_same_bits_as_bitsandbytes(shape: tuple[int, int], dtype: torch.dtype) -> None:
    from bitsandbytes.functional import quantize_4bit

    weight = torch.randn(shape, generator=torch.Generator().manual_seed(3)).mul_(0.05).to(dtype)
    weight[0, :64] = 0.0  # a block without any scale
    if shape[0] > 2:
        weight[1, :15] = torch.tensor([float((a + b) / 2) for a, b in zip(nf4.LEVELS[:-1], nf4.LEVELS[1:], strict=True)]).to(dtype)
        weight[1, 15] = 1.0  # the bounds themselves
        weight[2] *= 1e-30 if dtype != torch.float16 else 1e-3
    codes, absmax = nf4.quantize(weight)
    theirs, state = quantize_4bit(weight, blocksize=nf4.BLOCK, quant_type="nf4")
    assert torch.equal(codes.view(-1), theirs.view(torch.uint8).view(-1))
    assert torch.equal(absmax.view(-1), state.absmax.float())
