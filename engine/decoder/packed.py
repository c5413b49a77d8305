"""Packed weights on disk: one safetensors file per model and scheme, written once in row blocks, mapped afterwards.

`<key>.safetensors` lies beside `<key>.json`, which names the `source` and everything that the packed numbers depend on; a pair that
does not match exactly is not used. Both are put in place by renaming, the JSON last. Writing never needs more memory than a block, and
reading costs address space only.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import re
import shutil
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, cast

import torch
from torch import Tensor

from engine import places

VERSION = 2  # of the packed numbers; a change here makes every cache stale
ALIGN = 64
SPARE = 256 << 20  # bytes of disk that the cache leaves free
_NAMES = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.int8: "I8",
    torch.uint8: "U8",
}


@dataclass(frozen=True, slots=True)
class Slot:
    """Where one tensor lies, from the first byte of data."""

    dtype: torch.dtype
    shape: tuple[int, ...]
    start: int
    nbytes: int

    @property
    def row_bytes(self) -> int:
        return self.nbytes // self.shape[0]


@dataclass(frozen=True, slots=True)
class Layout:
    """The whole file: `header` are its first bytes, then `nbytes` of data."""

    slots: dict[str, Slot]
    nbytes: int
    header: bytes = field(repr=False)

    def views(self, data: Tensor) -> dict[str, Tensor]:
        """Tensors over the data bytes (nbytes,) uint8."""
        return {name: data[s.start : s.start + s.nbytes].view(s.dtype).view(s.shape) for name, s in self.slots.items()}


def arrange(specs: Iterable[tuple[str, torch.dtype, tuple[int, ...]]]) -> Layout:
    """Lay tensors out one after the other, each at a multiple of 64 bytes. The gaps are tensors too: the format allows no holes."""
    slots: dict[str, Slot] = {}
    entries: dict[str, Any] = {}
    at = 0

    def entry(name: str, dtype: str, shape: list[int], nbytes: int) -> None:
        nonlocal at
        entries[name] = {"dtype": dtype, "shape": shape, "data_offsets": [at, at + nbytes]}
        at += nbytes

    for name, dtype, shape in specs:
        if gap := -at % ALIGN:
            entry(f"gap.{at}", "U8", [gap], gap)
        nbytes = math.prod(shape) * dtype.itemsize
        slots[name] = Slot(dtype, shape, at, nbytes)
        entry(name, _NAMES[dtype], list(shape), nbytes)
    text = json.dumps(entries, separators=(",", ":")).encode()
    text += b" " * (-(8 + len(text)) % ALIGN)
    return Layout(slots, at, len(text).to_bytes(8, "little") + text)


class Sink(Protocol):
    """Takes packed tensors, whole or in row blocks, and gives back the data bytes."""

    def put(self, name: str, tensor: Tensor, row: int = 0) -> None: ...
    def finish(self) -> Tensor: ...
    def abort(self) -> None: ...


class MemorySink:
    """Keeps everything in memory: no cache wanted, or no room for it."""

    def __init__(self, layout: Layout) -> None:
        self._data = torch.empty(layout.nbytes, dtype=torch.uint8)
        self._views = layout.views(self._data)

    def put(self, name: str, tensor: Tensor, row: int = 0) -> None:
        view = self._views[name]
        assert tensor.dtype == view.dtype
        view[row : row + tensor.shape[0]] = tensor

    def finish(self) -> Tensor:
        return self._data

    def abort(self) -> None:
        """Nothing is left behind."""


class FileSink:
    """Writes the cache file. Raises OSError where the disk cannot take it."""

    def __init__(self, layout: Layout, key: dict[str, Any], source: Path) -> None:
        folder = places.packed_dir()
        self._layout, self._key, self._source = layout, key, source
        self._path = file_of(folder, key, source)
        free = shutil.disk_usage(folder).free
        if free < layout.nbytes + SPARE:
            raise OSError(f"{free >> 20} MB are free, {(layout.nbytes + SPARE) >> 20} MB are needed")
        self._partial = self._path.with_name(f"{self._path.stem}.{os.getpid()}.partial")
        self._file = self._partial.open("wb")
        self._file.write(layout.header)

    def put(self, name: str, tensor: Tensor, row: int = 0) -> None:
        slot = self._layout.slots[name]
        assert tensor.dtype == slot.dtype
        assert row * slot.row_bytes + tensor.nbytes <= slot.nbytes
        self._file.seek(len(self._layout.header) + slot.start + row * slot.row_bytes)
        self._file.write(memoryview(tensor.contiguous().view(-1).view(torch.uint8).numpy().data))

    def finish(self) -> Tensor:
        self._file.truncate(len(self._layout.header) + self._layout.nbytes)
        self._file.flush()
        os.fsync(self._file.fileno())
        self._file.close()
        self._drop_stale()
        self._partial.replace(self._path)
        note = json.dumps({"source": str(self._source), "key": self._key}, indent=1)
        partial_note = self._partial.with_suffix(".note")
        partial_note.write_text(note, encoding="utf-8")
        partial_note.replace(self._path.with_suffix(".json"))
        return _mapped(self._path, self._layout)

    def abort(self) -> None:
        self._file.close()
        self._partial.unlink(missing_ok=True)

    def _drop_stale(self) -> None:
        """Packed files of earlier versions of the same weights are of no use to anybody."""
        for note in self._path.parent.glob("*.json"):
            try:
                read = json.loads(note.read_text(encoding="utf-8"))
                if read["source"] == str(self._source) and read["key"]["files"] != self._key["files"]:
                    note.unlink()
                    note.with_suffix(".safetensors").unlink(missing_ok=True)
            except (OSError, ValueError, KeyError, TypeError):
                continue


def key_of(files: tuple[Path, ...], **settings: Any) -> dict[str, Any]:
    """Everything that the packed numbers depend on, as plain JSON."""
    stats = [(path.resolve(), path.stat()) for path in files]
    return {"version": VERSION, "files": [[str(p), s.st_size, s.st_mtime_ns] for p, s in stats], **settings}


def file_of(folder: Path, key: dict[str, Any], source: Path) -> Path:
    """`smollm2-nf4-int8-1f0c….safetensors`: readable, and unique to the key."""
    digest = hashlib.sha256(json.dumps(key, sort_keys=True).encode()).hexdigest()[:16]
    stem = re.sub(r"[^A-Za-z0-9]+", "-", source.stem).strip("-").lower()[:40] or "model"
    return folder / f"{stem}-{key.get('scheme')}-{key.get('head')}-{digest}.safetensors"


def find(layout: Layout, key: dict[str, Any], source: Path) -> Tensor | None:
    """The mapped data of a cache that matches in every byte of its header; a damaged one is removed."""
    path = file_of(places.packed_dir(), key, source)
    note = path.with_suffix(".json")
    try:
        if not (note.exists() and path.exists()):
            return None
        with path.open("rb") as file:
            good = file.read(len(layout.header)) == layout.header
        good = good and path.stat().st_size == len(layout.header) + layout.nbytes
        good = good and json.loads(note.read_text(encoding="utf-8"))["key"] == key
        if good:
            return _mapped(path, layout)
    except (OSError, ValueError, KeyError, TypeError):
        pass
    note.unlink(missing_ok=True)
    path.unlink(missing_ok=True)
    return None


def _mapped(path: Path, layout: Layout) -> Tensor:
    size = len(layout.header) + layout.nbytes
    storage = torch.UntypedStorage.from_file(str(path), shared=False, nbytes=size)
    return torch.empty(0, dtype=torch.uint8).set_(cast(torch.UntypedStorage, storage))[len(layout.header) :]
