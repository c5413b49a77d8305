"""What this machine measured: speed-up of a drafter under a target, kept over sessions, so that `auto` picks by experience.

A small JSON file in the data folder. It is a convenience: a file that is broken, from another version or cannot be written is as
good as an empty one, and nothing here raises.
"""

from __future__ import annotations

import json
import math
import os
from pathlib import Path
from typing import Any

from engine import places
from engine.errors import EngineError

VERSION = 1
LONG = 4000  # tokens; older experience counts as this much at most, so that new results show


def remember(target: str, drafter: str, quant: str, device: str, speedup: float, tokens: int) -> None:
    """Add one measurement; it is averaged with earlier ones by tokens."""
    if tokens <= 0 or not math.isfinite(speedup) or speedup <= 0:
        return
    try:
        path = _path()
        known = _read(path)
        row = known.setdefault(_key(target, quant, device), {})
        before, weight = row.get(drafter, (0.0, 0))
        weight = min(weight, LONG)
        row[drafter] = ((before * weight + speedup * tokens) / (weight + tokens), weight + tokens)
        fresh = path.with_name(f"{path.name}.{os.getpid()}.new")
        fresh.write_text(json.dumps({"version": VERSION, "speedups": known}, indent=1), encoding="utf-8")
        fresh.replace(path)
    except (OSError, EngineError):
        return


def recall(target: str, quant: str, device: str) -> dict[str, float]:
    """Speed-up by drafter, as measured here."""
    try:
        return {drafter: speedup for drafter, (speedup, _) in _read(_path()).get(_key(target, quant, device), {}).items()}
    except EngineError:
        return {}


def _path() -> Path:
    return places.data_dir() / "measured.json"


def _key(target: str, quant: str, device: str) -> str:
    return f"{target}|{quant}|{device}"


def _read(path: Path) -> dict[str, dict[str, tuple[float, int]]]:
    try:
        whole: Any = json.loads(path.read_text(encoding="utf-8"))
        if whole["version"] != VERSION:
            return {}
        return {key: {d: (float(s), int(n)) for d, (s, n) in row.items()} for key, row in whole["speedups"].items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return {}
