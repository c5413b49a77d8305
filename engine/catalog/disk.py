"""Space and size on disk: enough for a download? how much does a folder hold? And one lock, so that two programs do not
write the same file."""

from __future__ import annotations

import os
import shutil
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

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


def files(folder: Path) -> Iterator[tuple[Path, int]]:
    """All files below a folder and their sizes. Links are left out: what they point to is counted where it lies. Files that come and
    go meanwhile are no problem."""
    for parent, _, names in os.walk(folder):
        for name in names:
            path = Path(parent, name)
            try:
                found = path.lstat()
            except OSError:
                continue
            if stat.S_ISREG(found.st_mode):
                yield path, found.st_size


def size(path: Path) -> int:
    """Bytes of a file, or of all files below a folder."""
    if path.is_file() and not path.is_symlink():
        return path.stat().st_size
    return sum(size for _, size in files(path))


@contextmanager
def alone(key: str, name: str) -> Iterator[None]:
    """Hold the lock for `key`, or EngineError(kind="busy") when another process is at it."""
    from filelock import FileLock, Timeout  # for a download only

    folder = places.cache_dir() / "locks"
    folder.mkdir(mode=0o700, exist_ok=True)
    lock = FileLock(folder / f"{key}.lock")
    try:
        lock.acquire(timeout=0)
    except Timeout:
        raise EngineError(f"Another specchat is fetching {name} right now.", "Wait until it is done, or stop it.", kind="busy") from None
    try:
        yield
    finally:
        lock.release()
