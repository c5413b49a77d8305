"""Tiny heads in every published layout, written tensor by tensor from the published lists (not from `layout`, which is under test)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from engine.drafters.heads.specs import TargetFacts

H, I, V, NH, KV, D = 32, 48, 40, 4, 2, 8  # noqa: E741  the letters of the papers
TARGET = TargetFacts("tiny", hidden=H, vocab=V, layers=8, heads=NH, head_dim=D, rms_eps=1e-5, rope_theta=5e5, max_positions=512)
LLAMA = {
    "hidden_size": H, "intermediate_size": I, "num_attention_heads": NH, "num_key_value_heads": KV, "vocab_size": V,
    "rms_norm_eps": 1e-5, "max_position_embeddings": 256, "num_hidden_layers": 1, "hidden_act": "silu", "model_type": "llama",
}  # fmt: skip
HYDRA = {
    "hydra_num_heads": 3,
    "hydra_num_layers": 4,
    "grounded_heads": True,
    "hidden_state_offset": 0,
    "base_model_name_or_path": "org/base",
}
MEDUSA = {"medusa_num_heads": 2, "medusa_num_layers": 1, "base_model_name_or_path": "org/base"}
Tensors = dict[str, Tensor]


def random(shapes: dict[str, tuple[int, ...]]) -> Tensors:
    made = torch.Generator().manual_seed(1)
    return {name: (torch.randn(shape, generator=made) * 0.1).half() for name, shape in shapes.items()}


def layer(at: str, *, input_norm: bool, wide: int = 1, bias: bool = False) -> dict[str, tuple[int, ...]]:
    shapes: dict[str, tuple[int, ...]] = {}
    for name, rows in (("q", NH * D), ("k", KV * D), ("v", KV * D)):
        shapes[f"{at}.self_attn.{name}_proj.weight"] = (rows, wide * H)
        if bias:
            shapes[f"{at}.self_attn.{name}_proj.bias"] = (rows,)
    shapes |= {f"{at}.self_attn.o_proj.weight": (H, NH * D), f"{at}.mlp.gate_proj.weight": (I, H), f"{at}.mlp.up_proj.weight": (I, H)}
    shapes |= {f"{at}.mlp.down_proj.weight": (H, I), f"{at}.post_attention_layernorm.weight": (H,)}
    return shapes | ({f"{at}.input_layernorm.weight": (H,)} if input_norm else {})


def linear(at: str, out: int, wide: int) -> dict[str, tuple[int, ...]]:
    return {f"{at}.weight": (out, wide), f"{at}.bias": (out,)}


def eagle(*, bias: bool = True, qkv_bias: bool = False) -> Tensors:
    shapes = {"embed_tokens.weight": (V, H), "fc.weight": (H, 2 * H)} | layer("layers.0", input_norm=False, bias=qkv_bias)
    return random(shapes | ({"fc.bias": (H,)} if bias else {}))


def eagle3(*, draft: int = 24, embedding: bool = False, target_hidden: int = 0, at: str = "midlayer") -> Tensors:
    shapes = {
        "fc.weight": (H, 3 * (target_hidden or H)),
        "norm.weight": (H,),
        "lm_head.weight": (draft, H),
        f"{at}.hidden_norm.weight": (H,),
    }
    tensors = random(shapes | layer(at, input_norm=True, wide=2) | ({"embed_tokens.weight": (V, H)} if embedding else {}))
    if draft < V:
        kept = torch.tensor(sorted((7 * i) % V for i in range(draft)))
        tensors["d2t"] = kept - torch.arange(draft)
        tensors["t2d"] = torch.zeros(V, dtype=torch.bool).index_fill_(0, kept, True)
    return tensors


def gumiho(*, heads: int = 5, bias: bool = True, prefix: str = "mlp.") -> Tensors:
    shapes: dict[str, tuple[int, ...]] = {"embed_tokens.weight": (V, H), "fc.weight": (H, 2 * H)} | ({"fc.bias": (H,)} if bias else {})
    shapes |= layer("layers.0", input_norm=False) | layer("layers.1", input_norm=True)
    for m in range(heads):
        for j in range(6):
            shapes |= linear(f"{prefix}{m}.{j}.linear", H, 2 * H if j == 0 else H)
    return random(shapes)


def hydra(*, heads: int = 3, layers: int = 1, grounded: bool = True) -> Tensors:
    shapes: dict[str, tuple[int, ...]] = {}
    for k in range(heads):
        wide = (k + 2) * H if grounded else H
        shapes |= linear(f"hydra_mlp.{k}.0.linear", H, wide) | linear(f"hydra_lm_head.{k}", V, H)
        shapes |= linear(f"hydra_mlp.{k}.0.res_connection", H, wide) if grounded else {}
        for j in range(1, layers):
            shapes |= linear(f"hydra_mlp.{k}.{j}.linear", H, H)
    return random(shapes)


def hydra_plus(*, heads: int = 3, layers: int = 4, once: bool = False) -> Tensors:
    """Hydra++: odd indices, one repeated block under several names (`once`: under one), and tensors that are never used."""
    at = "prefix_embeding_layer"
    shapes = layer(f"{at}.layers.0", input_norm=True) | {f"{at}.norm.weight": (H,), f"{at}.embed_tokens.weight": (V, H)}
    shapes |= {f"{at}.layers.0.self_attn.rotary_emb.inv_freq": (D // 2,), "input_embed_fn.weight": (V, H)}
    for k in range(heads):
        shapes |= linear(f"hydra_mlp.{k}.1.linear", H, (k + 2) * H) | linear(f"hydra_mlp.{k}.1.res_connection", H, (k + 2) * H)
        shapes |= linear(f"hydra_mlp.{k}.3.linear", H, H) | linear(f"hydra_lm_head.{k}.1", V, H)
    tensors = random(shapes)
    for k in range(heads):
        for j in range(2, 2 if once else layers):
            for part in ("weight", "bias"):
                tensors[f"hydra_mlp.{k}.{2 * j + 1}.linear.{part}"] = tensors[f"hydra_mlp.{k}.3.linear.{part}"]
    return tensors


def medusa(*, heads: int = 5, layers: int = 1, own: bool = True) -> Tensors:
    shapes: dict[str, tuple[int, ...]] = {}
    for i in range(heads):
        for j in range(layers):
            shapes |= linear(f"{i}.{j}.linear", H, H)
        shapes |= {f"{i}.{layers}.weight": (V, H)} if own else {}
    return random(shapes)


def write(folder: Path, tensors: Any, config: dict[str, Any] | None, file: str = "pytorch_model.bin") -> Path:
    """A folder of heads. `tensors` may be anything that torch can pickle."""
    folder.mkdir(parents=True, exist_ok=True)
    if file.endswith(".safetensors"):
        save_file({name: tensor.clone() for name, tensor in tensors.items()}, folder / file)
    else:
        torch.save(tensors, folder / file)
    if config is not None:
        (folder / "config.json").write_text(json.dumps(config))
    return folder
