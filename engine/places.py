"""Where things live: one function per folder, made on demand, for the person's eyes only (mode 0700).

`SPECCHAT_HOME`, when set, holds config, data, cache and logs; else the platform's usual folders for "specchat". A folder that
cannot be made or written raises EngineError(kind="unwritable"). Read each time, so that tests and scripts may change the variable.
"""

from __future__ import annotations

import os
from pathlib import Path

import platformdirs

from engine.errors import EngineError

APP = "specchat"


def config_dir() -> Path:
    """The person's own models.toml and settings."""
    return _made(_home("config") or platformdirs.user_config_path(APP, appauthor=False))


def data_dir() -> Path:
    """Chats, bench results, home-made heads: what cannot be downloaded again."""
    return _made(_home("data") or platformdirs.user_data_path(APP, appauthor=False))


def cache_dir() -> Path:
    """What can be made or downloaded again. Hub downloads are not here but in the ordinary hub cache."""
    return _made(_home("cache") or platformdirs.user_cache_path(APP, appauthor=False))


def log_dir() -> Path:
    """Log files."""
    return _made(_home("logs") or platformdirs.user_log_path(APP, appauthor=False))


def packed_dir() -> Path:
    """Quantized weights, ready to load."""
    return _made(cache_dir() / "packed")


def mirror_dir() -> Path:
    """Model files that came through a wheel mirror."""
    return _made(cache_dir() / "models")


def written(name: str | Path) -> Path:
    """A path as a person writes it, with ~ for the home folder. What names no home stays as it is: no such file will be there."""
    try:
        return Path(name).expanduser()
    except (RuntimeError, UnicodeError):
        return Path(name)


def _home(part: str) -> Path | None:
    home = os.environ.get("SPECCHAT_HOME", "").strip()
    return written(home).absolute() / part if home else None


def _made(folder: Path) -> Path:
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        writable = os.access(folder, os.W_OK | os.X_OK)
        reason = "no permission"
    except OSError as error:
        writable, reason = False, error.strerror or str(error)
    if not writable:
        raise EngineError(
            f"The folder {folder} cannot be written ({reason}).",
            "Make it writable, or set SPECCHAT_HOME to a folder of your own.",
            kind="unwritable",
        )
    return folder
