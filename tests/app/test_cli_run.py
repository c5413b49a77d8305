"""`specchat run`: exact text on stdout, the JSON object key by key, prompts from everywhere, errors, state."""

from __future__ import annotations

import io
import json
import sys
from dataclasses import replace
from pathlib import Path

import pytest

import app.pull
import app.run
from app.cli import invoke
from app.seeds import reply_seed
from app.state import State, load_state, save_state
from engine.catalog import hub
from engine.errors import EngineError
from engine.protocol import Event, Failed, Generate, Load, Notice, Prefill, Ready
from tests.app.fake_client import FakeClient, done_for, steps_for

KEYS = [
    "target", "drafter", "method", "device", "quant", "head", "seed", "k", "prompt_tokens", "reused_tokens", "tokens",
    "token_ids", "text", "finish_reason", "stats", "segments",
]  # fmt: skip
STATS = [
    "ttft_s", "prefill_s", "decode_s", "tok_per_s", "steps", "tau", "drafted", "accepted", "kept", "nodes",
    "per_position", "draft_s", "verify_s", "bridge_s", "other_s",
]  # fmt: skip


def reply(command: Generate, ready: Ready) -> list[Event]:
    ids = [11, 12, 13, 14]
    return [Prefill(command.reply, 12, 12, 3), *steps_for(command, ids, [3, 1], 0.02, 2), done_for(command, ids, ready, stop_id=2)]


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SPECCHAT_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"")))
    return tmp_path


@pytest.fixture
def model(tmp_path: Path) -> str:
    file = tmp_path / "some.gguf"
    file.write_bytes(b"GGUF")
    return str(file)


@pytest.fixture
def client(monkeypatch: pytest.MonkeyPatch) -> FakeClient:
    made = FakeClient(reply)
    monkeypatch.setattr(app.run, "EngineClient", lambda: made)
    return made


def piped(monkeypatch: pytest.MonkeyPatch, data: bytes) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(data)))


def prompt_of(client: FakeClient) -> str:
    (command,) = [c for c in client.sent if isinstance(c, Generate)]
    return command.raw if command.raw is not None else command.messages[-1].content


def test_stdout_is_exactly_the_text(model: str, client: FakeClient, capsysbinary: pytest.CaptureFixture[bytes]) -> None:
    assert invoke(["run", "Hi", "-t", model, "--seed", "5"]) == 0
    out, err = capsysbinary.readouterr()
    assert out == b" 11 12 13 14"
    assert err == b"note: a note\n"
    assert client.closed == 1


def test_controls_and_invalid_characters_pass_a_pipe_unchanged(
    model: str, monkeypatch: pytest.MonkeyPatch, capsysbinary: pytest.CaptureFixture[bytes]
) -> None:
    text = "a\x1b]52;c;x\x07\r\nb\u202e\ufffd ä 你\n"

    def odd(command: Generate, ready: Ready) -> list[Event]:
        (step,) = steps_for(command, [1], [1], 0.02, 0)
        segment = replace(step.segments[0], text=text)
        return [replace(step, segments=(segment,)), replace(done_for(command, [1], ready), text=text)]

    monkeypatch.setattr(app.run, "EngineClient", lambda: FakeClient(odd))
    assert invoke(["run", "Hi", "-t", model]) == 0
    assert capsysbinary.readouterr().out == text.encode()


def test_json_has_the_keys_of_the_contract(model: str, client: FakeClient, capsys: pytest.CaptureFixture[str]) -> None:
    assert invoke(["run", "Hi", "-t", model, "-d", "ngram", "--seed", "5", "--k", "2", "--json"]) == 0
    out = json.loads(capsys.readouterr().out)
    assert list(out) == KEYS
    assert list(out["stats"]) == STATS
    assert [list(s) for s in out["segments"]] == [["text", "origin", "token_ids"]] * 4
    assert (out["target"], out["drafter"], out["method"]) == ("some", "ngram", "ngram")
    assert (out["device"], out["quant"], out["head"]) == ("cpu", "nf4", "int8")
    assert (out["seed"], out["k"], out["finish_reason"]) == (5, 2, "stop")
    assert (out["prompt_tokens"], out["reused_tokens"], out["tokens"]) == (12, 3, 4)
    assert (out["token_ids"], out["text"]) == ([11, 12, 13, 14], " 11 12 13 14")
    assert "".join(s["text"] for s in out["segments"]) == out["text"]
    assert [s["origin"] for s in out["segments"]] == ["kept", "kept", "correction", "correction"]
    stats = out["stats"]
    assert (stats["steps"], stats["drafted"], stats["accepted"], stats["nodes"]) == (2, 4, 2, 4)
    assert stats["tau"] == pytest.approx(5 / 2)
    assert stats["kept"] == pytest.approx(0.5)
    assert stats["per_position"] == [0.5, 0.5]
    assert stats["tok_per_s"] == pytest.approx(4 / 0.04)
    assert stats["prefill_s"] == 0.05
    assert stats["ttft_s"] > 0


def test_the_seed_is_mixed_and_the_same_seed_asks_for_the_same_text(model: str, client: FakeClient) -> None:
    invoke(["run", "Hi", "-t", model, "--seed", "5"])
    (command,) = [c for c in client.sent if isinstance(c, Generate)]
    assert command.seed == reply_seed(5, 0, 0)


def test_a_random_seed_is_printed_and_gives_the_text_again(model: str, client: FakeClient, capsys: pytest.CaptureFixture[str]) -> None:
    invoke(["run", "Hi", "-t", model])
    invoke(["run", "Hi", "-t", model])
    seeds = [int(line.split()[1]) for line in capsys.readouterr().err.splitlines() if line.startswith("seed ")]
    assert len(set(seeds)) == 2
    assert [c.seed for c in client.sent if isinstance(c, Generate)] == [reply_seed(seed, 0, 0) for seed in seeds]


@pytest.mark.parametrize(
    ("arguments", "data", "prompt"),
    [
        (["Hi"], b"", "Hi"),
        (["-"], b"from stdin\n", "from stdin"),
        ([], b"from stdin\r\n", "from stdin"),
        (["Summarise:"], b"line 1\n\nline 2\n", "Summarise:\n\nline 1\n\nline 2"),
        (["Summarise:"], b"\n", "Summarise:"),
        ([], b"\xef\xbb\xbfmarked", "marked"),
        (["--raw"], b"def f():\n", "def f():\n"),
        (["--raw", "def f():\n    "], b"", "def f():\n    "),
        ([], "größer 你好\n".encode(), "größer 你好"),
    ],
)
def test_where_the_prompt_comes_from(
    arguments: list[str], data: bytes, prompt: str, model: str, client: FakeClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    piped(monkeypatch, data)
    assert invoke(["run", "-t", model, *arguments]) == 0
    assert prompt_of(client) == prompt


@pytest.mark.parametrize("missing", [True, False])
def test_a_stdin_that_is_closed_counts_as_empty(
    missing: bool, home: Path, model: str, client: FakeClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream = (home / "x").open("w+")
    stream.close()
    monkeypatch.setattr(sys, "stdin", None if missing else stream)
    assert invoke(["run", "Hi", "-t", model]) == 0
    assert prompt_of(client) == "Hi"
    assert invoke(["run", "-", "-t", model]) == 2


@pytest.mark.parametrize("data", [b"caf\xe9", b"\xff\xfe", b"ok \x80"])
def test_stdin_that_is_no_utf8_is_an_error_with_a_hint(
    data: bytes, model: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    piped(monkeypatch, data)
    assert invoke(["run", "-t", model]) == 1
    error, hint = capsys.readouterr().err.splitlines()
    assert "not valid UTF-8" in error
    assert "iconv" in hint


def test_an_argument_that_is_no_utf8_is_an_error(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert invoke(["run", "caf\udce9", "-t", model]) == 1
    assert "not valid UTF-8" in capsys.readouterr().err


@pytest.mark.parametrize("as_json", [False, True])
def test_an_error_of_the_engine_is_a_sentence_and_a_hint(
    as_json: bool, model: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def too_long(command: Generate, ready: Ready) -> list[Event]:
        message = "The prompt has 5,000 tokens, and the context holds 4,096."
        return [Failed(message, "Shorten it.", "too_long", numbers={"prompt": 5000, "context": 4096}, reply=command.reply)]

    monkeypatch.setattr(app.run, "EngineClient", lambda: FakeClient(too_long))
    assert invoke(["run", "Hi", "-t", model, *(["--json"] if as_json else [])]) == 1
    out, err = capsys.readouterr()
    assert "error: The prompt has 5,000 tokens, and the context holds 4,096.\nhint: Shorten it.\n" in err
    if as_json:
        error = json.loads(out)["error"]
        assert (error["kind"], error["hint"], error["numbers"]["context"]) == ("too_long", "Shorten it.", 4096)
    else:
        assert out == ""


def test_the_detail_of_an_error_goes_to_the_log_only(
    home: Path, model: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    failed = {"auto": Failed("It broke.", "Try again.", "internal", detail="Traceback: deep inside")}
    monkeypatch.setattr(app.run, "EngineClient", lambda: FakeClient(reply, failed))
    assert invoke(["run", "Hi", "-t", model]) == 1
    assert "deep inside" not in capsys.readouterr().err
    assert "deep inside" in (home / "home" / "logs" / "specchat.log").read_text()


def test_notices_go_to_stderr(model: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(app.run, "EngineClient", lambda: FakeClient(lambda c, r: [Notice("The drafter is off."), *reply(c, r)]))
    assert invoke(["run", "Hi", "-t", model]) == 0
    out, err = capsys.readouterr()
    assert out == " 11 12 13 14"
    assert "note: The drafter is off.\n" in err


def test_a_dead_engine_is_noticed(model: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    class Dead(FakeClient):
        alive = False

    monkeypatch.setattr(app.run, "EngineClient", lambda: Dead(lambda c, r: []))
    assert invoke(["run", "Hi", "-t", model]) == 1
    assert "ended unexpectedly" in capsys.readouterr().err


def test_what_was_named_is_used_next_time(home: Path, model: str, client: FakeClient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(home)
    assert invoke(["run", "Hi", "-t", "some.gguf", "-d", "ngram"]) == 0
    assert load_state() == State(model, "ngram")
    monkeypatch.chdir("/")
    assert invoke(["run", "Hi"]) == 0
    load = [c for c in client.sent if isinstance(c, Load)][-1]
    assert str(load.target.path) == model
    assert load.drafter.kind == "auto"


def test_a_failed_load_is_not_remembered(model: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(app.run, "EngineClient", lambda: FakeClient(reply, {"auto": Failed("Broken file.", "", "corrupt_weights")}))
    assert invoke(["run", "Hi", "-t", model]) == 1
    assert load_state() == State()


def test_an_unwritable_data_folder_costs_only_the_memory(
    home: Path, model: str, client: FakeClient, capsys: pytest.CaptureFixture[str]
) -> None:
    (home / "home").mkdir()
    (home / "home" / "data").write_text("in the way")
    assert invoke(["run", "Hi", "-t", model]) == 0
    out, err = capsys.readouterr()
    assert out == " 11 12 13 14"
    assert "not remembered" in err


@pytest.mark.parametrize("arguments", [["-t", "smolm2-135"], ["-d", "ngrm"]])
def test_an_unknown_name_names_the_nearest(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert invoke(["run", "Hi", *arguments]) == 1
    error, hint = capsys.readouterr().err.splitlines()
    assert arguments[1] in error
    assert "smollm2-135m" in hint or "ngram" in hint


def test_offline_never_pulls(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(hub, "pull", lambda *a, **k: pytest.fail("pulled"))
    assert invoke(["run", "Hi", "-t", "smollm2-135m", "--offline"]) == 1
    error, hint = capsys.readouterr().err.splitlines()
    assert "--offline" in error
    assert "specchat pull smollm2-135m" in hint


def test_nothing_is_pulled_that_nobody_named(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(hub, "pull", lambda *a, **k: pytest.fail("pulled"))
    assert invoke(["run", "Hi"]) == 1
    error, hint = capsys.readouterr().err.splitlines()
    assert "nothing is downloaded unless you name it" in error
    assert "specchat pull" in hint


@pytest.mark.parametrize("option", ["-t", "-d"])
def test_named_models_are_pulled_first(
    option: str, model: str, client: FakeClient, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pulled = []

    def pull(spec: object, progress: object, cancelled: object) -> None:
        assert callable(progress)
        assert callable(cancelled)
        progress(hub.Progress("model.gguf", 50_000_000, 98_000_000, 1e6, 48.0, "mirror", "part 1 of 1"))
        pulled.append(spec.name)  # type: ignore[attr-defined]
        assert not client.sent

    monkeypatch.setattr(hub, "pull", pull)
    other = [] if option == "-t" else ["-t", model]
    assert invoke(["run", "Hi", option, "smollm2-135m", *other]) == 0
    assert pulled == ["smollm2-135m"]
    out, err = capsys.readouterr()
    assert out == " 11 12 13 14"
    assert "pulling smollm2-135m from the mirror: 50 MB of 98 MB · 1 MB/s · 48 s left · model.gguf · part 1 of 1" in err


def test_a_failed_pull_is_an_error(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def pull(*_: object) -> None:
        raise EngineError("The hub cannot be reached.", "Check the network.", kind="network")

    monkeypatch.setattr(hub, "pull", pull)
    assert invoke(["run", "Hi", "-t", "smollm2-135m", "--json"]) == 1
    out, err = capsys.readouterr()
    assert json.loads(out)["error"]["kind"] == "network"
    assert "hint: Check the network." in err


def test_a_broken_models_toml_is_named(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = home / "home" / "config"
    config.mkdir(parents=True)
    (config / "models.toml").write_text('[target.mine]\nrepo = "a/b"\ncontextt = 5\n')
    assert invoke(["run", "Hi", "-t", "mine"]) == 1
    error, hint = capsys.readouterr().err.splitlines()
    assert "models.toml, line 3" in error
    assert "context" in error + hint


def test_a_saved_target_that_is_gone_is_forgotten(home: Path, client: FakeClient, capsys: pytest.CaptureFixture[str]) -> None:
    save_state(State(str(home / "gone.gguf")))
    assert invoke(["run", "Hi", "--offline"]) == 1
    assert "gone.gguf" not in capsys.readouterr().err
