"""The chat in a real terminal: keys of plain terminals, escape sequences, resize, and a restored screen at the end."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from app.tui import run_chat
from engine.places import cache_dir
from tests.patience import PATIENCE_S, Patience

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
        return subprocess.run(command, env=dict(os.environ), capture_output=True, text=True, timeout=PATIENCE_S, check=False).stdout

    def keys(self, *keys: str) -> None:
        self("send-keys", "-t", "t", *keys)

    def screen(self) -> str:
        return self("capture-pane", "-t", "t", "-p")

    def wait_for(self, text: str, patience_s: float = PATIENCE_S) -> str:
        return self.wait_until(lambda screen: text in screen, patience_s, text)

    def wait_until(self, shown: Callable[[str], object], patience_s: float = PATIENCE_S, what: str = "it") -> str:
        patience = Patience(patience_s)
        while not shown(screen := self.screen()):
            assert patience.left(), f"{what!r} is not in\n{screen}"
            time.sleep(0.1)
        return screen


@pytest.fixture
def open_terminal(tmp_path: Path) -> Iterator[Callable[[str], Terminal]]:
    terminals = []

    def opened(command: str) -> Terminal:
        terminals.append(Terminal(tmp_path, command))
        return terminals[-1]

    yield opened
    for terminal in terminals:
        terminal("kill-server")


@pytest.fixture
def terminal(open_terminal: Callable[[str], Terminal]) -> Terminal:
    return open_terminal(f"{sys.executable} -m tests.app.tui_script")


def test_smoke(terminal: Terminal) -> None:
    """Start, newline by Alt+Enter, bracketed paste, send, stop, resize, quit."""
    terminal.wait_for("draft: ngram")
    terminal.keys("first")
    terminal.keys("M-Enter")
    terminal("set-buffer", "pasted\nlines")
    terminal("paste-buffer", "-p", "-t", "t")
    screen = terminal.wait_until(lambda screen: [row.strip() for row in screen.split("\n")[-6:-3]] == ["first", "pasted", "lines"])
    assert "> You" not in screen
    terminal.keys("Enter")
    terminal.wait_for("word word")
    terminal.keys("Escape")
    terminal.wait_for("Stopped by you")
    terminal("resize-window", "-t", "t", "-x", "120", "-y", "40")
    terminal.wait_for(" " * 60 + "big nf4")  # the header has grown
    terminal.wait_for("␛]52;c;aGVsbG8=␇")
    terminal.keys("C-q")
    terminal.wait_for("code=0")
    output = terminal.log.read_bytes()
    assert b"\x1b]52" not in output
    assert output.rindex(b"\x1b[?1049l") > output.rindex(b"\x1b[?1049h")


def walk(terminal: Terminal, question: str, drafter: str, patience_s: float) -> None:
    """Chat, stop in mid-reply, resize, swap the drafter, compare, quit; the exit code is 0 and the terminal as it was."""
    terminal.wait_for("draft:", patience_s)
    terminal.wait_for("idle", patience_s)
    if question:
        terminal("send-keys", "-t", "t", "-l", question)
    terminal.keys("Enter")
    terminal.wait_for("GEN", patience_s)
    terminal.keys("Escape")
    terminal.wait_for("Stopped by you", patience_s)
    terminal("resize-window", "-t", "t", "-x", "120", "-y", "40")
    terminal.wait_for(" " * 60, patience_s)
    terminal("send-keys", "-t", "t", "-l", f"/draft {drafter}")
    terminal.keys("Enter")
    terminal.wait_for(f"draft: {drafter}", patience_s)
    terminal("send-keys", "-t", "t", "-l", "/compare ngram")
    terminal.keys("Enter")
    terminal.wait_for("one lane at a time", patience_s)
    terminal.keys("Enter")
    screen = terminal.wait_for("Both texts are identical", patience_s)
    assert "wins by" in screen
    terminal("resize-window", "-t", "t", "-x", "60", "-y", "16")
    terminal.wait_for("identical", patience_s)
    terminal.keys("Escape")
    terminal.wait_for("Enter send", patience_s)
    terminal.keys("C-q")
    terminal.wait_for("code=0", patience_s)
    output = terminal.log.read_bytes()
    assert output.rindex(b"\x1b[?1049l") > output.rindex(b"\x1b[?1049h")
    for mode in (b"1000", b"1006", b"2004", b"1004"):  # mouse, paste and focus reports are off again
        if b"\x1b[?" + mode + b"h" in output:
            assert output.rindex(b"\x1b[?" + mode + b"l") > output.rindex(b"\x1b[?" + mode + b"h"), mode
    assert output.rindex(b"\x1b[?25h") > output.rindex(b"\x1b[?25l")


def test_the_demo_from_start_to_end(open_terminal: Callable[[str], Terminal], tmp_path: Path) -> None:
    walk(open_terminal(f"SPECCHAT_HOME={tmp_path}/home {sys.executable} -m tests.app.demo_script 3"), "", "none", PATIENCE_S)


@pytest.mark.real
@pytest.mark.quick
def test_a_real_model_from_start_to_end(open_terminal: Callable[[str], Terminal], tmp_path: Path) -> None:
    """On a home of its own that finds the models of the real one."""
    home = tmp_path / "home"
    home.mkdir()
    (home / "cache").symlink_to(cache_dir())
    command = f"{sys.executable} -c 'from app.cli import main; main()' -t smollm2-135m -d ngram --offline"
    question = "Tell me a long story about a fox and a dog."
    walk(open_terminal(f"SPECCHAT_HOME={home} {command}"), question, "none", 300.0)


def test_a_dumb_terminal_is_told(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    from app.chat import ChatOptions

    monkeypatch.setenv("TERM", "dumb")
    assert run_chat(ChatOptions()) == 2
    assert "specchat run 'PROMPT'" in capsys.readouterr().err
