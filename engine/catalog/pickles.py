"""The table of contents of PyTorch checkpoints (`.bin`, `.pt`): names, shapes, types, without torch and without reading a weight.

A checkpoint is a pickle with the tensors beside it, in a zip archive, or in one stream in files from before 2020. Only what describes
tensors is unpickled here, with stand-ins for torch's classes; a pickle that names anything else is refused before it can run:
EngineError(kind="unsafe_weights"). A file that ends before its tensors do is "corrupt_weights".
"""

from __future__ import annotations

import pickle
import struct
import zipfile
from collections import OrderedDict
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import IO, Any

from engine.catalog.headers import Shape, corrupt, missing
from engine.errors import EngineError

# torch's storage classes: our name of the type, bytes per value
STORAGES = {
    "HalfStorage": ("F16", 2), "BFloat16Storage": ("BF16", 2), "FloatStorage": ("F32", 4), "DoubleStorage": ("F64", 8),
    "LongStorage": ("I64", 8), "IntStorage": ("I32", 4), "ShortStorage": ("I16", 2), "CharStorage": ("I8", 1),
    "ByteStorage": ("U8", 1), "BoolStorage": ("BOOL", 1),
}  # fmt: skip
WRAPPERS = ("state_dict", "model_state_dict", "model", "module")  # keys under which trainers put the tensors
MAGIC = 0x1950A86A20F9469CFC6C  # of the stream format
BROKEN: tuple[type[Exception], ...] = (  # what damaged bytes make pickle and zipfile say
    pickle.UnpicklingError, zipfile.BadZipFile, struct.error, EOFError, ValueError, KeyError, TypeError, IndexError, AttributeError,
    OverflowError, NotImplementedError, RuntimeError, ImportError, MemoryError,
)  # fmt: skip


def read(path: Path) -> dict[str, Shape]:
    """Tensors of one checkpoint, `Shape.place` equal where two names share one tensor. EngineError for a bad file."""
    try:
        with path.open("rb") as file:
            whole, sizes = _from_zip(file) if zipfile.is_zipfile(file) else _from_stream(file)
        found: dict[str, _Tensor] = tensors_of(whole, lambda value: isinstance(value, _Tensor))
        for name, tensor in found.items():
            if tensor.end > sizes.get(tensor.key, 0):
                raise ValueError(f"the data of {name} are not all there")
    except FileNotFoundError:
        raise missing(path) from None
    except _Foreign as error:
        raise EngineError(
            f"{path.name} holds more than tensors ({error}), and specchat never runs code from a weights file.",
            "Use a checkpoint that holds tensors only, best in safetensors, from a source that you trust.",
            kind="unsafe_weights",
            detail=str(path),
        ) from None
    except BROKEN as error:
        raise corrupt(path, f"it is no complete PyTorch checkpoint ({error or type(error).__name__})") from None
    return {name: Shape(tensor.shape, tensor.dtype, f"{tensor.key}+{tensor.start}") for name, tensor in found.items()}


def tensors_of(whole: object, is_tensor: Callable[[Any], bool]) -> dict[str, Any]:
    """The tensors by name, out of the dictionary that a trainer may have put around them. ValueError when there are none."""
    for _ in range(3):
        if not isinstance(whole, Mapping):
            break
        if found := {str(name): value for name, value in whole.items() if is_tensor(value)}:
            return found
        whole = next((whole[key] for key in WRAPPERS if isinstance(whole.get(key), Mapping)), None)
    raise ValueError("it holds no tensors by name")


class _Foreign(Exception):
    """A pickle that names something other than a description of tensors."""


class _Storage:
    """Where a tensor's values are."""

    def __init__(self, dtype: str, width: int, key: str) -> None:
        self.dtype, self.width, self.key = dtype, width, key


class _Tensor:
    """A tensor as described: shape, and which bytes of which storage."""

    def __init__(self, storage: _Storage, offset: int, size: tuple[int, ...], stride: tuple[int, ...]) -> None:
        self.shape, self.dtype, self.key, self.start = tuple(map(int, size)), storage.dtype, storage.key, int(offset) * storage.width
        if min(self.shape, default=1) < 0 or offset < 0 or min(stride, default=0) < 0 or len(stride) != len(size):
            raise ValueError("a tensor has an impossible shape")
        last = sum((n - 1) * s for n, s in zip(self.shape, stride, strict=True)) if all(self.shape) else -1
        self.end = self.start + (last + 1) * storage.width


def _tensor(storage: _Storage, offset: int, size: tuple[int, ...], stride: tuple[int, ...], *_: object) -> _Tensor:
    return _Tensor(storage, offset, size, stride)


def _parameter(data: object, *_: object) -> object:
    return data


class _Unpickler(pickle.Unpickler):
    """Knows tensors, plain containers, numbers and texts; nothing else is looked up, let alone called."""

    def __init__(self, file: IO[bytes], numels: dict[str, int]) -> None:
        super().__init__(file)
        self._numels = numels

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) == ("collections", "OrderedDict"):
            return OrderedDict
        if module == "torch._utils" and name in ("_rebuild_tensor_v2", "_rebuild_parameter"):
            return {"_rebuild_tensor_v2": _tensor, "_rebuild_parameter": _parameter}[name]
        if (module, name) == ("torch", "Size"):
            return tuple
        if module in ("torch", "torch.cuda") and name in STORAGES:
            return name
        raise _Foreign(f"it names {module}.{name}")

    def persistent_load(self, pid: Any) -> _Storage:
        kind, name, key, _place, numel = pid[:5]
        if kind != "storage" or name not in STORAGES:
            raise ValueError("it refers to something unknown")
        dtype, width = STORAGES[name]
        self._numels[str(key)] = int(numel) * width
        return _Storage(dtype, width, str(key))


def _from_zip(file: IO[bytes]) -> tuple[object, dict[str, int]]:
    """(what was pickled, bytes there are of each storage)."""
    with zipfile.ZipFile(file) as archive:
        at = next((name for name in archive.namelist() if name.rpartition("/")[2] == "data.pkl"), "")
        with archive.open(at) as pickled:
            whole = _Unpickler(pickled, {}).load()
        root = at.removesuffix("data.pkl") + "data/"
        return whole, {item.filename.removeprefix(root): item.file_size for item in archive.infolist() if item.filename.startswith(root)}


def _from_stream(file: IO[bytes]) -> tuple[object, dict[str, int]]:
    """The format before 2020: five pickles, then for each storage its length and its values."""
    file.seek(0)
    numels: dict[str, int] = {}

    def load() -> Any:
        return _Unpickler(file, numels).load()

    if load() != MAGIC:
        raise ValueError("it does not begin like a checkpoint")
    _protocol, _system, whole, keys = load(), load(), load(), load()
    at = file.tell()
    size = file.seek(0, 2)
    sizes: dict[str, int] = {}
    for key in map(str, keys):
        at += 8 + numels[key]
        sizes[key] = numels[key] if at <= size else 0
    return whole, sizes
