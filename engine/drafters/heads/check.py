"""`specchat check TARGET HEADS`: do draft heads belong to this target, what are they, what memory do they take? Reads the configs and
the headers of weight files, no weight. No torch."""

from __future__ import annotations

import math
from dataclasses import asdict
from pathlib import Path
from typing import Any

from engine.catalog import bindings, fit, stored
from engine.catalog.specs import ModelSpec
from engine.drafters.heads import headers
from engine.drafters.heads.describe import describe
from engine.drafters.heads.specs import HeadSpec
from engine.drafters.heads.suits import base_model, facts_on_disk
from engine.errors import EngineError

CONTEXT = 4096  # tokens, for the memory that is shown
SHOWN = (
    "hidden",
    "vocab",
    "draft_vocab",
    "layers",
    "heads",
    "kv_heads",
    "head_dim",
    "intermediate",
    "n_heads",
    "head_layers",
    "tap_layers",
)
REFUSALS = ("wrong_target", "vocabulary", "corrupt_weights", "unsafe_weights", "architecture", "config")


def check(target: ModelSpec, heads: ModelSpec, method: str = "auto") -> dict[str, Any]:
    """The facts, with the keys of `check --json`. A pair that does not go together is an answer (`refused`); EngineError only where
    one of the two is not on this machine."""
    path, folder = stored.where(target), stored.where(heads)
    found: dict[str, Any] = {"kind": "heads", "target": target.name, "heads": heads.name, "method": None, "reasons": [], "refused": None}
    facts = facts_on_disk(path, target.name)
    found["sizes"] = {"target": {"hidden": facts.hidden, "vocab": facts.vocab, "layers": facts.layers}, "heads": None}
    found |= {"made_for": list(heads.bound_to), "values": 0, "bytes": 0, "memory": {}}
    try:
        contents = headers.read(folder, heads.name)
        found["made_for"] = list(heads.bound_to) or [name for name in [base_model(contents.config or {})] if name]
        found["values"] = sum(math.prod(shape) for shape in contents.shapes.values())
        found["bytes"] = sum(file.stat().st_size for file in contents.files)
        spec, _ = describe(contents.config, contents.shapes, facts, method, heads.name)
        bindings.require(heads, target)
    except EngineError as error:
        if error.kind not in REFUSALS:
            raise
        found["refused"] = f"{error.message} {error.hint}"
        return found
    found["method"] = spec.family
    found["sizes"]["heads"] = {key: value for key, value in asdict(spec).items() if key in (*SHOWN, "tap_layers")}
    found["memory"] = {quant: _memory(folder, quant) for quant in ("nf4", "int8", "bf16")}
    found["reasons"] = [*_reasons(spec), *spec.notes]
    return found


def _memory(folder: Path, quant: str) -> int:
    """Bytes beside a target that has loaded the libraries."""
    return fit.without_libraries(fit.estimate(folder, quant=quant, context=CONTEXT)).total


def _reasons(spec: HeadSpec) -> list[str]:
    """What it is, in words."""
    match spec.family:
        case "medusa":
            own = "own LM heads" if spec.own_lm_head else "the target's LM head"
            return [f"{spec.n_heads} heads with {own}{_shortlist(spec)}, each from the target's last hidden state alone."]
        case "hydra" | "hydra++":
            before = " behind a transformer layer that reads the whole text" if spec.family == "hydra++" else ""
            return [
                f"{spec.n_heads} heads{before}{_shortlist(spec)}"
                + (", each of which sees the drafted tokens before it." if spec.grounded else ".")
            ]
        case "gumiho":
            serial = f"{spec.layers} transformer layers draft {spec.serial} tokens one after the other"
            return [f"{serial}, {spec.n_heads} heads the next ones at once{_shortlist(spec)}."]
        case "eagle3":
            return [f"One layer, from the inputs of target layers {', '.join(map(str, spec.tap_layers))}{_shortlist(spec)}."]
        case _:
            both = "the same weights serve eagle1 (a fixed tree) and eagle2 (a growing one)"
            return [f"One layer, from the target's last hidden state; {both}."]


def _shortlist(spec: HeadSpec) -> str:
    return f", over {spec.draft_vocab:,} of {spec.vocab:,} tokens" if spec.draft_vocab != spec.vocab else ""
