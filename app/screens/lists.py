"""What commands take, each with a few words: for the completion. The lists of models themselves are `app.screens.picker`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from app.sizes import short
from app.surroundings import Surroundings
from engine.catalog.specs import ModelSpec

if TYPE_CHECKING:
    from engine.catalog.catalog import Catalog

BUILT_IN = (
    ("off", "plain decoding"),
    ("auto", "the best that is on this machine, the n-gram look-up in front"),
    ("ngram", "looks up repetitions in the text so far; needs no model"),
)

# what can follow a command, with its meaning
WORDS = {
    "k": [("auto", "decided live")],
    "temp": [("auto", "the model's own"), ("0", "always the likeliest token")],
    "seed": [("off", "a fresh one for each reply")],
    "copy": [("last", "the last reply"), ("all", "the chat as Markdown"), ("code", "its code blocks, one after the other")],
    "export": [("md", "Markdown, to read"), ("json", "everything, with all branches and tokens"), ("jsonl", "one message a line")],
    "think": [
        ("fold", "one line"),
        ("show", "all of it"),
        ("on", "the model thinks aloud, where it can"),
        ("off", "it answers at once"),
        ("auto", "as the model does by itself"),
    ],
    "max": [("off", "to the end of the context")],
    "attach": [("off", "none")],
    **{word: [("auto", "the model's own")] for word in ("topp", "topk", "minp", "penalty")},
    "system": [("off", "no system prompt")],
    "tokens": [("on", "where each piece came from"), ("off", "the text")],
    "stats": [("full", "the panel"), ("line", "one line"), ("off", "nothing")],
}


def drafter_choices(catalog: Catalog, surroundings: Surroundings, target: ModelSpec | None) -> list[tuple[str, str]]:
    """Names that `/draft` takes with this target, each with a few words."""
    fits = catalog.drafters_for(target) if target is not None else list(catalog.drafters.values())
    return [*BUILT_IN, *((spec.name, _about(spec, surroundings)) for spec in fits if spec.kind in ("model", "heads"))]


def target_choices(catalog: Catalog, surroundings: Surroundings) -> list[tuple[str, str]]:
    """Names that `/model` takes, those on this machine first."""
    specs = sorted(catalog.targets.values(), key=lambda spec: not surroundings.on_disk(spec))
    return [(spec.name, _about(spec, surroundings)) for spec in specs]


def _about(spec: ModelSpec, surroundings: Surroundings) -> str:
    parts: list[str] = [spec.kind] if spec.role == "drafter" else []
    parts += [f"{spec.params:g} B"] if spec.params else []
    if surroundings.on_disk(spec):
        parts.append("on this machine")
    else:
        parts.append(f"{size} to download" if (size := short(spec)) != "?" else "to download")
    return " · ".join([*parts, *([spec.licence] if spec.licence else []), *([spec.note] if spec.note else [])])


def in_use(drafter: str, method: str) -> str:
    """A drafter and how it is used, said once where both words are the same."""
    if method == "none":
        return "none, plain decoding"
    return drafter if drafter == method else f"{drafter} ({method})"
