"""What the config.json of draft heads says, where tensors cannot decide: attention heads, norms, rotary positions, taps. No torch.

Keys that are absent: num_key_value_heads and `bias` are decided by tensors; rope_theta is 10000, whatever the target's is.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from engine.drafters.heads import layout
from engine.drafters.heads.layout import Shape
from engine.drafters.heads.specs import GUMIHO, ROPE_THETA, Family, HeadSpec, TargetFacts
from engine.drafters.heads.suits import base_model, wrong
from engine.errors import EngineError

AT = {"eagle3": "midlayer", "hydra++": "prefix_embeding_layer.layers.0"}  # where the (first) transformer layer is, else layers.0
FEWEST_LAYERS = 7  # of a target for EAGLE-3: below, its three taps fall together
ROPES = ("default", "linear", "dynamic", "yarn", "longrope", "llama3")


def flat(config: Mapping[str, Any] | None, of: Family, folder: str) -> dict[str, Any]:
    """The config as one table: the speculators library keeps the layer's settings in a table of their own."""
    if config is None:
        if of == "gumiho":
            return {}
        raise EngineError(
            f"The {of} heads in {folder} lack their config.json.", "Put it beside the weights, or pull them again.", kind="missing_weights"
        )
    if config.get("speculators_model_type", of) != of:
        raise EngineError(
            f"{folder} holds {config['speculators_model_type']} heads, which specchat does not know.", layout.KNOWN, kind="architecture"
        )
    layer = config.get("transformer_layer_config")
    return {**(layer if isinstance(layer, dict) else {}), **{k: v for k, v in config.items() if k != "transformer_layer_config"}}


def transformer(spec: HeadSpec, config: Mapping[str, Any], shapes: Mapping[str, Shape], folder: str) -> HeadSpec:
    """Sizes and rotary settings of heads that bring a config of their own for their layers."""
    heads, eps = config.get("num_attention_heads"), config.get("rms_norm_eps")
    if not isinstance(heads, int) or not isinstance(eps, float) or heads < 1:
        lack = "num_attention_heads" if not isinstance(heads, int) or heads < 1 else "rms_norm_eps"
        raise EngineError(
            f"The config.json of {folder} does not give {lack}.", "Pull the heads again, or check where they come from.", kind="config"
        )
    if (activation := config.get("hidden_act", "silu")) != "silu":
        raise EngineError(
            f"{folder} uses the activation {activation}, which no published heads use.",
            layout.KNOWN,
            kind="architecture",
        )
    parameters = config.get("rope_parameters") or {}
    scaling = config.get("rope_scaling") or (parameters if parameters.get("rope_type", "default") != "default" else None)
    kind = (scaling or {}).get("rope_type") or (scaling or {}).get("type") or "default"
    if kind not in ROPES:
        raise EngineError(
            f"{folder} turns positions in a way that specchat does not know ({kind}).",
            layout.KNOWN,
            kind="architecture",
        )
    return replace(
        spec,
        rms_eps=eps,
        rope_theta=float(config.get("rope_theta") or parameters.get("rope_theta") or ROPE_THETA),
        rope_scaling=None if kind == "default" else {**(scaling or {}), "rope_type": kind},
        max_positions=int(config.get("max_position_embeddings") or config.get("max_sequence_length") or 2048),
        **sizes(spec.family, shapes, heads, config.get("head_dim") or spec.hidden // heads, folder),
    )


def sizes(of: Family, shapes: Mapping[str, Shape], heads: int, head_dim: int, folder: str) -> dict[str, Any]:
    """Sizes of the first transformer layer, as its tensors have them; only the number of attention heads is told."""
    at = AT.get(of, "layers.0")
    rows = layout.at(shapes, f"{at}.self_attn.k_proj.weight", folder)[0]
    if rows % head_dim or heads % (rows // head_dim):
        raise layout.wrong_shape(folder, f"{at}.self_attn.k_proj.weight", (rows,), (heads * head_dim,))
    inner = layout.at(shapes, f"{at}.mlp.gate_proj.weight", folder)[0]
    bias = f"{at}.self_attn.q_proj.bias" in shapes
    return {"heads": heads, "kv_heads": rows // head_dim, "head_dim": head_dim, "intermediate": inner, "qkv_bias": bias}


def published(hidden: int, shapes: Mapping[str, Shape], target: TargetFacts, folder: str) -> dict[str, Any]:
    """Gumiho's settings are in its own repository, not beside the weights: they are built in, found by the sizes."""
    inner, vocab = layout.at(shapes, "layers.0.mlp.gate_proj.weight", folder)[0], shapes["embed_tokens.weight"][0]
    fits = [row for row in GUMIHO if (row.hidden, row.intermediate, row.vocab) == (hidden, inner, vocab)]
    if not fits:
        raise EngineError(
            f"The config.json of {folder} is missing or not complete, and its sizes are those of no published Gumiho heads.",
            "It must give num_attention_heads and rms_norm_eps at least.",
            kind="config",
        )
    row = next((row for row in fits if row.name in target.name.lower()), fits[0])
    config = {"num_attention_heads": row.heads, "rms_norm_eps": row.rms_eps, "rope_theta": row.rope_theta}
    return config | {"max_position_embeddings": row.max_positions}


def taps(config: Mapping[str, Any], target: TargetFacts, folder: str) -> tuple[tuple[int, ...], tuple[str, ...]]:
    """Target layers whose input is read. Tools disagree on what an explicit id means: those that are the usual taps, counted as
    outputs, are taken as outputs; all others as inputs."""
    n = target.layers
    usual = (2, n // 2, n - 3)
    nested = config.get("eagle_config")
    ids = config.get("eagle_aux_hidden_state_layer_ids") or (nested or {}).get("eagle_aux_hidden_state_layer_ids")
    if not ids:
        if n < FEWEST_LAYERS:
            raise wrong(folder, "number of layers", FEWEST_LAYERS, n, target, base_model(config), least=True)
        return usual, ()
    ids = tuple(int(i) for i in ids)
    if tuple(i + 1 for i in ids) == usual:
        return usual, ()
    if not all(0 <= i < n for i in ids):
        raise wrong(folder, "number of layers", max(ids) + 1, n, target, base_model(config), least=True)
    note = f"{folder} reads the inputs of layers {', '.join(map(str, ids))}; if it drafts badly, its config may mean their outputs."
    return ids, () if ids == usual else (note,)
