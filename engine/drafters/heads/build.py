"""From stored heads to running ones, beside their target."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from engine.decoder.linear import DTYPES
from engine.decoder.load import resolve_scheme
from engine.decoder.target import LeanTarget
from engine.drafters.heads.base import Head, Shared
from engine.drafters.heads.drafter import HeadsDrafter
from engine.drafters.heads.eagle import Eagle
from engine.drafters.heads.fixed import EAGLE_1, MC_SIM_7B_63
from engine.drafters.heads.grow import Path
from engine.drafters.heads.gumiho import Gumiho
from engine.drafters.heads.hydra import Hydra
from engine.drafters.heads.layers import Maker
from engine.drafters.heads.medusa import Medusa
from engine.drafters.heads.specs import HeadSpec

FIXED: dict[str, tuple[Path, ...]] = {"medusa": MC_SIM_7B_63, "hydra": MC_SIM_7B_63, "hydra++": MC_SIM_7B_63, "eagle1": EAGLE_1}


def build(
    name: str,
    spec: HeadSpec,
    tensors: dict[str, Tensor],
    target: LeanTarget,
    quant: str,
    corrected: bool = False,
    choices: tuple[Path, ...] | None = None,
    progress: Callable[[str, int, int], None] | None = None,
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


def _tree(spec: HeadSpec) -> tuple[Path, ...]:
    """The published fixed tree, without the paths that are deeper than these heads."""
    deepest = spec.n_heads or spec.depth
    return tuple(path for path in FIXED.get(spec.family, ()) if len(path) <= deepest)
