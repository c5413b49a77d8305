"""The OpenMP runtime that torch itself runs on: kernels share its threads, so that the cores are never asked for twice.

LLVM's and Intel's runtimes (Windows) are entered through `__kmpc_fork_call`, GNU's through `GOMP_parallel`.
"""

from __future__ import annotations

import ctypes
import functools
from pathlib import Path

NAMES = (
    "GOMP_parallel",
    "__kmpc_fork_call",
    "__kmpc_push_num_threads",
    "__kmpc_global_thread_num",
    "omp_get_thread_num",
    "omp_get_num_threads",
)


@functools.cache
def runtime() -> dict[str, int]:
    """Addresses of what the runtime has of NAMES; empty where torch's runtime is not found."""
    import torch

    for folder in (Path(torch.__file__).parent / "lib", Path(torch.__file__).parent.parent / "torch.libs"):
        for pattern in ("libgomp*.so*", "libiomp5*", "libomp*"):
            for file in sorted(folder.glob(pattern)):
                found = _addresses(file)
                if "omp_get_thread_num" in found and ("GOMP_parallel" in found or "__kmpc_fork_call" in found):
                    return found
    return {}


def _addresses(file: Path) -> dict[str, int]:
    try:
        library = ctypes.CDLL(str(file))
    except OSError:
        return {}
    found = {}
    for name in NAMES:
        try:
            address = ctypes.cast(getattr(library, name), ctypes.c_void_p).value
        except AttributeError:
            continue
        if address:
            found[name] = address
    return found
