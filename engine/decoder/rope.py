"""Rotary position tables, one per distinct `Rope` of a model, and their use.

Angles are a function of the absolute position alone. Where the published rule changes with the length of the text (longrope, dynamic)
the context that the model was opened with decides once, so that a cached key never depends on what came later.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

import engine.first_call  # noqa: F401
from engine.decoder.config import DecoderConfig, Rope


class RopeTable:
    """cos and signed sin, (rows, rotary_dim) float32 each, for every position of the context and some drafted rows behind it."""

    def __init__(self, rope: Rope, config: DecoderConfig, context: int, rows: int, device: torch.device, dtype: torch.dtype) -> None:
        frequencies, scale = _frequencies(rope, config, context)
        angles = torch.arange(rows, dtype=torch.float32)[:, None] * frequencies.float()[None, :]  # (rows, rotary_dim / 2)
        cos, sin = angles.cos() * scale, angles.sin() * scale
        self.cos = torch.cat((cos, cos), dim=-1).to(device)
        self.sin = torch.cat((-sin, sin), dim=-1).to(device)  # the minus of the rotation lives here
        self._dtype = dtype
        self.rotary_dim = rope.rotary_dim

    def at(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        """Rows of the tables for positions (M,): cos and sin (M, 1, rotary_dim), to be broadcast over heads."""
        return self.cos[positions].unsqueeze(1).to(self._dtype), self.sin[positions].unsqueeze(1).to(self._dtype)


def rotate_(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotate heads x (M, heads, D) in place by tables (M, 1, R), R <= D; dimensions behind R stay as they are."""
    turning = x[..., : cos.shape[-1]]
    halves = turning.unflatten(-1, (2, -1)).flip(-2).flatten(-2)  # a copy, second half first
    turning.mul_(cos).addcmul_(halves, sin)
    return x


def _frequencies(rope: Rope, config: DecoderConfig, context: int) -> tuple[Tensor, float]:
    if rope.kind == "default":
        exponents = torch.arange(0, rope.rotary_dim, 2, dtype=torch.float32) / rope.rotary_dim
        return 1.0 / rope.theta**exponents, 1.0
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    extra: dict[str, Any] = {} if rope.layer_type is None else {"layer_type": rope.layer_type}
    return ROPE_INIT_FUNCTIONS[rope.kind](config.rope_config, None, seq_len=context, **extra)
