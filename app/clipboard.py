"""The system's clipboard, for terminals that do not pass a text on to it (OSC 52): the tool that this desktop has, if any.

Over ssh the desktop is elsewhere, so only the terminal can reach it.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Mapping

TOOL_S = 3.0
REMOTE = ("SSH_CONNECTION", "SSH_CLIENT", "SSH_TTY")


def tool(environment: Mapping[str, str] = os.environ, platform: str = sys.platform) -> list[str] | None:
    """The command that takes a text from its input to the clipboard; None where there is none, or no desktop."""
    if any(environment.get(name) for name in REMOTE):
        return None
    wanted: list[list[str]] = []
    if platform == "darwin":
        wanted.append(["pbcopy"])
    elif platform == "win32":
        wanted.append(["clip"])
    elif environment.get("WAYLAND_DISPLAY"):
        wanted.append(["wl-copy"])
    if environment.get("DISPLAY"):
        wanted += [["xclip", "-selection", "clipboard"], ["xsel", "--clipboard", "--input"]]
    if environment.get("WSL_DISTRO_NAME"):
        wanted.append(["clip.exe"])
    path = environment.get("PATH")
    return next((command for command in wanted if shutil.which(command[0], path=path)), None)


def put(text: str, command: list[str]) -> None:
    """Hand a text to a tool, in the background: a desktop that does not answer holds nothing up."""
    threading.Thread(target=_run, args=(text, command), name="specchat-clipboard", daemon=True).start()


def _run(text: str, command: list[str]) -> None:
    encoding = "utf-16-le" if command[0].startswith("clip") else "utf-8"
    try:  # no pipes for its output: some tools stay as a server and would hold them open
        subprocess.run(
            command,
            input=text.encode(encoding, "replace"),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            timeout=TOOL_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return  # the terminal was asked as well
