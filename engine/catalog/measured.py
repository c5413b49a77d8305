"""What this machine measured, kept over sessions: speed-up of a drafter under a target, so that `auto` picks by experience, and the memory
that a target really took, so that the next estimate is no more hopeful than that.

A small JSON file in the data folder. It is a convenience: a file that is broken, from another version or cannot be written is as
good as an empty one, and nothing here raises.
"""

from __future__ import annotations

import json
import math
import os
from dataclasses import asdict, dataclass, field
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
        row = known.speedups.setdefault(_key(target, quant, device), {})
        before, weight = row.get(drafter, (0.0, 0))
        weight = min(weight, LONG)
        row[drafter] = ((before * weight + speedup * tokens) / (weight + tokens), weight + tokens)
        _write(path, known)
    except (OSError, EngineError):
        return


def remember_bytes(model: Path, quant: str, head: str, device: str, taken: int) -> None:
    """What the weights of a model and the work with them took in memory, the last time; cache, drafter and libraries not counted."""
    try:
        path = _path()
        known = _read(path)
        key = _key(str(model), f"{quant}+{head}", device)
        if taken > 0 and abs(known.memory.get(key, 0) - taken) > taken // 100:
            known.memory[key] = taken
            _write(path, known)
    except (OSError, EngineError):
        return


def recall_bytes(model: Path, quant: str, head: str, device: str) -> int:
    """What `remember_bytes` was told, 0 for nothing."""
    try:
        return _read(_path()).memory.get(_key(str(model), f"{quant}+{head}", device), 0)
    except EngineError:
        return 0


def recall(target: str, quant: str, device: str) -> dict[str, float]:
    """Speed-up by drafter, as measured here."""
    try:
        return {drafter: speedup for drafter, (speedup, _) in _read(_path()).speedups.get(_key(target, quant, device), {}).items()}
    except EngineError:
        return {}


def _path() -> Path:
    return places.data_dir() / "measured.json"


def _key(target: str, quant: str, device: str) -> str:
    return f"{target}|{quant}|{device}"


@dataclass(frozen=True, slots=True)
class _Known:
    speedups: dict[str, dict[str, tuple[float, int]]] = field(default_factory=dict)  # speed-up and tokens, by pair and drafter
    memory: dict[str, int] = field(default_factory=dict)  # bytes


def _read(path: Path) -> _Known:
    try:
        whole: Any = json.loads(path.read_text(encoding="utf-8"))
        if whole["version"] != VERSION:
            return _Known()
        speedups = {key: {d: (float(s), int(n)) for d, (s, n) in row.items()} for key, row in whole["speedups"].items()}
        return _Known(speedups, {key: int(taken) for key, taken in whole.get("memory", {}).items()})
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return _Known()


def _write(path: Path, known: _Known) -> None:
    fresh = path.with_name(f"{path.name}.{os.getpid()}.new")
    fresh.write_text(json.dumps({"version": VERSION, **asdict(known)}, indent=1), encoding="utf-8")
    fresh.replace(path)
