"""What was measured on a card, kept over sessions: costs by number of rows, tables of calls, whether rows kept their bits.

A JSON file in the cache folder. Everything is kept under the card and the versions of what runs on it (`card`), so that a new driver or
library is measured anew. A convenience: a file that is broken or cannot be written is as good as an empty one, and nothing here raises.
"""

from __future__ import annotations

import functools
import importlib.metadata
import json
import os
from pathlib import Path
from typing import Any

import torch

from engine import places
from engine.errors import EngineError

VERSION = 1  # of what is kept, and of the code that was measured: a change of the passes themselves makes it stale


@functools.cache
def card(device: torch.device) -> str:
    """`NVIDIA GeForce RTX 4090 8.9 x128, driver 580.1, torch 2.13.0, bitsandbytes 0.50.2`, or "" where there is no card."""
    if device.type != "cuda":
        return ""
    about = torch.cuda.get_device_properties(device)
    versions = f"cuda {torch.version.cuda}, torch {torch.__version__}, bitsandbytes {_version('bitsandbytes')}"
    return f"{about.name} {about.major}.{about.minor} x{about.multi_processor_count}, {versions}, triton {_version('triton')}"


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "none"


def recall(device: torch.device, what: str) -> Any:
    """What was kept under this name for this card; None when nothing was."""
    name = card(device)
    return _read().get(name, {}).get(what) if name else None


def remember(device: torch.device, what: str, value: Any) -> None:
    """Keep a JSON value."""
    name = card(device)
    if not name:
        return
    try:
        path = _path()
        notes = _read()
        notes.setdefault(name, {})[what] = value
        fresh = path.with_name(f"{path.name}.{os.getpid()}.new")
        fresh.write_text(json.dumps({"version": VERSION, "cards": notes}), encoding="utf-8")
        fresh.replace(path)
    except (OSError, EngineError, TypeError, ValueError):
        return


def _path() -> Path:
    return places.cache_dir() / "cuda.json"


def _read() -> dict[str, dict[str, Any]]:
    try:
        whole = json.loads(_path().read_text(encoding="utf-8"))
        cards = whole["cards"] if whole["version"] == VERSION else {}
        return cards if all(isinstance(notes, dict) for notes in cards.values()) else {}
    except (OSError, EngineError, ValueError, KeyError, TypeError, AttributeError):
        return {}
