"""What this machine is, without torch: CPU, its instructions, memory, graphics cards. Asked once; free memory changes, so that is in
`fit.available`."""

from __future__ import annotations

import functools
import platform
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import psutil

# as Linux spells them; the names on other systems are mapped to these
FLAGS = ("avx2", "avx_vnni", "avx512f", "avx512_vnni", "avx512_bf16", "amx_tile", "amx_bf16", "asimd", "i8mm", "bf16")
SMI_S = 5.0


@dataclass(frozen=True, slots=True)
class Gpu:
    """A graphics card; on Apple silicon, the part of the machine's memory that it may use. Bytes."""

    name: str
    total: int
    free: int
    driver: str = ""


@dataclass(frozen=True, slots=True)
class Hardware:
    """`device` is what `auto` would use if torch supports it; bytes for memory."""

    os: str
    cpu: str
    cores: int  # physical
    flags: tuple[str, ...]
    ram: int
    gpus: tuple[Gpu, ...] = ()
    device: Literal["cuda", "mps", "cpu"] = "cpu"

    @property
    def fast_4bit(self) -> bool:
        """The CPU has the instructions that our 4-bit kernels need."""
        return "avx2" in self.flags


@functools.cache
def probe() -> Hardware:
    """The facts; takes well under a second, except where a broken driver makes nvidia-smi hang (5 s at most)."""
    ram = psutil.virtual_memory().total
    gpus = nvidia()
    device: Literal["cuda", "mps", "cpu"] = "cuda" if gpus else "cpu"
    if sys.platform == "darwin" and platform.machine() == "arm64":
        share = ram * 2 // 3 if ram <= 36 << 30 else ram * 3 // 4  # what the system lets the GPU use by default
        gpus, device = (Gpu("Apple silicon, shared memory", share, share),), "mps"
    return Hardware(f"{platform.system()} {platform.release()}", _cpu(), _cores(), _flags(), ram, gpus, device)


def nvidia() -> tuple[Gpu, ...]:
    """NVIDIA cards by nvidia-smi, in its order; empty when there is none, or no driver."""
    return parse_smi(smi("--query-gpu=name,memory.total,memory.free,driver_version"))


def smi(query: str) -> str:
    """The rows that nvidia-smi prints for a query, without heads and units; nothing where there is no card, or no driver."""
    try:
        run = subprocess.run(
            ["nvidia-smi", query, "--format=csv,noheader,nounits"], capture_output=True, text=True, timeout=SMI_S, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return ""
    return run.stdout


def parse_smi(text: str) -> tuple[Gpu, ...]:
    """Lines of `name, total MiB, free MiB, driver`; a line that has no numbers (a card that shares memory) is left out."""
    cards = []
    for line in text.splitlines():
        parts = [part.strip() for part in line.rsplit(",", 3)]
        if len(parts) == 4 and parts[1].isdigit() and parts[2].isdigit():
            cards.append(Gpu(parts[0], int(parts[1]) << 20, int(parts[2]) << 20, parts[3]))
    return tuple(cards)


def _cores() -> int:
    return psutil.cpu_count(logical=False) or psutil.cpu_count() or 1


def _cpu() -> str:
    if sys.platform == "darwin":
        return _sysctl("machdep.cpu.brand_string") or platform.processor()
    for key in ("model name", "Model", "Hardware"):
        if name := _cpuinfo().get(key):
            return name
    return platform.processor() or platform.machine()


def _flags() -> tuple[str, ...]:
    if sys.platform == "darwin":
        words = _sysctl("machdep.cpu.features", "machdep.cpu.leaf7_features").lower().replace("avx512bf16", "avx512_bf16")
        arm = {"i8mm": "hw.optional.arm.FEAT_I8MM", "bf16": "hw.optional.arm.FEAT_BF16", "asimd": "hw.optional.neon"}
        words += " " + " ".join(flag for flag, key in arm.items() if _sysctl(key) == "1")
    elif sys.platform == "win32":
        import ctypes

        present = ctypes.windll.kernel32.IsProcessorFeaturePresent
        words = " ".join(flag for flag, number in {"avx2": 40, "avx512f": 41}.items() if present(number))
    else:
        words = _cpuinfo().get("flags") or _cpuinfo().get("Features") or ""
    have = set(words.split())
    return tuple(flag for flag in FLAGS if flag in have)


@functools.cache
def _cpuinfo() -> dict[str, str]:
    """The first processor's lines of /proc/cpuinfo."""
    try:
        block = Path("/proc/cpuinfo").read_text(errors="replace").split("\n\n")[0]
    except OSError:
        return {}
    pairs = (line.partition(":") for line in block.splitlines())
    return {key.strip(): value.strip() for key, _, value in pairs}


def _sysctl(*keys: str) -> str:
    words = []
    for key in keys:
        try:
            run = subprocess.run(["sysctl", "-n", key], capture_output=True, text=True, timeout=SMI_S, check=False)
        except (OSError, subprocess.SubprocessError):
            continue
        words.append(run.stdout.strip())
    return " ".join(words).strip()
