"""Copies reach the desktop's clipboard where a tool of it is there; over ssh only the terminal can do it."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from app import clipboard
from tests.app.tui_world import World, started, wait_for

NAMES = ("pbcopy", "wl-copy", "xclip", "xsel", "clip.exe")


@pytest.fixture
def tools(tmp_path: Path) -> Path:
    """A folder with every tool; each writes what it gets into a file of its name."""
    for name in NAMES:
        tool = tmp_path / name
        tool.write_text(f"#!{sys.executable}\nimport sys\nopen({str(tmp_path / 'got')!r}, 'wb').write(sys.stdin.buffer.read())\n")
        tool.chmod(0o700)
    return tmp_path


@pytest.mark.parametrize(
    ("environment", "platform", "found"),
    [
        ({}, "linux", None),
        ({"DISPLAY": ":0"}, "linux", "xclip"),
        ({"DISPLAY": ":0", "WAYLAND_DISPLAY": "w"}, "linux", "wl-copy"),
        ({"WSL_DISTRO_NAME": "x"}, "linux", "clip.exe"),
        ({}, "darwin", "pbcopy"),
        ({"DISPLAY": ":0", "SSH_CONNECTION": "a b"}, "linux", None),
        ({"SSH_TTY": "/dev/pts/1"}, "darwin", None),
    ],
)
def test_which_tool(tools: Path, environment: dict[str, str], platform: str, found: str | None) -> None:
    command = clipboard.tool({**environment, "PATH": str(tools)}, platform)
    assert (command[0] if command else None) == found


def test_a_tool_that_is_not_there(tmp_path: Path) -> None:
    assert clipboard.tool({"DISPLAY": ":0", "PATH": str(tmp_path)}, "linux") is None
    clipboard._run("text", [str(tmp_path / "gone")])  # nothing happens


async def test_a_copy_goes_both_ways(tools: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The exact text, to the terminal and to the tool."""
    for name in (*clipboard.REMOTE, "WAYLAND_DISPLAY", "WSL_DISTRO_NAME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("DISPLAY", ":0")
    monkeypatch.setenv("PATH", f"{tools}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setattr(sys, "platform", "linux")
    world = World()
    async with world.app.run_test() as pilot:
        await started(world, pilot)
        world.app.copy_to_clipboard("naïve\n你好")
        assert world.app.clipboard == "naïve\n你好"
        await wait_for(pilot, lambda: (tools / "got").exists() and (tools / "got").read_text("utf-8") == "naïve\n你好")
