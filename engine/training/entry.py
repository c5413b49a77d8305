"""Home-made heads in the person's own models.toml: one table more at its end, everything before it untouched. No torch."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path

from engine import places
from engine.catalog import catalog
from engine.catalog.specs import ModelSpec
from engine.errors import EngineError
from engine.training import files

FILE = "models.toml"


def text(name: str, folder: Path, target: ModelSpec, note: str) -> str:
    """The table."""
    bound = [] if target.path is not None and target.repo is None else [target.name]
    rows = [f"[drafter.{json.dumps(name)}]", 'kind = "heads"', f"path = {_quoted(str(folder))}", 'quant = "int8"']
    rows += [f"for = [{', '.join(map(_quoted, bound))}]"] if bound else []
    return "\n".join([*rows, f"note = {_quoted(note)}"]) + "\n"


def free_name(name: str, folder: Path) -> str:
    """The name, or the next free one: entries of others are never replaced, an entry for this very folder stays as it is."""
    models = catalog.load()
    taken = {**models.targets, **models.drafters}
    wanted, n = name, 2
    while wanted in taken and not _is(taken[wanted], folder):
        wanted, n = f"{name}-{n}", n + 1
    return wanted


def add(name: str, folder: Path, target: ModelSpec, note: str) -> str:
    """Write the entry; returns the name that it got. EngineError where the file is broken or cannot be written: it stays as it was."""
    models = catalog.load()
    name = free_name(name, folder)
    if name in models.drafters:
        return name  # trained again in the same place
    path = places.config_dir() / FILE
    try:
        before = path.read_bytes() if path.exists() else b""
    except OSError as error:
        raise EngineError(f"{path} cannot be read ({error.strerror}).", "Check its permissions.", kind="config") from error
    gap = b"" if not before or before.endswith(b"\n\n") else b"\n" if before.endswith(b"\n") else b"\n\n"
    after = before + gap + text(name, folder, target, note).encode()
    tomllib.loads(after.decode("utf-8-sig"))  # `load` above has read it, so this is our own promise
    files.write(path, after)
    return name


def _is(spec: ModelSpec, folder: Path) -> bool:
    return spec.path is not None and spec.path.absolute() == folder.absolute()


def _quoted(value: str) -> str:
    """A TOML text: JSON's escapes are among TOML's."""
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
