"""All layers of a verify as one list of kernels at fixed addresses: no Python, no allocation between the embedding and the head.

A program is made once for a number of rows and used again. While it runs, Python's lock is free, so the screen can be drawn beside it.
The kernels and their order are those of the ordinary way, so the bits are the same (tested).
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from engine.decoder.front import Gate, RmsNorm
from engine.decoder.fused import FusedRows, Pass
from engine.decoder.linear import Tiles
from engine.decoder.weights import Weights
from engine.kernels import machine
from engine.kernels.attend import Field

MOST_ROWS = 16  # wider passes are rare, and memory is kept for each width


class Program:
    """The layers of one model for `rows` rows. `norms` are those before attention and before the feed-forward part of each layer."""

    def __init__(self, weights: Weights, fused: FusedRows, norms: list[tuple[RmsNorm, RmsNorm]], gate: Gate, rows: int) -> None:
        config = weights.config
        compiled = machine.machine()
        assert compiled is not None
        self._run, self._fused = compiled.run_list, fused
        width = config.n_heads * config.head_dim

        def buffer(columns: int) -> Tensor:
            return torch.empty((rows, columns), dtype=torch.bfloat16)

        self._x, between = buffer(config.hidden_size), buffer(config.hidden_size)
        qkv, seen = buffer(width + 2 * config.n_kv_heads * config.head_dim), buffer(width)
        middle = buffer(2 * config.intermediate_size)
        products = [p for layer in weights.layers for p in (layer.qkv, layer.o, layer.gate_up, layer.down)]
        scratch = torch.empty(max(p.scratch(rows) for p in products if isinstance(p, Tiles)), dtype=torch.uint8)
        self._held: list[object] = [between, qkv, seen, middle, scratch]
        self.nbytes = sum(t.nbytes for t in (self._x, between, qkv, seen, middle, scratch))
        entries: list[tuple[int, int, int, int]] = []
        threads = torch.get_num_threads()

        def add(product: object, x: Tensor, out: Tensor, front: RmsNorm | Gate | None, before: Tensor | None = None) -> None:
            assert isinstance(product, Tiles)
            task = product.bind(rows, scratch.data_ptr(), out.data_ptr(), front, 0 if before is None else before.data_ptr())
            self._held.append(task)
            entries.append((product.kernel.address, task.ctypes.data, x.data_ptr(), threads))

        for i, (layer, (attn_norm, mlp_norm)) in enumerate(zip(weights.layers, norms, strict=True)):
            add(layer.qkv, self._x, qkv, attn_norm)
            entries.append((fused.kernel(i).address, fused.tasks[i].ctypes.data, 0, 1))
            add(layer.o, seen, between, None, self._x)
            add(layer.gate_up, between, middle, mlp_norm)
            add(layer.down, middle, self._x, gate, between)
        self._entries = np.array(entries, dtype=np.int64)
        self._threads = self._entries[1::5, 3]  # of the attention
        self._places = qkv.data_ptr(), seen.data_ptr()

    def run(self, x: Tensor, begun: Pass) -> Tensor:
        """Embedded rows x (M, H) -> hidden states behind the last layer (M, H), valid until the next run."""
        self._x.copy_(x)
        self._threads[:] = begun.threads
        self._fused.tasks[:, Field.QKV], self._fused.tasks[:, Field.OUT] = self._places
        self._run(self._entries.ctypes.data, len(self._entries))
        return self._x


def possible(weights: Weights) -> bool:
    """Whether all layers are made of our kernels alone: no norm behind a product."""
    return all(
        layer.post_attn_norm is None
        and layer.post_mlp_norm is None
        and all(isinstance(p, Tiles) and p.bindable for p in (layer.qkv, layer.o, layer.gate_up, layer.down))
        for layer in weights.layers
    )
