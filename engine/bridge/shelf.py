"""Small arrays on disk under the cache, by content key: byte tables and maps between vocabularies.

Writing is atomic and never fails a load: no room or no permission only means that the work is done again next time. A file that cannot
be read whole is removed. The folder keeps the newest files only.
"""

from __future__ import annotations

import contextlib
import os
import zipfile
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from engine import places
from engine.errors import EngineError

KEPT = 64  # files; a table takes one to four megabytes
Arrays = Mapping[str, np.ndarray]


def find(name: str) -> dict[str, np.ndarray] | None:
    """The arrays that were put under this name; None where there are none, or damaged ones, which are removed."""
    try:
        path = _file(name)
        if not path.exists():
            return None
        with np.load(path, allow_pickle=False) as stored:
            found = {key: stored[key] for key in stored.files}
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile, EngineError):
        drop(name)
        return None
    with contextlib.suppress(OSError):
        os.utime(path)  # used just now: the last to go
    return found


def put(name: str, arrays: Arrays) -> None:
    """Keep arrays under a name."""
    try:
        path = _file(name)
        partial = path.with_name(f"{path.name}.{os.getpid()}.partial")
    except EngineError:
        return
    try:
        with partial.open("wb") as file:
            np.savez(file, **arrays)  # type: ignore[arg-type]
        partial.replace(path)
        _tidy(path.parent)
    except OSError:
        with contextlib.suppress(OSError):
            partial.unlink(missing_ok=True)


def drop(name: str) -> None:
    """Forget what is under a name."""
    with contextlib.suppress(OSError, EngineError):
        _file(name).unlink(missing_ok=True)


def _file(name: str) -> Path:
    folder = places.cache_dir() / "bridge"
    folder.mkdir(mode=0o700, exist_ok=True)
    return folder / f"{name}.npz"


def _tidy(folder: Path) -> None:
    files = sorted(folder.glob("*.npz"), key=lambda f: f.stat().st_mtime, reverse=True)
    for old in files[KEPT:]:
        old.unlink(missing_ok=True)
