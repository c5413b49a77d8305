"""Which other programs hold the memory of a device, for the moment when it does not suffice. No torch."""

from __future__ import annotations

import os
from collections import Counter
from pathlib import PurePath

import psutil

from engine.catalog.hardware import smi
from engine.catalog.progress import human

WORTH = 200_000_000  # bytes below which closing a program helps nobody
MOST = 3
NAME = 24  # characters of a program's name


def sentence(device: str) -> str:
    """`Other programs hold memory: firefox 3.2 GB, code 900 MB.`, or nothing."""
    held = ", ".join(f"{name} {human(taken)}" for name, taken in others(device))
    return f"Other programs hold memory: {held}." if held else ""


def others(device: str) -> list[tuple[str, int]]:
    """Name and bytes of the programs that hold the most, without this one and its children; processes of one name count together."""
    ours = _ours()
    try:
        taken = parse_smi(smi("--query-compute-apps=pid,process_name,used_memory")) if device.startswith("cuda") else _on_host()
    except (OSError, psutil.Error):
        return []
    sums: Counter[str] = Counter()
    for pid, name, held in taken:
        if pid not in ours:
            sums["".join(c if c.isprintable() else "?" for c in name)[:NAME]] += held
    return [(name, held) for name, held in sums.most_common(MOST) if held >= WORTH]


def _ours() -> set[int]:
    try:
        return {os.getpid(), *(child.pid for child in psutil.Process().children(recursive=True))}
    except psutil.Error:
        return {os.getpid()}


def _on_host() -> list[tuple[int, str, int]]:
    found = []
    for process in psutil.process_iter(["pid", "name", "memory_info"]):
        memory = process.info["memory_info"]  # None where the system does not tell
        if memory is not None:
            found.append((process.info["pid"], process.info["name"] or "?", memory.rss - getattr(memory, "shared", 0)))
    return found


def parse_smi(text: str) -> list[tuple[int, str, int]]:
    """Lines of `pid, path, MiB`; where the driver does not tell ([N/A]), the line is left out."""
    found = []
    for line in text.splitlines():
        pid, _, rest = line.partition(",")
        path, _, mib = rest.rpartition(",")
        if pid.strip().isdigit() and mib.strip().isdigit():
            found.append((int(pid), PurePath(path.strip().replace("\\", "/")).name, int(mib) << 20))
    return found
