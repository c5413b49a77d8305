"""`specchat compare`: lanes, agreement, JSON, limits, exit codes."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

import app.compare_command
from app import results
from app.cli import invoke
from app.report import ROW_KEYS
from engine.catalog import hub
from engine.protocol import Command, Event, Failed, Generate, Ready, SwapDrafter, Weigh, Weighed
from tests.app.fake_client import FakeClient, done_for, steps_for

IDS = [11, 12, 13, 14]
Reply = Callable[[Generate, Ready], list[Event]]


def reply(command: Generate, ready: Ready) -> list[Event]:
    widths, drafted = ([2, 2], 1) if ready.drafter != "none" else ([1, 1, 1, 1], 0)
    return [*steps_for(command, IDS, widths, 0.02, drafted), done_for(command, IDS, ready)]


def other_text(ids: list[int]) -> Reply:
    """The look-up writes something else."""

    def made(command: Generate, ready: Ready) -> list[Event]:
        if ready.drafter != "ngram":
            return reply(command, ready)
        return [*steps_for(command, ids, [1] * len(ids), 0.02, 1), done_for(command, ids, ready)]

    return made


class WeighingClient(FakeClient):
    """Knows how near two tokens were."""

    def send(self, command: Command) -> None:
        super().send(command)
        if isinstance(command, Weigh):
            self._events.append(Weighed((17.25, 17.0)))


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SPECCHAT_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(hub, "pull", lambda *a, **k: pytest.fail("pulled"))
    monkeypatch.setattr("app.run._is_piped", lambda: False)
    for name in ("big", "small"):
        (tmp_path / f"{name}.gguf").write_bytes(b"GGUF")
    return tmp_path


@pytest.fixture
def target(home: Path) -> str:
    return str(home / "big.gguf")


def use(monkeypatch: pytest.MonkeyPatch, client: FakeClient) -> FakeClient:
    monkeypatch.setattr(app.compare_command, "EngineClient", lambda: client)
    return client


def test_table_and_agreement(home: Path, target: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    client = use(monkeypatch, WeighingClient(reply))
    assert invoke(["compare", "Why?", "-t", target, "-d", "ngram", "-d", str(home / "small.gguf"), "--seed", "3"]) == 0
    out, err = capsys.readouterr()
    assert [line.split("|")[1].strip() for line in out.splitlines()[2:5]] == ["none", "ngram", "small"]
    assert "2.00x" in out
    assert out.splitlines()[-1] == "All three texts are identical (4 tokens)."
    assert "saved in" in err
    replies = [c for c in client.sent if isinstance(c, Generate) and c.messages[-1].content == "Why?"]
    assert len({(c.seed, c.sampling.temperature, c.messages) for c in replies}) == 1
    assert len(replies) == 3
    assert [c.drafter.name for c in client.sent if isinstance(c, SwapDrafter)] == ["none", "ngram", "small"]
    assert not any(isinstance(c, Weigh) for c in client.sent)
    (saved,) = results.entries()
    assert saved.report["kind"] == "compare"
    assert client.closed == 1


def test_json_has_the_rows_of_bench_and_the_agreement(
    home: Path, target: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    use(monkeypatch, WeighingClient(reply))
    assert invoke(["compare", "Why?", "-t", target, "-d", "ngram", "--json"]) == 0
    written = json.loads(capsys.readouterr().out)
    assert [row["drafter"] for row in written["rows"]] == ["none", "ngram"]
    assert all(set(row) == set(ROW_KEYS) for row in written["rows"])
    assert written["agreement"] == {
        "identical": True,
        "lanes": [{"drafter": "ngram", "identical": True, "tokens": 4, "difference": None}],
        "text": "Both texts are identical (4 tokens).",
    }
    assert written["text"] == " 11 12 13 14"


def test_the_first_difference_is_named_with_the_logit_gap(
    home: Path, target: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    client = use(monkeypatch, WeighingClient(other_text([11, 12, 99, 14])))
    assert invoke(["compare", "Why?", "-t", target, "-d", "ngram", "--json"]) == 0
    agreement = json.loads(capsys.readouterr().out)["agreement"]
    assert agreement["identical"] is False
    assert agreement["lanes"][0]["difference"] == {"token": 3, "ours": " 99", "plain": " 13", "gap": 0.25}
    assert agreement["text"] == "ngram differs from plain at token 3: ' 99' instead of ' 13' (logit gap 0.2500)."
    (asked,) = (c for c in client.sent if isinstance(c, Weigh))
    assert (asked.ids, asked.tokens) == ((11, 12), (13, 99))
    assert asked.prompt.messages[-1].content == "Why?"


def test_a_text_that_ends_early_differs_without_a_gap(
    target: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    client = use(monkeypatch, WeighingClient(other_text([11, 12])))
    assert invoke(["compare", "Why?", "-t", target, "-d", "ngram"]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == "ngram differs from plain at token 3: the end of the text instead of ' 13'."
    assert not any(isinstance(c, Weigh) for c in client.sent)


def test_the_ratio_rule_differs_by_design(target: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    use(monkeypatch, WeighingClient(other_text([11, 12, 99, 14])))
    assert invoke(["compare", "Why?", "-t", target, "-d", "ngram", "--verify", "ratio", "--temp", "1"]) == 0
    assert "by design" in capsys.readouterr().out.splitlines()[-1]


def test_repeats(target: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    use(monkeypatch, WeighingClient(reply))
    assert invoke(["compare", "Why?", "-t", target, "-d", "ngram", "--repeat", "3", "--json"]) == 0
    assert [row["replies"] for row in json.loads(capsys.readouterr().out)["rows"]] == [3, 3]


def test_more_than_three_drafters_are_refused(target: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    client = use(monkeypatch, WeighingClient(reply))
    arguments = [part for name in ("ngram", "auto", "smollm2-135m", "qwen3-0.6b") for part in ("-d", name)]
    assert invoke(["compare", "Why?", "-t", target, *arguments]) == 2
    assert "up to 3 drafters" in capsys.readouterr().err
    assert client.sent == []


def test_without_a_prompt_it_says_how(target: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert invoke(["compare", "-t", target, "-d", "ngram"]) == 2
    assert "specchat compare 'PROMPT'" in capsys.readouterr().err


def test_a_lane_that_fails_is_exit_code_1(
    home: Path, target: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    failing = WeighingClient(reply, {"small": Failed("Another vocabulary.", "Take the bridge.", "vocabulary")})
    use(monkeypatch, failing)
    assert invoke(["compare", "Why?", "-t", target, "-d", str(home / "small.gguf"), "-d", "ngram"]) == 1
    out, err = capsys.readouterr()
    assert "error: small: Another vocabulary." in err
    assert out.splitlines()[-1] == "Both texts are identical (4 tokens)."


def test_a_stop_is_exit_code_130(target: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def stopped(command: Generate, ready: Ready) -> list[Event]:
        if ready.drafter == "ngram":
            return [replace(done_for(command, [1], ready), finish_reason="cancelled")]
        return reply(command, ready)

    use(monkeypatch, WeighingClient(stopped))
    assert invoke(["compare", "Why?", "-t", target, "-d", "ngram", "--json"]) == 130
    written = json.loads(capsys.readouterr().out)
    assert written["stopped"] is True
    assert written["agreement"]["text"] == "There are no two texts to compare."


def test_results_that_cannot_be_kept_are_still_shown(
    home: Path, target: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    use(monkeypatch, WeighingClient(reply))
    (home / "home" / "data").mkdir(parents=True)
    (home / "home" / "data" / "bench").write_text("in the way")
    assert invoke(["compare", "Why?", "-t", target, "-d", "ngram"]) == 0
    out, err = capsys.readouterr()
    assert "Both texts are identical" in out
    assert "note: the result is not saved." in err
