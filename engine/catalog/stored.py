"""Models on this machine: find them, count their bytes, remove them. Never touches the network.

Hub models live in the ordinary hub cache, mirror files under `places.mirror_dir()`, packed weights under `places.packed_dir()`.
"""

from __future__ import annotations

import json
import os
import shutil
from dataclasses import replace
from pathlib import Path

from engine import places
from engine.catalog import bindings, disk, headers, mirror, needed
from engine.catalog.specs import ModelSpec
from engine.errors import EngineError


def hub_cache() -> Path:
    """The ordinary hub cache, from the variables that huggingface_hub documents."""
    for name, below in (
        ("HF_HUB_CACHE", ""),
        ("HUGGINGFACE_HUB_CACHE", ""),
        ("HF_HOME", "hub"),
        ("XDG_CACHE_HOME", "huggingface/hub"),
    ):
        if value := os.environ.get(name):
            return places.written(value) / below
    return Path.home() / ".cache" / "huggingface" / "hub"


def locate(spec: ModelSpec) -> Path | None:
    """Where the model is, complete, on this machine: a snapshot folder, a given folder or file, a mirror's file. Else None."""
    if spec.path:
        path = places.written(spec.path)
        return path if path.exists() else None
    if spec.repo and (found := _snapshot(spec)):
        return found
    return mirror.located(spec.mirror) if spec.mirror else None


def where(spec: ModelSpec) -> Path:
    """The model's place on this machine. EngineError when it is not here."""
    path = locate(spec)
    if path is None and spec.path:
        raise EngineError(f"There is nothing at {spec.path}.", "Check the path.", kind="missing_weights")
    if path is None:
        raise EngineError(f"{spec.name} is not on this machine.", f"Run: specchat pull {spec.name}", kind="missing_weights")
    return path


def target(spec: ModelSpec) -> Path:
    """The place of a model to chat with. EngineError where it is not here, and where a download turned out to be draft heads."""
    path = where(spec)
    if needed.is_heads(path):
        raise bindings.no_target(spec)
    return path


def settled(spec: ModelSpec) -> ModelSpec:
    """The same entry; what was named by a hub id or a folder, and turns out to be draft heads, gets their kind."""
    found = locate(spec) if spec.kind == "model" and spec.role == "drafter" else None
    return replace(spec, kind="heads") if found is not None and needed.is_heads(found) else spec


def remove(spec: ModelSpec) -> int:
    """Delete what `pull` fetched and what was made from it; bytes freed. A folder or file of the person's own is never touched."""
    freed = 0
    if found := locate(spec):
        for packed in _packed(spec, found):
            freed += disk.size(packed)
            shutil.rmtree(packed) if packed.is_dir() else packed.unlink()
    if spec.mirror:
        for path in mirror.leftovers(spec.mirror):
            freed += disk.size(path)
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    if spec.repo:
        freed += _remove_file(spec) if spec.file else _remove_repo(spec)
    return freed


def disk_use(spec: ModelSpec) -> int:
    """Bytes on disk: files, unfinished downloads, packed weights."""
    total = 0
    if spec.path:
        total += disk.size(places.written(spec.path).resolve())
    if spec.repo:
        total += sum(disk.size(path) for path in (_blobs(spec) if spec.file else [_repo_folder(spec)]))
    if spec.mirror:
        total += sum(disk.size(path) for path in mirror.leftovers(spec.mirror))
    if found := locate(spec):
        total += sum(disk.size(path) for path in _packed(spec, found))
    return total


def _repo_folder(spec: ModelSpec) -> Path:
    assert spec.repo
    return hub_cache() / f"models--{spec.repo.replace('/', '--')}"


def _snapshot(spec: ModelSpec) -> Path | None:
    """The snapshot of `main`, else the newest one, that has all that is needed."""
    folder = _repo_folder(spec) / "snapshots"
    try:
        main = (_repo_folder(spec) / "refs" / "main").read_text().strip()
    except OSError:
        main = ""
    try:
        snapshots = sorted(folder.iterdir(), key=lambda f: (f.name == main, f.stat().st_mtime), reverse=True)
    except OSError:
        return None
    for snapshot in snapshots:
        if spec.file:
            if (snapshot / spec.file).exists():
                return snapshot / spec.file
            continue
        try:
            if not needed.lacking(snapshot, spec.kind):
                return snapshot
        except (EngineError, OSError):
            continue
    return None


def drop_damaged(found: Path, kind: str) -> None:
    """Remove the weight files that are too short, the blob behind a link too, so that the pull fetches them again."""
    files = [found] if found.is_file() else [found / name for name in needed.weights(found, kind)]
    for file in files:
        try:
            headers.gguf(file) if file.suffix == ".gguf" else needed.contents(file)
        except EngineError:
            file.resolve().unlink(missing_ok=True)
            file.unlink(missing_ok=True)


def _blobs(spec: ModelSpec) -> list[Path]:
    assert spec.file
    return [f.resolve() for f in _repo_folder(spec).glob("snapshots/*/" + spec.file) if f.exists()]


def _remove_file(spec: ModelSpec) -> int:
    assert spec.file
    blobs = set(_blobs(spec))
    freed = sum(disk.size(blob) for blob in blobs)
    for link in _repo_folder(spec).glob("snapshots/*/" + spec.file):
        link.unlink()
    for blob in blobs:
        blob.unlink(missing_ok=True)
    return freed


def _remove_repo(spec: ModelSpec) -> int:
    """Through huggingface_hub where the repository is whole; what an interrupted pull left goes too."""
    from huggingface_hub import scan_cache_dir
    from huggingface_hub.errors import CacheNotFound

    folder = _repo_folder(spec)
    freed = disk.size(folder)
    try:
        cached = [r for r in scan_cache_dir(hub_cache()).repos if r.repo_id == spec.repo and r.repo_type == "model"]
        revisions = [revision.commit_hash for repo in cached for revision in repo.revisions]
        if revisions:
            scan_cache_dir(hub_cache()).delete_revisions(*revisions).execute()
    except CacheNotFound:
        pass
    shutil.rmtree(folder, ignore_errors=True)
    return freed


def _packed(spec: ModelSpec, found: Path) -> list[Path]:
    """Packed weights made from this model: the loader writes `<key>` beside `<key>.json`, which names the source."""
    result = []
    for note in places.packed_dir().glob("*.json"):
        try:
            source = json.loads(note.read_text(encoding="utf-8")).get("source", "")
        except (OSError, ValueError, AttributeError):
            continue
        if source and Path(source) == found:
            result += [note, *(f for f in note.parent.glob(f"{note.stem}.*") if f != note)]
    return result
