"""Packed layers against what their numbers mean, and with the same bits for a row in any company."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from engine.decoder import linear
from engine.decoder.front import Front, Gate, RmsNorm
from engine.decoder.linear import NF4_BLOCK, TILE, Int8, Tiles, build, join, layout_for, pack

CPU = torch.device("cpu")
BF16 = torch.bfloat16
own = pytest.mark.skipif(not linear.own_kernels(), reason="our kernels do not run on this processor")
ODD = [(1, 64), (7, 5), (33, 17), (31, 128), (32, 64), (33, 64), (100, 192), (257, 320), (503, 576), (96, 1536)]


def some(n: int, k: int, seed: int = 0, strength: float = 1.0) -> Tensor:
    return torch.randn(n, k, generator=torch.Generator().manual_seed(seed + n * 1000 + k)) * strength


def same_bits_at_any_width(layer: linear.Linear, k: int, dtype: torch.dtype) -> None:
    """Each row alone against passes of 2 to 16 rows; outliers, zeros and tiny rows among them."""
    x = some(16, k, 5)
    x[3] *= 1e4
    x[4] = 0
    x[5] *= 1e-6
    x[6, 0] = 300.0
    x = x.to(dtype)
    alone = [layer(x[r : r + 1].clone())[0].clone() for r in range(16)]
    for n in range(2, 17):
        together = layer(x[:n].clone())
        for r in range(n):
            assert torch.equal(together[r], alone[r]), (n, r)
    assert torch.equal(layer(x[5:9])[2], alone[7])  # another place in the pass
    assert torch.equal(layer(x[::2])[3], alone[6])  # rows that do not lie together


# --- nf4 ----------------------------------------------------------------------------------------------------------------


def bnb_dequantized(weight: Tensor) -> Tensor:
    """bitsandbytes' own numbers; columns padded to whole blocks with zeros."""
    from bitsandbytes.functional import dequantize_4bit, quantize_4bit

    k = weight.shape[1]
    codes, state = quantize_4bit(F.pad(weight, (0, -k % NF4_BLOCK)).contiguous(), blocksize=NF4_BLOCK, quant_type="nf4")
    return dequantize_4bit(codes, state).float()[:, :k]


@own
@pytest.mark.parametrize("shape", ODD, ids=str)
def test_nf4_is_what_bitsandbytes_dequantizes(shape: tuple[int, int]) -> None:
    """Within the rounding of bf16 scales, products and results; also where N is no multiple of the kernel's tile."""
    weight = some(*shape)
    layer = build(pack(weight, "nf4_tiles", BF16), None, CPU, BF16)
    assert isinstance(layer, Tiles)
    x = some(6, shape[1], 1).to(BF16)
    expected = x.double() @ bnb_dequantized(weight).double().T
    got = layer(x)
    assert got.dtype == BF16
    assert got.shape == expected.shape
    size = (x.double().abs() @ bnb_dequantized(weight).double().abs().T) / shape[1] ** 0.5  # what random rounding errors scale with
    assert ((got.double() - expected).abs() <= 0.05 * size + 0.005 * expected.abs()).all()


@own
def test_whole_levels_are_as_good_as_the_published_ones() -> None:
    """The squared error of the whole scheme against bitsandbytes' own, over normally distributed weights."""
    weight = some(256, 1024)
    layer = build(pack(weight, "nf4_tiles", BF16), None, CPU, torch.float32)
    ours = torch.cat([layer(torch.eye(1024)[i : i + 16]) for i in range(0, 1024, 16)]).T
    theirs = bnb_dequantized(weight)
    assert ((ours - weight) ** 2).mean() < 1.005 * ((theirs - weight) ** 2).mean()


@own
def test_each_single_weight_is_at_its_place() -> None:
    """One hot input at a time reads the matrix back: the tiling, the halves of the bytes, the scales."""
    weight = some(70, 192)
    layer = build(pack(weight, "nf4_tiles", BF16), None, CPU, BF16)
    read = torch.cat([layer(torch.eye(192, dtype=BF16)[i : i + 16]) for i in range(0, 192, 16)]).T
    expected = bnb_dequantized(weight)
    largest = expected.view(70, 3, NF4_BLOCK).abs().amax(2, keepdim=True).expand(-1, -1, NF4_BLOCK).reshape(70, 192)
    assert ((read.float() - expected).abs() <= 0.5 / 113 * largest + 0.008 * expected.abs()).all()  # levels are whole 113ths


@own
@pytest.mark.parametrize("shape", ODD, ids=str)
def test_nf4_rows_have_the_same_bits_at_any_width(shape: tuple[int, int]) -> None:
    layer = build(pack(some(*shape), "nf4_tiles", BF16), None, CPU, BF16)
    assert layer.row_invariant
    same_bits_at_any_width(layer, shape[1], BF16)


@own
@pytest.mark.parametrize("n", [64, 70])
def test_nf4_bias_and_other_types(n: int) -> None:
    weight, bias, x = some(n, 128), some(1, n, 2)[0], some(3, 128, 3)
    plain = build(pack(weight, "nf4_tiles", BF16), None, CPU, BF16)(x.to(BF16))
    biased = build(pack(weight, "nf4_tiles", BF16), bias, CPU, BF16)
    wide = build(pack(weight, "nf4_tiles", BF16), None, CPU, torch.float32)(x.to(BF16))
    assert wide.dtype == torch.float32
    assert torch.equal(wide.to(BF16), plain)  # rounded to even, as torch does
    assert torch.equal(biased(x.to(BF16)), (wide + bias.to(BF16).float()).to(BF16))
    assert torch.equal(biased(x.to(BF16)), (wide + bias.to(BF16).float()).to(BF16))  # the first call changed nothing
    double = build(pack(weight, "nf4_tiles", BF16), None, CPU, torch.float64)(x.to(BF16).double())
    assert torch.equal(double, wide.double())
    channels = n + -n % TILE
    assert biased.nbytes == channels * 128 // 2 + channels * 2 * 2 + 64 + 2 * 4 * channels


@pytest.mark.parametrize("shape", [(33, 64), (100, 192)], ids=str)
def test_nf4_through_the_registered_operator(shape: tuple[int, int]) -> None:
    """The layout of CUDA, run on the CPU."""
    weight, bias, x = some(*shape), some(1, shape[0], 2)[0], some(4, shape[1], 1)
    expected = x @ bnb_dequantized(weight).T + bias
    layer = build(pack(weight, "nf4", torch.float32), bias, CPU, torch.float32)
    assert not layer.row_invariant
    assert torch.allclose(layer(x), expected, rtol=1e-3, atol=1e-2)


# --- int8 ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [(7, 5), (33, 17), (64, 64), (257, 130), (50, 1536)], ids=str)
def test_int8_weights_are_the_nearest_steps(shape: tuple[int, int]) -> None:
    weight = some(*shape)
    weight[0] = 0
    packed = pack(weight, "int8", BF16)
    codes, scale = packed.tensors["weight"], packed.tensors["scale"]
    assert codes.dtype == torch.int8
    assert ((codes.float() * scale[:, None] - weight).abs() <= scale[:, None] * 0.5001).all()
    assert (codes[1:].abs().amax(1) == 127).all()
    assert (codes[0] == 0).all()


def whole(x: Tensor) -> tuple[Tensor, Tensor]:
    """The 14-bit integers of each row, and their step."""
    largest = x.float().abs().amax(1, keepdim=True)
    return (x.float() * (8127.0 / largest)).round().to(torch.int64), largest / 8127.0


@own
@pytest.mark.parametrize("shape", [(7, 5), (33, 17), (257, 130), (50, 1536), (64, 9000)], ids=str)
def test_int8_products_are_exact_integers(shape: tuple[int, int]) -> None:
    """Nothing is rounded but the sums of 64 products, and what is made of them, to float32."""
    codes, scale = (pack(some(*shape), "int8", BF16).tensors[name] for name in ("weight", "scale"))
    layer = build(pack(some(*shape), "int8_tiles", BF16), None, CPU, torch.float32)
    assert isinstance(layer, Tiles)
    for strength in (1e-3, 1.0, 1e4):
        x = some(5, shape[1], 3, strength)
        rows, step = whole(x)
        expected = (rows @ codes.to(torch.int64).T).double() * step.double() * scale.double()
        assert torch.allclose(layer(x).double(), expected, rtol=1e-6, atol=float(expected.abs().max()) * 1e-5)
        true = x.double() @ (codes.double() * scale.double()[:, None]).T
        noise = step * scale * 127 * shape[1] ** 0.5
        assert ((layer(x).double() - true).abs() <= 2.5 * noise).all()  # 14 bits of an activation


@own
def test_the_largest_sums_do_not_overflow() -> None:
    """Weights and activations at their ends, of one sign, over a long row."""
    weight = torch.full((16, 16384), 127.0)
    for sign in (1.0, -1.0):
        x = torch.full((2, 16384), sign)
        assert torch.allclose(build(pack(weight, "int8_tiles", BF16), None, CPU, torch.float32)(x), x @ weight.T, rtol=1e-5)
        assert torch.allclose(build(pack(weight, "nf4_tiles", BF16), None, CPU, torch.float32)(x), x @ weight.T, rtol=2e-3)


@own
def test_tiny_rows_and_zeros() -> None:
    layer = build(pack(some(20, 64), "int8_tiles", BF16), None, CPU, torch.float32)
    x = some(1, 64, 1)
    for strength in (1e-3, 1e-20, 1e20):
        assert torch.allclose(layer(x * strength) / strength, layer(x), rtol=1e-4, atol=1e-4)
    assert torch.equal(layer(x * 1e-38), torch.zeros(1, 20))
    assert torch.equal(layer(torch.zeros(1, 64)), torch.zeros(1, 20))


@own
@pytest.mark.parametrize("dtype", [BF16, torch.float32], ids=str)
@pytest.mark.parametrize("shape", [(7, 5), (33, 17), (257, 130), (503, 576), (96, 1536)], ids=str)
def test_int8_rows_have_the_same_bits_at_any_width(shape: tuple[int, int], dtype: torch.dtype) -> None:
    layer = build(pack(some(*shape), "int8_tiles", BF16), some(1, shape[0], 2)[0], CPU, dtype)
    assert layer.row_invariant
    same_bits_at_any_width(layer, shape[1], dtype)


@own
def test_numbers_that_are_not_finite_come_through() -> None:
    """They must not turn into harmless integers: the sampler has to see them."""
    layer = build(pack(some(20, 64), "int8_tiles", BF16), None, CPU, torch.float32)
    x = some(3, 64, 1)
    clean = layer(x.clone())
    x[1, 5] = float("nan")
    assert not torch.isfinite(layer(x.clone())[1]).any()
    assert torch.equal(layer(x)[[0, 2]], clean[[0, 2]])
    x[1, 5] = float("inf")
    assert not torch.isfinite(layer(x)[1]).any()


@pytest.mark.parametrize("dtype", [BF16, torch.float32], ids=str)
def test_int8_without_the_exact_kernel(dtype: torch.dtype) -> None:
    weight, bias, x = some(96, 128), some(1, 96, 2)[0], some(16, 128, 1)
    packed = pack(weight, "int8", BF16)
    layer = Int8(packed.tensors["weight"], packed.tensors["scale"], bias.to(dtype), dtype)
    expected = x @ (packed.tensors["weight"].float() * packed.tensors["scale"][:, None]).T + bias
    assert torch.allclose(layer(x.to(dtype)).float(), expected, rtol=0.02, atol=0.15 if dtype == BF16 else 1e-3)
    if layer.row_invariant:
        same_bits_at_any_width(layer, 128, dtype)
    assert layer.row_invariant == (dtype == BF16)


# --- dense, and all -----------------------------------------------------------------------------------------------------


def test_dense_is_a_plain_product() -> None:
    weight, bias, x = some(7, 5), some(1, 7, 2)[0], some(3, 5, 1)
    layer = build(pack(weight, "dense", torch.float32), bias, CPU, torch.float32)
    assert torch.allclose(layer(x), x @ weight.T + bias, atol=1e-6)
    assert not layer.row_invariant
    assert layer.nbytes == 7 * 5 * 4
    assert pack(weight, "dense", BF16).tensors["weight"].dtype == BF16


@pytest.mark.parametrize("layout", ["dense", "int8", "nf4", "int8_tiles", "nf4_tiles"])
def test_blocks_packed_apart_and_joined_are_the_whole(layout: str) -> None:
    weight = some(150, 128)
    whole = pack(weight, layout, BF16)
    joined = join((pack(weight[a:b], layout, BF16) for a, b in ((0, 64), (64, 96), (96, 150))), 150)
    assert joined.shape == whole.shape == (150, 128)
    assert joined.layout == layout
    for name, tensor in whole.tensors.items():
        assert torch.equal(joined.tensors[name], tensor), name
    with pytest.raises(AssertionError):
        join([whole], 151)
    if layout.endswith("_tiles"):
        with pytest.raises(AssertionError):
            join([pack(weight[:33], layout, BF16), pack(weight[33:], layout, BF16)], 150)


@pytest.mark.parametrize("layout", ["dense", "int8", "nf4", "int8_tiles", "nf4_tiles"])
def test_packing_leaves_the_weight_alone_and_takes_any_float_type(layout: str) -> None:
    weight = some(40, 64)
    before = weight.clone()
    pack(weight, layout, BF16)
    assert torch.equal(weight, before)
    half = pack(weight.half(), layout, BF16)
    again = pack(weight.half().float(), layout, BF16)
    for name, tensor in half.tensors.items():
        assert torch.equal(tensor, again.tensors[name])
    # a matrix of a transposed file, or a slice of a larger one
    strided = pack(some(64, 40).T, layout, BF16)
    straight = pack(some(64, 40).T.contiguous(), layout, BF16)
    for name, tensor in strided.tensors.items():
        assert torch.equal(tensor, straight.tensors[name])


def test_the_layout_of_a_scheme() -> None:
    assert layout_for("int8", CPU, (5, 5)) == ("int8_tiles" if linear.own_kernels() else "int8")
    assert layout_for("int8", torch.device("cuda"), (5, 5)) == "int8"
    assert layout_for("bf16", CPU, (5, 64)) == "dense"
    assert layout_for("nf4", torch.device("cuda"), (5, 65)) == "dense"  # a kernel that cannot take the shape
    assert layout_for("nf4", CPU, (5, 65)) == ("nf4_tiles" if linear.own_kernels() else "dense")
    assert layout_for("nf4", torch.device("cuda"), (5, 64)) == "nf4"


def test_a_processor_without_the_kernels_gets_the_other_classes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(linear, "own_kernels", lambda: False)
    assert layout_for("nf4", CPU, (32, 64)) == "nf4"
    assert layout_for("int8", CPU, (32, 64)) == "int8"
    layer = build(pack(some(32, 64), "int8", BF16), None, CPU, BF16)
    assert isinstance(layer, Int8)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("size", [16, 576, 1536, 2304])
def test_the_fast_rms_norm_is_the_norm_and_rows_do_not_see_each_other(size: int, dtype: torch.dtype) -> None:
    made = torch.Generator().manual_seed(size)
    x = (torch.randn(16, size, generator=made) * 5).to(dtype)
    weight = torch.randn(size, generator=made).to(dtype)
    norm = RmsNorm(weight, 1e-6)
    out = norm(x)
    reference = torch.nn.functional.rms_norm(x.double(), (size,), weight.double(), 1e-6)
    assert torch.allclose(out.double(), reference, rtol={torch.bfloat16: 1e-2, torch.float32: 1e-5, torch.float64: 1e-12}[dtype], atol=1e-6)
    assert all(torch.equal(norm(x[:rows])[-1], out[rows - 1]) for rows in range(1, 17))
    assert all(torch.equal(norm(x[row : row + 1])[0], out[row]) for row in range(16))


# --- what stands in front, and what is added ----------------------------------------------------------------------------


def fronts(k: int, dtype: torch.dtype = BF16) -> dict[str, Front]:
    return {"norm": RmsNorm((some(1, k, 9)[0] * 0.1 + 1).to(dtype), 1e-5), "silu": Gate("silu"), "gelu": Gate("gelu")}


@pytest.mark.parametrize("name", ["norm", "silu", "gelu"])
@pytest.mark.parametrize("k", [64, 100, 576])
@pytest.mark.parametrize("layout", ["dense", "int8_tiles", "nf4_tiles"])
def test_a_front_on_the_way_in_is_the_front_before(layout: str, k: int, name: str) -> None:
    """Worked out in float32 on the way, it is a little better than in bf16 before; 100 columns are no whole block."""
    if layout.endswith("_tiles") and not linear.own_kernels():
        pytest.skip("our kernels do not run on this processor")
    front = fronts(k)[name]
    layer = build(pack(some(48, k), layout, BF16), None, CPU, BF16)
    x = some(9, k if name == "norm" else 2 * k, 4, 3.0).to(BF16)
    x[3] *= 30  # gates that are all but shut, or open
    exact = {
        "norm": lambda x: F.rms_norm(x, (k,), (some(1, k, 9)[0] * 0.1 + 1).to(BF16).double(), 1e-5),
        "silu": lambda x: F.silu(x[:, :k]) * x[:, k:],
        "gelu": lambda x: F.gelu(x[:, :k], approximate="tanh") * x[:, k:],
    }[name](x.double())
    weights = torch.cat([layer(torch.eye(k, dtype=BF16)[i : i + 16]) for i in range(0, k, 16)]).double().T  # as packed
    expected = exact @ weights.T
    size = exact.abs().amax(1, keepdim=True) * weights.norm(dim=1) + 1e-6
    assert ((layer(x, front).double() - expected).abs() <= 0.02 * size).all()
    add = some(9, 48, 6).to(BF16)
    got = layer(x, front, add)
    assert got.dtype == BF16
    assert torch.allclose(got.double(), (layer(x, front).double() + add.double()), rtol=0.01, atol=0.02 * float(size.max()))
    assert torch.equal(add, some(9, 48, 6).to(BF16))


@own
@pytest.mark.parametrize("name", ["norm", "silu", "gelu"])
def test_fronts_and_sums_keep_the_bits_of_a_row(name: str) -> None:
    front = fronts(192)[name]
    layer = build(pack(some(50, 192), "nf4_tiles", BF16), some(1, 50, 2)[0], CPU, BF16)
    x = some(33, 192 if name == "norm" else 384, 4).to(BF16)
    x[5] = 0
    add = some(33, 50, 6).to(BF16)
    alone = [layer(x[r : r + 1], front, add[r : r + 1])[0] for r in range(33)]
    for n in (2, 3, 4, 5, 8, 12, 13, 16, 33):
        together = layer(x[:n], front, add[:n])
        assert all(torch.equal(together[r], alone[r]) for r in range(n)), n


@own
@pytest.mark.parametrize("name", ["norm", "silu", "gelu"])
def test_fronts_let_through_what_is_not_finite(name: str) -> None:
    front = fronts(64)[name]
    layer = build(pack(some(20, 64), "int8_tiles", BF16), None, CPU, torch.float32)
    x = some(3, 64 if name == "norm" else 128, 1).to(BF16)
    for bad in (float("nan"), float("inf")):
        x[1, 5] = bad
        out = layer(x, front)
        assert not torch.isfinite(out[1]).any()
        assert torch.isfinite(out[[0, 2]]).all()
