"""Tiny random transformers models, one per family, saved to a folder: what the lean decoder is compared with."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

VOCAB = 96
WINDOW = 12
_SIZES: dict[str, Any] = {
    "vocab_size": VOCAB,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
_LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 10000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
_LONGROPE = {
    "rope_type": "longrope",
    "rope_theta": 10000.0,
    "short_factor": [1.0 + 0.1 * i for i in range(8)],
    "long_factor": [2.0 + 0.5 * i for i in range(8)],
}
_SLIDING = {"rope_type": "default", "rope_theta": 500.0}
_FULL = {"rope_type": "default", "rope_theta": 10000.0}

# name -> (model type, what differs from the sizes above)
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("llama", {"tie_word_embeddings": True}),
    "llama3-scaling": ("llama", {"rope_parameters": _LLAMA3}),
    "llama-biases": ("llama", {"attention_bias": True, "mlp_bias": True}),
    "mistral-window": ("mistral", {"sliding_window": WINDOW, "head_dim": 32}),
    "mistral-full": ("mistral", {"sliding_window": None}),
    "qwen2": ("qwen2", {"tie_word_embeddings": True}),
    "qwen2-yarn": (
        "qwen2",
        {"rope_parameters": {"rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0, "original_max_position_embeddings": 64}},
    ),
    "qwen3": ("qwen3", {"head_dim": 32}),
    "gemma2": ("gemma2", {"sliding_window": WINDOW, "head_dim": 24, "query_pre_attn_scalar": 20, "tie_word_embeddings": True}),
    "gemma3": (
        "gemma3_text",
        {
            "sliding_window": WINDOW,
            "head_dim": 24,
            "query_pre_attn_scalar": 20,
            "tie_word_embeddings": True,
            "layer_types": ["sliding_attention", "sliding_attention", "full_attention", "sliding_attention"],
            "rope_parameters": {"full_attention": _FULL | {"rope_type": "linear", "factor": 8.0}, "sliding_attention": _SLIDING},
        },
    ),
    "phi3-partial": ("phi3", {"rope_parameters": _FULL | {"partial_rotary_factor": 0.5}, "sliding_window": None}),
    # the context that the lean decoder is opened with picks the factors; these are chosen so that transformers picks the same
    "phi3-longrope-long": ("phi3", {"rope_parameters": _LONGROPE, "original_max_position_embeddings": 16, "sliding_window": WINDOW}),
    "phi3-longrope-short": ("phi3", {"rope_parameters": _LONGROPE, "original_max_position_embeddings": 200, "sliding_window": None}),
    "smollm3": ("smollm3", {"no_rope_layers": [1, 1, 1, 0], "tie_word_embeddings": True}),
}


def config_of(case: str) -> Any:
    """The transformers config of a case."""
    from transformers import AutoConfig

    kind, extra = CASES[case]
    return AutoConfig.for_model(kind, **(_SIZES | extra))


def model_of(config: Any, seed: int = 0, dtype: torch.dtype = torch.float32) -> Any:
    """A random model of a config, in eval mode, with weights strong enough that greedy text is not constant."""
    from transformers import AutoModelForCausalLM

    torch.manual_seed(seed)
    model = AutoModelForCausalLM.from_config(config, dtype=dtype)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.dim() > 1:
                parameter.mul_(2.0 if "embed" in name or "lm_head" in name else 8.0)
            else:
                parameter.add_(torch.randn_like(parameter) * 0.2)  # norms and biases must matter
    return model.eval()


def saved(case: str, folder: Path, seed: int = 0) -> tuple[Any, Path]:
    """A random model of a case, and the folder that it was saved to."""
    model = model_of(config_of(case), seed)
    model.save_pretrained(folder)
    return model, folder


def as_gguf(
    model: Any,
    path: Path,
    arch: str,
    quantize: tuple[str, ...] = (),
    extra: dict[str, Any] | None = None,
    vocabulary: dict[str, Any] | None = None,
    template: str | None = None,
) -> Path:
    """Write a model as a GGUF file, with the changes that llama.cpp's converter makes. Names in `quantize` become Q8_0."""
    from gguf import GGUFWriter
    from gguf.constants import GGMLQuantizationType
    from gguf.quants import quantize as packed

    from engine.decoder.gguf import _GEMMA, _IN_LAYER, _TOP, OFFSET_NORMS, PERMUTED

    config = model.config
    writer = GGUFWriter(path, arch)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    writer.add_key_length(head_dim)
    rope = config.rope_parameters.get("full_attention", config.rope_parameters)
    writer.add_rope_freq_base(rope["rope_theta"])
    for key, value in (vocabulary or {"tokens": [f"t{i}" for i in range(config.vocab_size)], "eos_token_id": 2}).items():
        add = writer.add_array if isinstance(value, list) else writer.add_string if isinstance(value, str) else writer.add_uint32
        add(f"tokenizer.ggml.{key}", value)
    if template is not None:
        writer.add_chat_template(template)
    for key, value in (extra or {}).items():
        if isinstance(value, torch.Tensor):
            writer.add_tensor(key, value.numpy())
        elif isinstance(value, str):
            writer.add_string(f"{arch}.{key}", value)
        elif isinstance(value, float):
            writer.add_float32(f"{arch}.{key}", value)
        else:
            writer.add_uint32(f"{arch}.{key}", value)
    names = {v: k for k, v in (_IN_LAYER | (_GEMMA if arch in OFFSET_NORMS else {})).items()} | {v: k for k, v in _TOP.items()}
    for name, tensor in model.state_dict().items():
        if name == "lm_head.weight" and config.tie_word_embeddings:
            continue
        stem, _, suffix = name.rpartition(".")
        layer = ""
        if stem.startswith("model.layers."):
            _, _, number, stem = stem.split(".", 3)
            layer = f"blk.{number}."
        ours = "ffn_up" if stem == "mlp.gate_up_proj" else names[stem]
        values = tensor.float().numpy()
        if arch in PERMUTED and ours in ("attn_q", "attn_k"):
            heads = config.num_attention_heads if ours == "attn_q" else config.num_key_value_heads
            values = values.reshape(heads, 2, -1, *values.shape[1:]).swapaxes(1, 2).reshape(values.shape)
        if arch in OFFSET_NORMS and ours.endswith("norm"):
            values = values + 1
        if ours in quantize and suffix == "weight":
            writer.add_tensor(f"{layer}{ours}.{suffix}", packed(values, GGMLQuantizationType.Q8_0), raw_dtype=GGMLQuantizationType.Q8_0)
        else:
            writer.add_tensor(f"{layer}{ours}.{suffix}", values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path
