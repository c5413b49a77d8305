"""Draft heads beside another target are refused by name, before anything is downloaded or loaded; `specchat models` shows what suits."""

from __future__ import annotations

import io
from pathlib import Path

import pytest

from app.choose import choose
from app.cli import invoke
from app.models import entry, table
from app.options import Options
from engine.catalog import catalog
from engine.errors import EngineError


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPECCHAT_HOME", str(tmp_path))
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))


def test_another_target(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO()))
    with pytest.raises(EngineError) as caught:
        choose(Options(target="qwen3-8b", drafter="gumiho-vicuna-7b"), catalog.builtin())
    assert caught.value.kind == "wrong_target"
    assert "vicuna-7b-v1.3" in str(caught.value)
    assert choose(Options(target="vicuna-7b-v1.3", drafter="gumiho-vicuna-7b"), catalog.builtin()).drafter.kind == "heads"
    for command in (["run", "Hello", "-t", "qwen3-8b", "-d", "hydra-vicuna-7b"], ["bench", "-t", "qwen3-8b", "-d", "hydra-vicuna-7b"]):
        assert invoke(command) != 0
        said = capsys.readouterr().err
        assert "hydra-vicuna-7b was trained with vicuna-7b-v1.3" in said
        assert "pulling" not in said


def test_the_list_says_what_suits_what() -> None:
    models = catalog.builtin()
    rows = [entry(models, status) for status in catalog.status(models)]
    by_name = {row["name"]: row for row in rows}
    assert by_name["gumiho-llama-3-8b"]["for"] == ["llama-3-8b"]
    assert by_name["gumiho-llama-3-8b"]["download_bytes"] == 3_170_000_000
    assert "gumiho-llama-3-8b" in by_name["llama-3-8b"]["drafters"]
    assert "gumiho-llama-3-8b" not in by_name["llama-3.1-8b"]["drafters"]
    line = next(line for line in table(rows).splitlines() if line.startswith("gumiho-llama-3-8b"))
    assert "3.2 GB" in line
    assert "llama-3-8b" in line.removeprefix("gumiho-llama-3-8b")
