"""kill -9 in the middle of a reply, at random moments: the next start has everything but at most the last second."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Lock

import pytest

from app.chat import Chat, ChatOptions
from app.saved import restore
from app.store import Store
from tests.app.store_child import QUESTION, TEXT, TICK_S
from tests.app.tui_world import SHORT, Machine, World, wait_for
from tests.patience import wait_until

ROOT = Path(__file__).parents[2]
MOMENTS = 20
TOGETHER = 2
LAST_S = 1.0
pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")


@pytest.fixture(scope="module")
def nursery() -> Iterator[Callable[[Path], int]]:
    """Starts a chat in a folder, returns its process."""
    mother = subprocess.Popen(
        [sys.executable, "-m", "tests.app.store_child"], cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    )
    assert mother.stdin is not None
    assert mother.stdout is not None

    one_at_a_time = Lock()

    def start(folder: Path) -> int:
        with one_at_a_time:
            mother.stdin.write(f"{folder}\n".encode())  # type: ignore[union-attr]
            mother.stdin.flush()  # type: ignore[union-attr]
            return int(mother.stdout.readline())  # type: ignore[union-attr]

    yield start
    mother.kill()
    mother.wait()


def log_of(folder: Path) -> list[str]:
    file = folder / "log"
    return file.read_text().split("\n")[:-1] if file.exists() else []


def killed(start: Callable[[Path], int], folder: Path, ticks: int) -> list[str]:
    """A chat that was killed so many ticks after its question; returns its log."""
    pid = start(folder)
    try:
        wait_until(lambda: "sent" in log_of(folder))
        wait_until(lambda: log_of(folder)[log_of(folder).index("sent") :].count(".") >= ticks)
    finally:
        os.kill(pid, signal.SIGKILL)
    wait_until(lambda: not running(pid))
    return log_of(folder)


def running(pid: int) -> bool:
    """Not dead, and not waiting for its mother to take notice."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@pytest.fixture(scope="module")
def deaths(nursery: Callable[[Path], int], tmp_path_factory: pytest.TempPathFactory) -> dict[int, tuple[Path, list[str]]]:
    """Folder and log of each moment; some die at the same time."""
    folders = {moment: tmp_path_factory.mktemp(f"moment{moment}") for moment in range(MOMENTS)}

    def die(moment: int) -> list[str]:
        return killed(nursery, folders[moment], random.Random(moment).randint(0, 80))

    with ThreadPoolExecutor(TOGETHER) as pool:
        return {moment: (folders[moment], log) for moment, log in enumerate(pool.map(die, range(MOMENTS)))}


@pytest.mark.parametrize("moment", range(MOMENTS))
def test_kill_in_the_middle_of_a_reply(deaths: dict[int, tuple[Path, list[str]]], moment: int) -> None:
    folder, log = deaths[moment]
    last_second = [n for n, line in enumerate(log) if line == "."][-round(LAST_S / TICK_S) - 1 :]
    before = log[: last_second[0]] if last_second else []
    surely = max((int(line) for line in before if line.isdecimal()), default=0)

    store = Store(folder / "chats.db")
    recovered = store.recover()
    listed = store.chats()
    assert [chat.turns for chat in listed] == [1]
    chat = Chat(ChatOptions())
    restore(chat, *store.load(listed[0].key))
    store.close()
    assert chat.turns[0].prompt == QUESTION
    version = chat.turns[0].answer
    if version is None:
        assert surely == 0
        return
    assert TEXT.startswith(version.text)
    assert len(version.text) >= surely
    assert version.state == "interrupted"
    assert recovered == [chat.key]
    assert "".join(segment.text for segment in version.segments) == version.text
    assert len(version.done.token_ids) == sum(len(segment.token_ids) for segment in version.segments)


async def test_the_next_start_shows_it(nursery: Callable[[Path], int], tmp_path: Path) -> None:
    """The conversation is on the screen, marked, and Enter in the empty box goes on with it."""
    killed(nursery, tmp_path, 50)
    world = World(SHORT, machine=Machine(chats=tmp_path / "chats.db"))
    async with world.app.run_test(size=(80, 30)) as pilot:
        await wait_for(pilot, lambda: world.replies and "[interrupted]" in world.shown())
        assert world.asked == [QUESTION]
        begun = world.replies[0].exact
        assert begun
        assert TEXT.startswith(begun)
        tokens = len(world.screen.chat.turns[0].replies[0].done.token_ids)
        await wait_for(pilot, lambda: world.screen.loaded.ready)
        await pilot.press("enter")
        await wait_for(pilot, lambda: world.requests and world.rests)
        request = world.requests[0]
        assert request.carry_on
        assert request.offset == tokens
        assert request.messages[-1].content == begun
        assert world.replies[0].exact == begun + SHORT
        assert "[interrupted]" not in world.shown()
