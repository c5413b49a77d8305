"""The attention of a verify through our own kernel: norms, rotation, writing to the cache and attending in one call a layer.

For models whose cache is bf16 on the CPU. A row's result depends on what it sees alone, in the order of the text, so that it has the
same bits in plain decoding, in a chain and in any tree (`engine.kernels.attend`).
"""

from __future__ import annotations

import struct

import numpy as np
import torch
from torch import Tensor

from engine.decoder.attention import depths
from engine.decoder.config import DecoderConfig, Rope
from engine.decoder.kv import SlotCache
from engine.decoder.rope import RopeTable
from engine.decoder.weights import Weights
from engine.kernels import machine
from engine.kernels.attend import Field, Shape

SMALL = 150_000  # products of a head's dimension that one thread does sooner than two


class FusedRows:
    """Kernels and tables of one model; `begin` prepares a pass, which is then called layer by layer."""

    def __init__(self, weights: Weights, tables: dict[Rope, RopeTable]) -> None:
        config = weights.config
        compiled = machine.machine()
        assert compiled is not None
        self._config = config
        self._kernels = [compiled.attention(_shape(config, rope)) for rope in config.ropes]
        self._tables = [tables[rope] if rope is not None else None for rope in config.ropes]
        self._norms = [
            None if layer.q_norm is None or layer.k_norm is None else (layer.q_norm.float().contiguous(), layer.k_norm.float().contiguous())
            for layer in weights.layers
        ]
        self._task = np.zeros(len(Field), dtype=np.int64)
        self._task[Field.EPS], self._task[Field.SCALE] = _bits(config.norm_eps), _bits(config.attention_scale)

    def begin(self, cache: SlotCache, parents: tuple[int, ...]) -> Pass:
        """A pass of the root and `parents` (n,) behind what the cache holds."""
        return Pass(self, cache, parents)

    def run(self, layer: int, qkv: Tensor, slots: Tensor, out: Tensor, threads: int) -> None:
        """The call itself."""
        task, table, norm = self._task, self._tables[layer], self._norms[layer]
        task[Field.QKV], task[Field.SLOTS], task[Field.OUT] = qkv.data_ptr(), slots.data_ptr(), out.data_ptr()
        if table is not None:
            task[Field.COS], task[Field.SIN] = table.cos.data_ptr(), table.sin.data_ptr()
        if norm is not None:
            task[Field.Q_NORM], task[Field.K_NORM] = norm[0].data_ptr(), norm[1].data_ptr()
        self._kernels[layer](task.ctypes.data, 0, threads)


class Pass:
    """One verify. Called with the layer and its qkv (M, (Hq + 2·Hkv)·D) bf16 -> (M, Hq·D)."""

    def __init__(self, fused: FusedRows, cache: SlotCache, parents: tuple[int, ...]) -> None:
        self._fused, self._cache = fused, cache
        config, task = fused._config, fused._task
        depth = depths(parents)
        rows, length = len(depth), cache.length
        self._heads, self._out = config.n_heads, config.n_heads * config.head_dim
        paths = np.zeros((rows, max(depth) + 1), dtype=np.int64)  # by depth: the row of this pass
        for row, parent in enumerate(parents, start=1):
            paths[row, : depth[parent] + 1] = paths[parent, : depth[parent] + 1]
            paths[row, depth[row]] = row
        positions = length + np.array(depth, dtype=np.int64)
        threads = torch.get_num_threads()
        self._windows: dict[int | None, tuple[np.ndarray, np.ndarray, np.ndarray, int, int]] = {}
        for group in cache.groups:
            first, own, seen = _view(group.window, length, group.base, depth, paths)
            work = int((length - group.base - first).clip(0).sum() + sum(seen)) * self._out
            self._windows[group.window] = (first, own, seen, length - group.base, threads if work > SMALL else 1)
        room = -(-(max(int((at - first).max() + seen.max()) for first, _, seen, at, _ in self._windows.values()) + 1) // 16) * 16 + 16
        self._queries = torch.empty((rows, self._out), dtype=torch.float32)
        self._scores = torch.empty((rows * config.n_heads, room), dtype=torch.float32)
        self._positions = positions
        task[Field.POSITIONS], task[Field.WIDTH], task[Field.M] = positions.ctypes.data, paths.shape[1], rows
        task[Field.QUERIES], task[Field.SCORES], task[Field.ROOM] = self._queries.data_ptr(), self._scores.data_ptr(), room

    def __call__(self, layer: int, qkv: Tensor) -> Tensor:
        group, slots = self._cache.layer(layer)
        first, own, seen, at, threads = self._windows[group.window]
        task = self._fused._task
        task[Field.FIRST], task[Field.PATHS], task[Field.DEPTH] = first.ctypes.data, own.ctypes.data, seen.ctypes.data
        task[Field.AT], task[Field.STRIDE] = at, slots.stride(0) * 2
        out = torch.empty((qkv.shape[0], self._out), dtype=torch.bfloat16)
        self._fused.run(layer, qkv, slots, out, threads)
        return out


def _view(window: int | None, length: int, base: int, depth: list[int], paths: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """For layers of one window: the first committed slot of each row, the slots of its path, and how many of them it sees."""
    slots = paths + (length - base)
    seen = np.array(depth, dtype=np.int64) + 1
    if window is None:
        return np.full(len(depth), -base, dtype=np.int64), slots, seen
    first = np.maximum(length + np.array(depth, dtype=np.int64) - window + 1, 0)
    for row in np.flatnonzero(first > length):  # a draft deeper than the window: its own oldest rows fall out of sight
        gone = int(first[row]) - length
        slots[row, : seen[row] - gone] = slots[row, gone : seen[row]].copy()
        seen[row] -= gone
    return np.minimum(first, length) - base, slots, seen


def usable(weights: Weights) -> bool:
    """Whether the kernel can take this model: bf16 on the CPU, whole vectors, no cap on the scores."""
    config = weights.config
    return (
        weights.device.type == "cpu"
        and weights.dtype == torch.bfloat16
        and config.attention_softcap is None
        and machine.machine() is not None
        and all(_shape(config, rope).possible for rope in config.ropes)
    )


def _shape(config: DecoderConfig, rope: Rope | None) -> Shape:
    return Shape(config.n_heads, config.n_kv_heads, config.head_dim, rope.rotary_dim if rope is not None else 0, config.qk_norm)


def _bits(value: float) -> int:
    return int(struct.unpack("<i", struct.pack("<f", value))[0])
