"""`specchat models`, `pull` and `rm`: what is listed, fetched and deleted. No network."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from app.cli import invoke
from app.pull import clock, progress_line
from engine.catalog import catalog, hub
from engine.catalog.hub import Progress
from engine.catalog.specs import ModelSpec


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SPECCHAT_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    return tmp_path


@pytest.fixture
def there(home: Path) -> Path:
    """The mirror file of one model, in full length (but empty)."""
    mirror = catalog.load().target("smollm2-135m").mirror
    assert mirror is not None
    folder = home / "home" / "cache" / "models"
    folder.mkdir(parents=True)
    file = folder / mirror.file
    with file.open("wb") as out:
        out.truncate(mirror.size)
    return file


def test_models_as_json(there: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert invoke(["models", "--json"]) == 0
    out = json.loads(capsys.readouterr().out)
    models = {m["name"]: m for m in out["models"]}
    assert set(models) >= set(catalog.load().targets)
    one = models["smollm2-135m"]
    assert (one["on_disk"], one["download_bytes"], one["role"]) == (str(there), 0, "target")
    assert one["disk_bytes"] == out["disk_bytes"] == there.stat().st_size
    assert one["licence"] == "Apache-2.0"
    other = models["qwen2.5-coder-1.5b"]
    assert other["on_disk"] is None
    assert other["download_bytes"] > 1e9
    assert other["drafters"][0] == "ngram"
    assert other["drafters"][1] == "qwen2.5-coder-0.5b"


def test_models_for_people(there: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert invoke(["models"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["TARGETS", "ON", "DISK", "DOWNLOAD", "DRAFTERS", "LICENCE"]
    assert lines[1].startswith("smollm2-135m"), "what is on disk comes first"
    assert any(line.startswith("qwen2.5-coder-1.5b ") and "qwen2.5-coder-0.5b" in line for line in lines)
    assert "98 MB on disk." in "\n".join(lines)


def test_rm_deletes_and_says_how_much(there: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert invoke(["rm", "smollm2-135m"]) == 0
    assert not there.exists()
    assert "smollm2-135m removed, 98 MB freed." in capsys.readouterr().err
    assert invoke(["rm", "smollm2-135m"]) == 0
    assert "was not on this machine" in capsys.readouterr().err


def test_rm_leaves_files_of_the_person_alone(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    own = home / "own.gguf"
    own.write_bytes(b"GGUF")
    assert invoke(["rm", str(own)]) == 1
    assert own.exists()
    assert "left alone" in capsys.readouterr().err


def test_pull_fetches_each_name_and_shows_progress(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    pulled: list[str] = []

    def pull(spec: ModelSpec, progress: object, cancelled: object) -> None:
        assert callable(progress)
        progress(Progress("model.safetensors", 1_500_000_000, 3_000_000_000, 20e6, 75.0, "hub"))
        pulled.append(spec.name)

    monkeypatch.setattr(hub, "pull", pull)
    assert invoke(["pull", "qwen3-0.6b", "smollm2-135m", "ngram"]) == 0
    assert pulled == ["qwen3-0.6b", "smollm2-135m"]
    out, err = capsys.readouterr()
    assert out == ""
    assert "pulling qwen3-0.6b from the hub: 1.5 GB of 3.0 GB · 20 MB/s · 1:15 min left · model.safetensors" in err
    assert "ngram needs no files." in err


def test_pull_of_an_unknown_name_fetches_nothing(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(hub, "pull", lambda *a: pytest.fail("pulled"))
    assert invoke(["pull", "smollm2-135m", "qwen9"]) == 1
    error, hint = capsys.readouterr().err.splitlines()
    assert "'qwen9'" in error
    assert "specchat models" in hint


def test_progress_says_only_what_is_known() -> None:
    assert progress_line("x", Progress("", 5_000_000, 0, 0.0, None, "hub", "asking the hub")) == (
        "pulling x from the hub: 5 MB · asking the hub"
    )


@pytest.mark.parametrize(("seconds", "said"), [(0.4, "0 s"), (59.4, "59 s"), (60, "1:00 min"), (3599, "59:59 min"), (4800, "1:20 h")])
def test_times_are_short(seconds: float, said: str) -> None:
    assert clock(seconds) == said
