"""Bytes of this machine's memory that can still be taken. In a container less than the machine has: its control groups (v1 and v2) have
limits, and who goes over one is killed without a word."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import psutil

GROUPS = Path("/sys/fs/cgroup")
OWN = Path("/proc/self/cgroup")
_FILES = (  # limit, usage, and what of the usage are pages of files, which can be dropped
    ("memory.max", "memory.current", ("active_file", "inactive_file")),
    ("memory.limit_in_bytes", "memory.usage_in_bytes", ("total_active_file", "total_inactive_file")),
)


def available() -> int:
    """Free, or to be had by dropping pages of files; in every group that this process is in, too."""
    return max(0, min([psutil.virtual_memory().available, *_left_in_groups()]))


def _left_in_groups() -> Iterator[int]:
    for folder in _folders():
        for limit, usage, droppable in _FILES:
            with suppress(OSError, ValueError):  # no such file, or no number: no limit
                most = int((folder / limit).read_text(encoding="utf-8"))
                used = int((folder / usage).read_text(encoding="utf-8"))
                stat = dict(line.split() for line in (folder / "memory.stat").read_text(encoding="utf-8").splitlines())
                yield most - used + sum(int(stat.get(name, 0)) for name in droppable)


def _folders() -> set[Path]:
    """Of the groups that this process is in, and those around them. In a container the root is its own group."""
    found = {GROUPS, GROUPS / "memory"}
    with suppress(OSError):
        for line in OWN.read_text(encoding="utf-8").splitlines():
            number, kinds, path = line.split(":", 2)
            if number == "0" or "memory" in kinds.split(","):
                root = GROUPS if number == "0" else GROUPS / "memory"
                below = Path(path.lstrip("/"))
                found |= {root / part for part in (below, *below.parents)}
    return found
