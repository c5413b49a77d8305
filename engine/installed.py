"""What the installed torch and bitsandbytes can do here. Importing this module imports neither: `ask` has a short child process do it.

A library that cannot be imported is a finding, not an error.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

CHILD_S = 120.0
HERE = Path(__file__).parents[1]


@dataclass(frozen=True, slots=True)
class Device:
    """A graphics card that torch can use; bytes of memory, and the compute capability as 8.9."""

    name: str
    memory: int
    capability: str


@dataclass(frozen=True, slots=True)
class Installed:
    """The findings, with the keys of `doctor --json`. `torch` is its version, None where it cannot be imported."""

    torch: str | None = None
    cuda_build: str | None = None  # the CUDA that torch is built for
    cuda: bool = False
    cuda_error: str = ""
    mps: bool = False
    devices: tuple[Device, ...] = ()
    bitsandbytes: bool = False
    kernels: str | None = None  # our own, for this CPU
    errors: tuple[str, ...] = ()
    cpu_capability: str | None = None
    threads: int | None = None


def ask() -> Installed:
    """Let a child look; its findings, or why there are none. Takes seconds."""
    paths = os.pathsep.join(filter(None, (str(HERE), os.environ.get("PYTHONPATH"))))
    environment = {**os.environ, "PYTHONPATH": paths, "HF_HUB_OFFLINE": "1"}
    command = [sys.executable, "-P", "-m", "engine.installed"]  # -P: the person's folder may hold an `engine` too
    try:
        child = subprocess.run(
            command, env=environment, capture_output=True, text=True, encoding="utf-8", errors="replace", timeout=CHILD_S, check=False
        )
        found: dict[str, Any] = json.loads(child.stdout.strip().splitlines()[-1])
    except subprocess.TimeoutExpired:
        return Installed(errors=(f"importing torch took longer than {CHILD_S:.0f} s",))
    except (OSError, ValueError, IndexError):
        return Installed(errors=("the process that imports torch crashed",))
    devices = tuple(Device(**device) for device in found["devices"])
    return Installed(**{**found, "devices": devices, "errors": tuple(found["errors"])})


def look() -> Installed:
    """Import them here and ask them; what was found before something failed stays."""
    found: dict[str, Any] = {}
    errors: list[str] = []
    try:
        _ask_torch(found)
    except Exception as error:
        errors.append(f"torch cannot be imported: {type(error).__name__}: {error}")
        return Installed(**found, errors=tuple(errors))
    try:
        import bitsandbytes  # noqa: F401

        found["bitsandbytes"] = True
    except Exception as error:
        errors.append(f"bitsandbytes cannot be imported: {type(error).__name__}: {error}")
    try:
        from engine.kernels.machine import machine

        kernels = machine()
        found["kernels"] = kernels.isa.name if kernels else None
    except Exception as error:
        errors.append(f"the kernels for this CPU cannot be made: {type(error).__name__}: {error}")
    return Installed(**found, errors=tuple(errors))


def _ask_torch(found: dict[str, Any]) -> None:
    import torch

    found["torch"], found["cuda_build"] = str(torch.__version__), torch.version.cuda
    found["cpu_capability"] = torch.backends.cpu.get_cpu_capability()
    found["threads"] = torch.get_num_threads()
    found["mps"] = torch.backends.mps.is_available()
    try:
        if torch.version.cuda:
            torch.cuda.init()
    except Exception as error:
        found["cuda_error"] = str(error).splitlines()[0]
    found["cuda"] = torch.cuda.is_available()
    cards = [torch.cuda.get_device_properties(i) for i in range(torch.cuda.device_count() if found["cuda"] else 0)]
    found["devices"] = tuple(Device(card.name, card.total_memory, f"{card.major}.{card.minor}") for card in cards)


if __name__ == "__main__":
    print(json.dumps(asdict(look())))
