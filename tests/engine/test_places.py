"""Folders: where they are, who may read them, and what is said when they cannot be made."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import platformdirs
import pytest

from engine import places
from engine.catalog import catalog
from engine.errors import EngineError

ALL = {
    places.config_dir: "config",
    places.data_dir: "data",
    places.cache_dir: "cache",
    places.log_dir: "logs",
    places.packed_dir: "cache/packed",
    places.mirror_dir: "cache/models",
}


@pytest.mark.parametrize("place", ALL)
def test_specchat_home_holds_everything(place: object, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPECCHAT_HOME", str(tmp_path / "home"))
    assert callable(place)
    folder = place()
    assert folder == tmp_path / "home" / ALL[place]  # type: ignore[index]
    assert folder.is_dir()
    if os.name == "posix":
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700


def test_else_the_usual_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPECCHAT_HOME", "")
    monkeypatch.setattr(platformdirs, "user_data_path", lambda name, **_: tmp_path / "usual" / name)
    assert places.data_dir() == tmp_path / "usual" / "specchat"


def test_home_may_be_short(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("USERPROFILE", str(tmp_path))
    monkeypatch.setenv("SPECCHAT_HOME", "~/mine")
    assert places.data_dir() == tmp_path / "mine" / "data"
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SPECCHAT_HOME", "here")
    assert places.data_dir() == tmp_path / "here" / "data"


def test_unwritable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("SPECCHAT_HOME", str(tmp_path / "file" / "home"))
    with pytest.raises(EngineError) as caught:
        places.cache_dir()
    assert caught.value.kind == "unwritable"
    assert str(tmp_path / "file" / "home" / "cache") in caught.value.message
    assert "SPECCHAT_HOME" in caught.value.hint


@pytest.mark.parametrize("name", ["~\udcff", "~~~\ud800", "~nobody-here/x", "~\udcff/x", "a\0b"])
def test_a_path_that_no_person_meant_is_a_path_that_is_not_there(name: str) -> None:
    """Bytes that are no text arrive as lone surrogates; a home of such a name, or of nobody, cannot be looked up."""
    assert not places.written(name).exists()
    for find in (catalog.load().target, catalog.load().drafter):
        with pytest.raises(EngineError):
            find(name)


def test_a_path_below_home(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    assert places.written("~/models/a") == tmp_path / "models" / "a"
