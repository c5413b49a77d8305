"""The saved state: round trip, private, whole or not at all, and never an exception."""

from __future__ import annotations

import json
import stat
import sys
from pathlib import Path

import pytest

from app import state
from app.state import State, load_state, save_state


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SPECCHAT_HOME", str(tmp_path))
    return tmp_path


def test_round_trip(home: Path) -> None:
    assert load_state() == State()
    assert save_state(State("qwen", "ngram")) is None
    assert load_state() == State("qwen", "ngram")
    assert [f.name for f in (home / "data").iterdir()] == ["state.json"]


@pytest.mark.skipif(sys.platform == "win32", reason="no modes there")
def test_only_the_owner_may_read_it(home: Path) -> None:
    save_state(State("qwen"))
    assert stat.S_IMODE((home / "data" / "state.json").stat().st_mode) == 0o600


@pytest.mark.parametrize("content", ["", "{", "[]", '{"last_target": 3}', "\x00"])
def test_a_broken_file_counts_as_none(home: Path, content: str) -> None:
    (home / "data").mkdir()
    (home / "data" / "state.json").write_text(content)
    assert load_state() == State()
    assert save_state(State("next")) is None
    assert load_state() == State("next")


def test_a_failed_write_leaves_the_old_state_and_warns(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save_state(State("old"))

    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(state.json, "dump", full)
    warning = save_state(State("new"))
    assert warning is not None
    assert "No space left" in warning
    assert [f.name for f in (home / "data").iterdir()] == ["state.json"]
    assert json.loads((home / "data" / "state.json").read_text())["last_target"] == "old"


def test_a_folder_that_cannot_be_made_is_a_warning(home: Path) -> None:
    (home / "data").write_text("a file where the folder should be")
    assert load_state() == State()
    warning = save_state(State("new"))
    assert warning is not None
    assert str(home / "data") in warning
