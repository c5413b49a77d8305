"""Code that turns rows of activations into integers, and what can be done on the way: an RMS norm, or a gate.

A row becomes 14-bit integers, x ≈ step·(128·high + low) with both parts in [-64, 63]. Scratch for M rows: parts (M, 2, K) int8;
starts (M, 2, K/64) int32, which are -128 times the sums of each 64 integers; steps (M) float32; for gates values (M, K) float32.
Everything is done row by row in a fixed order, so a row's integers do not depend on its company.
"""

from __future__ import annotations

from llvmlite import ir

from engine.kernels.emit import F32, I8, I32, I64, PTR, VOID, Code, Value, vec
from engine.kernels.task import GROUP, ZERO, Field

BITS = 7  # of the low part
LIMIT = 63 * 128 + 63  # largest integer of a row
N = 16
V = vec(F32, N)
SOURCES = ("float32", "bf16", "norm", "silu", "gelu")  # the last three read bf16


def quantize(module: ir.Module, source: str) -> None:
    """Emit `rows_SOURCE` (task, x, first row, last row).

    `norm`: x / rms(x) · weight. `silu`, `gelu`: x holds gate | up, 2K wide, and act(gate)·up is taken (gelu in its tanh form).
    """
    c = Code(module, f"rows_{source}", VOID, [PTR, PTR, I64, I64])
    task, x, first, last = c.args
    parts, starts, steps, values, weight = (
        c.load(task, f.at, PTR) for f in (Field.PARTS, Field.STARTS, Field.STEPS, Field.VALUES, Field.NORM)
    )
    k = c.load(task, Field.K.at, I64)
    groups = c.b.udiv(k, I64(GROUP))
    gated = source in ("silu", "gelu")
    with c.loop(first, last) as row_loop:
        row = row_loop.index
        here = c.at(x, c.mul(c.mul(row, k), 4 if source in ("float32", "silu", "gelu") else 2))
        kept = c.at(values, c.mul(c.mul(row, k), 4))

        def read(at: Value, here: Value = here, kept: Value = kept) -> Value:
            if gated:
                return c.load(kept, c.mul(at, 4), V)
            value = c.load(here, c.mul(at, 4), V) if source == "float32" else c.widened(here, c.mul(at, 2), N)
            return c.b.fmul(value, c.load(weight, c.mul(at, 4), V)) if source == "norm" else value

        if gated:
            with c.loop(0, k, step=N) as gate_loop:
                at = gate_loop.index
                gate, up = c.widened(here, c.mul(at, 2), N), c.widened(here, c.mul(c.add(at, k), 2), N)
                c.store(c.b.fmul(_act(c, source, gate), up), kept, c.mul(at, 4))
        zero = c.constant(F32, N, 0.0)
        with c.loop(0, k, [c.constant(I32, N, 0), zero], step=N) as search:
            at = search.index
            bits = c.b.bitcast(read(at), vec(I32, N))
            size = c.b.and_(bits, c.constant(I32, N, 0x7FFFFFFF))
            squares = search.state[1]
            if source == "norm":
                plain = c.widened(here, c.mul(at, 2), N)
                squares = c.call(f"llvm.fma.v{N}f32", V, plain, plain, squares)
            search.next = [c.call(f"llvm.smax.v{N}i32", vec(I32, N), search.state[0], size), squares]
        # compared as integers, so that NaN and infinity win
        largest_bits = c.call(f"llvm.vector.reduce.smax.v{N}i32", I32, search.state[0])
        largest = c.b.bitcast(largest_bits, F32)
        finite = c.b.icmp_signed("<", largest_bits, I32(0x7F800000))
        some = c.b.icmp_signed(">", largest_bits, I32(0x0D000000))  # below 4e-31 all is nothing: its inverse would be infinite
        step = c.b.fdiv(largest, F32(LIMIT))
        if source == "norm":
            eps = c.load(task, Field.EPS.at, F32)
            step = c.b.fmul(step, c.inverse_rms(search.state[1], N, c.b.sitofp(k, F32), eps))
        step = c.b.select(some, step, F32(0.0))
        c.store(c.b.select(finite, step, F32(float("nan"))), steps, c.mul(row, 4))
        inverse = c.b.select(c.b.and_(some, finite), c.b.fdiv(F32(LIMIT), largest), F32(0.0))
        high_row = c.at(parts, c.mul(c.mul(row, k), 2))
        low_row = c.at(high_row, k)
        start_row = c.at(starts, c.mul(c.mul(row, groups), 8))
        with c.loop(0, groups) as group:
            sums = [c.constant(I32, N, 0)] * 2
            for piece in range(GROUP // N):
                at = c.add(c.mul(group.index, GROUP), piece * N)
                scaled = c.call(f"llvm.rint.v{N}f32", V, c.b.fmul(read(at), c.splat(inverse, N)))
                whole = c.call(f"llvm.fptosi.sat.v{N}i32.v{N}f32", vec(I32, N), scaled)
                high = c.b.ashr(c.b.add(whole, c.constant(I32, N, 1 << (BITS - 1))), c.constant(I32, N, BITS))
                low = c.b.sub(whole, c.b.shl(high, c.constant(I32, N, BITS)))
                for i, (part, where) in enumerate(((high, high_row), (low, low_row))):
                    c.store(c.b.trunc(part, vec(I8, N)), where, at)
                    sums[i] = c.b.add(sums[i], part)
            for i, where in enumerate((start_row, c.at(start_row, c.mul(groups, 4)))):
                total = c.call(f"llvm.vector.reduce.add.v{N}i32", I32, sums[i])
                c.store(c.b.mul(total, I32(-ZERO)), where, c.mul(group.index, 4))
    c.b.ret_void()


def _act(c: Code, name: str, x: Value) -> Value:
    """silu(x) = x·σ(x); gelu(x) = x·σ(2·√(2/π)·(x + 0.044715·x³)), which is its tanh form."""
    z = x
    if name == "gelu":
        square = c.b.fmul(x, x)
        inner = c.call(f"llvm.fma.v{N}f32", V, square, c.constant(F32, N, 0.044715), c.constant(F32, N, 1.0))
        z = c.b.fmul(c.b.fmul(x, inner), c.constant(F32, N, 1.5957691216057308))
    one = c.constant(F32, N, 1.0)
    return c.b.fdiv(x, c.b.fadd(one, exp(c, c.b.fneg(z))))


def exp(c: Code, x: Value) -> Value:
    """e^x: 2^n by the exponent's bits, times the series of the rest, which lies within ln 2 / 2 (to 2e-7, relative)."""
    low, high = c.constant(F32, N, -87.0), c.constant(F32, N, 87.0)
    x = c.b.select(c.b.fcmp_ordered("<", x, low), low, x)
    x = c.b.select(c.b.fcmp_ordered(">", x, high), high, x)
    n = c.call(f"llvm.rint.v{N}f32", V, c.b.fmul(x, c.constant(F32, N, 1.4426950408889634)))
    rest = c.call(f"llvm.fma.v{N}f32", V, n, c.constant(F32, N, -0.693145751953125), x)
    rest = c.call(f"llvm.fma.v{N}f32", V, n, c.constant(F32, N, -1.4286068203094173e-06), rest)
    series = c.constant(F32, N, 1.0 / 720)
    for factor in (1.0 / 120, 1.0 / 24, 1.0 / 6, 0.5, 1.0, 1.0):
        series = c.call(f"llvm.fma.v{N}f32", V, series, rest, c.constant(F32, N, factor))
    whole = c.call(f"llvm.fptosi.sat.v{N}i32.v{N}f32", vec(I32, N), n)
    bits = c.b.add(c.b.bitcast(series, vec(I32, N)), c.b.shl(whole, c.constant(I32, N, 23)))
    return c.b.bitcast(bits, V)
