"""What the engine's thread needs to know of the machine: device, threads, memory. Needs torch."""

from __future__ import annotations

import os
import sys

import psutil
import torch

import engine.first_call  # noqa: F401
from engine.errors import EngineError


def resolve_device(name: str) -> torch.device:
    """`auto` is CUDA, else MPS, else the CPU; a device that is not there is an error with the reason."""
    if name == "auto":
        if torch.cuda.is_available():
            return torch.device("cuda")
        return torch.device("mps" if torch.backends.mps.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise EngineError(f"There is no device called {name!r}.", "Use auto, cpu, cuda, cuda:1 or mps.", kind="device") from error
    if device.type == "cuda" and not (torch.cuda.is_available() and (device.index or 0) < torch.cuda.device_count()):
        built = "This torch was built for the CPU only." if torch.version.cuda is None else "torch finds no such GPU."
        raise EngineError(f"The device {name} cannot be used. {built}", "`specchat doctor` says what to install.", kind="device")
    if device.type == "mps" and not torch.backends.mps.is_available():
        raise EngineError("The device mps cannot be used on this machine.", "Use --device cpu.", kind="device")
    if device.type not in ("cpu", "cuda", "mps"):
        raise EngineError(f"The device {name} is not supported.", "Use auto, cpu, cuda or mps.", kind="device")
    return device


def use_physical_cores() -> int:
    """One compute thread per physical core that this process may use: more only wait for each other."""
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    threads = max(1, min(psutil.cpu_count(logical=False) or allowed, allowed))
    asked = os.environ.get("OMP_NUM_THREADS", "")
    torch.set_num_threads(int(asked) if asked.isdigit() and int(asked) > 0 else threads)
    return torch.get_num_threads()


def device_memory(device: torch.device) -> tuple[int, int]:
    """(used, total) bytes of the whole device; of this machine's memory for the CPU."""
    if device.type == "cuda":
        free, total = torch.cuda.mem_get_info(device)
        return total - free, total
    memory = psutil.virtual_memory()
    return memory.total - memory.available, memory.total


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an exception is a device or host that has no memory left."""
    return isinstance(error, MemoryError | torch.OutOfMemoryError) or (
        isinstance(error, RuntimeError) and ("can't allocate memory" in str(error) or "out of memory" in str(error))
    )


def free_memory() -> None:
    """Give back what was dropped, to the device and to the system (glibc keeps what lies between pieces that are in use)."""
    import ctypes
    import gc

    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
    if sys.platform == "linux" and (trim := getattr(ctypes.CDLL(None), "malloc_trim", None)) is not None:
        trim(0)
