"""What a decoder is made of: which stored tensors become which packed matrix or vector, and in which layout.

Names of the pieces (`layers.0.qkv`, `embed`, `head`, `norm`) are ours; names of their parts are transformers'.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch

from engine.decoder import linear, tiles
from engine.decoder.config import DecoderConfig
from engine.decoder.source import AGAIN, TensorSource
from engine.errors import EngineError


@dataclass(frozen=True, slots=True)
class Matrix:
    """A matrix (N, K) made of stored parts, stacked along N."""

    name: str
    parts: tuple[str, ...]
    sizes: tuple[int, ...]  # rows of each part
    k: int
    layout: str  # of `linear.Packed`
    bias: tuple[str, ...] = ()

    @property
    def shape(self) -> tuple[int, int]:
        return sum(self.sizes), self.k

    def specs(self, dtype: torch.dtype) -> Iterator[tuple[str, torch.dtype, tuple[int, ...]]]:
        """The packed tensors, as `linear.pack` makes them."""
        n, k = self.shape
        wide, deep = tiles.padded(self.shape)
        if self.layout == "dense":
            yield f"{self.name}.weight", dtype, (n, k)
        elif self.layout == "int8":
            yield f"{self.name}.weight", torch.int8, (n, k)
            yield f"{self.name}.scale", torch.float32, (n,)
        elif self.layout == "int8_tiles":
            yield f"{self.name}.weight", torch.uint8, (wide, deep)
            yield f"{self.name}.scale", torch.float32, (wide,)
        elif self.layout == "nf4_tiles":
            yield f"{self.name}.weight", torch.uint8, (wide, deep // 2)
            yield f"{self.name}.absmax", torch.bfloat16, (wide, deep // linear.NF4_BLOCK)
        else:
            yield f"{self.name}.weight", torch.uint8, (n, k // 2)
            yield f"{self.name}.absmax", torch.float32, (n, k // linear.NF4_BLOCK)
        if self.bias:
            yield f"{self.name}.bias", dtype, (n,)


@dataclass(frozen=True, slots=True)
class Vector:
    """A norm weight; `offset` is added in float32."""

    name: str
    part: str
    size: int
    offset: float


@dataclass(frozen=True, slots=True)
class Blueprint:
    """All pieces of one model. `head` is None where the embedding serves as it is."""

    embed: Matrix
    head: Matrix | None
    matrices: tuple[Matrix, ...]  # of the layers
    vectors: tuple[Vector, ...]

    @property
    def everything(self) -> tuple[Matrix, ...]:
        return (self.embed, *self.matrices, *((self.head,) if self.head else ()))


def draw(config: DecoderConfig, source: TensorSource, scheme: str, head_scheme: str, device: torch.device, dtype: torch.dtype) -> Blueprint:
    """The blueprint, checked: every stored tensor is there and has the shape that the config asks for."""
    names = source.names()
    hidden, middle, dim = config.hidden_size, config.intermediate_size, config.head_dim
    q, kv = config.n_heads * dim, config.n_kv_heads * dim

    def matrix(name: str, parts: dict[str, int], k: int, kind: str, bias: bool = False) -> Matrix:
        biases = tuple(part.removesuffix("weight") + "bias" for part in parts) if bias else ()
        layout = linear.layout_for(kind, device, (sum(parts.values()), k))
        return Matrix(name, tuple(parts), tuple(parts.values()), k, layout, biases)

    matrices: list[Matrix] = []
    vectors: list[Vector] = []
    for i in range(config.n_layers):
        at, piece = f"model.layers.{i}.", f"layers.{i}."
        attn, mlp = at + "self_attn.", at + "mlp."
        fused = attn + "qkv_proj.weight"
        apart = {attn + "q_proj.weight": q, attn + "k_proj.weight": kv, attn + "v_proj.weight": kv}
        matrices.append(matrix(piece + "qkv", {fused: q + 2 * kv} if fused in names else apart, hidden, scheme, config.qkv_bias))
        matrices.append(matrix(piece + "o", {attn + "o_proj.weight": hidden}, q, scheme, config.o_bias))
        fused = mlp + "gate_up_proj.weight"
        apart = {mlp + "gate_proj.weight": middle, mlp + "up_proj.weight": middle}
        matrices.append(matrix(piece + "gate_up", {fused: 2 * middle} if fused in names else apart, hidden, scheme, config.mlp_bias))
        matrices.append(matrix(piece + "down", {mlp + "down_proj.weight": hidden}, middle, scheme, config.mlp_bias))
        vectors += _norms(config, at, piece)
    vectors.append(Vector("norm", "model.norm.weight", hidden, config.norm_offset))
    table = {"model.embed_tokens.weight": config.vocab_size}
    embed = matrix("embed", table, hidden, "dense")
    head_parts = table if config.tied_head else {"lm_head.weight": config.vocab_size}
    head: Matrix | None = matrix("head", head_parts, hidden, head_scheme)
    assert head is not None
    shared = head.layout == "dense" and config.tied_head
    blueprint = Blueprint(embed, None if shared else head, tuple(matrices), tuple(vectors))
    _check(blueprint, source)
    return blueprint


def _norms(config: DecoderConfig, at: str, piece: str) -> list[Vector]:
    names = {"attn_norm": "input_layernorm", "mlp_norm": "post_attention_layernorm"}
    if config.sandwich_norm:
        names |= {
            "post_attn_norm": "post_attention_layernorm",
            "mlp_norm": "pre_feedforward_layernorm",
            "post_mlp_norm": "post_feedforward_layernorm",
        }
    norms = [Vector(piece + ours, f"{at}{theirs}.weight", config.hidden_size, config.norm_offset) for ours, theirs in names.items()]
    if config.qk_norm:
        norms += [Vector(f"{piece}{x}_norm", f"{at}self_attn.{x}_norm.weight", config.head_dim, config.norm_offset) for x in ("q", "k")]
    return norms


def _check(blueprint: Blueprint, source: TensorSource) -> None:
    wanted: dict[str, tuple[int, ...]] = {vector.part: (vector.size,) for vector in blueprint.vectors}
    for matrix in blueprint.everything:
        wanted |= {part: (size, matrix.k) for part, size in zip(matrix.parts, matrix.sizes, strict=True)}
        wanted |= {part: (size,) for part, size in zip(matrix.bias, matrix.sizes, strict=False)}
    names = source.names()
    where = source.files[0].name if len(source.files) == 1 else source.files[0].parent.name
    if absent := [part for part in wanted if part not in names]:
        more = f" and {len(absent) - 1} more tensors" if len(absent) > 1 else ""
        raise EngineError(f"The weights in {where} lack {absent[0]}{more}.", AGAIN, kind="missing_weights", detail=", ".join(absent))
    for part, shape in wanted.items():
        if source.shape(part) != shape:
            raise EngineError(
                f"{part} in {where} has the shape {source.shape(part)}, but the configuration asks for {shape}.",
                AGAIN,
                kind="corrupt_weights",
            )
