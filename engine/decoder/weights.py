"""The packed weights of one lean decoder, ready to run."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from engine.decoder.config import DecoderConfig
from engine.decoder.linear import Linear
from engine.decoder.pages import Pages


@dataclass(frozen=True, slots=True)
class LayerWeights:
    """One layer. Norm weights are (H,) in the activation dtype, gemma's offset folded in."""

    qkv: Linear  # (H) -> q | k | v
    o: Linear
    gate_up: Linear  # (H) -> gate | up
    down: Linear
    attn_norm: Tensor
    mlp_norm: Tensor
    post_attn_norm: Tensor | None = None
    post_mlp_norm: Tensor | None = None
    q_norm: Tensor | None = None  # (D,)
    k_norm: Tensor | None = None


@dataclass(frozen=True, slots=True)
class Weights:
    """A whole model."""

    config: DecoderConfig
    embed: Tensor  # (V, H), mapped from disk where it can be
    layers: tuple[LayerWeights, ...]
    norm: Tensor
    head: Linear  # (H) -> (V)
    scheme: str
    head_scheme: str
    device: torch.device
    dtype: torch.dtype  # of activations
    nbytes: int  # packed bytes that stay in memory
    pages: Pages = field(default_factory=Pages)  # what of them waits for large pages
