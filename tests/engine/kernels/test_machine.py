"""The compiled kernels on each instruction set that this processor has, and joined to OpenMP in each way."""

from __future__ import annotations

import pytest
import torch
from llvmlite import binding

from engine.decoder import linear
from engine.decoder.front import Gate, RmsNorm
from engine.kernels import machine as machines
from engine.kernels.isa import AVX2, AVX512, AVXVNNI, Isa, host
from engine.kernels.machine import Machine
from engine.kernels.threads import runtime

pytestmark = pytest.mark.skipif(machines.machine() is None, reason="our kernels do not run on this processor")
FEATURES = {"avx512": "avx512vnni", "avxvnni": "avxvnni", "avx2": "avx2"}


def has(isa: Isa) -> bool:
    return bool(binding.get_host_cpu_features().get(FEATURES[isa.name]))


def products(monkeypatch: pytest.MonkeyPatch, machine: Machine, threads: int) -> list[torch.Tensor]:
    """Both kinds, several shapes and numbers of rows, float32 and bf16."""
    monkeypatch.setattr(machines, "machine", lambda: machine)
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        out = []
        for layout in ("nf4_tiles", "int8_tiles"):
            for n, k in ((40, 64), (129, 320), (16, 1536)):
                made = torch.Generator().manual_seed(n)
                weight, x = torch.randn(n, k, generator=made), torch.randn(11, k, generator=made)
                for dtype in (torch.float32, torch.bfloat16):
                    layer = linear.build(linear.pack(weight, layout, dtype), torch.randn(n, generator=made), torch.device("cpu"), dtype)
                    out += [layer(x[:rows].to(dtype)) for rows in (1, 2, 3, 4, 5, 11)]
                    out += [layer(x.repeat(3, 1).to(dtype))]
                norm, twice = RmsNorm(torch.rand(k, generator=made).bfloat16(), 1e-6), torch.cat((x, x.flip(1)), 1).bfloat16()
                add = torch.randn(11, n, generator=made).bfloat16()
                out += [layer(x[:rows].bfloat16(), norm, add[:rows]) for rows in (1, 5, 11)]
                out += [layer(twice[:rows], Gate(name)) for rows in (1, 5, 11) for name in ("silu", "gelu")]
        return out
    finally:
        torch.set_num_threads(before)


@pytest.fixture(scope="module")
def own() -> Machine:
    machine = machines.machine()
    assert machine is not None
    return machine


@pytest.mark.parametrize("isa", [AVX512, AVXVNNI, AVX2], ids=lambda isa: isa.name)
def test_every_instruction_set_gives_the_same_bits(monkeypatch: pytest.MonkeyPatch, own: Machine, isa: Isa) -> None:
    if not has(isa):
        pytest.skip("not on this processor")
    expected = products(monkeypatch, own, 1)
    got = products(monkeypatch, Machine(isa, runtime()), 2)
    assert all(torch.equal(a, b) for a, b in zip(expected, got, strict=True))


def test_the_number_of_threads_changes_nothing(monkeypatch: pytest.MonkeyPatch, own: Machine) -> None:
    expected = products(monkeypatch, own, 1)
    for threads in (2, 3, 5):
        got = products(monkeypatch, own, threads)
        assert all(torch.equal(a, b) for a, b in zip(expected, got, strict=True))


def test_threads_are_those_of_torch(own: Machine) -> None:
    """Kernels and torch operations in turn do not add up to two pools."""
    import os

    def tasks() -> int:
        return len(os.listdir("/proc/self/task"))  # noqa: PTH208

    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        layer = linear.Tiles(linear.pack(torch.randn(4096, 512), "nf4_tiles", torch.float32), None, torch.float32)
        x = torch.randn(4, 512)
        layer(x)
        torch.randn(2000, 2000) @ torch.randn(2000, 2000)
        count = tasks()
        for _ in range(5):
            layer(x)
            torch.randn(1000, 1000).exp()
        assert tasks() == count
    finally:
        torch.set_num_threads(before)


def test_without_instructions_or_runtime_there_is_no_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    build = machines.machine.__wrapped__
    monkeypatch.setattr(machines, "host", lambda: None)
    assert build() is None
    monkeypatch.setattr(machines, "host", host)
    monkeypatch.setattr(machines, "runtime", dict)
    assert build() is None
