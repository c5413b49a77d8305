"""A terminal that goes without a signal: it is noticed, only it is, and the program ends with everything saved."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from app.chat import Chat, ChatOptions
from app.hangup import EXIT_CODE, hung_up
from app.saved import restore
from app.store import Store
from tests.app.test_cli_process import read_until
from tests.app.tui_script import NASTY
from tests.patience import PATIENCE_S

pty = pytest.importorskip("pty")
ROOT = Path(__file__).parents[2]


@pytest.fixture
def ends() -> Iterator[Callable[[int], int]]:
    """Keeps descriptors until the end of a test."""
    kept: list[int] = []

    def keep(descriptor: int) -> int:
        kept.append(descriptor)
        return descriptor

    yield keep
    for descriptor in kept:
        os.close(descriptor)


def test_a_terminal_is_gone_once_its_other_side_is_closed(ends: Callable[[int], int]) -> None:
    ours, theirs = pty.openpty()
    ends(theirs)
    assert not hung_up(theirs)
    os.write(ours, b"typed\n")
    assert not hung_up(theirs)
    assert os.read(theirs, 100) == b"typed\n"  # looking took nothing
    os.close(ours)
    assert hung_up(theirs)
    assert hung_up(theirs)


def test_what_was_typed_last_hides_nothing(ends: Callable[[int], int]) -> None:
    ours, theirs = pty.openpty()
    os.write(ours, b"typed\n")
    os.close(ours)
    assert hung_up(ends(theirs))


def test_nothing_else_is_ever_gone(ends: Callable[[int], int], tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for path in (Path(os.devnull), tmp_path / "file"):
        assert not hung_up(ends(os.open(path, os.O_RDONLY)))
    reading, writing = os.pipe()
    assert not hung_up(ends(reading))
    os.close(writing)
    assert not hung_up(reading)
    assert not hung_up(writing)  # not open


def test_the_program_ends_and_the_reply_is_kept(tmp_path: Path) -> None:
    """In a terminal that does not control it, so that the kernel sends no SIGHUP."""
    database = tmp_path / "chats.db"
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.app.tui_script", str(database)],
        cwd=ROOT,
        env={**os.environ, "TERM": "xterm-256color", "COLUMNS": "80", "LINES": "24", "SPECCHAT_HOME": str(tmp_path / "home")},
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        start_new_session=True,
    )
    os.close(theirs)
    try:
        read_until(ours, b"draft: ngram")
        os.write(ours, b"Why?\r")
        read_until(ours, b"word word")
        os.close(ours)
        assert process.wait(timeout=PATIENCE_S) == EXIT_CODE  # a traceback would make it 1
    finally:
        process.kill()
        process.wait()
    store = Store(database)
    assert store.recover() == []  # it was ended, not interrupted
    (found,) = store.chats()
    chat = Chat(ChatOptions())
    restore(chat, *store.load(found.key))
    store.close()
    assert chat.turns[0].prompt == "Why?"
    version = chat.turns[0].answer
    assert version is not None
    assert version.state == "done"
    assert "word word" in version.text
    assert NASTY.startswith(version.text)
