"""Is this the very target that home-made heads were trained with? What their config.json remembers of it, against what is loaded.

The hash is of what every quantization leaves alone: the sizes and the norms. Two models with the same hash are one model, in whatever
number format and file. A probe tells the rest: a few matrices times a fixed vector, as they really run. It is a little off in another
quantization, and further off where the weights were tuned without the norms; drafts are then kept less often, which is a warning.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping
from typing import Any

import torch

from engine.decoder.weights import Weights
from engine.errors import EngineError

KEY = "specchat"  # of the table in config.json
PROBED = 8  # numbers of each probed matrix
SAME = 1e-3  # relative distance of two probes of the same weights on two machines


def fingerprint(weights: Weights) -> str:
    """SHA-256 over sizes and norms, as hex."""
    config = weights.config
    digest = hashlib.sha256(
        f"{config.vocab_size} {config.hidden_size} {config.intermediate_size} {config.n_layers} {config.n_heads} {config.n_kv_heads} "
        f"{config.head_dim}".encode()
    )
    norms = [norm for layer in weights.layers for norm in (layer.attn_norm, layer.mlp_norm, layer.q_norm, layer.k_norm)]
    for norm in (*norms, weights.norm):
        if norm is not None:
            digest.update(norm.detach().cpu().to(torch.bfloat16).view(torch.int16).numpy().tobytes())
    return digest.hexdigest()


@torch.inference_mode()
def probe(weights: Weights) -> list[float]:
    """A few numbers of the first, the middle and the last layer."""
    made = torch.Generator().manual_seed(0)
    found: list[float] = []
    for layer in (weights.layers[0], weights.layers[len(weights.layers) // 2], weights.layers[-1]):
        x = torch.randn((1, layer.o.in_features), generator=made).to(weights.device, weights.dtype)
        found += layer.o(x)[0, :PROBED].float().cpu().tolist()
    return found


def describe(weights: Weights, name: str) -> dict[str, Any]:
    """What a config.json should remember of the target."""
    return {
        "target": name,
        "target_hash": fingerprint(weights),
        "quant": weights.scheme,
        "head": weights.head_scheme,
        "probe": [round(value, 6) for value in probe(weights)],
    }


def compared(config: Mapping[str, Any] | None, weights: Weights, name: str, target: str) -> list[str]:
    """Warnings for heads that remember their target. EngineError(kind="wrong_target") where it is not this one; published heads
    remember nothing."""
    known = (config or {}).get(KEY)
    if not isinstance(known, Mapping) or not isinstance(known.get("target_hash"), str):
        return []
    own = known.get("target") or "another model"
    if known["target_hash"] != fingerprint(weights):
        raise EngineError(
            f"The heads {name} were trained with {own}, and {target} is another model (its hash differs).",
            f"Use them with {own}, or train heads for this one: specchat train -t {target}.",
            kind="wrong_target",
        )
    was, now = f"{known.get('quant')}, head {known.get('head')}", f"{weights.scheme}, head {weights.head_scheme}"
    if was != now:
        return [f"{name} were trained with {own} in another quantization ({was}; this one: {now}): drafts may be kept less often."]
    if _distance(known.get("probe"), probe(weights)) > SAME:
        return [f"{name} were trained with another file of {own}, whose weights differ a little: drafts may be kept less often."]
    return []


def _distance(before: Any, now: list[float]) -> float:
    """Relative distance of two probes; 0 where one of them says nothing."""
    if not isinstance(before, list) or len(before) != len(now) or not all(isinstance(value, (int, float)) for value in before):
        return 0.0
    return math.dist(before, now) / (math.hypot(*now) or 1.0)
