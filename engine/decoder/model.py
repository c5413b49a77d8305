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
from engine.decoder.kv import LayerSlots, SlotCache
from engine.decoder.norm import RmsNorm
from engine.decoder.rope import RopeTable, rotate_
from engine.decoder.weights import LayerWeights, Weights

Attend = Callable[[Tensor, Tensor, Tensor, LayerSlots], Tensor]  # q (M, Hq, D), keys, values (Hkv, S, D) -> (M, Hq·D)


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
        self._embed_scale = torch.tensor(self.config.embed_scale, dtype=weights.dtype).item()  # rounded as the families do

    @torch.inference_mode()
    def forward(self, tokens: Tensor, positions: Tensor, cache: SlotCache, attend: Attend, head_rows: slice | None) -> Tensor | None:
        """Run rows `tokens` (M,) at `positions` (M,), writing keys and values behind `cache.length`.

        Returns float32 logits (rows of `head_rows`, V), or None when `head_rows` is None.
        """
        config, weights = self.config, self.weights
        x = F.embedding(tokens.to(weights.embed.device), weights.embed).to(weights.device, weights.dtype)  # (M, H)
        if config.embed_scale != 1.0:
            x = x * self._embed_scale
        turns = {rope: table.at(positions) for rope, table in self._tables.items()}
        for i, layer in enumerate(weights.layers):
            before_attention, before_mlp, after_attention, after_mlp = self._norms[i]
            rope = config.ropes[i]
            h = self._attention(before_attention(x), layer, cache, i, turns[rope] if rope else None, attend)
            x = x + (h if after_attention is None else after_attention(h))
            h = self._mlp(before_mlp(x), layer)
            x = x + (h if after_mlp is None else after_mlp(h))
        if head_rows is None:
            return None
        x = self._norm(x[head_rows])
        logits = weights.head(x)
        logits = logits if logits.dtype == torch.float64 else logits.float()
        if config.final_softcap is not None:
            logits = torch.tanh(logits / config.final_softcap) * config.final_softcap
        return logits

    def _attention(
        self, h: Tensor, layer: LayerWeights, cache: SlotCache, index: int, turn: tuple[Tensor, Tensor] | None, attend: Attend
    ) -> Tensor:
        config = self.config
        rows, heads, kv_heads, dim = h.shape[0], config.n_heads, config.n_kv_heads, config.head_dim
        qkv = layer.qkv(h).view(rows, heads + 2 * kv_heads, dim)
        if config.qk_norm:
            assert layer.q_norm is not None
            assert layer.k_norm is not None
            q = F.rms_norm(qkv[:, :heads], (dim,), layer.q_norm, config.norm_eps)
            k = F.rms_norm(qkv[:, heads : heads + kv_heads], (dim,), layer.k_norm, config.norm_eps)
            qkv = torch.cat((q, k, qkv[:, heads + kv_heads :]), dim=1)
        if turn is not None:
            rotate_(qkv[:, : heads + kv_heads], *turn)
        group, slots = cache.layer(index)
        at = cache.length - group.base
        slots[:, at : at + rows] = qkv[:, heads:].transpose(0, 1)
        return layer.o(attend(qkv[:, :heads], slots[:kv_heads], slots[kv_heads:], group))

    def _mlp(self, h: Tensor, layer: LayerWeights) -> Tensor:
        gate, up = layer.gate_up(h).chunk(2, dim=-1)
        gate = F.silu(gate) if self.config.activation == "silu" else F.gelu(gate, approximate="tanh")
        return layer.down(gate.mul_(up))
