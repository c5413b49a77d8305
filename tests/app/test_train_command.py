"""`specchat train` from the outside: options become a plan, events become lines, ends become exit codes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from app import train_command
from app.cli import invoke
from app.console import STOPPED
from app.store import Store
from engine.protocol import Failed
from engine.training.protocol import Answering, Event, Measured, Plan, Remark, Stage, Stopped, Trained
from tests.tiny_disk import tiny_model

DONE = Trained(Path("/heads"), "mine", "hydra++", Measured(1.7, (0.5, 0.4), 1200, True, 1.25), 60_000, 900, 3000.0, 1000)


class Fake:
    """Says what it was told to say."""

    plans: list[Plan] = []  # noqa: RUF012  one list for a test

    def __init__(self, plan: Plan, *events: Event) -> None:
        self.events, self.stopped, self.alive = list(events), False, True
        Fake.plans.append(plan)

    def start(self) -> None:
        pass

    def stop(self) -> None:
        self.stopped = True

    def wait(self, timeout_s: float) -> list[Event]:
        events, self.events = self.events, []
        self.alive = False
        return events

    def close(self, timeout_s: float) -> None:
        pass


@pytest.fixture
def target(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("SPECCHAT_HOME", str(tmp_path / "home"))
    Fake.plans = []
    return str(tiny_model(tmp_path / "tiny", 1))


def says(monkeypatch: pytest.MonkeyPatch, *events: Event) -> None:
    monkeypatch.setattr(train_command, "TrainClient", lambda plan: Fake(plan, *events))


def test_the_plan(target: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    says(monkeypatch, Stage("Working"), Remark("so far so good"), Answering(1, 2, 3, 4.0, 5.0), DONE)
    assert invoke(["train", "-t", target]) == 0
    (plan,) = Fake.plans
    assert (plan.target.name, plan.kind, plan.name, plan.seed, plan.register) == ("tiny", "hydra++", "tiny-hydra++", 1, True)
    assert plan.out == tmp_path / "home" / "data" / "heads" / "tiny-hydra++"
    assert (plan.hours, plan.tokens, plan.prompts, plan.resume) == (None, None, (), False)
    shown = capsys.readouterr()
    assert "specchat run -d mine" in shown.out
    assert shown.err.splitlines() == ["Working", "note: so far so good", "data: 1 of 2 tokens in 3 replies · 4 tok/s · 5 s left"]


def test_every_option(target: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    says(monkeypatch, DONE)
    words = f"train -t {target} --kind gumiho --out {tmp_path / 'o'} --name n --hours 2 --tokens 5000 --epochs 3 --heads 4 --shortlist 0"
    words += " --features int8 --precision bf16 --lanes 8 --again --no-entry --seed 7 --quant int8 --device cpu --offline"
    assert invoke(words.split()) == 0
    (plan,) = Fake.plans
    assert (plan.kind, plan.out, plan.name, plan.hours, plan.tokens, plan.epochs) == ("gumiho", tmp_path / "o", "n", 2.0, 5000, 3)
    assert (plan.heads, plan.shortlist, plan.features, plan.precision, plan.lanes) == (4, 0, "int8", "bf16", 8)
    assert (plan.resume, plan.again, plan.register, plan.seed) == (True, True, False, 7)
    assert (plan.options.quant, plan.options.device) == ("int8", "cpu")


def test_own_prompts_only_when_asked_for(target: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    prompts = tmp_path / "mine.jsonl"
    prompts.write_text('{"prompt": "of a file"}\n', encoding="utf-8")
    (tmp_path / "home" / "data").mkdir(parents=True, exist_ok=True)
    store = Store(tmp_path / "home" / "data" / "chats.db")
    store.close()
    monkeypatch.setattr(Store, "prompts", lambda self, limit: ["of a chat", "of a chat", " "])
    says(monkeypatch, DONE)
    for more in ([], ["--data", str(prompts)], ["--chats"], ["--chats", "--data", str(prompts)]):
        assert invoke(["train", "-t", target, *more]) == 0
    assert [plan.prompts for plan in Fake.plans] == [(), ("of a file",), ("of a chat",), ("of a file", "of a chat")]


def test_as_json(target: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    says(monkeypatch, Stage("x"), DONE)
    assert invoke(["train", "-t", target, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["tau"] == 1.7


def test_stopped(target: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    says(monkeypatch, Stopped(Path("/heads")))
    assert invoke(["train", "-t", target]) == STOPPED
    shown = capsys.readouterr()
    assert "--resume goes on" in shown.err
    assert shown.out == ""


@pytest.mark.parametrize(("event", "kind"), [(Failed("The disk is full.", "Free some.", "disk_full"), "disk_full"), (None, "internal")])
def test_failed(target: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], event: Any, kind: str) -> None:
    says(monkeypatch, *([event] if event else []))
    assert invoke(["train", "-t", target, "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["error"]["kind"] == kind


def test_a_taken_name(target: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    says(monkeypatch, DONE)
    assert invoke(["train", "-t", target, "--name", "qwen2.5-coder-0.5b"]) == 1
    assert "--name qwen2.5-coder-0.5b-2" in capsys.readouterr().err
    assert Fake.plans == []


@pytest.mark.parametrize("words", [["--kind", "eagle"], ["--hours", "0"], ["--tokens", "5"], ["--temp", "1"], ["--heads", "0"]])
def test_wrong_usage(target: str, words: list[str]) -> None:
    assert invoke(["train", "-t", target, *words]) == 2
