"""The exact integer product, on the CPU's own `_int_mm`."""

from __future__ import annotations

import pytest
import torch

from engine.cuda import int8
from engine.cuda.int8 import ExactInt8
from engine.decoder.linear import pack


def layer(n: int, k: int, bias: bool = False, dtype: torch.dtype = torch.bfloat16) -> tuple[ExactInt8, torch.Tensor]:
    torch.manual_seed(n + k)
    weight = torch.randn(n, k)
    tensors = pack(weight, "int8", dtype).tensors
    offset = torch.randn(n, dtype=dtype) if bias else None
    exact = tensors["weight"].double() * tensors["scale"].double()[:, None]
    return ExactInt8(tensors["weight"], tensors["scale"], offset, dtype), exact


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize(("n", "k"), [(48, 64), (33, 100), (257, 1536)])
def test_rows_have_the_same_bits_at_any_number(n: int, k: int, dtype: torch.dtype) -> None:
    product, _ = layer(n, k, bias=True, dtype=dtype)
    x = torch.randn(40, k).to(dtype)
    x[:, 3] *= 100
    whole = product(x)
    assert whole.dtype == dtype
    for rows in (1, 2, 3, 8, 15, 16, 17, 33):
        assert torch.equal(product(x[:rows]), whole[:rows]), rows
    assert torch.equal(product(x.flip(0)), whole.flip(0))


def test_two_parts_keep_fifteen_bits() -> None:
    """Activations in 8 bits alone would be off by some percent."""
    product, weight = layer(64, 512, dtype=torch.float32)
    x = torch.randn(5, 512)
    x[:, 9] = 40.0
    exact = x.double() @ weight.t()
    error = (product(x).double() - exact).abs().max() / exact.abs().max()
    assert error < 5e-4
    high = (x / (40 / 127)).round() * (40 / 127)
    assert (high.double() @ weight.t() - exact).abs().max() / exact.abs().max() > 50 * error


def test_a_sum_of_zeros_stays_zero() -> None:
    product, _ = layer(16, 64)
    assert torch.equal(product(torch.zeros(2, 64, dtype=torch.bfloat16)), torch.zeros(2, 16, dtype=torch.bfloat16))


def test_it_is_tried_before_it_is_used() -> None:
    assert int8.possible(torch.device("cpu"))
