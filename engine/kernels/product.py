"""Code of the packed matrix product: y (M, N) = x (M, K) · W (N, K)^T, W in 4 or 8 bits, in exact integer arithmetic.

A row of x becomes 14-bit integers in two bytes (`rows`), so that a weight is read once and multiplied by bytes. W is stored in tiles of
16 output channels; the 64 weights of a channel that share a scale are summed in int32 without any rounding, then scaled and added up in
float32, in the order of K. A row's result therefore has the same bits however many rows, threads or vector lanes take part: DESIGN 5's
row invariance holds by construction.

Weights are unsigned bytes (level + 128), which the processor's byte product asks for; 128·sum(x) is taken off by where the sums start.
"""

from __future__ import annotations

from llvmlite import ir

from engine.kernels.emit import F32, I8, I16, I32, I64, PTR, VOID, Code, Value, vec
from engine.kernels.isa import Isa
from engine.kernels.rows import BITS
from engine.kernels.task import GROUP, TILE, Field

AHEAD = 4096  # bytes of weights asked for before they are needed: the processor itself does not look beyond a page
KINDS = {"nf4": GROUP // 2, "int8": GROUP}  # bytes of one channel's group


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
                scale = c.widened(scales, c.add(c.mul(g, 2 * TILE), 2 * n * half), n)
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
    """Emit `KIND` (task, first, last): all rows against the tiles [first, last)."""
    c = Code(module, kind, VOID, [PTR, I64, I64])
    task, first, last = c.args
    addresses = (Field.WEIGHTS, Field.SCALES, Field.TABLE, Field.PARTS, Field.STARTS, Field.STEPS, Field.BIAS, Field.CHANNEL, Field.ADD)
    weights, scales, table, parts, starts, steps, bias, channel, before = (c.load(task, f.at, PTR) for f in addresses)
    out = c.load(task, Field.OUT.at, PTR)
    m, n_out, k, narrow = (c.load(task, f.at, I64) for f in (Field.M, Field.N, Field.K, Field.NARROW))
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
                _store(c, y, before, out, c.add(c.mul(r, n_out), c.mul(t, TILE)), c.b.sub(n_out, c.mul(t, TILE)), narrow)
    c.b.ret_void()


def _store(c: Code, y: Value, before: Value, out: Value, place: Value, room: Value, narrow: Value) -> None:
    """Write up to `room` of 16 results at element `place`, plus what stands in `before` there (if it is not null), as float32 or bf16."""
    adds = c.b.icmp_signed("!=", c.b.ptrtoint(before, I64), I64(0))
    whole = c.b.icmp_signed(">=", room, I64(TILE))
    is_narrow = c.b.icmp_signed("!=", narrow, I64(0))
    for condition, size in ((is_narrow, 2), (c.b.not_(is_narrow), 4)):
        with c.b.if_then(condition), c.b.if_else(whole) as (fits, cut):
            for branch, n in ((fits, TILE), (cut, 1)):
                with branch:
                    if n == TILE:
                        _sum(c, y, adds, before, out, place, size, n)
                    else:
                        with c.loop(0, room) as lane:
                            one = c.b.extract_element(y, c.b.trunc(lane.index, I32))
                            _sum(c, c.splat(one, 1), adds, before, out, c.add(place, lane.index), size, 1)


def _sum(c: Code, y: Value, adds: Value, before: Value, out: Value, place: Value, size: int, n: int) -> None:
    """out[place] = before[place] + y, n numbers of `size` bytes; bf16 is rounded to even."""
    offset = c.mul(place, size)
    with c.b.if_else(adds) as (then, otherwise):
        with then:
            there = c.load(before, offset, vec(F32, n)) if size == 4 else c.widened(before, offset, n)
            added = c.b.fadd(there, y)
            with_it = c.b.block
        with otherwise:
            without = c.b.block
    total = c.b.phi(y.type)
    total.add_incoming(added, with_it)
    total.add_incoming(y, without)
    if size == 4:
        c.store(total, out, offset)
        return
    c.store(c.narrowed(total, n), out, offset)
