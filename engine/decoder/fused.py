"""The attention of a verify through our own kernel: norms, rotation, writing to the cache and attending in one call a layer.

For models whose cache is bf16 on the CPU. A row's result depends on what it sees alone, in the order of the text, so that it has the
same bits in plain decoding, in a chain and in any tree (`engine.kernels.attend`).
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

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
        tasks = np.zeros((config.n_layers, len(Field)), dtype=np.int64)
        tasks[:, Field.EPS], tasks[:, Field.SCALE] = _bits(config.norm_eps), _bits(config.attention_scale)
        for task, table, norm in zip(tasks, self._tables, self._norms, strict=True):
            if table is not None:
                task[Field.COS], task[Field.SIN] = table.cos.data_ptr(), table.sin.data_ptr()
            if norm is not None:
                task[Field.Q_NORM], task[Field.K_NORM] = norm[0].data_ptr(), norm[1].data_ptr()
        self.tasks = tasks
        self._layers: dict[int | None, np.ndarray] = {
            window: np.array([i for i, w in enumerate(config.windows) if w == window]) for window in set(config.windows)
        }

    def kernel(self, layer: int) -> machine.Kernel:
        """The compiled attention of a layer."""
        return self._kernels[layer]

    def begin(self, cache: SlotCache, parents: tuple[int, ...]) -> Pass:
        """A pass of the root and `parents` (n,) behind what the cache holds; only one at a time."""
        config, tasks = self._config, self.tasks
        depth = depths(parents)
        rows, length, width = len(depth), cache.length, config.n_heads * config.head_dim
        paths = np.zeros((rows, max(depth) + 1), dtype=np.int64)  # by depth: the row of this pass
        for row, parent in enumerate(parents, start=1):
            paths[row, : depth[parent] + 1] = paths[parent, : depth[parent] + 1]
            paths[row, depth[row]] = row
        positions = length + np.array(depth, dtype=np.int64)
        threads = np.ones(config.n_layers, dtype=np.int64)
        held: list[object] = [positions]
        longest = 0
        for group in cache.groups:
            first, own, seen = _view(group.window, length, group.base, depth, paths)
            held += [first, own, seen]
            at, layers = length - group.base, self._layers[group.window]
            visible = int((at - first).sum() + seen.sum())
            longest = max(longest, int((at - first + seen).max()))
            if visible * width > SMALL:
                threads[layers] = torch.get_num_threads()
            store = group.store  # (layers, 2, kv heads, capacity, D)
            tasks[layers, Field.SLOTS] = store.data_ptr() + np.arange(len(layers)) * (store.stride(0) * 2)
            tasks[layers, Field.STRIDE], tasks[layers, Field.AT] = store.stride(2) * 2, at
            tasks[layers, Field.FIRST], tasks[layers, Field.PATHS] = first.ctypes.data, own.ctypes.data
            tasks[layers, Field.DEPTH] = seen.ctypes.data
        room = longest // 16 * 16 + 32
        queries = torch.empty((rows, width), dtype=torch.float32)
        scores = torch.empty((rows * config.n_heads, room), dtype=torch.float32)
        tasks[:, Field.POSITIONS], tasks[:, Field.WIDTH], tasks[:, Field.M] = positions.ctypes.data, paths.shape[1], rows
        tasks[:, Field.QUERIES], tasks[:, Field.SCORES], tasks[:, Field.ROOM] = queries.data_ptr(), scores.data_ptr(), room
        return Pass(self, rows, threads, (*held, queries, scores))

    def begin_texts(self, cache: SlotCache, slots: np.ndarray, lengths: np.ndarray) -> Pass:
        """A pass of one new token for each of several texts whose tokens lie anywhere in one cache that holds all layers alike.

        `slots` (M, W) int64: where row r's text lies, in order, its new token (slot cache.length + r) last; `lengths` (M,) int64: its
        tokens, that one included. A row's sums run in the same order as in plain decoding, so they have the same bits.
        """
        config, tasks, rows = self._config, self.tasks, len(lengths)
        (group,) = cache.groups
        at = cache.length - group.base
        positions = lengths - 1
        held: list[object] = [positions]
        threads = np.ones(config.n_layers, dtype=np.int64)
        first = np.full(rows, at, dtype=np.int64)
        for window, layers in self._layers.items():
            own, seen = slots, lengths
            if window is not None:  # the last ones of each text
                seen = np.minimum(lengths, window)
                own = np.zeros_like(slots)
                for row in range(rows):
                    own[row, : seen[row]] = slots[row, lengths[row] - seen[row] : lengths[row]]
            own, seen = np.ascontiguousarray(own), np.ascontiguousarray(seen)
            held += [own, seen]
            if int(seen.sum()) * config.n_heads * config.head_dim > SMALL:
                threads[layers] = torch.get_num_threads()
            tasks[layers, Field.PATHS], tasks[layers, Field.DEPTH] = own.ctypes.data, seen.ctypes.data
        store = group.store
        tasks[:, Field.SLOTS] = store.data_ptr() + np.arange(config.n_layers) * (store.stride(0) * 2)
        tasks[:, Field.STRIDE], tasks[:, Field.AT], tasks[:, Field.FIRST] = store.stride(2) * 2, at, first.ctypes.data
        room = int(lengths.max()) // 16 * 16 + 32
        queries = torch.empty((rows, config.n_heads * config.head_dim), dtype=torch.float32)
        scores = torch.empty((rows * config.n_heads, room), dtype=torch.float32)
        tasks[:, Field.POSITIONS], tasks[:, Field.WIDTH], tasks[:, Field.M] = positions.ctypes.data, slots.shape[1], rows
        tasks[:, Field.QUERIES], tasks[:, Field.SCORES], tasks[:, Field.ROOM] = queries.data_ptr(), scores.data_ptr(), room
        return Pass(self, rows, threads, (*held, first, queries, scores))


@dataclass(frozen=True, slots=True)
class Pass:
    """One verify, its tasks filled but for where qkv and the result lie. Called with the layer and its qkv (M, (Hq + 2·Hkv)·D) bf16
    -> (M, Hq·D)."""

    fused: FusedRows
    rows: int
    threads: np.ndarray  # (layers,) for the attention of each
    held: tuple[object, ...]  # what the tasks point at

    def __call__(self, layer: int, qkv: Tensor) -> Tensor:
        config = self.fused._config
        out = torch.empty((self.rows, config.n_heads * config.head_dim), dtype=torch.bfloat16)
        task = self.fused.tasks[layer]
        task[Field.QKV], task[Field.OUT] = qkv.data_ptr(), out.data_ptr()
        self.fused.kernel(layer)(task.ctypes.data, 0, int(self.threads[layer]))
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
