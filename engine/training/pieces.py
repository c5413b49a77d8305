"""What trainable heads are made of: torch modules whose parameters have the names of the published state dicts.

The numerics are those of `engine.drafters.heads.layers`, on whole batches (B, n, H) and with gradients.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from engine.drafters.heads.layers import Rotary
from engine.drafters.heads.specs import HeadSpec

Turn = tuple[Tensor, Tensor]  # cos and signed sin (n, D)
Pair = tuple[Tensor, Tensor]  # keys, values (B, Hkv, n, D)


class Block(nn.Module):
    """y = x + silu(W x + b); where the width changes, y = Wr x + br + silu(W x + b)."""

    def __init__(self, wide: int, hidden: int, around: bool) -> None:
        super().__init__()
        self.linear = nn.Linear(wide, hidden)
        self.res_connection = nn.Linear(wide, hidden) if around else None
        if wide == hidden:  # at first it passes on what it is given
            nn.init.zeros_(self.linear.weight)
            nn.init.zeros_(self.linear.bias)

    def forward(self, x: Tensor) -> Tensor:
        inner = F.silu(self.linear(x))
        return inner + (x if self.res_connection is None else self.res_connection(x))

    def inner(self, x: Tensor) -> Tensor:
        """Without the way around."""
        return F.silu(self.linear(x))


class Attention(nn.Module):
    """Queries, keys and values of one layer."""

    def __init__(self, spec: HeadSpec) -> None:
        super().__init__()
        self._heads, self._kv_heads, self._dim = spec.heads, spec.kv_heads, spec.head_dim
        self.q_proj = nn.Linear(spec.hidden, spec.heads * spec.head_dim, bias=False)
        self.k_proj = nn.Linear(spec.hidden, spec.kv_heads * spec.head_dim, bias=False)
        self.v_proj = nn.Linear(spec.hidden, spec.kv_heads * spec.head_dim, bias=False)
        self.o_proj = nn.Linear(spec.heads * spec.head_dim, spec.hidden, bias=False)

    def forward(self, x: Tensor, turn: Turn, before: Pair | None = None) -> tuple[Tensor, Pair]:
        """x (B, n, H) -> the same, and its keys and values. Row i sees rows 0..i; with `before` it sees rows 0..i of those keys, and of
        the new ones its own alone."""
        batch, n, _ = x.shape
        q = turned(self.q_proj(x).view(batch, n, self._heads, self._dim).transpose(1, 2), turn)
        k = turned(self.k_proj(x).view(batch, n, self._kv_heads, self._dim).transpose(1, 2), turn)
        v = self.v_proj(x).view(batch, n, self._kv_heads, self._dim).transpose(1, 2)
        scale, grouped = self._dim**-0.5, self._heads != self._kv_heads
        if before is None:
            seen = F.scaled_dot_product_attention(q, k, v, is_causal=True, scale=scale, enable_gqa=grouped)
        else:
            mask = torch.cat((torch.ones((n, n), dtype=torch.bool).tril(), torch.eye(n, dtype=torch.bool)), 1).to(x.device)
            keys, values = torch.cat((before[0], k), 2), torch.cat((before[1], v), 2)
            seen = F.scaled_dot_product_attention(q, keys, values, attn_mask=mask, scale=scale, enable_gqa=grouped)
        return self.o_proj(seen.transpose(1, 2).reshape(batch, n, -1)), (k, v)


class FeedForward(nn.Module):
    """down(silu(gate x) · up x)."""

    def __init__(self, spec: HeadSpec) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(spec.hidden, spec.intermediate, bias=False)
        self.up_proj = nn.Linear(spec.hidden, spec.intermediate, bias=False)
        self.down_proj = nn.Linear(spec.intermediate, spec.hidden, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class Norm(nn.RMSNorm):
    """In float32 whatever comes in: torch has no quick way for halves with a weight in float32."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x.float())


class Layer(nn.Module):
    """One Llama layer; Gumiho's first one has no norm in front of its attention. At first it passes on what it is given."""

    def __init__(self, spec: HeadSpec, input_norm: bool) -> None:
        super().__init__()
        self.self_attn, self.mlp = Attention(spec), FeedForward(spec)
        self.input_layernorm = Norm(spec.hidden, spec.rms_eps) if input_norm else None
        self.post_attention_layernorm = Norm(spec.hidden, spec.rms_eps)
        nn.init.zeros_(self.self_attn.o_proj.weight)
        nn.init.zeros_(self.mlp.down_proj.weight)

    def forward(self, x: Tensor, turn: Turn, before: Pair | None = None) -> tuple[Tensor, Pair]:
        """See `Attention.forward`."""
        seen, pair = self.self_attn(x if self.input_layernorm is None else self.input_layernorm(x), turn, before)
        x = x + seen
        return x + self.mlp(self.post_attention_layernorm(x)), pair


class Turns:
    """Rotary tables of heads, by position."""

    def __init__(self, spec: HeadSpec, device: torch.device) -> None:
        self._rotary = Rotary(spec, spec.max_positions, device, torch.float32)
        self._device = device

    def at(self, first: int, n: int) -> Turn:
        """Positions first, first + 1, …"""
        cos, sin = self._rotary.at(torch.arange(first, first + n, device=self._device))
        return cos[:, 0], sin[:, 0]


def turned(x: Tensor, turn: Turn) -> Tensor:
    """Rotate heads x (B, heads, n, D), with a gradient."""
    cos, sin = turn
    half = x.shape[-1] // 2
    return x * cos.to(x.dtype) + torch.cat((x[..., half:], x[..., :half]), -1) * sin.to(x.dtype)


def lead(linear: nn.Linear, first: int, hidden: int, rest: float = 0.02) -> None:
    """Begin as a copy of inputs [first, first + hidden), the others weighing little."""
    with torch.no_grad():
        linear.weight.mul_(0.0).add_(torch.randn_like(linear.weight) * rest / linear.weight.shape[1] ** 0.5)
        linear.weight[:, first : first + hidden] += torch.eye(hidden, dtype=linear.weight.dtype)
        if linear.bias is not None:
            linear.bias.zero_()
