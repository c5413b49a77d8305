"""What is on this machine: removing it, counting it, and folders of the person's own, which are checked and never touched."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from engine import places
from engine.catalog.hub import disk_use, locate, pull, remove
from engine.catalog.specs import NGRAM, ModelSpec
from engine.errors import EngineError
from tests.engine.catalog.fakes import SMALL, WEIGHTS, FakeHub

TINY = ModelSpec("tiny", repo="org/tiny")


def failure(spec: ModelSpec) -> EngineError:
    with pytest.raises(EngineError) as caught:
        pull(spec)
    error = caught.value
    assert error.hint
    return error


def test_remove_frees_everything(hub: FakeHub) -> None:
    path = pull(TINY)
    packed = places.packed_dir() / "abc-nf4.safetensors"
    packed.write_bytes(bytes(1000))
    packed.with_suffix(".json").write_text(json.dumps({"source": str(path)}))
    other = places.packed_dir() / "def.safetensors"
    other.write_bytes(bytes(10))
    other.with_suffix(".json").write_text(json.dumps({"source": "/elsewhere"}))
    used = disk_use(TINY)
    assert used > len(WEIGHTS) + 1000
    assert remove(TINY) == used
    assert disk_use(TINY) == 0
    assert locate(TINY) is None
    assert sorted(f.name for f in places.packed_dir().iterdir()) == ["def.json", "def.safetensors"]
    assert remove(TINY) == 0


def test_remove_never_touches_a_given_folder(home: Path) -> None:
    folder = home / "mine"
    folder.mkdir()
    (folder / "model.safetensors").write_bytes(WEIGHTS)
    spec = ModelSpec("mine", path=folder)
    assert disk_use(spec) == len(WEIGHTS)
    assert remove(spec) == 0
    assert (folder / "model.safetensors").exists()


def test_a_given_folder_is_checked_not_fetched(home: Path, hub: FakeHub) -> None:
    folder = home / "mine"
    folder.mkdir()
    spec = ModelSpec("mine", path=folder)
    assert failure(spec).kind == "missing_weights"
    for name, data in {**SMALL, "model.safetensors": WEIGHTS[:-1]}.items():
        (folder / name).write_bytes(data)
    assert failure(spec).kind == "corrupt_weights"
    (folder / "model.safetensors").write_bytes(WEIGHTS)
    assert pull(spec) == folder
    assert failure(ModelSpec("gone", path=home / "gone")).kind == "missing_weights"
    assert hub.requests == []


def test_what_has_no_files_cannot_be_pulled() -> None:
    assert "built in" in failure(NGRAM).message
