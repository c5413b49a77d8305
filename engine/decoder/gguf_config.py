"""A transformers config from the metadata of a GGUF file.

The lean decoder's families are read here, in milliseconds. Rotary scaling that llama.cpp keeps as tensors (Llama 3's frequency factors,
Phi's long and short factors) is read back into the parameters that transformers computes them from. Other architectures go through
transformers' own reader, which takes seconds and knows fewer of these details.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from engine.errors import EngineError

if TYPE_CHECKING:
    from engine.decoder.gguf import Header

MODEL_TYPES = {
    "llama": "llama",
    "qwen2": "qwen2",
    "qwen3": "qwen3",
    "gemma2": "gemma2",
    "gemma3": "gemma3_text",
    "phi3": "phi3",
    "smollm3": "smollm3",
}
_LLAMA3 = {"low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}  # as published for every size
_LAYERS_27B = {"gemma2": 46, "gemma3": 62}  # these scale attention by the width over the heads, not by the size of a head


def read_config(header: Header) -> Any:
    """The config object. EngineError(kind="architecture") where nobody knows the architecture."""
    from transformers import AutoConfig

    architecture = header.architecture
    if architecture not in MODEL_TYPES or header.metadata.get(f"{architecture}.expert_count"):
        return _through_transformers(header)
    try:
        return AutoConfig.for_model(MODEL_TYPES[architecture], **_fields(header))
    except (KeyError, TypeError, ValueError) as error:
        message = f"The metadata in {header.path.name} lack what the {architecture} architecture needs."
        raise EngineError(message, "Use another conversion of the model.", kind="config", detail=repr(error)) from error


def _through_transformers(header: Header) -> Any:
    from transformers import AutoConfig

    try:
        return AutoConfig.from_pretrained(str(header.path.parent), gguf_file=header.path.name, local_files_only=True)
    except (ValueError, KeyError, TypeError, OSError) as error:
        raise EngineError(
            f"The architecture {header.architecture!r} in {header.path.name} is not supported.",
            "Use the model's safetensors repository: transformers may run it.",
            kind="architecture",
            detail=str(error),
        ) from error


def _fields(header: Header) -> dict[str, Any]:
    meta, arch, tensors = header.metadata, header.architecture, header.tensors

    def get(key: str, default: Any = None) -> Any:
        return meta.get(f"{arch}.{key}", default)

    heads, hidden = meta[f"{arch}.attention.head_count"], meta[f"{arch}.embedding_length"]
    n_layers = meta[f"{arch}.block_count"]
    head_dim = get("attention.key_length") or (get("rope.dimension_count") if arch == "llama" else None) or hidden // heads
    fields: dict[str, Any] = {
        "vocab_size": tensors["token_embd.weight"].shape[0],
        "hidden_size": hidden,
        "intermediate_size": meta[f"{arch}.feed_forward_length"],
        "num_hidden_layers": n_layers,
        "num_attention_heads": heads,
        "num_key_value_heads": get("attention.head_count_kv", heads),
        "head_dim": head_dim,
        "rms_norm_eps": meta[f"{arch}.attention.layer_norm_rms_epsilon"],
        "max_position_embeddings": meta[f"{arch}.context_length"],
        "tie_word_embeddings": "output.weight" not in tensors,
        "bos_token_id": meta.get("tokenizer.ggml.bos_token_id"),
        "eos_token_id": meta.get("tokenizer.ggml.eos_token_id"),
        "pad_token_id": meta.get("tokenizer.ggml.padding_token_id"),
        "rope_parameters": _rope(header, head_dim),
    }
    if arch in ("llama", "smollm3", "qwen3"):
        fields["attention_bias"] = "blk.0.attn_q.bias" in tensors
    if arch == "llama":
        fields["mlp_bias"] = "blk.0.ffn_down.bias" in tensors
    if arch in ("gemma2", "gemma3"):
        scaled = n_layers == _LAYERS_27B[arch]
        fields["query_pre_attn_scalar"] = hidden // heads if scaled else head_dim
        fields["sliding_window"] = meta[f"{arch}.attention.sliding_window"]
    if arch == "gemma2":
        fields["attn_logit_softcapping"] = get("attn_logit_softcapping", 50.0)
        fields["final_logit_softcapping"] = get("final_logit_softcapping", 30.0)
    if arch == "phi3":
        window = get("attention.sliding_window")
        fields["sliding_window"] = window if window and window < fields["max_position_embeddings"] else None
        fields["original_max_position_embeddings"] = get("rope.scaling.original_context_length", fields["max_position_embeddings"])
        fields["partial_rotary_factor"] = get("rope.dimension_count", head_dim) / head_dim
    return fields


def _rope(header: Header, head_dim: int) -> dict[str, Any]:
    meta, arch = header.metadata, header.architecture
    theta = float(meta.get(f"{arch}.rope.freq_base", 1e6 if arch == "gemma3" else 10000.0))
    rope: dict[str, Any] = {"rope_type": "default", "rope_theta": theta}
    kind = meta.get(f"{arch}.rope.scaling.type")
    if kind in ("linear", "yarn") and (factor := meta.get(f"{arch}.rope.scaling.factor")):
        rope |= {"rope_type": kind, "factor": float(factor)}
        if kind == "yarn" and (original := meta.get(f"{arch}.rope.scaling.original_context_length")):
            rope["original_max_position_embeddings"] = int(original)
    if "rope_freqs.weight" in header.tensors:
        rope |= _llama3(header, theta, head_dim)
    if "rope_factors_long.weight" in header.tensors:
        rope |= {
            "rope_type": "longrope",
            "long_factor": _values(header, "rope_factors_long.weight"),
            "short_factor": _values(header, "rope_factors_short.weight"),
        }
    if arch == "phi3":
        rope["partial_rotary_factor"] = meta.get(f"{arch}.rope.dimension_count", head_dim) / head_dim
    if arch == "gemma3":
        return {"full_attention": rope, "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0}}
    return rope


def _llama3(header: Header, theta: float, head_dim: int) -> dict[str, Any]:
    """Llama 3's scaling from its table of factors; the table must be the one that these parameters make."""
    found = _values(header, "rope_freqs.weight")
    factor = round(max(found), 4)
    if all(abs(value - 1.0) < 1e-6 for value in found):
        return {}
    low, high, original = (_LLAMA3[k] for k in ("low_freq_factor", "high_freq_factor", "original_max_position_embeddings"))
    for i, value in enumerate(found):
        wavelength = 2 * math.pi * theta ** (2 * i / head_dim)
        smooth = min(1.0, max(0.0, (original / wavelength - low) / (high - low)))
        if abs(1 / ((1 - smooth) / factor + smooth) - value) > 1e-3 * value:
            message = f"The rotary scaling in {header.path.name} is of a kind that specchat does not know."
            raise EngineError(message, "Use the model's safetensors repository.", kind="architecture")
    return {"rope_type": "llama3", "factor": factor, **_LLAMA3}


def _values(header: Header, name: str) -> list[float]:
    import numpy as np

    from engine.decoder.gguf import dequantize

    stored = header.tensors[name]
    raw = np.memmap(stored.path, mode="r", dtype=np.uint8, offset=stored.start, shape=(1, stored.nbytes))
    return [float(v) for v in dequantize(raw, stored.kind).reshape(-1)]
