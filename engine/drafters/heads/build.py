"""From stored heads to running ones, beside their target."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

from torch import Tensor

from engine.decoder.linear import DTYPES
from engine.decoder.load import resolve_scheme
from engine.decoder.target import LeanTarget, Target
from engine.drafters.heads import headers, identity
from engine.drafters.heads.base import Head, Shared
from engine.drafters.heads.drafter import HeadsDrafter
from engine.drafters.heads.eagle import Eagle
from engine.drafters.heads.fixed import EAGLE_1, MC_SIM_7B_63
from engine.drafters.heads.grow import Path as Ranks
from engine.drafters.heads.gumiho import Gumiho
from engine.drafters.heads.hydra import Hydra
from engine.drafters.heads.layers import Maker
from engine.drafters.heads.load import facts_of, load_head
from engine.drafters.heads.medusa import Medusa
from engine.drafters.heads.specs import HeadSpec
from engine.errors import EngineError

Progress = Callable[[str, int, int], None]
CORRECTED = "-corrected"
FIXED: dict[str, tuple[Ranks, ...]] = {"medusa": MC_SIM_7B_63, "hydra": MC_SIM_7B_63, "hydra++": MC_SIM_7B_63, "eagle1": EAGLE_1}


def build(
    name: str,
    spec: HeadSpec,
    tensors: dict[str, Tensor],
    target: LeanTarget,
    quant: str,
    corrected: bool = False,
    choices: tuple[Ranks, ...] | None = None,
    progress: Progress | None = None,
    cancelled: Callable[[], bool] | None = None,
) -> tuple[HeadsDrafter, str]:
    """The drafter and the number format of its weights. `choices` replaces the published tree of a family that has a fixed one."""
    scheme, _, _ = resolve_scheme(quant, "auto", target.device)
    dtype = DTYPES.get(scheme, target.model.weights.dtype)
    made = Maker(tensors, scheme, target.device, dtype, progress, cancelled)
    shared = Shared(target.model, spec, made)
    tree = choices if choices is not None and spec.family in FIXED else _tree(spec)
    head: Head
    match spec.family:
        case "medusa":
            head = Medusa(spec, made, shared, tree)
        case "hydra" | "hydra++":
            head = Hydra(spec, made, shared, tree, target.context)
        case "gumiho":
            head = Gumiho(spec, made, shared, target.context, corrected)
        case _:
            head = Eagle(spec, made, shared, tree, target.context)
    most = len(tree) if tree else spec.total - 1
    layers = target.model.config.n_layers
    if spec.hidden_offset:
        return HeadsDrafter(name, spec.family, head, most, (layers - spec.hidden_offset,), final=False), scheme
    return HeadsDrafter(name, spec.family, head, most, spec.tap_layers, final=not spec.tap_layers), scheme


def open_heads(
    name: str,
    path: Path,
    method: str,
    target: Target | None,
    quant: str,
    progress: Progress | None = None,
    cancelled: Callable[[], bool] | None = None,
    target_name: str = "the target",
) -> tuple[HeadsDrafter, str, tuple[str, ...]]:
    """The heads in a folder beside their target: drafter, number format, notes for the person. EngineError where they do not go together.

    `method` is auto, a family, eagle1 (the fixed tree of the first version), or gumiho-corrected (without its authors' two quirks). A
    `tree.json` in the folder, a list of paths of ranks, takes the place of the published fixed tree.
    """
    if not isinstance(target, LeanTarget):
        raise EngineError(
            f"{name} needs the target's hidden states, which a model that runs through transformers does not show.",
            "Choose a small model as drafter, or ngram.",
            kind="architecture",
        )
    family = method.removesuffix(CORRECTED)
    spec, tensors = load_head(path, facts_of(target.model.config, target_name), family, name)
    notes, choices = list(spec.notes), _own_tree(path)
    notes += identity.compared(headers.config(path), target.model.weights, name, target_name)
    if choices is not None and spec.family not in FIXED:
        notes.append(f"The tree.json of {name} is not used: {spec.family} grows its trees by itself.")
    corrected = method != family
    drafter, scheme = build(name, spec, tensors, target, quant, corrected, choices, progress, cancelled)
    return drafter, scheme, tuple(notes)


def _own_tree(folder: Path) -> tuple[Ranks, ...] | None:
    file = folder / "tree.json"
    if not file.is_file():
        return None
    try:
        choices = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        choices = None
    if not isinstance(choices, list) or not all(isinstance(path, list) for path in choices):
        raise EngineError(f"{file} is no list of paths of ranks.", "Correct it, like [[0], [0, 0], [1]], or take it away.", kind="config")
    return tuple(tuple(path) for path in choices)


def _tree(spec: HeadSpec) -> tuple[Ranks, ...]:
    """The published fixed tree, without the paths that are deeper than these heads."""
    deepest = spec.n_heads or spec.depth
    return tuple(path for path in FIXED.get(spec.family, ()) if len(path) <= deepest)
