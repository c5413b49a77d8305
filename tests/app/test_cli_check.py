"""`specchat check` on the command line: what is printed, for people and programs. Tokenizers are read in a child process."""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from threading import Event
from typing import Any

import pytest

import app.check
from app.check import words
from app.cli import COMMANDS, invoke
from engine.errors import EngineError

SLEEPER = [sys.executable, "-c", "import time; time.sleep(60)"]
FOUND: dict[str, Any] = {
    "target": {"class": "tiktoken", "size": 128256, "mapped": 128000},
    "drafter": {"class": "sentencepiece", "size": 32000, "mapped": 31997},
    "intersection": 29235,
    "coverage": {"chat": 0.996, "code": 0.998, "multilingual": 0.9321},
    "pieces": {"chat": 0.743, "code": 0.567, "multilingual": 0.41},
    "method": "pf",
    "reasons": ["The vocabularies differ: id 0 is 'a' for one and 'b' for other.", "auto takes slem at temperature 0 and pf above."],
    "refused": None,
}
REFUSED = FOUND | {"method": None, "reasons": [], "refused": "old cannot be target beside another tokenizer: it rewrites texts."}


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SPECCHAT_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    return tmp_path


def _answers(monkeypatch: pytest.MonkeyPatch, found: dict[str, Any]) -> None:
    monkeypatch.setattr(app.check, "facts", lambda target, drafter, stop=None: found)


def test_json_is_the_facts_and_nothing_else(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    for found in (FOUND, REFUSED):
        _answers(monkeypatch, found)
        assert invoke(["check", "one", "other", "--json"]) == 0
        assert json.loads(capsys.readouterr().out) == found
    keys = ["target", "drafter", "intersection", "coverage", "pieces", "method", "reasons", "refused"]
    assert list(FOUND) == keys


def test_for_people(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    _answers(monkeypatch, FOUND)
    assert invoke(["check", "some/one", "/far/away/other"]) == 0
    out = capsys.readouterr().out
    lines = out.splitlines()
    assert lines[0].split() == ["TARGET", "DRAFTER"]
    assert lines[1].split() == ["one", "other"]
    assert "29,235 drafter tokens are the same bytes" in out
    assert ["tokens", "that", "both", "have", "99.6%", "99.8%", "93.2%"] in [line.split() for line in lines]
    assert out.endswith(f"Method: pf\n- {FOUND['reasons'][0]}\n- {FOUND['reasons'][1]}\n")
    assert all(line == line.rstrip() for line in lines)


def test_a_refused_pair_says_why() -> None:
    text = words("old", "new", REFUSED)
    assert text.endswith("\nRefused: old cannot be target beside another tokenizer: it rewrites texts.\n")
    assert "Method" not in text
    nothing = REFUSED | {"intersection": None, "coverage": dict.fromkeys(FOUND["coverage"]), "pieces": dict.fromkeys(FOUND["pieces"])}
    assert "BUNDLED" not in words("old", "new", nothing)


def test_both_names_are_needed(capsys: pytest.CaptureFixture[str]) -> None:
    assert "check" in COMMANDS
    assert invoke(["check", "one"]) == 2
    assert "DRAFTER" in capsys.readouterr().err


def _child(monkeypatch: pytest.MonkeyPatch, stdout: str, stderr: str = "") -> None:
    monkeypatch.setattr(app.check, "_output", lambda *_: (stdout, stderr))


def test_a_crash_of_the_child_is_one_sentence(home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    for stdout in ("", "Segmentation fault\n"):
        _child(monkeypatch, stdout, "the trace of it")
        assert invoke(["check", "one", "other"]) == 1
        assert "error: The process that reads the tokenizers crashed." in capsys.readouterr().err
    assert "the trace of it" in (home / "home" / "logs" / "specchat.log").read_text()


def test_a_child_that_takes_too_long_or_cannot_start(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise OSError("no memory")

    with monkeypatch.context() as patched:
        patched.setattr(app.check.subprocess, "Popen", fail)
        with pytest.raises(EngineError, match="crashed"):
            app.check.facts("one", "other")
    monkeypatch.setattr(app.check, "CHILD_S", 0.0)
    begun_s = time.monotonic()
    with pytest.raises(EngineError, match="took too long"):
        app.check._output(SLEEPER, dict(os.environ), Event())
    assert time.monotonic() - begun_s < 30


def test_a_child_that_is_no_longer_wanted_is_killed() -> None:
    stop = Event()
    stop.set()
    begun_s = time.monotonic()
    with pytest.raises(EngineError, match="Stopped") as caught:
        app.check._output(SLEEPER, dict(os.environ), stop)
    assert caught.value.kind == "cancelled"
    assert time.monotonic() - begun_s < 30


def test_what_libraries_print_before_it_does_no_harm(monkeypatch: pytest.MonkeyPatch) -> None:
    _child(monkeypatch, f"a warning of some library\n{json.dumps(FOUND)}\n")
    assert app.check.facts("one", "other") == FOUND


def test_the_real_child(home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Two folders with nothing but tokenizers; the person's own folder holds a module with our name."""
    from tests.engine.bridge.toys import byte_level, sentencepiece, wrap

    for name, backend in (("one", byte_level()), ("other", sentencepiece())):
        wrap(backend).hf.save_pretrained(home / name)
    (home / "engine").mkdir()
    (home / "engine" / "__init__.py").write_text("raise SystemExit('the wrong one')")
    monkeypatch.chdir(home)
    assert invoke(["check", "./one", "./other", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert list(found) == list(FOUND)
    assert (found["target"]["class"], found["drafter"]["class"], found["method"]) == ("byte-level", "sentencepiece", "pf")
    assert list((home / "home" / "cache" / "bridge").glob("map-*.npz"))


def test_the_real_childs_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert invoke(["check", "smollm2-135m", "gemma-3-270m", "--json"]) == 1
    captured = capsys.readouterr()
    assert json.loads(captured.out)["error"]["kind"] == "missing_weights"
    assert "hint: Run: specchat pull smollm2-135m" in captured.err
