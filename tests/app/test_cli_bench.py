"""`specchat bench`: which drafters, which defaults, what lands on stdout and in the files, exit codes."""

from __future__ import annotations

import csv
import json
from dataclasses import replace
from pathlib import Path

import pytest

import app.bench_command
from app.cli import invoke
from engine.catalog import hub
from engine.protocol import Event, Failed, Generate, Load, Ready, SwapDrafter
from tests.app.fake_client import FakeClient, done_for, steps_for


def reply(command: Generate, ready: Ready) -> list[Event]:
    ids = [1, 2, 3, 4]
    widths, drafted = ([2, 2], 1) if ready.drafter != "none" else ([1, 1, 1, 1], 0)
    return [*steps_for(command, ids, widths, 0.02, drafted), done_for(command, ids, ready)]


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SPECCHAT_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(hub, "pull", lambda *a, **k: pytest.fail("pulled"))
    return tmp_path


@pytest.fixture
def models(home: Path) -> tuple[str, str]:
    for name in ("big", "small"):
        (home / f"{name}.gguf").write_bytes(b"GGUF")
    return str(home / "big.gguf"), str(home / "small.gguf")


@pytest.fixture
def client(monkeypatch: pytest.MonkeyPatch) -> FakeClient:
    made = FakeClient(reply)
    monkeypatch.setattr(app.bench_command, "EngineClient", lambda: made)
    return made


def test_table_on_stdout_files_on_disk(home: Path, models: tuple[str, str], client: FakeClient, capsys: pytest.CaptureFixture[str]) -> None:
    files = home / "out.json", home / "out.csv"
    target, small = models
    command = ["bench", "-t", target, "-d", "ngram", "-d", small, "--json", str(files[0]), "--csv", str(files[1]), "--seed", "3"]
    assert invoke(command) == 0
    out, err = capsys.readouterr()
    assert [line.split("|")[1].strip() for line in out.splitlines()[2:6]] == ["none, first", "ngram", "small", "none, last"]
    assert "2.00x" in out
    assert "lane 2 of 4: ngram" in err
    written = json.loads(files[0].read_text())
    assert [row["drafter"] for row in written["rows"]] == ["none", "ngram", "small", "none"]
    assert all(row["same_text"] for row in written["rows"])
    settings = written["settings"]
    assert (settings["seed"], settings["max_tokens"], settings["repeat"], len(settings["prompts"])) == (3, 512, 1, 6)
    assert len(list(csv.DictReader(files[1].open()))) == 4
    assert client.closed == 1


def test_temperature_is_zero_unless_given(models: tuple[str, str], client: FakeClient) -> None:
    assert invoke(["bench", "-t", models[0], "-d", "ngram"]) == 0
    assert {c.sampling.temperature for c in client.sent if isinstance(c, Generate)} == {0.0}
    client.sent.clear()
    assert invoke(["bench", "-t", models[0], "-d", "ngram", "--temp", "0.7"]) == 0
    assert {c.sampling.temperature for c in client.sent if isinstance(c, Generate)} == {0.7}


def test_plain_is_not_measured_a_third_time_and_no_drafter_twice(models: tuple[str, str], client: FakeClient) -> None:
    assert invoke(["bench", "-t", models[0], "-d", "none", "-d", "ngram", "-d", "ngram"]) == 0
    assert [c.drafter.name for c in client.sent if isinstance(c, SwapDrafter)] == ["none", "ngram", "none"]


def test_without_drafters_it_takes_look_up_and_what_is_on_disk(home: Path, client: FakeClient, monkeypatch: pytest.MonkeyPatch) -> None:
    (home / "home" / "config").mkdir(parents=True)
    (home / "d").mkdir()
    (home / "home" / "config" / "models.toml").write_text(
        f'[target.mine]\npath = "{home}/d"\ndrafters = ["qwen3-0.6b", "tiny"]\n[drafter.tiny]\nkind = "model"\npath = "{home}/d"\n'
    )
    assert invoke(["bench", "-t", "mine"]) == 0
    assert [c.drafter.name for c in client.sent if isinstance(c, SwapDrafter)] == ["none", "ngram", "tiny", "none"]


def test_options_and_prompts_reach_every_lane(home: Path, models: tuple[str, str], client: FakeClient) -> None:
    prompts = home / "mine.jsonl"
    prompts.write_text('{"prompt": "first"}\n{"prompt": "second"}\n')
    arguments = [
        "--k", "3", "--max-tokens", "9", "--strict", "--verify", "ratio", "--stop", "X", "--method", "model",
        "--quant", "nf4", "--context", "700", "--repeat", "2",
    ]  # fmt: skip
    assert invoke(["bench", "-t", models[0], "-d", "ngram", "--prompts", str(prompts), "--system", "Short.", *arguments]) == 0
    load = client.sent[0]
    assert isinstance(load, Load)
    assert (load.options.quant, load.options.context) == ("nf4", 700)
    assert [c.method for c in client.sent if isinstance(c, SwapDrafter)] == ["auto", "model", "auto"] * 2
    replies = [c for c in client.sent if isinstance(c, Generate)]
    assert len(replies) == 2 * 3 * (1 + 2)
    assert {(c.k, c.strict, c.verify, c.stop, c.messages[0].content) for c in replies} == {(3, True, "ratio", ("X",), "Short.")}
    assert [c.messages[1].content for c in replies if c.max_tokens == 9] == ["first", "second"] * 6


def test_raw_prompts(models: tuple[str, str], client: FakeClient) -> None:
    assert invoke(["bench", "-t", models[0], "-d", "ngram", "--raw", "--prompts", "code"]) == 0
    replies = [c for c in client.sent if isinstance(c, Generate)]
    assert all(c.raw and not c.messages for c in replies)


def test_a_lane_that_fails_is_exit_code_1_and_the_rest_is_reported(
    home: Path, models: tuple[str, str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    failing = FakeClient(reply, {"small": Failed("Another vocabulary.", "Wait for the bridge.", "vocabulary")})
    monkeypatch.setattr(app.bench_command, "EngineClient", lambda: failing)
    assert invoke(["bench", "-t", models[0], "-d", models[1], "-d", "ngram", "--json", str(home / "out.json")]) == 1
    out, err = capsys.readouterr()
    assert "error: small: Another vocabulary." in err
    assert "2.00x" in out
    rows = json.loads((home / "out.json").read_text())["rows"]
    assert [row["tok_per_s"] is None for row in rows] == [False, True, False, False]


def test_a_stop_is_exit_code_130_and_keeps_what_was_measured(
    home: Path, models: tuple[str, str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def stopped(command: Generate, ready: Ready) -> list[Event]:
        if ready.drafter == "ngram":
            return [replace(done_for(command, [1], ready), finish_reason="cancelled")]
        return reply(command, ready)

    monkeypatch.setattr(app.bench_command, "EngineClient", lambda: FakeClient(stopped))
    assert invoke(["bench", "-t", models[0], "-d", "ngram", "--json", str(home / "out.json")]) == 130
    assert "Stopped before the end" in capsys.readouterr().out
    assert json.loads((home / "out.json").read_text())["rows"][0]["tok_per_s"] == pytest.approx(50)


@pytest.mark.parametrize("option", ["--json", "--csv"])
def test_a_file_that_cannot_be_written_is_an_error_before_anything_is_loaded(
    option: str, home: Path, models: tuple[str, str], client: FakeClient, capsys: pytest.CaptureFixture[str]
) -> None:
    for path in (home / "nowhere" / "x", home):
        assert invoke(["bench", "-t", models[0], option, str(path)]) == 1
        assert "cannot be written" in capsys.readouterr().err
    assert client.sent == []


def test_a_bad_prompts_file_is_an_error_before_anything_is_loaded(
    home: Path, models: tuple[str, str], client: FakeClient, capsys: pytest.CaptureFixture[str]
) -> None:
    (home / "bad.jsonl").write_text('{"prompt": "a"}\nnonsense\n')
    assert invoke(["bench", "-t", models[0], "--prompts", str(home / "bad.jsonl")]) == 1
    assert "bad.jsonl, line 2" in capsys.readouterr().err
    assert client.sent == []
