"""Which process wrote a row: `pid started host` tells a living process from a dead one whose number was given out again."""

from __future__ import annotations

import os
import platform

import psutil

START_S = 1.5  # the two ways to ask for the start of a process differ by less


def myself() -> str:
    """This process."""
    return f"{os.getpid()} {psutil.Process().create_time():.2f} {platform.node() or 'here'}"


def is_alive(owner: str, fresh: bool) -> bool:
    """Whether that process still runs. `fresh` (it has written lately) decides where it runs on another machine."""
    pid, _, rest = owner.partition(" ")
    started, _, host = rest.partition(" ")
    if host != (platform.node() or "here"):
        return bool(owner) and fresh
    try:
        process = psutil.Process(int(pid))
        return abs(process.create_time() - float(started)) < START_S and process.status() != psutil.STATUS_ZOMBIE
    except (psutil.Error, ValueError, OverflowError):
        return False
