"""Home-made heads in models.toml: one table more, and nothing else touched."""

from __future__ import annotations

from pathlib import Path

import pytest

from engine.catalog import catalog
from engine.catalog.specs import ModelSpec
from engine.errors import EngineError
from engine.training import entry

TARGET = ModelSpec("qwen2.5-coder-0.5b", repo="org/qwen")
NOTE = 'tau 1.7, "good"\n'


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SPECCHAT_HOME", str(tmp_path / "home"))
    (tmp_path / "home" / "config").mkdir(parents=True)
    return tmp_path / "home" / "config" / "models.toml"


@pytest.mark.parametrize("before", ["", '# mine\n[target.x]\nrepo = "a/b"', '\ufeff[target.x]\nrepo = "a/b"\n\n'])
def test_it_is_added_behind_what_is_there(file: Path, tmp_path: Path, before: str) -> None:
    file.write_text(before, encoding="utf-8")
    folder = tmp_path / 'heads "quoted" ä'
    folder.mkdir()
    assert entry.add("qwen-hydra++", folder, TARGET, NOTE) == "qwen-hydra++"
    assert file.read_text(encoding="utf-8").startswith(before)
    models = catalog.load()
    spec = models.drafter("qwen-hydra++")
    assert (spec.kind, spec.path, spec.bound_to, spec.quant, spec.note) == ("heads", folder, (TARGET.name,), "int8", NOTE)
    assert spec.name in [drafter.name for drafter in models.drafters_for(models.targets[TARGET.name])]
    after = file.read_bytes()
    assert entry.add("qwen-hydra++", folder, TARGET, "other") == "qwen-hydra++"  # trained again in the same place
    assert file.read_bytes() == after
    assert entry.add("qwen-hydra++", tmp_path, TARGET, NOTE) == "qwen-hydra++-2"


def test_names_of_others_are_never_taken(file: Path, tmp_path: Path) -> None:
    assert entry.free_name("qwen2.5-coder-0.5b", tmp_path) == "qwen2.5-coder-0.5b-2"
    assert entry.free_name("new", tmp_path) == "new"


def test_heads_for_a_folder_are_bound_to_no_name(tmp_path: Path) -> None:
    assert "for =" not in entry.text("x", tmp_path, ModelSpec("mine", path=tmp_path), "")
    assert 'for = ["qwen2.5-coder-0.5b"]' in entry.text("x", tmp_path, TARGET, "")


def test_a_broken_file_stays_as_it_is(file: Path, tmp_path: Path) -> None:
    file.write_text("[drafter\n", encoding="utf-8")
    with pytest.raises(EngineError):
        entry.add("x", tmp_path, TARGET, NOTE)
    assert file.read_text(encoding="utf-8") == "[drafter\n"
