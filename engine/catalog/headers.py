"""The table of contents of weight files: names, shapes and sizes, without reading a weight. No torch, no numpy.

Safetensors: 8 bytes of length, then JSON. GGUF: metadata, then tensor descriptions; long arrays (the vocabulary) are stepped over.
Both say where the data must end, so a truncated file is found here, before anything is loaded: EngineError(kind="corrupt_weights").
"""

from __future__ import annotations

import json
import math
import mmap
import struct
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from engine.errors import EngineError

MAX_HEADER = 100_000_000  # bytes; the safetensors format allows no more
SCALARS = {0: "<B", 1: "<b", 2: "<H", 3: "<h", 4: "<I", 5: "<i", 6: "<f", 7: "<?", 10: "<Q", 11: "<q", 12: "<d"}
STRING, ARRAY = 8, 9
# bytes per block and values per block of the GGUF types in use; a type that is not here is not checked for its end
GGUF_TYPES = {
    0: (4, 1), 1: (2, 1), 2: (18, 32), 3: (20, 32), 6: (22, 32), 7: (24, 32), 8: (34, 32), 10: (84, 256), 11: (110, 256),
    12: (144, 256), 13: (176, 256), 14: (210, 256), 20: (18, 32), 23: (136, 256), 24: (1, 1), 25: (2, 1), 26: (4, 1), 30: (2, 1),
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Shape:
    """One tensor: its shape as torch counts, slowest first; its type (F16, I64, …) and where in its file, as far as that is known."""

    shape: tuple[int, ...]
    dtype: str = field(default="", compare=False)
    place: str = field(default="", compare=False)

    @property
    def numel(self) -> int:
        return math.prod(self.shape)


@dataclass(frozen=True, slots=True)
class Gguf:
    """A GGUF file's metadata (long arrays left out) and tensors."""

    metadata: dict[str, Any]
    tensors: dict[str, Shape]
    array_lengths: dict[str, int]


def safetensors(path: Path) -> dict[str, Shape]:
    """Tensors of one safetensors file; the file must be as long as its header says."""
    try:
        size = path.stat().st_size
        with path.open("rb") as file:
            length = int.from_bytes(file.read(8), "little")
            if not 0 < length <= min(MAX_HEADER, size - 8):
                raise ValueError("its header is cut off")
            header = json.loads(file.read(length))
        header.pop("__metadata__", None)
        end = 8 + length + max((entry["data_offsets"][1] for entry in header.values()), default=0)
        tensors = {n: Shape(tuple(e["shape"]), e.get("dtype", ""), str(e["data_offsets"][0])) for n, e in header.items()}
    except FileNotFoundError:
        raise missing(path) from None
    except (ValueError, KeyError, TypeError, IndexError, AttributeError) as error:
        raise corrupt(path, str(error)) from None
    if size != end:
        raise corrupt(path, f"it has {size} bytes instead of {end}")
    return tensors


def gguf(path: Path) -> Gguf:
    """Metadata and tensors of a GGUF file; the file must hold all the data that it describes."""
    try:
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as view:
            found, end = _Reader(view).read()
            size = len(view)
    except FileNotFoundError:
        raise missing(path) from None
    except (ValueError, KeyError, struct.error, UnicodeDecodeError, IndexError) as error:
        raise corrupt(path, str(error) or "it ends too early") from None
    if size < end:
        raise corrupt(path, f"it has {size} bytes instead of {end}")
    return found


def missing(path: Path) -> EngineError:
    return EngineError(f"The file {path} is missing.", "Pull the model again, or check the path.", kind="missing_weights")


def corrupt(path: Path, reason: str) -> EngineError:
    return EngineError(
        f"The weight file {path.name} is damaged: {reason}.",
        "Pull the model again: a damaged file is fetched anew. A file of your own must be copied again.",
        kind="corrupt_weights",
        detail=str(path),
    )


class _Reader:
    """Walks over the header of a GGUF file, version 2 or 3, little-endian."""

    def __init__(self, view: mmap.mmap) -> None:
        self._view, self._at = view, 0

    def read(self) -> tuple[Gguf, int]:
        if self._view[:4] != b"GGUF":
            raise ValueError("it does not begin like a GGUF file")
        self._at = 4
        version = self._scalar("<I")
        if version not in (2, 3):
            raise ValueError(f"GGUF version {version} is not known")
        n_tensors, n_values = self._scalar("<Q"), self._scalar("<Q")
        metadata: dict[str, Any] = {}
        lengths: dict[str, int] = {}
        for _ in range(n_values):
            key = self._string()
            kind = self._scalar("<I")
            if kind == ARRAY:
                metadata[key], lengths[key] = self._array()
            else:
                metadata[key] = self._string() if kind == STRING else self._scalar(SCALARS[kind])
        tensors: dict[str, Shape] = {}
        last = 0
        for _ in range(n_tensors):
            name = self._string()
            shape = tuple(self._scalar("<Q") for _ in range(self._scalar("<I")))
            kind, offset = self._scalar("<I"), self._scalar("<Q")
            tensors[name] = Shape(shape[::-1])
            if kind in GGUF_TYPES:
                block, values = GGUF_TYPES[kind]
                last = max(last, offset + math.prod(shape) // values * block)
        alignment = int(metadata.get("general.alignment", 32))
        return Gguf(metadata, tensors, lengths), -(-self._at // alignment) * alignment + last

    def _scalar(self, form: str) -> Any:
        (value,) = struct.unpack_from(form, self._view, self._at)
        self._at += struct.calcsize(form)
        return value

    def _string(self) -> str:
        length = self._scalar("<Q")
        if length > len(self._view) - self._at:
            raise ValueError("it ends too early")
        text = self._view[self._at : self._at + length].decode("utf-8", "replace")
        self._at += length
        return text

    def _array(self) -> tuple[list[Any] | None, int]:
        """Short arrays of numbers are read (some models give a value per layer); others are stepped over."""
        kind, length = self._scalar("<I"), self._scalar("<Q")
        if kind == STRING:
            at, view, unpack = self._at, self._view, struct.Struct("<Q").unpack_from
            for _ in range(length):
                at += 8 + unpack(view, at)[0]
            self._at = at
            return None, length
        form = SCALARS[kind]
        if length <= 1024:
            return [self._scalar(form) for _ in range(length)], length
        self._at += struct.calcsize(form) * length
        return None, length
