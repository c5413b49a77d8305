"""Draft heads beside another target are refused by name, before anything is downloaded or loaded; `specchat models` shows what suits."""

from __future__ import annotations

import io
from pathlib import Path

import pytest

from app.choose import chat_options, choose, heads_as_drafter
from app.cli import invoke
from app.models import entry, table
from app.options import Options
from app.state import State, save_state
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


def test_heads_as_the_target_are_the_drafter_beside_their_own() -> None:
    """`-t HEADS` where the remembered target is theirs, by name and by hub id; beside another one, or another drafter, an error."""
    models = catalog.builtin()
    save_state(State("vicuna-7b-v1.3"))
    for name in ("hydra-vicuna-7b", "ankner/hydra-vicuna-7b-v1.3"):
        choice = choose(heads_as_drafter(Options(target=name), models), models)
        assert (choice.target.name, choice.drafter.name, choice.named) == ("vicuna-7b-v1.3", "hydra-vicuna-7b", False)
    assert chat_options(Options(target="hydra-vicuna-7b")).drafter.name == "hydra-vicuna-7b"
    plain = Options(target="qwen3-8b")
    assert heads_as_drafter(plain, models) is plain
    for options in (Options(target="hydra-vicuna-13b"), Options(target="hydra-vicuna-7b", drafter="ngram")):
        with pytest.raises(EngineError, match="are draft heads for vicuna-"):
            heads_as_drafter(options, models)


def test_heads_as_the_target_of_a_command(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Beside another target nothing is downloaded; the hint is the command that was meant. A folder of heads names itself."""
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO()))
    save_state(State("qwen3-8b"))
    for command in (["run", "Hello", "-t", "hydra-vicuna-7b"], ["bench", "-t", "hydra-vicuna-7b"]):
        assert invoke(command) == 1
        said = capsys.readouterr().err
        assert "hydra-vicuna-7b are draft heads for vicuna-7b-v1.3, not a model to chat with." in said
        assert "-t vicuna-7b-v1.3 -d hydra-vicuna-7b" in said
        assert "pulling" not in said
    folder = tmp_path / "some-heads"
    folder.mkdir()
    (folder / "medusa_lm_head.pt").write_bytes(b"")
    assert invoke(["run", "Hello", "-t", str(folder)]) == 1
    assert "some-heads are draft heads, not a model to chat with." in capsys.readouterr().err


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
