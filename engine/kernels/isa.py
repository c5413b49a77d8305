"""What the processor's vector unit offers: width, byte look-up, and the product of unsigned with signed bytes."""

from __future__ import annotations

import functools
from dataclasses import dataclass

from llvmlite import binding

from engine.kernels.emit import I8, I16, I32, Code, Value, vec


@dataclass(frozen=True, slots=True)
class Isa:
    """Instructions by name: `avx512` (VNNI, 64 bytes), `avxvnni` (32 bytes), `avx2` (32 bytes, two steps a product)."""

    name: str
    lanes: int  # int32 numbers in a register
    most_rows: int  # rows whose sums fit into the registers

    def lookup(self, code: Code, table: Value, index: Value) -> Value:
        """Bytes of a table that repeats every 16 bytes, by indices below 16."""
        kind = vec(I8, 4 * self.lanes)
        name = "llvm.x86.avx512.pshuf.b.512" if self.name == "avx512" else "llvm.x86.avx2.pshuf.b"
        return code.call(name, kind, table, index)

    def dot(self, code: Code, sums: Value, unsigned: Value, signed: Value) -> Value:
        """sums (lanes) int32 + in each lane the four products of its bytes. Signed bytes lie in [-64, 63]: no step can overflow."""
        if self.name == "avx2":
            pairs = code.call("llvm.x86.avx2.pmadd.ub.sw", vec(I16, 16), unsigned, signed)
            ones = code.constant(I16, 16, 1)
            return code.b.add(sums, code.call("llvm.x86.avx2.pmadd.wd", vec(I32, 8), pairs, ones))
        name = f"llvm.x86.avx512.vpdpbusd.{32 * self.lanes}"
        if not _bytes_taken():
            kind = vec(I32, self.lanes)
            unsigned, signed = code.b.bitcast(unsigned, kind), code.b.bitcast(signed, kind)
        return code.call(name, sums.type, sums, unsigned, signed)


AVX512 = Isa("avx512", 16, 4)
AVXVNNI = Isa("avxvnni", 8, 3)
AVX2 = Isa("avx2", 8, 2)


@functools.cache
def _bytes_taken() -> bool:
    """Whether this LLVM's byte product takes vectors of bytes; older ones take the same bits as int32. Asked of LLVM itself."""
    name, kind = "@llvm.x86.avx512.vpdpbusd.256", "<8 x i32>"
    text = f"""
    declare {kind} {name}({kind}, <32 x i8>, <32 x i8>)
    define {kind} @probe({kind} %s, <32 x i8> %a, <32 x i8> %b) {{
      %r = call {kind} {name}({kind} %s, <32 x i8> %a, <32 x i8> %b)
      ret {kind} %r
    }}"""
    try:
        binding.parse_assembly(text).verify()
    except RuntimeError:
        return False
    return True


@functools.cache
def host() -> Isa | None:
    """The best that this processor has; None where it has none of them."""
    try:
        features = binding.get_host_cpu_features()
    except RuntimeError:
        return None
    if features.get("avx512vnni") and features.get("avx512bw") and features.get("avx512vl"):
        return AVX512
    if features.get("avxvnni"):
        return AVXVNNI
    return AVX2 if features.get("avx2") and features.get("fma") else None
