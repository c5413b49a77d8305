"""Space and size on disk: enough for a download? how much does a folder hold? And one lock, so that two programs do not
write the same file."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock, Timeout

from engine import places
from engine.catalog.progress import human
from engine.errors import EngineError

RESERVE = 64_000_000  # bytes to leave free for the rest of the machine


def check_space(folder: Path, need: int, name: str) -> None:
    """EngineError(kind="disk_full") unless `folder`, or the nearest parent that exists, has room for `need` more bytes."""
    while not folder.exists() and folder != folder.parent:
        folder = folder.parent
    free = shutil.disk_usage(folder).free
    if free < need + RESERVE:
        raise EngineError(
            f"{name} needs {human(need + RESERVE)} of disk space, and {folder} has {human(free)} free.",
            "Free some space (`specchat models` shows what takes it, `specchat rm NAME` removes one), or choose a smaller model.",
            kind="disk_full",
            numbers={"need": need + RESERVE, "free": free},
        )


def disk_full(name: str, folder: Path) -> EngineError:
    """The disk ran full on the way."""
    return EngineError(
        f"The disk ran full while {name} was fetched into {folder}.",
        "Free some space and pull again: what was fetched is kept.",
        kind="disk_full",
    )


def size(path: Path) -> int:
    """Bytes of a file, or of all files below a folder; links count as nothing, since what they point to is counted there."""
    if path.is_symlink():
        return 0
    if path.is_file():
        return path.stat().st_size
    return sum(f.lstat().st_size for f in path.rglob("*") if f.is_file() and not f.is_symlink()) if path.is_dir() else 0


@contextmanager
def alone(key: str, name: str) -> Iterator[None]:
    """Hold the lock for `key`, or EngineError(kind="busy") when another process is at it."""
    folder = places.cache_dir() / "locks"
    folder.mkdir(mode=0o700, exist_ok=True)
    lock = FileLock(folder / f"{key}.lock")
    try:
        lock.acquire(timeout=0)
    except Timeout:
        raise EngineError(
            f"Another specchat is fetching {name} right now.", "Wait until it is done, or stop it.", kind="busy"
        ) from None
    try:
        yield
    finally:
        lock.release()
