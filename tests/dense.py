"""A slow plain decoder over the same weights: whole matrices of scores, no cache, no slots. What the fast one must equal."""

from __future__ import annotations

import torch
from torch import Tensor

from engine.decoder.target import LeanTarget


def dense_logits(target: LeanTarget, ids: list[int]) -> Tensor:
    """Logits (n, V) of a chain of ids, in the weights' own type. Dense layers, full rotary, no norms on q and k, SiLU."""
    weights, config = target.model.weights, target.model.config
    n, dim, kv_heads = len(ids), config.head_dim, config.n_kv_heads
    groups = config.n_heads // kv_heads
    x = weights.embed[torch.tensor(ids)]
    at = torch.arange(n)
    for layer, window in zip(weights.layers, config.windows, strict=True):
        qkv = layer.qkv(_norm(x, layer.attn_norm, config.norm_eps)).view(n, -1, dim)
        q, k, v = qkv.split((config.n_heads, kv_heads, kv_heads), dim=1)
        q, k = _turn(q), _turn(k)
        visible = at[None, :] <= at[:, None]
        if window is not None:
            visible &= at[None, :] > at[:, None] - window
        heads = []
        for h in range(config.n_heads):
            scores = (q[:, h] @ k[:, h // groups].T) * config.attention_scale
            heads.append(torch.softmax(scores.masked_fill(~visible, float("-inf")), dim=-1) @ v[:, h // groups])
        x = x + layer.o(torch.cat(heads, dim=-1))
        gate, up = layer.gate_up(_norm(x, layer.mlp_norm, config.norm_eps)).chunk(2, dim=-1)
        x = x + layer.down(gate * torch.sigmoid(gate) * up)
    return weights.head(_norm(x, weights.norm, config.norm_eps))


def _norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    return x / (x.pow(2).mean(-1, keepdim=True) + eps).sqrt() * weight


def _turn(x: Tensor, theta: float = 10000.0) -> Tensor:
    """Rotary positions, one pair (i, i + D/2) at a time."""
    n, _, dim = x.shape
    out = x.clone()
    for i in range(dim // 2):
        angle = torch.arange(n, dtype=torch.float32) * torch.tensor(1.0 / theta ** (2 * i / dim))
        cos, sin = angle.cos().to(x.dtype)[:, None], angle.sin().to(x.dtype)[:, None]
        a, b = x[:, :, i], x[:, :, i + dim // 2]
        out[:, :, i], out[:, :, i + dim // 2] = a * cos - b * sin, b * cos + a * sin
    return out
