"""`specchat models`: what there is, what is on disk, how big, under which licence, which drafter suits which target."""

from __future__ import annotations

from typing import Any

from app.console import emit, emit_json
from app.sizes import words
from engine.catalog import catalog
from engine.catalog.catalog import Catalog, ModelStatus
from engine.catalog.progress import human
from engine.catalog.specs import ModelSpec


def show(*, as_json: bool = False) -> int:
    """Print the list."""
    models = catalog.load()
    rows = [entry(models, status) for status in catalog.status(models)]
    if as_json:
        emit_json({"models": rows, "disk_bytes": sum(row["disk_bytes"] for row in rows)})
    else:
        emit(table(rows))
    return 0


def entry(models: Catalog, status: ModelStatus) -> dict[str, Any]:
    """One model as an object."""
    spec = status.spec
    return {
        "name": spec.name,
        "role": spec.role,
        "kind": spec.kind,
        "source": spec.repo or (str(spec.path) if spec.path else None),
        "mirror": spec.mirror is not None,
        "on_disk": str(status.on_disk) if status.on_disk else None,
        "disk_bytes": status.disk_bytes,
        "download_bytes": status.download_bytes,
        "mirror_bytes": status.spec.mirror.size if status.spec.mirror is not None and status.on_disk is None else 0,
        "params_b": spec.params or None,
        "context": spec.context,
        "licence": spec.licence,
        "gated": spec.gated,
        "for": list(spec.bound_to),
        "drafters": ["ngram", *(d.name for d in made_for(models, spec))] if spec.role == "target" else [],
        "note": spec.note,
    }


def made_for(models: Catalog, target: ModelSpec) -> list[ModelSpec]:
    """Drafters of the target's own family, the best first, and heads made for it."""
    own = [models.drafter(name) for name in target.drafters]
    return own + [spec for spec in models.drafters.values() if target.name in spec.bound_to and spec not in own]


def table(rows: list[dict[str, Any]]) -> str:
    """Targets, then drafters that are no targets; what is on disk first."""
    parts = []
    for role, title in (("target", "TARGETS"), ("drafter", "DRAFTERS")):
        chosen = sorted((row for row in rows if row["role"] == role), key=lambda row: row["on_disk"] is None)
        if chosen:
            parts.append(_block(title, chosen))
    used = sum(row["disk_bytes"] for row in rows)
    parts.append(
        f"{human(used)} on disk. Look-up (ngram) works with every target and needs no file.\n"
        "`specchat pull NAME` fetches a model, `specchat rm NAME` deletes it.\n"
    )
    return "\n".join(parts)


def _block(title: str, rows: list[dict[str, Any]]) -> str:
    lines = [(title, "ON DISK", "DOWNLOAD", "DRAFTERS" if title == "TARGETS" else "FOR", "LICENCE")]
    for row in rows:
        there = human(row["disk_bytes"]) if row["on_disk"] else f"({human(row['disk_bytes'])} begun)" if row["disk_bytes"] else "–"
        download = "" if row["on_disk"] else words(sorted(n for n in (row["download_bytes"], row["mirror_bytes"]) if n))
        licence = row["licence"] + (" (ask on the hub first)" if row["gated"] and not row["on_disk"] else "")
        beside = row["drafters"][1:] if title == "TARGETS" else row["for"] or ["any target"]
        lines.append((row["name"], there, download, ", ".join(beside) or "–", licence))
    widths = [max(len(line[i]) for line in lines) for i in range(5)]
    right = (1, 2)
    return "".join(
        "  ".join(c.rjust(w) if i in right else c.ljust(w) for i, (c, w) in enumerate(zip(line, widths, strict=True))).rstrip() + "\n"
        for line in lines
    )
