"""The answers to `/draft` and `/model` without a name: what there is, where it is, and why something does not fit."""

from __future__ import annotations

from typing import TYPE_CHECKING

from app.loaded import Loaded
from app.surroundings import Surroundings
from app.widgets.panel import Panel
from engine.catalog.progress import human
from engine.catalog.specs import ModelSpec

if TYPE_CHECKING:
    from engine.catalog.catalog import Catalog

BUILT_IN = (
    ("off", "plain decoding"),
    ("auto", "the best that is on this machine, the n-gram look-up in front"),
    ("ngram", "looks up repetitions in the text so far; needs no model"),
)


def drafter_choices(catalog: Catalog, surroundings: Surroundings, target: ModelSpec | None) -> list[tuple[str, str]]:
    """Names that `/draft` takes with this target, each with a few words."""
    fits = catalog.drafters_for(target) if target is not None else list(catalog.drafters.values())
    return [*BUILT_IN, *((spec.name, _about(spec, surroundings)) for spec in fits if spec.kind in ("model", "heads"))]


def target_choices(catalog: Catalog, surroundings: Surroundings) -> list[tuple[str, str]]:
    """Names that `/model` takes, those on this machine first."""
    specs = sorted(catalog.targets.values(), key=lambda spec: not surroundings.on_disk(spec))
    return [(spec.name, _about(spec, surroundings)) for spec in specs]


def drafter_list(catalog: Catalog, surroundings: Surroundings, loaded: Loaded) -> Panel:
    """The drafters for the loaded target, then those that do not fit it, with the reason."""
    target, ready = loaded.target, loaded.ready
    choices = drafter_choices(catalog, surroundings, target)
    named = {name for name, _ in choices}
    width = max(len(name) for name in [*named, *catalog.drafters]) + 2
    rows = [f"  {name:<{width}}{about}" for name, about in choices]
    for spec in catalog.drafters.values():
        if spec.name not in named and spec.kind in ("model", "heads"):
            made_for = f"made for {', '.join(spec.bound_to)}" if spec.bound_to else "too large beside this target to save time"
            rows.append(f"x {spec.name:<{width}}{made_for}")
    now = f"In use: {in_use(ready.drafter, ready.method)}" if ready is not None else f"Chosen: {loaded.drafter.name}"
    title = f"Drafters for {target.name}" if target is not None else "Drafters"
    return Panel(title, "\n".join([now, "", *rows]), "/draft NAME swaps, also during a reply; the text stays the same.", kind="list")


def model_list(catalog: Catalog, surroundings: Surroundings, loaded: Loaded) -> Panel:
    """All targets."""
    choices = target_choices(catalog, surroundings)
    width = max((len(name) for name, _ in choices), default=0) + 2
    rows = [f"{'>' if loaded.target and name == loaded.target.name else ' '} {name:<{width}}{about}" for name, about in choices]
    return Panel("Models", "\n".join(rows), "/model NAME loads one; a hub id, a folder or a .gguf file works too.", kind="list")


def _about(spec: ModelSpec, surroundings: Surroundings) -> str:
    parts: list[str] = [spec.kind] if spec.role == "drafter" else []
    parts += [f"{spec.params:g} B"] if spec.params else []
    if surroundings.on_disk(spec):
        parts.append("on this machine")
    else:
        parts.append(f"{human(spec.size)} to download" if spec.size else "to download")
    return " · ".join([*parts, *([spec.licence] if spec.licence else []), *([spec.note] if spec.note else [])])


def in_use(drafter: str, method: str) -> str:
    """A drafter and how it is used, said once where both words are the same."""
    if method == "none":
        return "none, plain decoding"
    return drafter if drafter == method else f"{drafter} ({method})"
