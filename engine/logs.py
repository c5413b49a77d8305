"""Where unexpected errors leave their traceback: one small file, for bug reports. No torch."""

from __future__ import annotations

import os
import traceback
from datetime import datetime
from pathlib import Path

from engine import places
from engine.errors import EngineError

FILE = "specchat.log"
MOST_BYTES = 1_000_000


def log_failure(error: BaseException) -> Path | None:
    """Append a traceback to specchat.log; None when that is impossible."""
    return log_text("".join(traceback.format_exception(error)))


def log_text(text: str) -> Path | None:
    """Append to specchat.log, which is kept short and private. Chats never go in here."""
    try:
        path = places.log_dir() / FILE
        if path.exists() and path.stat().st_size > MOST_BYTES:
            path.replace(path.with_suffix(".old.log"))
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600), "a", encoding="utf-8", errors="replace") as log:
            log.write(f"--- {datetime.now():%Y-%m-%d %H:%M:%S}\n{text.rstrip()}\n")
    except (OSError, EngineError):
        return None
    return path
