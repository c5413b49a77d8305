"""The kernels as machine code: compiled once a process by LLVM, for this processor and torch's own threads.

`machine()` is None where the processor has no fitting instructions, or torch's OpenMP runtime cannot be joined: then other kernels do.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable

from engine.kernels.isa import Isa, host
from engine.kernels.threads import runtime

Kernel = Callable[[int, int, int], None]  # (address of the task, address of x, threads)


class Machine:
    """`nf4` and `int8` run a whole product: quantize the rows of x, then all tiles, on several threads."""

    def __init__(self, isa: Isa, openmp: dict[str, int]) -> None:
        from llvmlite import binding, ir

        from engine.kernels import launch, product, rows

        binding.initialize_native_target()
        binding.initialize_native_asmprinter()
        module = ir.Module("kernels")
        module.triple = binding.get_process_triple()
        for source in rows.SOURCES:
            rows.quantize(module, source)
        for kind in product.KINDS:
            for count in range(1, isa.most_rows + 1):
                product.tile(module, isa, kind, count)
            product.product(module, isa, kind)
        launch.entries(module, gnu="GOMP_parallel" in openmp)
        for name, address in openmp.items():
            binding.add_symbol(name, address)
        parsed = binding.parse_assembly(str(module))
        parsed.verify()
        features = binding.get_host_cpu_features().flatten()
        target = binding.Target.from_triple(module.triple)
        if isa.name == "avx512":
            features += ",-prefer-256-bit"
        machine = target.create_target_machine(cpu=binding.get_host_cpu_name(), features=features, opt=2, codemodel="jitdefault")
        self._engine = binding.create_mcjit_compiler(parsed, machine)
        self._engine.finalize_object()
        self.isa = isa
        kind_of = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64)
        self.nf4: Kernel = kind_of(self._engine.get_function_address("run_nf4"))
        self.int8: Kernel = kind_of(self._engine.get_function_address("run_int8"))


@functools.cache
def machine() -> Machine | None:
    """The one of this process."""
    isa, openmp = host(), runtime()
    return Machine(isa, openmp) if isa is not None and openmp else None
