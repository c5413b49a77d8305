"""The command line as a language: help, version, wrong usage, options before and after a command, no terminal."""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import app.run
from app.cli import COMMANDS, cli, invoke
from app.options import Options
from engine.protocol import Generate, Load
from engine.replay import READY, ReplayClient, Trace, scripted


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SPECCHAT_HOME", str(tmp_path))
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"")))
    return tmp_path


@pytest.fixture
def model(tmp_path: Path) -> str:
    file = tmp_path / "some.gguf"
    file.write_bytes(b"GGUF")
    return str(file)


@pytest.fixture
def clients(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[ReplayClient]]:
    made: list[ReplayClient] = []

    def make() -> ReplayClient:
        made.append(ReplayClient(Trace(load=((0.0, READY),), replies=(scripted("one two"),)), speed=None))
        return made[-1]

    monkeypatch.setattr(app.run, "EngineClient", make)
    yield made
    for client in made:
        client.close()


def test_the_table_of_commands_is_complete() -> None:
    assert sorted(COMMANDS) == sorted(c.name or c.callback.__name__ for c in cli.registered_commands)  # type: ignore[union-attr]


@pytest.mark.parametrize("arguments", [["--help"], ["-h"], *([c, "--help"] for c in COMMANDS)])
def test_help_is_shown_on_stdout(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert invoke(arguments) == 0
    out, err = capsys.readouterr()
    assert "Usage: specchat" in out
    assert err == ""


def test_every_shared_option_is_in_the_help_of_chat_run_and_bench(capsys: pytest.CaptureFixture[str]) -> None:
    names = {"--" + name.replace("_", "-") for name in Options.__dataclass_fields__}
    for arguments in (["--help"], ["run", "--help"], ["bench", "--help"]):
        invoke(arguments)
        shown = capsys.readouterr().out
        assert [name for name in sorted(names) if name + " " not in shown] == []


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert invoke(["--version"]) == 0
    assert capsys.readouterr().out.startswith("specchat 0.")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["run", "x", "--quant", "q4"], "'nf4'"),
        (["run", "x", "--method", "magic"], "'slem'"),
        (["run", "x", "--verify", "maybe"], "'ratio'"),
        (["run", "x", "--device", "gpu"], "'cuda:N'"),
        (["run", "x", "--draft-device", "cuda:"], "'mps'"),
        (["run", "x", "--temp", "-1"], "--temp"),
        (["run", "x", "--temp", "nan"], "--temp"),
        (["run", "x", "--temp", "hot"], "--temp"),
        (["run", "x", "--top-p", "0"], "0<x<=1"),
        (["run", "x", "--top-p", "1.5"], "0<x<=1"),
        (["run", "x", "--top-k", "-1"], "--top-k"),
        (["run", "x", "--min-p", "2"], "--min-p"),
        (["run", "x", "--repeat-penalty", "0"], "x>0"),
        (["run", "x", "--seed", "-5"], "whole number"),
        (["run", "x", "--seed", str(2**63)], "whole number"),
        (["run", "x", "--max-tokens", "0"], "--max-tokens"),
        (["run", "x", "--k", "65"], "--k"),
        (["run", "x", "--stop", ""], "must not be empty"),
        (["run", "x", "--raw", "--system", "Be short."], "--system"),
        (["run", "x", "--system", "\udcff"], "not valid UTF-8"),
        (["run", "x", "y"], "unexpected extra argument"),
        (["run", "x", "--tpo-k", "3"], "--top-k"),
        (["run", "-t"], "requires an argument"),
        (["run"], "There is no prompt"),
        (["run", "  "], "There is no prompt"),
        (["rum"], "rum"),
        (["pull"], "Missing argument"),
        (["bench", "--repeat", "0"], "--repeat"),
        ([], "The chat needs a terminal"),
        (["--raw"], "The chat needs a terminal"),
    ],
)
def test_wrong_usage_is_one_sentence_and_exit_code_2(arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert invoke(arguments) == 2
    out, err = capsys.readouterr()
    assert out == ""
    error, hint = err.splitlines()
    assert error.startswith("error: ")
    assert said in error
    assert hint.startswith("hint: ")
    assert "--help" in hint


def test_wrong_usage_with_json_is_an_object_too(capsys: pytest.CaptureFixture[str]) -> None:
    assert invoke(["run", "--json", "x", "--quant", "q4"]) == 2
    error = json.loads(capsys.readouterr().out)["error"]
    assert error["kind"] == "usage"
    assert "nf4" in error["message"]


def test_the_json_option_of_bench_is_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert invoke(["bench", "--json", str(tmp_path / "none" / "out.json")]) == 1
    out, err = capsys.readouterr()
    assert out == ""
    assert "cannot be written" in err


def test_options_reach_the_engine(model: str, clients: list[ReplayClient]) -> None:
    arguments = [
        "--method", "ngram", "--strict", "--k", "3", "--quant", "nf4", "--head", "bf16", "--draft-quant", "int8",
        "--device", "cpu", "--draft-device", "cuda:1", "--context", "900", "--temp", "0.5", "--top-p", "0.9",
        "--top-k", "40", "--min-p", "0.1", "--repeat-penalty", "1.1", "--max-tokens", "7", "--stop", "A", "--stop",
        "B",
    ]  # fmt: skip
    assert invoke(["run", "Hi", "-t", model, "-d", "ngram", "--verify", "ratio", "--system", "Short.", *arguments]) == 0
    load, generate = clients[0].sent
    assert isinstance(load, Load)
    assert isinstance(generate, Generate)
    assert (str(load.target.path), load.drafter.kind, load.method) == (model, "ngram", "ngram")
    o = load.options
    assert (o.quant, o.head, o.draft_quant, o.device, o.draft_device, o.context) == ("nf4", "bf16", "int8", "cpu", "cuda:1", 900)
    s = generate.sampling
    assert (s.temperature, s.top_p, s.top_k, s.min_p, s.repeat_penalty) == (0.5, 0.9, 40, 0.1, 1.1)
    assert (generate.max_tokens, generate.stop, generate.k, generate.verify, generate.strict) == (7, ("A", "B"), 3, "ratio", True)
    assert [(m.role, m.content) for m in generate.messages] == [("system", "Short."), ("user", "Hi")]
    assert generate.raw is None


def test_defaults_leave_the_choice_to_model_and_engine(model: str, clients: list[ReplayClient]) -> None:
    assert invoke(["run", "Hi", "-t", model]) == 0
    load, generate = clients[0].sent
    assert isinstance(load, Load)
    assert isinstance(generate, Generate)
    assert (load.drafter.kind, load.method, load.options.quant) == ("auto", "auto", "auto")
    assert generate.sampling.temperature is None
    assert (generate.max_tokens, generate.k, generate.stop) == (512, None, ())


def test_options_before_the_command_count_unless_given_again(model: str, clients: list[ReplayClient]) -> None:
    assert invoke(["-t", model, "--temp", "0.1", "--k", "2", "run", "Hi", "--temp", "0.9"]) == 0
    generate = clients[0].sent[1]
    assert isinstance(generate, Generate)
    assert generate.sampling.temperature == 0.9
    assert generate.k == 2


def test_raw_is_sent_without_a_template(model: str, clients: list[ReplayClient]) -> None:
    assert invoke(["run", "--raw", "Once upon", "-t", model]) == 0
    generate = clients[0].sent[1]
    assert isinstance(generate, Generate)
    assert (generate.raw, generate.messages) == ("Once upon", ())


def test_text_piped_into_the_bare_command_is_answered(
    model: str, clients: list[ReplayClient], monkeypatch: pytest.MonkeyPatch, capsysbinary: pytest.CaptureFixture[bytes]
) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"What is it?\n")))
    assert invoke(["-t", model, "--json"]) == 0
    generate = clients[0].sent[1]
    assert isinstance(generate, Generate)
    assert generate.messages[0].content == "What is it?"
    assert json.loads(capsysbinary.readouterr().out)["text"] == "one two"


def test_an_unexpected_exception_is_a_sentence_and_goes_to_the_log(
    home: Path, model: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken() -> None:
        raise RuntimeError("a loose screw\nsecond line")

    monkeypatch.setattr(app.run, "EngineClient", broken)
    assert invoke(["run", "Hi", "-t", model]) == 1
    err = capsys.readouterr().err
    assert err.splitlines()[0] == "error: Something unexpected happened (RuntimeError: a loose screw)."
    assert "Traceback" not in err
    log = home / "logs" / "specchat.log"
    assert str(log) in err
    assert "Traceback" in log.read_text()


def test_without_a_log_folder_the_error_is_still_a_sentence(
    home: Path, model: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken() -> None:
        raise RuntimeError("a loose screw")

    monkeypatch.setattr(app.run, "EngineClient", broken)
    (home / "logs").write_text("in the way")
    assert invoke(["run", "Hi", "-t", model]) == 1
    assert "could not be written" in capsys.readouterr().err
