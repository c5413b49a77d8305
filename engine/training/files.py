"""Files that are whole or not there: written under another name, flushed to the disk, then renamed. No torch."""

from __future__ import annotations

import contextlib
import errno
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from engine.errors import EngineError

PART = ".part"


def write(path: Path, content: bytes) -> None:
    """The file holds exactly `content` afterwards, or what it held before. EngineError(kind="disk_full" | "unwritable")."""
    part = path.with_name(path.name + PART)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with part.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        part.replace(path)
    except OSError as error:
        with contextlib.suppress(OSError):
            part.unlink(missing_ok=True)
        raise cannot_write(path, error) from error


def cannot_write(path: Path, error: OSError) -> EngineError:
    """What to say when a file could not be written."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return EngineError(
            f"The disk ran full while {path.name} was written into {path.parent}.",
            "Free some space and run the same command again with --resume: everything that was written before is kept.",
            kind="disk_full",
        )
    return EngineError(
        f"{path} cannot be written ({error.strerror or error}).",
        "Choose another folder with --out, or make it writable.",
        kind="unwritable",
    )


def write_json(path: Path, value: Any) -> None:
    """The same for JSON."""
    write(path, (json.dumps(value, ensure_ascii=False, indent=2) + "\n").encode())


def read_json(path: Path) -> dict[str, Any] | None:
    """A table, None when there is no such file. EngineError(kind="corrupt") for one that is damaged."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise EngineError(f"{path} cannot be read ({error}).", "Choose another folder with --out.", kind="config") from error
    if not isinstance(found, dict):
        raise EngineError(f"{path} holds no table.", "Choose another folder with --out.", kind="config")
    return found


@contextmanager
def alone(folder: Path) -> Iterator[None]:
    """Only one training at a time in a folder; EngineError(kind="busy") for the second."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = FileLock(folder / ".lock")
        lock.acquire(timeout=0)
    except Timeout:
        raise EngineError(f"Another specchat is training in {folder}.", "Wait for it, or choose another --out.", kind="busy") from None
    except OSError as error:
        raise cannot_write(folder, error) from error
    try:
        yield
    finally:
        lock.release()
