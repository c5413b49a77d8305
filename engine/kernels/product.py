"""Code of the packed matrix product: y (M, N) = x (M, K) · W (N, K)^T, W in 4 or 8 bits, in exact integer arithmetic.

A row of x becomes 14-bit integers, x ≈ s·(128·high + low) with both parts in [-64, 63], so that a weight is read once and multiplied by
bytes. W is stored in tiles of 16 output channels; the 64 weights of a channel that share a scale are summed in int32 without any
rounding, then scaled and added up in float32, in the order of K. A row's result therefore has the same bits however many rows, threads
or vector lanes take part: DESIGN 5's row invariance holds by construction.

Weights are unsigned bytes (level + 128), which the processor's byte product asks for; 128·sum(x) is taken off by where the sums start.

Scratch, filled by `quantize_TYPE` for M rows: parts (M, 2, K) int8; starts (M, 2, K/64) int32; steps (M) float32.
"""

from __future__ import annotations

from llvmlite import ir

from engine.kernels.emit import F32, I8, I16, I32, I64, PTR, VOID, Code, Value, vec
from engine.kernels.isa import Isa

GROUP = 64  # weights of a channel that share a scale
TILE = 16  # channels stored together
BITS = 7  # of the low part
LIMIT = 63 * 128 + 63  # largest integer of a row
AHEAD = 4096  # bytes of weights asked for before they are needed: the processor itself does not look beyond a page
ZERO = 128  # the unsigned byte that stands for 0
KINDS = {"nf4": GROUP // 2, "int8": GROUP}  # bytes of one channel's group


def quantize(module: ir.Module, wide: bool) -> None:
    """Emit `quantize_f32` or `quantize_bf16` (x, parts, starts, steps, M, K)."""
    c = Code(module, "quantize_f32" if wide else "quantize_bf16", VOID, [PTR, PTR, PTR, PTR, I64, I64])
    x, parts, starts, steps, rows, k = c.args
    n = 16

    def values(row: Value, at: Value) -> Value:
        if wide:
            return c.load(row, c.mul(at, 4), vec(F32, n))
        half = c.b.zext(c.load(row, c.mul(at, 2), vec(I16, n)), vec(I32, n))
        return c.b.bitcast(c.b.shl(half, c.constant(I32, n, 16)), vec(F32, n))

    with c.loop(0, rows) as row_loop:
        row = row_loop.index
        source = c.at(x, c.mul(c.mul(row, k), 4 if wide else 2))
        with c.loop(0, k, [c.constant(I32, n, 0)], step=n) as search:
            bits = c.b.bitcast(values(source, search.index), vec(I32, n))
            size = c.b.and_(bits, c.constant(I32, n, 0x7FFFFFFF))
            search.next = [c.call(f"llvm.smax.v{n}i32", vec(I32, n), search.state[0], size)]
        # compared as integers, so that NaN and infinity win
        largest_bits = c.call(f"llvm.vector.reduce.smax.v{n}i32", I32, search.state[0])
        largest = c.b.bitcast(largest_bits, F32)
        finite = c.b.icmp_signed("<", largest_bits, I32(0x7F800000))
        some = c.b.icmp_signed(">", largest_bits, I32(0x0D000000))  # below 4e-31 all is nothing: its inverse would be infinite
        step = c.b.select(some, c.b.fdiv(largest, F32(LIMIT)), F32(0.0))
        c.store(c.b.select(finite, step, F32(float("nan"))), steps, c.mul(row, 4))
        inverse = c.b.select(c.b.and_(some, finite), c.b.fdiv(F32(LIMIT), largest), F32(0.0))
        high_row = c.at(parts, c.mul(c.mul(row, k), 2))
        low_row = c.at(high_row, k)
        start_row = c.at(starts, c.mul(c.b.udiv(c.mul(row, k), I64(GROUP)), 8))
        groups = c.b.udiv(k, I64(GROUP))
        with c.loop(0, groups) as group:
            sums = [c.constant(I32, n, 0)] * 2
            for piece in range(GROUP // n):
                at = c.add(c.mul(group.index, GROUP), piece * n)
                scaled = c.b.fmul(values(source, at), c.splat(inverse, n))
                whole = c.call(f"llvm.fptosi.sat.v{n}i32.v{n}f32", vec(I32, n), c.call(f"llvm.rint.v{n}f32", vec(F32, n), scaled))
                high = c.b.ashr(c.b.add(whole, c.constant(I32, n, 1 << (BITS - 1))), c.constant(I32, n, BITS))
                low = c.b.sub(whole, c.b.shl(high, c.constant(I32, n, BITS)))
                for i, (part, where) in enumerate(((high, high_row), (low, low_row))):
                    c.store(c.b.trunc(part, vec(I8, n)), where, at)
                    sums[i] = c.b.add(sums[i], part)
            for i, where in enumerate((start_row, c.at(start_row, c.mul(groups, 4)))):
                total = c.call(f"llvm.vector.reduce.add.v{n}i32", I32, sums[i])
                c.store(c.b.mul(total, I32(-ZERO)), where, c.mul(group.index, 4))
    c.b.ret_void()


def tile(module: ir.Module, isa: Isa, kind: str, rows: int) -> None:
    """Emit `KIND_ROWS` (weights, scales, table, parts, starts, out, K): `rows` rows against one tile.

    `weights`, `scales` point at the tile, `parts` and `starts` at the first row; `out` (rows, 16) float32 takes the sums, not yet scaled
    by the rows' steps. For int8 the channel scales are applied by whoever stores the result, and `scales` and `table` are not read.
    """
    c = Code(module, f"{kind}_{rows}", VOID, [PTR, PTR, PTR, PTR, PTR, PTR, I64])
    weights, scales, table, parts, starts, out, k = c.args
    n, width = isa.lanes, 4 * isa.lanes
    groups = c.b.udiv(k, I64(GROUP))
    levels = c.load(table, 0, vec(I8, width)) if kind == "nf4" else None
    mask = c.constant(I8, width, 15)
    row_bytes, row_starts = c.mul(k, 2), c.mul(groups, 8)
    for half in range(TILE // n):
        zero = c.constant(F32, n, 0.0)
        with c.loop(0, groups, [zero] * rows) as group:
            g = group.index
            block = c.at(weights, c.add(c.mul(g, KINDS[kind] * TILE), half * width))
            sums = []
            for r in range(rows):
                for part in range(2):
                    where = c.add(c.add(c.mul(row_starts, r), c.mul(groups, 4 * part)), c.mul(g, 4))
                    sums.append(c.splat(c.load(starts, where, I32), n))
            for i in range(8 if kind == "nf4" else 16):
                raw = c.load(block, i * 4 * TILE, vec(I8, width))
                if half == 0:
                    c.prefetch(block, i * 4 * TILE + AHEAD)
                if levels is not None:
                    wide = c.b.bitcast(raw, vec(I16, width // 2))
                    upper = c.b.bitcast(c.b.lshr(wide, c.constant(I16, width // 2, 4)), vec(I8, width))
                    steps = [isa.lookup(c, levels, c.b.and_(b, mask)) for b in (raw, upper)]
                else:
                    steps = [raw]
                for j, bytes_ in enumerate(steps):
                    column = c.add(c.mul(g, GROUP), 4 * (i * len(steps) + j))
                    for r in range(rows):
                        for part in range(2):
                            where = c.add(c.add(c.mul(row_bytes, r), c.mul(k, part)), column)
                            four = c.b.bitcast(c.splat(c.load(parts, where, I32), n), vec(I8, width))
                            sums[2 * r + part] = isa.dot(c, sums[2 * r + part], bytes_, four)
            scale = None
            if kind == "nf4":
                half_bits = c.load(scales, c.add(c.mul(g, 2 * TILE), 2 * n * half), vec(I16, n))
                scale = c.b.bitcast(c.b.shl(c.b.zext(half_bits, vec(I32, n)), c.constant(I32, n, 16)), vec(F32, n))
            for r in range(rows):
                whole = c.b.add(c.b.shl(sums[2 * r], c.constant(I32, n, BITS)), sums[2 * r + 1])
                value = c.b.sitofp(whole, vec(F32, n))
                total = group.state[r]
                total = c.b.fadd(total, value) if scale is None else c.call(f"llvm.fma.v{n}f32", vec(F32, n), value, scale, total)
                group.next = [*group.next[:r], total, *group.next[r + 1 :]]
        for r in range(rows):
            c.store(group.state[r], out, 4 * (TILE * r + n * half))
    c.b.ret_void()


def product(module: ir.Module, isa: Isa, kind: str) -> None:
    """Emit `KIND` (task, first, last): all rows against the tiles [first, last).

    `task`: weights, scales, table, parts, starts, steps, bias, channel scales, out, M, N, K, out is bf16. `bias` and
    channel scales are float32 for N channels, padded to whole tiles.
    """
    c = Code(module, kind, VOID, [PTR, I64, I64])
    task, first, last = c.args
    weights, scales, table, parts, starts, steps, bias, channel, out = (c.load(task, 8 * i, PTR) for i in range(9))
    m, n_out, k, narrow = (c.load(task, 8 * (9 + i), I64) for i in range(4))
    groups = c.b.udiv(k, I64(GROUP))
    sums = c.room(4 * TILE * isa.most_rows)
    with c.loop(first, last) as tiles:
        t = tiles.index
        w = c.at(weights, c.mul(c.mul(groups, t), KINDS[kind] * TILE))
        s = c.at(scales, c.mul(c.mul(groups, t), 2 * TILE))
        offset = c.load(bias, c.mul(t, 4 * TILE), vec(F32, TILE))
        by_channel = c.load(channel, c.mul(t, 4 * TILE), vec(F32, TILE))
        with c.loop(0, m, step=isa.most_rows) as block:
            r0 = block.index
            p, z = c.at(parts, c.mul(c.mul(r0, k), 2)), c.at(starts, c.mul(c.mul(r0, groups), 8))
            left = c.b.sub(m, r0)
            count = c.b.select(c.b.icmp_signed("<", left, I64(isa.most_rows)), left, I64(isa.most_rows))
            done = c.function.append_basic_block("done")
            switch = c.b.switch(count, done)
            for rows in range(1, isa.most_rows + 1):
                case = c.function.append_basic_block(f"rows{rows}")
                switch.add_case(I64(rows), case)
                c.b.position_at_end(case)
                c.b.call(module.globals[f"{kind}_{rows}"], [w, s, table, p, z, sums, k])
                c.b.branch(done)
            c.b.position_at_end(done)
            with c.loop(0, count) as rows_loop:
                r = c.add(r0, rows_loop.index)
                total = c.load(sums, c.mul(rows_loop.index, 4 * TILE), vec(F32, TILE))
                step = c.splat(c.load(steps, c.mul(r, 4), F32), TILE)
                y = c.b.fadd(c.b.fmul(c.b.fmul(total, by_channel), step), offset)
                place = c.add(c.mul(r, n_out), c.mul(t, TILE))
                _store(c, y, out, place, c.b.sub(n_out, c.mul(t, TILE)), narrow)
    c.b.ret_void()


def _store(c: Code, y: Value, out: Value, place: Value, room: Value, narrow: Value) -> None:
    """Write up to `room` of 16 results at element `place`, as float32 or rounded to bf16 (to even)."""
    bits = c.b.bitcast(y, vec(I32, TILE))
    odd = c.b.and_(c.b.lshr(bits, c.constant(I32, TILE, 16)), c.constant(I32, TILE, 1))
    rounded = c.b.add(c.b.add(bits, c.constant(I32, TILE, 0x7FFF)), odd)
    short = c.b.trunc(c.b.lshr(rounded, c.constant(I32, TILE, 16)), vec(I16, TILE))
    whole = c.b.icmp_signed(">=", room, I64(TILE))
    is_narrow = c.b.icmp_signed("!=", narrow, I64(0))
    for condition, value, size in ((is_narrow, short, 2), (c.b.not_(is_narrow), y, 4)):
        with c.b.if_then(condition), c.b.if_else(whole) as (fits, cut):
            with fits:
                c.store(value, out, c.mul(place, size))
            with cut, c.loop(0, room) as lane:
                one = c.b.extract_element(value, c.b.trunc(lane.index, I32))
                c.store(one, out, c.mul(c.add(place, lane.index), size))
