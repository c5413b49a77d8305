"""How fast this machine reads memory: the limit of everything that reads all its weights for each token.

`read_gb_s` compiles a loop that does nothing but load whole cache lines, and runs it on some threads over a block of a given size. A
block that fits into the last cache is read faster than memory, and so are the weights of a small model.
"""

from __future__ import annotations

import ctypes
import functools
import mmap
import threading
import time
from collections.abc import Callable

from engine.kernels import machine

LINES = 8  # loads of 64 bytes in one turn of the loop, into as many sums
STEP = 64 * LINES


@functools.cache
def _loop() -> Callable[[int, int], int]:
    """(address, bytes, a multiple of STEP) -> a number that depends on all of them, so that nothing can be left out."""
    from engine.kernels.emit import I32, I64, PTR, Code, vec

    compiled = machine.machine()
    if compiled is None:
        raise SystemExit("Our own kernels do not run on this processor, so the speed of its memory cannot be measured here.")
    module = machine._module()
    c = Code(module, "read", I64, [PTR, I64], local=False)
    first, size = c.args
    with c.loop(0, size, [c.constant(I64, 8, 0)] * LINES, STEP) as loop:
        lines = [c.load(first, c.add(loop.index, 64 * n), vec(I64, 8)) for n in range(LINES)]
        loop.next = [c.b.xor(total, line) for total, line in zip(loop.state, lines, strict=True)]
    total = functools.reduce(c.b.xor, loop.state)
    c.b.ret(functools.reduce(c.b.xor, [c.b.extract_element(total, I32(lane)) for lane in range(8)]))
    return ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_void_p, ctypes.c_int64)(compiled._compile(module, "read")[0])


def read_gb_s(size: int, threads: int, times: int = 5) -> float:
    """GB (1e9 bytes) a second with which `threads` threads read a block of `size` bytes, the quickest of some times."""
    read = _loop()
    share = max(size // threads // STEP, 1) * STEP
    block = mmap.mmap(-1, share * threads)
    block[::4096] = bytes(len(block[::4096]))  # every page exists
    begin = ctypes.addressof(ctypes.c_char.from_buffer(block))

    def once() -> float:
        gate = threading.Barrier(threads + 1)

        def work(at: int) -> None:
            gate.wait()
            read(at, share)

        workers = [threading.Thread(target=work, args=(begin + n * share,)) for n in range(threads)]
        for worker in workers:
            worker.start()
        gate.wait()
        begun = time.perf_counter()
        for worker in workers:
            worker.join()
        return time.perf_counter() - begun

    return share * threads / min(once() for _ in range(times)) / 1e9
