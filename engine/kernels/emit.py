"""Writing LLVM code from Python: typed pointers, counted loops, vectors. Just what the kernels of this folder need."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from llvmlite import ir

I8, I16, I32, I64 = (ir.IntType(n) for n in (8, 16, 32, 64))
F32, VOID, PTR = ir.FloatType(), ir.VoidType(), ir.PointerType()
Value = Any  # llvmlite has no types of its own


def vec(element: Any, n: int) -> Any:
    """<n x element>."""
    return ir.VectorType(element, n)


class Code:
    """One function under construction."""

    def __init__(self, module: Any, name: str, result: Any, params: Sequence[Any], local: bool = True) -> None:
        self.module = module
        self.function = ir.Function(module, ir.FunctionType(result, list(params)), name)
        if local:
            self.function.linkage = "internal"
        self.b = ir.IRBuilder(self.function.append_basic_block("entry"))
        self.args = self.function.args

    # --- memory: offsets in bytes, no alignment assumed ---------------------------------------------------------------

    def at(self, pointer: Value, offset: Value | int) -> Value:
        """pointer + offset bytes."""
        return self.b.gep(pointer, [self.i64(offset)], source_etype=I8)

    def load(self, pointer: Value, offset: Value | int, kind: Any) -> Value:
        return self.b.load(self.at(pointer, offset), typ=kind, align=1)

    def store(self, value: Value, pointer: Value, offset: Value | int) -> None:
        self.b.store(value, self.at(pointer, offset), align=1)

    def room(self, nbytes: int) -> Value:
        """Memory on the stack until the function returns; not to be called in a loop."""
        place = self.b.alloca(ir.ArrayType(I8, nbytes))
        place.align, place.type = 64, PTR  # llvmlite gives it a pointer type of its own
        return place

    def prefetch(self, pointer: Value, offset: Value | int) -> None:
        """Ask for a cache line that will be read soon; an address behind the end does no harm."""
        self.call("llvm.prefetch.p0", VOID, self.at(pointer, offset), I32(0), I32(3), I32(1))

    # --- numbers ------------------------------------------------------------------------------------------------------

    def i64(self, value: Value | int) -> Value:
        return I64(value) if isinstance(value, int) else value

    def add(self, a: Value, b: Value | int) -> Value:
        return self.b.add(a, a.type(b) if isinstance(b, int) else b)

    def mul(self, a: Value, b: Value | int) -> Value:
        return self.b.mul(a, a.type(b) if isinstance(b, int) else b)

    def splat(self, value: Value, n: int) -> Value:
        """A scalar in every lane."""
        kind = vec(value.type, n)
        one = self.b.insert_element(ir.Constant(kind, ir.Undefined), value, I32(0))
        return self.b.shuffle_vector(one, ir.Constant(kind, ir.Undefined), ir.Constant(vec(I32, n), [0] * n))

    def constant(self, element: Any, n: int, value: Any) -> Value:
        """The same constant in every lane."""
        return ir.Constant(vec(element, n), [element(value)] * n)

    def total(self, x: Value, n: int) -> Value:
        """The sum of all lanes, halves first: always the same order."""
        return self._fold(x, n, self.b.fadd)

    def largest(self, x: Value, n: int) -> Value:
        """The largest lane; NaN if there is one."""
        return self._fold(x, n, lambda a, b: self.b.select(self.b.fcmp_unordered(">", a, b), a, b))

    def _fold(self, x: Value, n: int, two: Callable[[Value, Value], Value]) -> Value:
        while n > 1:
            n //= 2
            halves = [self.b.shuffle_vector(x, x, ir.Constant(vec(I32, n), list(range(start, start + n)))) for start in (0, n)]
            x = two(*halves)
        return self.b.extract_element(x, I32(0))

    def widened(self, pointer: Value, offset: Value | int, n: int) -> Value:
        """n bf16 of memory as float32."""
        half = self.b.zext(self.load(pointer, offset, vec(I16, n)), vec(I32, n))
        return self.b.bitcast(self.b.shl(half, self.constant(I32, n, 16)), vec(F32, n))

    def narrowed(self, value: Value, n: int) -> Value:
        """n float32 as the bits of bf16, rounded to even."""
        bits = self.b.bitcast(value, vec(I32, n))
        odd = self.b.and_(self.b.lshr(bits, self.constant(I32, n, 16)), self.constant(I32, n, 1))
        rounded = self.b.add(self.b.add(bits, self.constant(I32, n, 0x7FFF)), odd)
        return self.b.trunc(self.b.lshr(rounded, self.constant(I32, n, 16)), vec(I16, n))

    def inverse_rms(self, squares: Value, n: int, count: Value, eps: Value) -> Value:
        """1 / √(mean + eps), from n lanes of summed squares of `count` (float32) numbers."""
        mean = self.b.fdiv(self.total(squares, n), count)
        return self.b.fdiv(F32(1.0), self.call("llvm.sqrt.f32", F32, self.b.fadd(mean, eps)))

    def call(self, name: str, result: Any, *args: Value) -> Value:
        """A function by name: an LLVM intrinsic, or one of the OpenMP runtime."""
        kind = ir.FunctionType(result, [a.type for a in args])
        found = self.module.globals.get(name)
        return self.b.call(found if found is not None else ir.Function(self.module, kind, name), args)

    # --- loops --------------------------------------------------------------------------------------------------------

    @contextmanager
    def loop(self, start: Value | int, stop: Value, state: Sequence[Value] = (), step: int = 1) -> Iterator[Loop]:
        """`for i in range(start, stop, step)` with loop-carried values; set `next` in the body, read `state` behind it."""
        before = self.b.block
        head = self.function.append_basic_block("head")
        body = self.function.append_basic_block("body")
        behind = self.function.append_basic_block("behind")
        self.b.branch(head)
        self.b.position_at_end(head)
        index = self.b.phi(I64)
        index.add_incoming(self.i64(start), before)
        carried = [self.b.phi(value.type) for value in state]
        for phi, value in zip(carried, state, strict=True):
            phi.add_incoming(value, before)
        self.b.cbranch(self.b.icmp_signed("<", index, stop), body, behind)
        self.b.position_at_end(body)
        loop = Loop(index, carried)
        yield loop
        last = self.b.block
        index.add_incoming(self.add(index, step), last)
        for phi, value in zip(carried, loop.next, strict=True):
            phi.add_incoming(value, last)
        self.b.branch(head)
        self.b.position_at_end(behind)


class Loop:
    """A loop while its body is written. `state` has the carried values of this turn, and of the end when it is left."""

    def __init__(self, index: Value, state: list[Value]) -> None:
        self.index, self.state = index, state
        self.next = state
