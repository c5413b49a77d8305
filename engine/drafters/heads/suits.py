"""Do these heads belong to this target? What the target is, as facts, and the sentences for a wrong one. No torch."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from engine.catalog import headers
from engine.drafters.heads.specs import ROPE_THETA, HeadSpec, TargetFacts
from engine.errors import EngineError


def base_model(config: Mapping[str, Any]) -> str:
    """The model that a head's config names as its own, "" when it names none."""
    speculators = config.get("speculators_config")
    verifier = speculators.get("verifier") if isinstance(speculators, dict) else None
    name = config.get("base_model_name_or_path") or (verifier.get("name_or_path") if isinstance(verifier, dict) else None)
    return str(name or "")


def require(spec: HeadSpec, target: TargetFacts, folder: str, made_for: str) -> None:
    """EngineError when the heads are for another target."""
    if spec.target_hidden != target.hidden:
        raise wrong(folder, "hidden size", spec.target_hidden, target.hidden, target, made_for)
    if spec.vocab != target.vocab:
        raise wrong(folder, "vocabulary", spec.vocab, target.vocab, target, made_for)
    if spec.hidden_offset > target.layers:
        raise wrong(folder, "number of layers", spec.hidden_offset, target.layers, target, made_for, least=True)


def wrong(folder: str, what: str, wanted: int, found: int, target: TargetFacts, made_for: str, *, least: bool = False) -> EngineError:
    """The error for a target with another `what`."""
    unit = {"hidden size": "a hidden size of {}", "vocabulary": "a vocabulary of {} tokens", "number of layers": "{} layers"}[what]
    need = ("at least " if least else "") + unit.format(wanted)
    own = f" (their config names {made_for})" if made_for else ""
    return EngineError(
        f"The heads in {folder} are for another model than {target.name}: they need {need}, and it has {found}.",
        f"Heads work only with the model that they were trained for{own}. `specchat models` shows which suit which target.",
        kind="vocabulary" if what == "vocabulary" else "wrong_target",
    )


def facts_on_disk(path: Path, name: str) -> TargetFacts:
    """A target's facts from its config.json, or from the header of a .gguf file. Reads no weights."""
    if path.is_file() or not (path / "config.json").exists():
        file = path if path.is_file() else next(iter(sorted(path.glob("*.gguf"))), path / "config.json")
        return _from_gguf(headers.gguf(file), name)
    try:
        config = json.loads((path / "config.json").read_text(encoding="utf-8"))
        return facts(config.get("text_config") or config, name)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise headers.corrupt(path / "config.json", str(error)) from None


def facts(config: Mapping[str, Any], name: str) -> TargetFacts:
    """A target's facts from its config as plain JSON."""
    heads, hidden = int(config["num_attention_heads"]), int(config["hidden_size"])
    parameters = config.get("rope_parameters") or {}
    scaling = config.get("rope_scaling") or parameters
    kind = scaling.get("rope_type") or scaling.get("type") or "default"
    return TargetFacts(
        name=name,
        hidden=hidden,
        vocab=int(config["vocab_size"]),
        layers=int(config["num_hidden_layers"]),
        heads=heads,
        head_dim=int(config.get("head_dim") or hidden // heads),
        rms_eps=float(config.get("rms_norm_eps", 1e-6)),
        rope_theta=float(config.get("rope_theta") or parameters.get("rope_theta") or ROPE_THETA),
        rope_scaling=None if kind == "default" else {**scaling, "rope_type": kind},
        max_positions=int(config.get("max_position_embeddings", 2048)),
    )


def _from_gguf(file: headers.Gguf, name: str) -> TargetFacts:
    arch = file.metadata["general.architecture"]
    read = {key.removeprefix(f"{arch}."): value for key, value in file.metadata.items()}
    table = next(shape for tensor, shape in file.tensors.items() if tensor == "token_embd.weight")
    heads, hidden = int(read["attention.head_count"]), int(read["embedding_length"])
    return TargetFacts(
        name=name,
        hidden=hidden,
        vocab=table.shape[0],
        layers=int(read["block_count"]),
        heads=heads,
        head_dim=int(read.get("attention.key_length") or hidden // heads),
        rms_eps=float(read.get("attention.layer_norm_rms_epsilon", 1e-6)),
        rope_theta=float(read.get("rope.freq_base", ROPE_THETA)),
        max_positions=int(read.get("context_length", 2048)),
    )
