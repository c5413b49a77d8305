"""Code for the attention of a few rows over a cache of bf16 keys and values: norms, rotation, writing, scores, sums, in two functions.

A row sees the committed slots from its own first one on, then its path: the slots of its ancestors in this pass and its own, in order
of depth, wherever they lie. Scores and sums run over these places in that order, each head for itself, so a row's result has the same
bits in plain decoding, in a chain, and in any tree. Query heads that share a key head share the reading of it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import IntEnum

from llvmlite import ir

from engine.kernels.emit import F32, I16, I64, PTR, VOID, Code, Value, vec
from engine.kernels.rows import exp

N = 16
V = vec(F32, N)
HELD = 24  # sums of values that stay in registers


@dataclass(frozen=True, slots=True)
class Shape:
    """What the code is made for. `rotary`: how many dimensions of a head turn; `normed`: queries and keys have a norm."""

    heads: int
    kv_heads: int
    dim: int
    rotary: int
    normed: bool

    @property
    def possible(self) -> bool:
        """Whole vectors everywhere."""
        return self.dim % N == 0 and self.rotary % (2 * N) == 0 and self.heads % self.kv_heads == 0

    @property
    def name(self) -> str:
        return f"{self.heads}_{self.kv_heads}_{self.dim}_{self.rotary}_{int(self.normed)}"


class Field(IntEnum):
    """Table of 64-bit fields that a pass fills."""

    QKV = 0  # (M, heads + 2·kv_heads, D) bf16
    Q_NORM = 1  # (D) float32
    K_NORM = 2
    EPS = 3  # bits of a float32
    COS = 4  # (positions, R) float32
    SIN = 5  # the same, the first half negated
    SLOTS = 6  # (2·kv_heads, capacity, D) bf16: keys of all heads, then values
    STRIDE = 7  # bytes from one head to the next
    POSITIONS = 8  # (M) int64: place in the text, for COS and SIN
    FIRST = 9  # (M) int64: first slot that a row sees
    DEPTH = 10  # (M) int64: slots on its path, itself included
    PATHS = 11  # (M, WIDTH) int64: these slots
    WIDTH = 12
    AT = 13  # slot of the first row of this pass: the committed ones lie before it
    M = 14
    QUERIES = 15  # scratch (M, heads, D) float32
    SCORES = 16  # scratch (M, heads, ROOM) float32
    ROOM = 17
    OUT = 18  # (M, heads, D) bf16
    SCALE = 19  # bits of a float32

    @property
    def at(self) -> int:
        """Offset in bytes."""
        return 8 * self


def place(module: ir.Module, shape: Shape) -> Value:
    """Emit `place_SHAPE` (task): norm and turn queries (into scratch, scaled) and keys, and write keys and values to the rows' slots."""
    c = Code(module, f"place_{shape.name}", VOID, [PTR])
    task = c.args[0]
    qkv, cos, sin, slots, positions, queries = (
        c.load(task, f.at, PTR) for f in (Field.QKV, Field.COS, Field.SIN, Field.SLOTS, Field.POSITIONS, Field.QUERIES)
    )
    stride, at, m = (c.load(task, f.at, I64) for f in (Field.STRIDE, Field.AT, Field.M))
    scale = c.splat(c.load(task, Field.SCALE.at, F32), N)
    dim, all_heads = shape.dim, shape.heads + 2 * shape.kv_heads
    with c.loop(0, m) as rows:
        r = rows.index
        source = c.at(qkv, c.mul(r, 2 * dim * all_heads))
        angle = c.mul(c.load(positions, c.mul(r, 8), I64), 4 * shape.rotary)
        turn = [[c.load(table, c.add(angle, 4 * N * i), V) for i in range(shape.rotary // N)] for table in (cos, sin)]
        target = c.at(slots, c.mul(c.add(at, r), 2 * dim))
        for first, count, norm, is_key in ((0, shape.heads, Field.Q_NORM, False), (shape.heads, shape.kv_heads, Field.K_NORM, True)):
            weight = c.load(task, norm.at, PTR)
            with c.loop(0, I64(count)) as heads:
                h = heads.index
                head = c.at(source, c.mul(c.add(h, first), 2 * dim))
                x = [c.widened(head, 2 * N * i, N) for i in range(dim // N)]
                if shape.normed:
                    x = _normed(c, x, weight, c.load(task, Field.EPS.at, F32), dim)
                x = _turned(c, x, *turn)
                for i, value in enumerate(x):
                    if is_key:
                        c.store(c.narrowed(value, N), target, c.add(c.mul(h, stride), 2 * N * i))
                    else:
                        where = c.add(c.mul(c.add(c.mul(r, shape.heads), h), 4 * dim), 4 * N * i)
                        c.store(c.b.fmul(value, scale), queries, where)
        with c.loop(0, I64(shape.kv_heads)) as heads:
            value_head = c.at(source, c.mul(c.add(heads.index, shape.heads + shape.kv_heads), 2 * dim))
            to = c.at(target, c.mul(c.add(heads.index, shape.kv_heads), stride))
            for i in range(dim // N):
                c.store(c.load(value_head, 2 * N * i, vec(I16, N)), to, 2 * N * i)
    c.b.ret_void()
    return c.function


def attend(module: ir.Module, shape: Shape) -> Value:
    """Emit `attend_SHAPE` (task, first, last): items [first, last), a row with a key head each."""
    c = Code(module, f"attend_{shape.name}", VOID, [PTR, I64, I64])
    task, first, last = c.args
    slots, firsts, depths, paths, queries, scores, out = (
        c.load(task, f.at, PTR) for f in (Field.SLOTS, Field.FIRST, Field.DEPTH, Field.PATHS, Field.QUERIES, Field.SCORES, Field.OUT)
    )
    stride, width, at, room = (c.load(task, f.at, I64) for f in (Field.STRIDE, Field.WIDTH, Field.AT, Field.ROOM))
    dim, group = shape.dim, shape.heads // shape.kv_heads
    with c.loop(first, last) as items:
        r = c.b.udiv(items.index, I64(shape.kv_heads))
        kv = c.b.urem(items.index, I64(shape.kv_heads))
        head = c.add(c.mul(r, shape.heads), c.mul(kv, group))
        query = c.at(queries, c.mul(head, 4 * dim))
        mine = c.at(scores, c.mul(c.mul(room, head), 4))
        to = c.at(out, c.mul(head, 2 * dim))
        low = c.load(firsts, c.mul(r, 8), I64)
        depth = c.load(depths, c.mul(r, 8), I64)
        path = c.at(paths, c.mul(c.mul(width, r), 8))
        keys = c.at(slots, c.b.mul(stride, kv))
        values = c.at(keys, c.mul(stride, shape.kv_heads))
        before = c.b.sub(at, low)
        count = c.b.add(before, depth)
        by_head = [c.at(mine, c.mul(c.mul(room, g), 4)) for g in range(group)]

        def over(state: Sequence[Value], body: Callable[[Value, Value, Sequence[Value]], list[Value]]) -> Sequence[Value]:
            """Run `body(place in the order, slot, state)` over all that the row sees."""
            with c.loop(low, at, state) as committed:
                committed.next = body(c.b.sub(committed.index, low), committed.index, committed.state)
            with c.loop(0, depth, committed.state) as own:
                slot = c.load(path, c.mul(own.index, 8), I64)
                own.next = body(c.b.add(before, own.index), slot, own.state)
            return own.state

        for g in range(group):  # the vectors' last lanes, behind the end
            tail = c.mul(c.b.and_(count, I64(-N)), 4)
            c.store(c.constant(F32, N, float("-inf")), by_head[g], tail)

        def score(index: Value, slot: Value, _: Sequence[Value]) -> list[Value]:
            key = [c.widened(keys, c.add(c.mul(slot, 2 * dim), 2 * N * i), N) for i in range(dim // N)]
            for g in range(group):
                total = c.constant(F32, N, 0.0)
                for i, part in enumerate(key):
                    total = c.call(f"llvm.fma.v{N}f32", V, part, c.load(query, 4 * (dim * g + N * i), V), total)
                c.store(c.total(total, N), by_head[g], c.mul(index, 4))
            return []

        over([], score)
        inverse = [_softmax(c, by_head[g], count) for g in range(group)]
        chunk = max(1, min(dim // N, HELD // group))
        for start in range(0, dim // N, chunk):
            parts = range(start, min(start + chunk, dim // N))

            def gather(index: Value, slot: Value, sums: Sequence[Value], parts: range = parts) -> list[Value]:
                value = [c.widened(values, c.add(c.mul(slot, 2 * dim), 2 * N * i), N) for i in parts]
                weights = [c.splat(c.load(by_head[g], c.mul(index, 4), F32), N) for g in range(group)]
                return [
                    c.call(f"llvm.fma.v{N}f32", V, weights[g], value[i], sums[g * len(parts) + i])
                    for g in range(group)
                    for i in range(len(parts))
                ]

            sums = over([c.constant(F32, N, 0.0)] * (group * len(parts)), gather)
            for g in range(group):
                for i, part in enumerate(parts):
                    value = c.b.fmul(sums[g * len(parts) + i], c.splat(inverse[g], N))
                    c.store(c.narrowed(value, N), to, 2 * (dim * g + N * part))
    c.b.ret_void()
    return c.function


def _softmax(c: Code, scores: Value, count: Value) -> Value:
    """Scores become e^(score - largest); returns one over their sum."""
    with c.loop(0, count, [c.constant(F32, N, float("-inf"))], step=N) as search:
        x = c.load(scores, c.mul(search.index, 4), V)
        search.next = [c.b.select(c.b.fcmp_unordered(">", x, search.state[0]), x, search.state[0])]  # NaN wins
    largest = c.splat(c.largest(search.state[0], N), N)
    with c.loop(0, count, [c.constant(F32, N, 0.0)], step=N) as sums:
        e = exp(c, c.b.fsub(c.load(scores, c.mul(sums.index, 4), V), largest))
        c.store(e, scores, c.mul(sums.index, 4))
        sums.next = [c.b.fadd(sums.state[0], e)]
    return c.b.fdiv(F32(1.0), c.total(sums.state[0], N))


def _normed(c: Code, x: list[Value], weight: Value, eps: Value, dim: int) -> list[Value]:
    squares = c.constant(F32, N, 0.0)
    for part in x:
        squares = c.call(f"llvm.fma.v{N}f32", V, part, part, squares)
    inverse = c.splat(c.inverse_rms(squares, N, F32(float(dim)), eps), N)
    return [c.b.fmul(c.b.fmul(part, inverse), c.load(weight, 4 * N * i, V)) for i, part in enumerate(x)]


def _turned(c: Code, x: list[Value], cos: list[Value], sin: list[Value]) -> list[Value]:
    """Each of the first R dimensions with its partner in the other half of them."""
    half = len(cos) // 2
    turned = [c.call(f"llvm.fma.v{N}f32", V, x[(i + half) % (2 * half)], sin[i], c.b.fmul(x[i], cos[i])) for i in range(len(cos))]
    return turned + x[len(cos) :]
