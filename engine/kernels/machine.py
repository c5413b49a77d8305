"""The kernels as machine code: compiled once a process by LLVM, for this processor and torch's own threads.

`machine()` is None where the processor has no fitting instructions, or torch's OpenMP runtime cannot be joined: then other kernels do.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable
from typing import Any

from engine.kernels.attend import Shape
from engine.kernels.isa import Isa, host
from engine.kernels.threads import runtime


class Kernel:
    """A compiled function: called with the addresses of its task and of x, and a number of threads; `address` is its own."""

    __slots__ = ("_call", "address")

    def __init__(self, address: int) -> None:
        self.address = address
        self._call = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64)(address)

    def __call__(self, task: int, x: int, threads: int) -> None:
        self._call(task, x, threads)


class Machine:
    """`nf4` and `int8` run a whole product: rows of x to integers, then all tiles, on several threads. `attention` makes a kernel for
    the shape of a model; `run_list` (address of entries, count) runs many kernels in a row, see `launch.listed`."""

    def __init__(self, isa: Isa, openmp: dict[str, int]) -> None:
        from engine.kernels import launch, product, rows

        self.isa, self._openmp = isa, openmp
        module = _module()
        for source in rows.SOURCES:
            rows.quantize(module, source)
        for kind in product.KINDS:
            for count in range(1, isa.most_rows + 1):
                product.tile(module, isa, kind, count)
            product.product(module, isa, kind)
        launch.entries(module, gnu="GOMP_parallel" in openmp)
        launch.listed(module)
        self._engines: list[Any] = []
        nf4, int8, run = self._compile(module, "run_nf4", "run_int8", "run_list")
        self.nf4, self.int8 = Kernel(nf4), Kernel(int8)
        self.run_list: Callable[[int, int], None] = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64)(run)
        self._attention: dict[Shape, Kernel] = {}

    def attention(self, shape: Shape) -> Kernel:
        """Kernel (address of the task, 0, threads): see `attend`."""
        if shape not in self._attention:
            from engine.kernels import launch

            module = _module()
            launch.attention(module, shape, gnu="GOMP_parallel" in self._openmp)
            self._attention[shape] = Kernel(self._compile(module, "run_attend")[0])
        return self._attention[shape]

    def _compile(self, module: Any, *names: str) -> list[int]:
        from llvmlite import binding

        binding.initialize_native_target()
        binding.initialize_native_asmprinter()
        for name, address in self._openmp.items():
            binding.add_symbol(name, address)
        parsed = binding.parse_assembly(str(module))
        parsed.verify()
        features = binding.get_host_cpu_features().flatten()
        if self.isa.lanes == 16:
            features += ",-prefer-256-bit"
        target = binding.Target.from_triple(module.triple)
        machine = target.create_target_machine(cpu=binding.get_host_cpu_name(), features=features, opt=2, codemodel="jitdefault")
        engine = binding.create_mcjit_compiler(parsed, machine)
        engine.finalize_object()
        self._engines.append(engine)  # owns the code
        return [engine.get_function_address(name) for name in names]


def _module() -> Any:
    from llvmlite import binding, ir

    module = ir.Module("kernels")
    module.triple = binding.get_process_triple()
    return module


@functools.cache
def machine() -> Machine | None:
    """The one of this process."""
    isa, openmp = host(), runtime()
    return Machine(isa, openmp) if isa is not None and openmp else None
