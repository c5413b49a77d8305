"""What is remembered from one start to the next: the last target and drafter, in `state.json` under the data folder.

Losing it costs nothing but a default, so reading never fails and saving answers with a warning instead of an exception.
"""

from __future__ import annotations

import json
import os
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path

from engine.errors import EngineError
from engine.places import data_dir


@dataclass(frozen=True, slots=True)
class State:
    """Names as they would be written after `-t` and `-d`."""

    last_target: str | None = None
    last_drafter: str | None = None


def load_state() -> State:
    """The saved state; an empty one where there is none or it cannot be read."""
    try:
        saved = json.loads((data_dir() / "state.json").read_text(encoding="utf-8"))
    except (OSError, ValueError, EngineError):
        return State()
    if not isinstance(saved, dict):
        return State()
    target, drafter = saved.get("last_target"), saved.get("last_drafter")
    return State(target if isinstance(target, str) else None, drafter if isinstance(drafter, str) else None)


def save_state(state: State) -> str | None:
    """Write the state, whole or not at all, readable by its owner only. Returns a warning where that failed."""
    try:
        folder = data_dir()
        handle, name = tempfile.mkstemp(prefix="state-", suffix=".tmp", dir=folder)  # 0600 where the system knows modes
        try:
            with os.fdopen(handle, "w", encoding="utf-8") as file:
                json.dump(asdict(state), file)
            Path(name).replace(folder / "state.json")
        except BaseException:
            Path(name).unlink(missing_ok=True)
            raise
    except EngineError as error:
        return f"The last used models are not remembered. {error.message}"
    except OSError as error:
        return f"The last used models are not remembered: {error.strerror or error}."
    return None
