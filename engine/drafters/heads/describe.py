"""From a config and the shapes of tensors to a HeadSpec, judged against a target. Reads no weights. No torch.

A wrong target (another hidden size, vocabulary, too few layers) raises EngineError, kind "wrong_target" or "vocabulary".
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from engine.drafters.heads import blocks, layout, settings, suits
from engine.drafters.heads.layout import Shape
from engine.drafters.heads.specs import TREES, Family, HeadSpec, TargetFacts
from engine.errors import EngineError


def describe(
    config: Mapping[str, Any] | None, stored: Mapping[str, Shape], target: TargetFacts, method: str, folder: str
) -> tuple[HeadSpec, dict[str, str]]:
    """(spec, published name -> stored name) of the heads whose tensors are `stored`. `folder` is their name in sentences."""
    found = layout.family({layout.plain(name) for name in stored}, config or {}, folder)
    config = settings.flat(config, found, folder)
    names = {name: source for source, name in layout.published(stored, found).items()}
    shapes = {name: stored[source] for name, source in names.items()}
    if method not in ("auto", found) and not (found == "eagle2" and method == "eagle1"):
        either = "eagle1 or eagle2" if found == "eagle2" else found
        raise EngineError(
            f"{folder} holds {found} heads, so the method {method} does not go with it.", f"Use --method {either}.", kind="config"
        )
    vocab = next((shape[0] for name, shape in stored.items() if layout.plain(name) == "t2d"), config.get("vocab_size"))
    spec = {"medusa": _medusa, "hydra": _hydra, "hydra++": _hydra, "eagle2": _eagle, "gumiho": _eagle, "eagle3": _eagle3}[found](
        found, config, shapes, target, folder
    )
    if found == "eagle3" and not spec.own_embedding:
        spec = replace(spec, vocab=int(vocab or target.vocab))
    if method == "eagle1":
        spec = replace(spec, family="eagle1", **TREES["eagle1"])
    suits.require(spec, target, folder, suits.base_model(config))
    names |= {name: names[source] for name, source in blocks.repeated(shapes, spec).items()}
    layout.check({name: stored[source] for name, source in names.items()}, spec, folder)
    return spec, names


# --- families -------------------------------------------------------------------------------------------------------


def _medusa(of: Family, config: Mapping[str, Any], shapes: Mapping[str, Shape], target: TargetFacts, folder: str) -> HeadSpec:
    n, layers = blocks.count(shapes, of, folder), blocks.layers(shapes, of, config)
    own = next((name for name in shapes if name.endswith(f".{layers}.weight")), None)
    rows = layout.at(shapes, own, folder)[0] if own is not None else target.vocab
    vocab = _whole(rows, config, shapes, target)
    said = config.get("medusa_num_heads", n)
    notes = (f"The config of {folder} says {said} heads, its file holds {n}: all {n} are used.",) if said != n else ()
    hidden = layout.at(shapes, "0.0.linear.weight", folder)[0]
    return HeadSpec(
        of, hidden, vocab, rows, hidden, n_heads=n, head_layers=layers, own_lm_head=own is not None, notes=notes, **TREES[of]
    )  # fmt: skip


def _hydra(of: Family, config: Mapping[str, Any], shapes: Mapping[str, Shape], target: TargetFacts, folder: str) -> HeadSpec:
    prefix = of == "hydra++"
    n, layers = blocks.count(shapes, of, folder), blocks.layers(shapes, of, config)
    first = layout.at(shapes, f"hydra_mlp.0.{int(prefix)}.linear.weight", folder)
    rows = layout.at(shapes, f"hydra_lm_head.0{'.1' if prefix else ''}.weight", folder)[0]
    spec = HeadSpec(
        of, first[0], _whole(rows, config, shapes, target), rows, first[0], n_heads=n, head_layers=layers, own_lm_head=True,
        grounded=first[1] != first[0], embedding_gain=_gain(config, folder),
        hidden_offset=int(config.get("hidden_state_offset", 0)), **TREES[of],
    )  # fmt: skip
    if not prefix:
        return spec
    suits.require(spec, target, folder, suits.base_model(config))  # before the target's sizes are used
    sizes = settings.sizes(of, shapes, target.heads, target.head_dim, folder)
    rope: dict[str, Any] = {"rms_eps": target.rms_eps, "rope_theta": target.rope_theta, "rope_scaling": target.rope_scaling}
    return replace(spec, layers=1, max_positions=target.max_positions, **sizes, **rope)


def _eagle(of: Family, config: Mapping[str, Any], shapes: Mapping[str, Shape], target: TargetFacts, folder: str) -> HeadSpec:
    """EAGLE-1/2 and Gumiho: embedding, fc, transformer layers; Gumiho's parallel heads behind them."""
    hidden, own = layout.at(shapes, "fc.weight", folder)[0], "embed_tokens.weight" in shapes
    if of == "gumiho" and "d2t" in shapes and not own:
        vocab = _whole(0, config, shapes, target)  # made at home: the target's embedding serves as it is
    else:
        vocab, own = layout.at(shapes, "embed_tokens.weight", folder)[0], True
    rows = shapes["lm_head.weight"][0] if of == "gumiho" and "lm_head.weight" in shapes else 0
    spec = HeadSpec(
        of, hidden, vocab, rows or vocab, hidden, own_embedding=own, own_lm_head=rows > 0, fc_bias="fc.bias" in shapes, **TREES[of]
    )  # fmt: skip
    if of == "gumiho":
        n = blocks.count(shapes, of, folder)
        spec = replace(spec, n_heads=n, head_layers=blocks.layers(shapes, of, config), depth=n + spec.serial - 1)
        spec = replace(spec, embedding_gain=_gain(config, folder))
        if not {"num_attention_heads", "rms_norm_eps"} <= config.keys():
            config = settings.published(hidden, shapes, target, folder)
    layers = 1 + max((int(m[1]) for name in shapes if (m := re.match(r"layers\.(\d+)\.", name))), default=0)
    return replace(settings.transformer(spec, config, shapes, folder), layers=layers)


def _gain(config: Mapping[str, Any], folder: str) -> float:
    """How many times larger home-made heads read embeddings than they are: a matrix over vectors of very different sizes could not be
    quantized. Published heads say nothing."""
    value = config.get("embedding_gain", 1.0)
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value < 1e6:
        raise EngineError(
            f"The config.json of {folder} gives an embedding_gain that is no number above 0.", "Train the heads again.", kind="config"
        )
    return float(value)


def _whole(rows: int, config: Mapping[str, Any], shapes: Mapping[str, Shape], target: TargetFacts) -> int:
    """Tokens of the target, where an LM head has so many rows: fewer with a shortlist, whose table says which they are."""
    return int(config.get("vocab_size") or target.vocab) if "d2t" in shapes else rows


def _eagle3(of: Family, config: Mapping[str, Any], shapes: Mapping[str, Shape], target: TargetFacts, folder: str) -> HeadSpec:
    fc, draft_vocab = layout.at(shapes, "fc.weight", folder), layout.at(shapes, "lm_head.weight", folder)[0]
    target_hidden = int(config.get("target_hidden_size") or fc[0])
    own = "embed_tokens.weight" in shapes
    vocab = layout.at(shapes, "embed_tokens.weight", folder)[0] if own else draft_vocab
    if target_hidden != fc[0] and not own:
        raise layout.lacking(folder, of, "embed_tokens.weight")
    if target_hidden != target.hidden:
        raise suits.wrong(folder, "hidden size", target_hidden, target.hidden, target, suits.base_model(config))
    taps, notes = settings.taps(config, target, folder)
    spec = HeadSpec(
        of, fc[0], vocab, draft_vocab, target_hidden, layers=1, tap_layers=taps, own_lm_head=True, own_embedding=own,
        fc_bias="fc.bias" in shapes, norm_before_residual=bool(config.get("norm_before_residual", False)), notes=notes, **TREES[of],
    )  # fmt: skip
    return settings.transformer(spec, config, shapes, folder)
