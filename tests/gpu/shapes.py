"""Models with random packed weights, made on the device itself: no files, no quantizing, in the shapes of real ones."""

from __future__ import annotations

import torch
from torch import Tensor

from engine.decoder import linear
from engine.decoder.config import DecoderConfig, Rope
from engine.decoder.linear import Linear, Packed
from engine.decoder.weights import LayerWeights, Weights

# hidden, inner, layers, heads, key heads, head dimension, vocabulary
SHAPES = {
    "tiny": (512, 1408, 4, 8, 2, 64, 8192),
    "1B": (2048, 8192, 16, 32, 8, 64, 128_256),
    "8B": (4096, 14336, 32, 32, 8, 128, 128_256),
}


def config_of(name: str, window: int | None = None) -> DecoderConfig:
    """A Llama of this shape; with a window every other layer slides."""
    hidden, inner, layers, heads, kv_heads, dim, vocab = SHAPES[name]
    rope = Rope("default", 500_000.0, dim)
    return DecoderConfig(
        family="llama",
        vocab_size=vocab,
        hidden_size=hidden,
        intermediate_size=inner,
        n_layers=layers,
        n_heads=heads,
        n_kv_heads=kv_heads,
        head_dim=dim,
        norm_eps=1e-5,
        max_position=8192,
        windows=tuple(window if i % 2 == 0 else None for i in range(layers)),
        ropes=(rope,) * layers,
        attention_scale=dim**-0.5,
    )


def random_weights(
    name: str, scheme: str, head: str, device: torch.device, dtype: torch.dtype, window: int | None = None, seed: int = 0
) -> Weights:
    """`scheme` and `head` are nf4, int8 or dense. Strong enough that texts are not constant."""
    config = config_of(name, window)
    made = torch.Generator(device).manual_seed(seed)

    def matrix(n: int, k: int, kind: str, gain: float = 1.0) -> Linear:
        return linear.build(packed(n, k, kind, gain, made, device, dtype), None, device, dtype)

    ones = torch.ones(config.hidden_size, device=device, dtype=dtype)
    width, seen = (config.n_heads + 2 * config.n_kv_heads) * config.head_dim, config.n_heads * config.head_dim
    layers = tuple(
        LayerWeights(
            qkv=matrix(width, config.hidden_size, scheme, 1.5),
            o=matrix(config.hidden_size, seen, scheme),
            gate_up=matrix(2 * config.intermediate_size, config.hidden_size, scheme),
            down=matrix(config.hidden_size, config.intermediate_size, scheme),
            attn_norm=ones,
            mlp_norm=ones,
        )
        for _ in range(config.n_layers)
    )
    embed = torch.randn(config.vocab_size, config.hidden_size, generator=made, device=device, dtype=torch.float32).to(dtype)
    out = matrix(config.vocab_size, config.hidden_size, head, 3.0)
    parts = [out, *(x for w in layers for x in (w.qkv, w.o, w.gate_up, w.down))]
    return Weights(config, embed, layers, ones, out, scheme, head, device, dtype, sum(x.nbytes for x in parts) + embed.nbytes)


def packed(n: int, k: int, kind: str, gain: float, made: torch.Generator, device: torch.device, dtype: torch.dtype) -> Packed:
    """A random matrix (N, K) whose rows have about the length `gain`."""
    tensors: dict[str, Tensor]
    if kind == "nf4":
        codes = torch.randint(0, 256, (n, k // 2), generator=made, device=device, dtype=torch.uint8)
        scales = torch.rand(n, k // linear.NF4_BLOCK, generator=made, device=device) + 0.5
        tensors = {"weight": codes, "absmax": scales * (gain / 0.6 / k**0.5)}  # codes at random have a spread of about 0.6
    elif kind == "int8":
        steps = torch.randint(-127, 128, (n, k), generator=made, device=device, dtype=torch.int8)
        tensors = {"weight": steps, "scale": torch.full((n,), gain / 73 / k**0.5, device=device)}
    else:
        tensors = {"weight": (torch.randn(n, k, generator=made, device=device, dtype=torch.float32) * (gain / k**0.5)).to(dtype)}
    return Packed(kind, (n, k), tensors)


def step_bytes(weights: Weights) -> int:
    """Bytes of weights that a step of one row reads: all but the embedding."""
    return weights.nbytes - weights.embed.nbytes
