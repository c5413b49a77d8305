"""Draft heads from disk: strictly, every tensor is used or on the ignore list, and never any code from a file."""

from __future__ import annotations

from pathlib import Path

from torch import Tensor

from engine.drafters.heads.specs import HeadSpec, TargetFacts


def load_head(path: Path, target: TargetFacts, method: str = "auto") -> tuple[HeadSpec, dict[str, Tensor]]:
    """The heads in a folder, as they are on disk (16 bit, mapped), under their published names (`engine.drafters.heads.layout`)."""
    raise NotImplementedError
