"""GGUF files: the header, and tensors under transformers' names, read in row blocks.

The header is parsed here because the general readers turn each of 150,000 vocabulary entries into an object (7 to 13 s); long arrays
are stepped over. Values come from the `gguf` package's `dequantize`, for the rows asked for only. What the GGUF converters change is
undone: the row order of q and k in llama-like files, and gemma's norms, which are stored with 1 added.
"""

from __future__ import annotations

import re
import struct
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from engine.decoder.source import corrupt, missing

_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_STRING, _ARRAY = 8, 9
_LONG = 4096  # arrays of numbers above this are stepped over too

PERMUTED = ("llama", "smollm3")  # architectures whose converter interleaves the two halves of each head of q and k
OFFSET_NORMS = ("gemma2", "gemma3")

_TOP = {"token_embd": "model.embed_tokens", "output": "lm_head", "output_norm": "model.norm"}
_IN_LAYER = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_qkv": "self_attn.qkv_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_GEMMA = {
    "ffn_norm": "pre_feedforward_layernorm",
    "post_attention_norm": "post_attention_layernorm",
    "post_ffw_norm": "post_feedforward_layernorm",
}


@dataclass(frozen=True, slots=True)
class Stored:
    """One tensor in a file."""

    path: Path
    shape: tuple[int, ...]  # slowest dimension first
    kind: int  # GGMLQuantizationType
    start: int  # byte in the file
    nbytes: int


@dataclass(frozen=True, slots=True)
class Header:
    """Metadata and tensor table. Strings and short arrays of numbers are values; other arrays are their length only."""

    path: Path
    metadata: dict[str, Any]
    tensors: dict[str, Stored] = field(repr=False)

    @property
    def architecture(self) -> str:
        return str(self.metadata.get("general.architecture", ""))


class _Cursor:
    """Reads little-endian values one after the other."""

    def __init__(self, blob: memoryview) -> None:
        self.blob, self.at = blob, 0

    def take(self, form: str) -> tuple[Any, ...]:
        values = struct.unpack_from("<" + form, self.blob, self.at)
        self.at += struct.calcsize("<" + form)
        return values

    def string(self) -> str:
        (length,) = self.take("Q")
        text = bytes(self.blob[self.at : self.at + length])
        if len(text) < length:
            raise struct.error("a string runs past the end of the file")
        self.at += length
        return text.decode("utf-8", errors="replace")

    def value(self, kind: int) -> Any:
        if kind == _STRING:
            return self.string()
        if kind != _ARRAY:
            return self.take(_SCALARS[kind])[0]
        element, count = self.take("IQ")
        if element == _STRING:
            blob, at, unpack = self.blob, self.at, struct.Struct("<Q").unpack_from
            for _ in range(count):
                at += 8 + unpack(blob, at)[0]
            self.at = at
            return count
        form = f"{count}{_SCALARS[element]}"
        if count <= _LONG:
            return list(self.take(form))
        self.at += struct.calcsize("<" + form)
        return count


def read_header(path: Path) -> Header:
    """Parse one file; EngineError(kind="corrupt_weights") where it is no GGUF, or ends too early."""
    from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType

    try:
        blob = memoryview(np.memmap(path, mode="r", dtype=np.uint8).data)
    except (OSError, ValueError) as error:  # an empty file cannot be mapped
        raise corrupt(path, str(error)) from error
    cursor = _Cursor(blob)
    try:
        if bytes(blob[:4]) != b"GGUF":
            raise corrupt(path, "It does not begin with the letters GGUF.")
        cursor.at = 4
        version, n_tensors, n_keys = cursor.take("IQQ")
        if version not in (2, 3):
            raise corrupt(path, f"GGUF version {version} is not known.")
        metadata: dict[str, Any] = {}
        for _ in range(n_keys):
            key = cursor.string()
            metadata[key] = cursor.value(cursor.take("I")[0])
        table: list[tuple[str, tuple[int, ...], int, int]] = []
        for _ in range(n_tensors):
            name = cursor.string()
            (n_dims,) = cursor.take("I")
            dims = cursor.take(f"{n_dims}Q")
            kind, offset = cursor.take("IQ")
            table.append((name, tuple(reversed(dims)), kind, offset))
    except (struct.error, KeyError) as error:
        raise corrupt(path, str(error)) from error
    alignment = int(metadata.get("general.alignment", 32))
    data = -(-cursor.at // alignment) * alignment
    tensors: dict[str, Stored] = {}
    for name, shape, kind, offset in table:
        if kind not in set(GGMLQuantizationType):
            raise corrupt(path, f"Tensor {name} has the unknown number format {kind}.")
        per_block, block_bytes = GGML_QUANT_SIZES[GGMLQuantizationType(kind)]
        nbytes = int(np.prod(shape)) // per_block * block_bytes
        if data + offset + nbytes > len(blob):
            raise corrupt(path, f"Tensor {name} runs past the end of the file: {data + offset + nbytes} of {len(blob)} bytes.")
        tensors[name] = Stored(path, shape, kind, data + offset, nbytes)
    return Header(path, metadata, tensors)


def read_headers(path: Path) -> Header:
    """The header of a file, or of all parts of a split one (`…-00001-of-00003.gguf`) as one."""
    header = read_header(path)
    if (split := re.fullmatch(r"(.*-)(\d{5})-of-(\d{5})\.gguf", path.name)) is None:
        return header
    stem, _, total = split.groups()
    parts = [path.with_name(f"{stem}{i:05d}-of-{total}.gguf") for i in range(1, int(total) + 1)]
    for part in parts:
        if not part.exists():
            raise missing(part, "A part of the model is not there")
    headers = [read_header(part) for part in parts]
    return Header(parts[0], headers[0].metadata, {k: v for h in headers for k, v in h.tensors.items()})


def hf_name(name: str, architecture: str) -> str | None:
    """`blk.0.attn_q.weight` -> `model.layers.0.self_attn.q_proj.weight`; None for what the decoder does not use."""
    stem, _, suffix = name.rpartition(".")
    if stem in _TOP:
        return f"{_TOP[stem]}.{suffix}"
    if (match := re.fullmatch(r"blk\.(\d+)\.(\w+)", stem)) is None:
        return None
    names = _IN_LAYER | _GEMMA if architecture in OFFSET_NORMS else _IN_LAYER
    part = names.get(match[2])
    if architecture == "phi3" and match[2] == "ffn_up":  # holds gate and up
        part = "mlp.gate_up_proj"
    return None if part is None else f"model.layers.{match[1]}.{part}.{suffix}"


class GgufSource:
    """The tensors of a GGUF file, in float32."""

    def __init__(self, path: Path) -> None:
        from engine.decoder.gguf_config import read_config

        header = read_headers(path)
        self.header = header
        self.config = read_config(header)
        self.files = tuple(dict.fromkeys(stored.path for stored in header.tensors.values())) or (path,)
        self._maps = {file: np.memmap(file, mode="r", dtype=np.uint8) for file in self.files}
        self._at = {
            canonical: stored for name, stored in header.tensors.items() if (canonical := hf_name(name, header.architecture)) is not None
        }

    def names(self) -> frozenset[str]:
        return frozenset(self._at)

    def shape(self, name: str) -> tuple[int, ...]:
        return self._at[name].shape

    def dtype(self, name: str) -> torch.dtype:
        return torch.float32

    def mapped(self, name: str) -> Tensor | None:
        return None  # what lies in the file is not what we hand out

    def read(self, name: str) -> Tensor:
        return self.read_rows(name, 0, self.shape(name)[0])

    def read_rows(self, name: str, start: int, stop: int) -> Tensor:
        stored = self._at[name]
        rows = self._bytes(stored)
        if self.header.architecture in PERMUTED and ".self_attn." in name and (".q_proj." in name or ".k_proj." in name):
            rows = rows[self._row_order(stored.shape[0], name)[start:stop]]
        else:
            rows = rows[start:stop]
        values = dequantize(rows, stored.kind).reshape(stop - start, *stored.shape[1:])
        if self.header.architecture in OFFSET_NORMS and name.endswith("norm.weight"):
            values = values - 1.0
        return torch.from_numpy(values)

    def _bytes(self, stored: Stored) -> np.ndarray:
        """The stored bytes as (rows, bytes of a row): whole blocks make up a row."""
        flat = self._maps[stored.path][stored.start : stored.start + stored.nbytes]
        return flat.reshape(stored.shape[0], -1)

    def _row_order(self, n: int, name: str) -> np.ndarray:
        """Where each of transformers' rows lies in the file: there the two halves of a head alternate."""
        heads = self.config.num_attention_heads if ".q_proj." in name else self.config.num_key_value_heads
        return np.arange(n).reshape(heads, n // heads // 2, 2).swapaxes(1, 2).reshape(n)


def dequantize(rows: np.ndarray, kind: int) -> np.ndarray:
    """Stored bytes (R, bytes) -> float32 values, a fresh array."""
    from gguf.constants import GGMLQuantizationType
    from gguf.quants import dequantize as values

    qtype = GGMLQuantizationType(kind)
    rows = np.ascontiguousarray(rows)  # a copy of a map is plain memory, which numpy's views need
    if qtype == GGMLQuantizationType.F32:
        return np.array(rows.view(np.float32))
    if qtype == GGMLQuantizationType.F16:
        return rows.view(np.float16).astype(np.float32)
    with np.errstate(over="ignore", invalid="ignore"):  # a damaged block: found by its values later
        return np.asarray(values(rows, qtype), dtype=np.float32)
