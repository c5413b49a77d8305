"""Where tensors come from: one protocol over safetensors, pickles and GGUF, under transformers' own names.

Names are those of the plain text model (`model.layers.0.self_attn.q_proj.weight`, `lm_head.weight`); what a multimodal checkpoint puts
in front of them is stripped. Nothing is read before it is asked for, and nothing is kept: the caller frees what it gets.
"""

from __future__ import annotations

import json
import pickle
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor

from engine.errors import EngineError

AGAIN = "In a folder of your own, put back a good copy of the file. What specchat fetched: `specchat rm NAME`, then `specchat pull NAME`."
_PREFIXES = ("model.language_model.model.", "model.language_model.", "language_model.model.", "language_model.", "model.text_model.")


class TensorSource(Protocol):
    """The weights of one model on disk."""

    config: Any  # a transformers config
    files: tuple[Path, ...]  # every file that holds weights

    def names(self) -> frozenset[str]: ...
    def shape(self, name: str) -> tuple[int, ...]: ...
    def dtype(self, name: str) -> torch.dtype: ...
    def read(self, name: str) -> Tensor: ...
    def read_rows(self, name: str, start: int, stop: int) -> Tensor: ...
    def mapped(self, name: str) -> Tensor | None: ...  # the tensor in place, without a copy, where the file allows it


def open_source(path: Path) -> TensorSource:
    """A `.gguf` file, or a folder with safetensors, pickles or one GGUF."""
    if not path.exists():
        raise missing(path, "There is nothing at this place")
    if path.is_file():
        if path.suffix.lower() != ".gguf":
            raise EngineError(f"{path.name} is not a model that specchat can read.", "Give a folder or a .gguf file.", kind="config")
        from engine.decoder.gguf import GgufSource

        return GgufSource(path)
    if not (path / "config.json").exists() and (found := sorted(path.glob("*.gguf"))):
        return open_source(found[0])
    config = read_config(path)
    if getattr(config, "quantization_config", None):
        raise EngineError(
            f"The weights in {path.name} are already quantized in a form that specchat does not read.",
            "Use the model's plain (bf16) repository or a .gguf file.",
            kind="architecture",
        )
    files = weight_files(path)
    return SafetensorsSource(config, files) if files[0].suffix == ".safetensors" else PickleSource(config, files)


def read_config(path: Path) -> Any:
    """The transformers config of a folder."""
    from transformers import AutoConfig

    try:
        return AutoConfig.from_pretrained(str(path), local_files_only=True)
    except (OSError, ValueError, KeyError, TypeError, json.JSONDecodeError) as error:
        if not (path / "config.json").exists():
            raise missing(path / "config.json", "The folder has no config.json") from error
        detail = str(error)
        unknown = "model type" in detail or "model_type" in detail
        raise EngineError(
            f"The config.json in {path.name} cannot be used" + (": transformers does not know this architecture." if unknown else "."),
            "A newer transformers may know it: pip install -U transformers." if unknown else AGAIN,
            kind="architecture" if unknown else "config",
            detail=detail,
        ) from error


def weight_files(path: Path) -> tuple[Path, ...]:
    """The files with weights in a folder, safetensors first; every shard that the index names must be there."""
    for index, single, pattern in (
        ("model.safetensors.index.json", "model.safetensors", "*.safetensors"),
        ("pytorch_model.bin.index.json", "pytorch_model.bin", "pytorch_model*.bin"),
    ):
        if (path / index).exists():
            try:
                names = sorted(set(json.loads((path / index).read_text(encoding="utf-8"))["weight_map"].values()))
            except (ValueError, KeyError, AttributeError, TypeError) as error:
                raise corrupt(path / index, str(error)) from error
            for name in names:
                if not (path / name).exists():
                    raise missing(path / name, "The index names a file that is not there")
            return tuple(path / name for name in names)
        if (path / single).exists():
            return (path / single,)
        if found := sorted(path.glob(pattern)):
            return tuple(found)
    raise missing(path, "The folder has no weights")


def canonical(name: str) -> str | None:
    """transformers' plain name of a stored tensor; None for parts that the text model lacks (vision towers, …)."""
    if name.endswith("lm_head.weight"):
        return "lm_head.weight"
    for prefix in _PREFIXES:
        if name.startswith(prefix):
            return "model." + name.removeprefix(prefix)
    if name.startswith(("vision_", "multi_modal_", "model.vision_", "model.multi_modal_", "audio_", "model.audio_")):
        return None
    return name if name.startswith("model.") else f"model.{name}"  # a bare base model leaves the prefix out


def missing(path: Path, what: str) -> EngineError:
    return EngineError(f"{what}: {path}.", AGAIN, kind="missing_weights")


def corrupt(path: Path, detail: str) -> EngineError:
    return EngineError(f"The weights file {path.name} is damaged or incomplete.", AGAIN, kind="corrupt_weights", detail=detail)


class SafetensorsSource:
    """Safetensors files, read through a memory map."""

    def __init__(self, config: Any, files: tuple[Path, ...]) -> None:
        from safetensors import SafetensorError, safe_open

        self.config, self.files = config, files
        self._at: dict[str, tuple[Any, str, Path]] = {}  # name -> (open file, stored name, path)
        for path in files:
            try:
                handle = safe_open(str(path), framework="pt")
            except (SafetensorError, OSError, ValueError) as error:
                raise corrupt(path, str(error)) from error
            for stored in handle.keys():  # noqa: SIM118  not a dict
                if (name := canonical(stored)) is not None:
                    self._at[name] = (handle, stored, path)

    def names(self) -> frozenset[str]:
        return frozenset(self._at)

    def shape(self, name: str) -> tuple[int, ...]:
        handle, stored, _ = self._at[name]
        return tuple(handle.get_slice(stored).get_shape())

    def dtype(self, name: str) -> torch.dtype:
        handle, stored, path = self._at[name]
        kinds = {"F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
        kind = handle.get_slice(stored).get_dtype()
        if kind not in kinds:
            raise EngineError(f"{name} in {path.name} has the number format {kind}, which is not supported.", kind="architecture")
        return kinds[kind]

    def read(self, name: str) -> Tensor:
        handle, stored, _ = self._at[name]
        return handle.get_tensor(stored)

    def read_rows(self, name: str, start: int, stop: int) -> Tensor:
        return self.read(name)[start:stop]

    def mapped(self, name: str) -> Tensor | None:
        return self.read(name)


class PickleSource:
    """Older `.bin` checkpoints. Only plain tensors are unpickled, never code."""

    def __init__(self, config: Any, files: tuple[Path, ...]) -> None:
        self.config, self.files = config, files
        self._tensors: dict[str, Tensor] = {}
        for path in files:
            for stored, tensor in self._load(path).items():
                if isinstance(tensor, Tensor) and (name := canonical(stored)) is not None:
                    self._tensors[name] = tensor

    @staticmethod
    def _load(path: Path) -> dict[str, Tensor]:
        for memory_map in (True, False):  # the oldest format cannot be mapped
            try:
                return torch.load(path, map_location="cpu", weights_only=True, mmap=memory_map)
            except pickle.UnpicklingError as error:
                if "weights_only" in str(error) or "Unsupported" in str(error):
                    message = f"{path.name} holds more than tensors, and specchat never runs code from a weights file."
                    raise EngineError(message, "Use a checkpoint in safetensors.", kind="corrupt_weights", detail=str(error)) from error
                raise corrupt(path, str(error)) from error
            except (RuntimeError, EOFError, OSError, ValueError) as error:
                if not memory_map:
                    raise corrupt(path, str(error)) from error
        raise AssertionError

    def names(self) -> frozenset[str]:
        return frozenset(self._tensors)

    def shape(self, name: str) -> tuple[int, ...]:
        return tuple(self._tensors[name].shape)

    def dtype(self, name: str) -> torch.dtype:
        return self._tensors[name].dtype

    def read(self, name: str) -> Tensor:
        return self._tensors[name]

    def read_rows(self, name: str, start: int, stop: int) -> Tensor:
        return self._tensors[name][start:stop]

    def mapped(self, name: str) -> Tensor | None:
        return self._tensors[name]
