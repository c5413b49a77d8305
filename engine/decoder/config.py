"""The shape of a Llama-like decoder, read from a transformers config. No weights, no forward pass.

Families: llama, mistral, qwen2, qwen3, gemma2 and gemma3 (text), smollm (= llama), phi3. What differs between them is a flag here;
the model code has no family names. An architecture outside `FAMILIES` raises EngineError(kind="architecture").
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from engine.errors import EngineError

FAMILIES = ("llama", "mistral", "qwen2", "qwen3", "gemma2", "gemma3_text", "phi3", "smollm3")


@dataclass(frozen=True, slots=True)
class Rope:
    """One rotary table; the frequencies come from transformers' own functions (`engine.decoder.rope`)."""

    kind: str  # default | linear | dynamic | yarn | longrope | llama3 …
    theta: float
    rotary_dim: int  # leading dimensions of a head that rotate
    layer_type: str | None = None  # where a config has one table per type of layer


@dataclass(frozen=True, slots=True)
class DecoderConfig:
    """All sizes in elements; one entry per layer in `windows` and `ropes`."""

    family: str
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    n_layers: int
    n_heads: int
    n_kv_heads: int
    head_dim: int
    norm_eps: float
    max_position: int
    windows: tuple[int | None, ...]  # sliding window of each layer, None = full attention
    ropes: tuple[Rope | None, ...]  # rotary table of each layer, None = no position encoding in this layer
    attention_scale: float
    qkv_bias: bool = False
    o_bias: bool = False
    mlp_bias: bool = False
    qk_norm: bool = False  # RMS norm over each head of q and k, before rotary
    sandwich_norm: bool = False  # norms behind attention and MLP as well as before
    norm_offset: float = 0.0  # gemma stores weight - 1; the loader adds this
    activation: str = "silu"  # silu | gelu_tanh
    embed_scale: float = 1.0
    attention_softcap: float | None = None
    final_softcap: float | None = None
    tied_head: bool = False
    rope_config: Any = field(default=None, compare=False, repr=False)  # the transformers config, for its rope functions

    @property
    def body_size(self) -> int:
        """Weights in the layers' matrices."""
        attention = 2 * self.hidden_size * (self.n_heads + self.n_kv_heads) * self.head_dim
        return self.n_layers * (attention + 3 * self.hidden_size * self.intermediate_size)


def from_hf(config: Any) -> DecoderConfig:
    """Read a transformers config object (`AutoConfig`). Raises EngineError for a family that the lean decoder lacks."""
    config = getattr(config, "text_config", None) or config
    family = config.model_type
    if family not in FAMILIES:
        raise EngineError(
            f"The architecture {family!r} is not one that the lean decoder knows.",
            "It can still run through transformers, more slowly.",
            kind="architecture",
        )
    n_layers = config.num_hidden_layers
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    gemma = family in ("gemma2", "gemma3_text")
    activation = getattr(config, "hidden_activation", None) if gemma else config.hidden_act
    names = {"silu": "silu", "gelu_pytorch_tanh": "gelu_tanh"}
    if activation not in names:
        raise EngineError(f"The activation {activation!r} of {family} is not supported.", kind="architecture")
    scale: float = config.query_pre_attn_scalar if gemma else head_dim
    return DecoderConfig(
        family=family,
        vocab_size=config.vocab_size,
        hidden_size=config.hidden_size,
        intermediate_size=config.intermediate_size,
        n_layers=n_layers,
        n_heads=config.num_attention_heads,
        n_kv_heads=config.num_key_value_heads,
        head_dim=head_dim,
        norm_eps=config.rms_norm_eps,
        max_position=config.max_position_embeddings,
        windows=_windows(config, family, n_layers),
        ropes=_ropes(config, n_layers, head_dim),
        attention_scale=float(scale) ** -0.5,
        qkv_bias=family == "qwen2" or bool(getattr(config, "attention_bias", False)),
        o_bias=family not in ("qwen2",) and bool(getattr(config, "attention_bias", False)),
        mlp_bias=bool(getattr(config, "mlp_bias", False)),
        qk_norm=family in ("qwen3", "gemma3_text"),
        sandwich_norm=gemma,
        norm_offset=1.0 if gemma else 0.0,
        activation=names[activation],
        embed_scale=config.hidden_size**0.5 if gemma else 1.0,
        attention_softcap=getattr(config, "attn_logit_softcapping", None) if gemma else None,
        final_softcap=getattr(config, "final_logit_softcapping", None) if gemma else None,
        tied_head=bool(config.tie_word_embeddings),
        rope_config=config,
    )


def _windows(config: Any, family: str, n_layers: int) -> tuple[int | None, ...]:
    window = getattr(config, "sliding_window", None)
    types = getattr(config, "layer_types", None)
    if types:
        return tuple(window if t == "sliding_attention" else None for t in types)
    if family in ("mistral", "phi3") and window:
        return (window,) * n_layers
    return (None,) * n_layers


def _ropes(config: Any, n_layers: int, head_dim: int) -> tuple[Rope | None, ...]:
    parameters = config.rope_parameters
    types = getattr(config, "layer_types", None) or ["full_attention"] * n_layers
    without = getattr(config, "no_rope_layers", None)  # smollm3: 1 = rotary, 0 = none

    def rope(values: dict[str, Any], layer_type: str | None) -> Rope:
        partial = values.get("partial_rotary_factor", getattr(config, "partial_rotary_factor", 1.0)) or 1.0
        return Rope(values.get("rope_type", "default"), float(values["rope_theta"]), int(head_dim * partial), layer_type)

    nested = "rope_theta" not in parameters
    ropes = [rope(parameters[t], t) if nested else rope(parameters, None) for t in types]
    if without:
        return tuple(r if keep else None for r, keep in zip(ropes, without, strict=True))
    return tuple(ropes)
