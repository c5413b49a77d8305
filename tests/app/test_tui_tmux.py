"""The chat in a real terminal: keys of plain terminals, escape sequences, resize, and a restored screen at the end."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from app.tui import run_chat

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.skipif(shutil.which("tmux") is None, reason="needs tmux")


class Terminal:
    """One tmux window, on a server of its own."""

    def __init__(self, folder: Path, command: str) -> None:
        self._socket = str(folder / "tmux")
        self.log = folder / "output"
        self("-f", "/dev/null", "new-session", "-d", "-s", "t", "-x", "80", "-y", "24", "sh")
        self("pipe-pane", "-t", "t", f"cat > {self.log}")
        self("send-keys", "-t", "t", f"cd {ROOT} && {command}; echo code=$?", "Enter")

    def __call__(self, *arguments: str) -> str:
        # An environment of our own: pytest loads readline, which puts COLUMNS and LINES into that of the process.
        command = ["tmux", "-S", self._socket, *arguments]
        return subprocess.run(command, env=dict(os.environ), capture_output=True, text=True, timeout=20, check=False).stdout

    def keys(self, *keys: str) -> None:
        self("send-keys", "-t", "t", *keys)

    def screen(self) -> str:
        return self("capture-pane", "-t", "t", "-p")

    def wait_for(self, text: str, timeout_s: float = 30.0) -> str:
        end_s = time.monotonic() + timeout_s
        while text not in (screen := self.screen()):
            assert time.monotonic() < end_s, f"{text!r} is not in\n{screen}"
            time.sleep(0.1)
        return screen


@pytest.fixture
def terminal(tmp_path: Path) -> Iterator[Terminal]:
    opened = Terminal(tmp_path, f"{sys.executable} -m tests.app.tui_script")
    yield opened
    opened("kill-server")


def test_smoke(terminal: Terminal) -> None:
    """Start, newline by Alt+Enter, bracketed paste, send, stop, resize, quit."""
    terminal.wait_for("draft: ngram")
    terminal.keys("first")
    terminal.keys("M-Enter")
    time.sleep(0.3)
    terminal("set-buffer", "pasted\nlines")
    terminal("paste-buffer", "-p", "-t", "t")
    screen = terminal.wait_for("lines")
    assert [row.strip() for row in screen.split("\n")[-6:-3]] == ["first", "pasted", "lines"]
    assert "> You" not in screen
    terminal.keys("Enter")
    terminal.wait_for("word word")
    terminal.keys("Escape")
    terminal.wait_for("Stopped by you")
    terminal("resize-window", "-t", "t", "-x", "120", "-y", "40")
    terminal.wait_for(" " * 80 + "big nf4")  # the header has grown
    terminal.wait_for("␛]52;c;aGVsbG8=␇")
    terminal.keys("C-q")
    terminal.wait_for("code=0")
    output = terminal.log.read_bytes()
    assert b"\x1b]52" not in output
    assert output.rindex(b"\x1b[?1049l") > output.rindex(b"\x1b[?1049h")


def test_a_dumb_terminal_is_told(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    from app.chat import ChatOptions

    monkeypatch.setenv("TERM", "dumb")
    assert run_chat(ChatOptions()) == 2
    assert "specchat run 'PROMPT'" in capsys.readouterr().err
