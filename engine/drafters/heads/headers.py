"""A folder of draft heads: its config and the names and shapes of its tensors, without reading a weight. No torch.

Configs are read as plain JSON: what transformers makes of them changes from version to version.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from engine.catalog import headers, needed
from engine.errors import EngineError


@dataclass(frozen=True, slots=True)
class Contents:
    """What a folder of heads holds. `config` is None when there is none."""

    name: str  # for sentences
    config: dict[str, Any] | None
    files: tuple[Path, ...]
    tensors: dict[str, headers.Shape]  # by stored name

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        return {name: tensor.shape for name, tensor in self.tensors.items()}


def read(folder: Path, name: str = "") -> Contents:
    """Look at a folder. EngineError: nothing there, truncated, not only tensors in it, a config that is no JSON."""
    if not folder.is_dir():
        raise EngineError(
            f"There are no draft heads at {folder}.", "Give the folder that holds their config.json and weights.", kind="missing_weights"
        )
    files = tuple(folder / file for file in needed.head_files(folder))
    tensors: dict[str, headers.Shape] = {}
    for file in files:
        tensors |= needed.contents(file)
    return Contents(name or folder.name, config(folder), files, tensors)


def config(folder: Path) -> dict[str, Any] | None:
    """config.json as it is; None when there is none."""
    try:
        found = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise headers.corrupt(folder / "config.json", str(error)) from None
    if not isinstance(found, dict):
        raise headers.corrupt(folder / "config.json", "it holds no table")
    return found
