"""Which saved chat the command line opens."""

from __future__ import annotations

import pytest

from app import tui
from app.chat import ChatOptions
from app.cli import invoke


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch, tmp_path: object) -> list[ChatOptions]:
    """What the chat was opened with."""
    found: list[ChatOptions] = []

    def run_chat(options: ChatOptions, *_: object, **__: object) -> int:
        found.append(options)
        return 0

    monkeypatch.setenv("SPECCHAT_HOME", str(tmp_path))
    monkeypatch.setattr("app.console.is_terminal", lambda stream: True)
    monkeypatch.setattr(tui, "run_chat", run_chat)
    return found


@pytest.mark.parametrize(
    ("arguments", "resume"),
    [([], None), (["--continue"], ""), (["--chat", "12"], "12"), (["--chat", "about rivers"], "about rivers"), (["--chat", ""], "")],
)
def test_which_chat(opened: list[ChatOptions], arguments: list[str], resume: str | None) -> None:
    assert invoke(arguments) == 0
    assert [options.resume for options in opened] == [resume]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--continue", "--chat", "1"], "not both"),
        (["--continue", "run", "x"], "no meaning with a command"),
        (["--chat"], "requires an argument"),
    ],
)
def test_wrong_usage(opened: list[ChatOptions], arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert invoke(arguments) == 2
    assert words in capsys.readouterr().err
    assert opened == []
