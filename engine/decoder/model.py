"""The forward pass of the lean decoder: about 15 operations a layer, no family names, no modules.

`forward` is one pass over M rows with absolute positions; what differs between a verify and reading a prompt is only how rows attend,
so it takes that as a function. Nothing here changes the number of committed tokens.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from engine.decoder.config import DecoderConfig, Rope
from engine.decoder.front import Front, Gate, RmsNorm
from engine.decoder.fused import FusedRows, Pass, usable
from engine.decoder.kv import LayerSlots, SlotCache
from engine.decoder.program import MOST_ROWS, Program, possible
from engine.decoder.rope import RopeTable, rotate_
from engine.decoder.weights import LayerWeights, Weights
from engine.speculation.draft import Needs

Attend = Callable[[Tensor, Tensor, LayerSlots], Tensor]  # q (M, Hq, D), slots (2·Hkv, S, D): keys, then values -> (M, Hq·D)
Write = Callable[[Tensor, Tensor, LayerSlots], None]  # slots, keys and values (M, 2·Hkv, D) of these rows: puts them where they belong
Result = tuple[Tensor | None, Tensor | None]  # logits, hidden states that were asked for
NOTHING = Needs()


class Model:
    """Weights with their rotary tables."""

    def __init__(self, weights: Weights, context: int, positions: int) -> None:
        self.weights = weights
        self.config: DecoderConfig = weights.config
        tables: dict[Rope, RopeTable] = {}
        for rope in self.config.ropes:
            if rope is not None and rope not in tables:
                tables[rope] = RopeTable(rope, self.config, context, positions, weights.device, weights.dtype)
        self._tables = tables
        self.fused = FusedRows(weights, tables) if usable(weights) else None  # for the rows of a verify

        def norm(weight: Tensor) -> RmsNorm:
            return RmsNorm(weight, self.config.norm_eps)

        self._norms = [
            (
                norm(layer.attn_norm),
                norm(layer.mlp_norm),
                norm(layer.post_attn_norm) if layer.post_attn_norm is not None else None,
                norm(layer.post_mlp_norm) if layer.post_mlp_norm is not None else None,
            )
            for layer in weights.layers
        ]
        self._norm = norm(weights.norm)
        self._programs: dict[int, Program] = {}
        self._listable = self.fused is not None and possible(weights)
        self._gate = Gate("silu" if self.config.activation == "silu" else "gelu")
        self._embed_scale = torch.tensor(self.config.embed_scale, dtype=weights.dtype).item()  # rounded as the families do

    @torch.inference_mode()
    def forward(
        self,
        tokens: Tensor,
        positions: Tensor | None,
        cache: SlotCache,
        attend: Attend | Pass,
        head_rows: slice | Tensor | None,
        needs: Needs = NOTHING,
        write: bool | Write = True,
    ) -> Result:
        """Run rows `tokens` (M,) at `positions` (M,) (a `Pass` knows its own), writing keys and values behind `cache.length` (not
        without `write`: the cache holds those of these rows already; or `write` does it).

        Returns float32 logits (rows of `head_rows`, V), or None when `head_rows` is None, and the hidden states of all rows (M, F)
        that `needs` asks for, side by side: the inputs of its layers, then what the head reads; None when it asks for none.
        """
        config, weights = self.config, self.weights
        x = self.embed(tokens)
        if isinstance(attend, Pass) and (program := self._program(attend.rows, needs)) is not None:
            return self._out(program.run(x, attend), head_rows, needs, [])
        turns = {} if positions is None else {rope: table.at(positions) for rope, table in self._tables.items()}
        inputs: dict[int, Tensor] = {}
        for i, layer in enumerate(weights.layers):
            if i in needs.taps:
                inputs[i] = x
            before_attention, before_mlp, after_attention, after_mlp = self._norms[i]
            rope = config.ropes[i]
            seen = self._attend(x, before_attention, layer, cache, i, turns.get(rope) if rope else None, attend, write)
            x = layer.o(seen, add=x) if after_attention is None else x + after_attention(layer.o(seen))
            middle = layer.gate_up(x, before_mlp)
            x = layer.down(middle, self._gate, x) if after_mlp is None else x + after_mlp(layer.down(middle, self._gate))
        return self._out(x, head_rows, needs, [inputs[i] for i in needs.taps])

    def _program(self, rows: int, needs: Needs) -> Program | None:
        """The layers as one list of kernels, where they can be one; taps are read between layers."""
        if needs.taps or rows > MOST_ROWS or not self._listable:
            return None
        if rows not in self._programs:
            assert self.fused is not None
            norms = [(before_attention, before_mlp) for before_attention, before_mlp, _, _ in self._norms]
            self._programs[rows] = Program(self.weights, self.fused, norms, self._gate, rows)
        return self._programs[rows]

    @property
    def nbytes(self) -> int:
        """Bytes of weights, rotary tables and the programs' intermediate numbers."""
        tables = sum(table.cos.nbytes + table.sin.nbytes for table in self._tables.values())
        return self.weights.nbytes + tables + sum(program.nbytes for program in self._programs.values())

    def _out(self, x: Tensor, head_rows: slice | Tensor | None, needs: Needs, exported: list[Tensor]) -> Result:
        """Logits and what is exported, from the hidden states behind the last layer (M, H)."""
        if needs.final:
            exported.append(self._norm(x))
        # the head norms for itself also then: a norm on the way in rounds otherwise, and exporting must not change the logits
        logits = None if head_rows is None else self.head(x[head_rows], self._norm)
        taps = None if not exported else exported[0] if len(exported) == 1 else torch.cat(exported, dim=-1)
        return logits, taps

    def embed(self, tokens: Tensor) -> Tensor:
        """tokens (M,) -> (M, H), scaled where the family does so."""
        weights = self.weights
        x = F.embedding(tokens.to(weights.embed.device), weights.embed).to(weights.device, weights.dtype)
        return x * self._embed_scale if self.config.embed_scale != 1.0 else x

    def head(self, x: Tensor, norm: Front | None = None) -> Tensor:
        """Hidden states (M, H), behind the final norm or with it in front -> logits (M, V), float32 at least."""
        logits = self.weights.head(x, norm)
        logits = logits if logits.dtype == torch.float64 else logits.float()
        cap = self.config.final_softcap
        return logits if cap is None else torch.tanh(logits / cap) * cap

    def _attend(
        self,
        x: Tensor,
        norm: Front,
        layer: LayerWeights,
        cache: SlotCache,
        index: int,
        turn: tuple[Tensor, Tensor] | None,
        attend: Attend | Pass,
        write: bool | Write,
    ) -> Tensor:
        config = self.config
        rows, heads, kv_heads, dim = x.shape[0], config.n_heads, config.n_kv_heads, config.head_dim
        qkv = layer.qkv(x, norm)
        if isinstance(attend, Pass):
            return attend(index, qkv)
        qkv = qkv.view(rows, heads + 2 * kv_heads, dim)
        if config.qk_norm:
            assert layer.q_norm is not None
            assert layer.k_norm is not None
            q = F.rms_norm(qkv[:, :heads], (dim,), layer.q_norm, config.norm_eps)
            k = F.rms_norm(qkv[:, heads : heads + kv_heads], (dim,), layer.k_norm, config.norm_eps)
            qkv = torch.cat((q, k, qkv[:, heads + kv_heads :]), dim=1)
        if turn is not None:
            rotate_(qkv[:, : heads + kv_heads], *turn)
        group, slots = cache.layer(index)
        if write is True:
            at = cache.length - group.base
            slots[:, at : at + rows] = qkv[:, heads:].transpose(0, 1)
        elif write:
            write(slots, qkv[:, heads:], group)
        return attend(qkv[:, :heads], slots, group)
