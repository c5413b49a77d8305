"""Pictures of saved chats: the list at three sizes, the cursor with branches and versions, an interrupted reply, a question, a search."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from textual.pilot import Pilot

from app.chat import Chat
from app.saved import chat_row, message_rows, restore
from app.store import Store
from tests.app.chats_made import answer, keep, talk
from tests.app.test_snapshots import SIZES, press, same, world
from tests.app.tui_world import Machine, World, started, wait_for

SHELL = "Two ways:\n\n```sh\nls | wc -l\n```\n\n- or `find`\n"


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    """Three saved chats, the last one with branches and versions."""
    monkeypatch.setattr("app.screens.chats.when", lambda *_: "12:04")
    store = Store(tmp_path / "chats.db")
    last = talk(("How many files are here?", SHELL), ("Explain the second.", "<think>\nWhich one?\n</think>\n\nIt *walks* the tree."))
    answer(last, last.request(), "<think>\nfind.\n</think>\n\nIt walks.")
    answer(last, last.ask_instead(last.turns[1], "Explain the first."), "It counts lines.", stopped=True)
    last.turns[1].fork.step(-1)
    for n, chat in enumerate(
        (talk(("About rivers in Europe", "The Danube flows."), ("And in Asia?", "x")), talk(("你好，世界 🎉", "x")), last)
    ):
        keep(store, chat)
        store._db.execute("UPDATE chats SET changed = ? WHERE key = ?", (1e9 + n, chat.key))
    store.close()
    return Machine(chats=tmp_path / "chats.db")


def last_chat(machine: Machine) -> Chat:
    store = machine.open_store()
    chat = talk()
    restore(chat, *store.load(store.find("").key))
    store.close()
    return chat


async def ready(new: World, pilot: Pilot[int]) -> None:
    """The model is loaded, and its memory is shown."""
    await started(new, pilot)
    await wait_for(pilot, lambda: "mem " in new.shown())


@pytest.mark.parametrize("size", SIZES, ids=lambda size: f"{size[0]}x{size[1]}")
async def test_list(machine: Machine, size: tuple[int, int]) -> None:
    new = world(machine=machine)
    async with new.app.run_test(size=size) as pilot:
        await ready(new, pilot)
        await press(new, pilot, "ctrl+o", until="About rivers")
        await press(new, pilot, "down", "down")
        await same(new, pilot, f"chats-{size[0]}")


async def test_search(machine: Machine) -> None:
    new = world(machine=machine)
    async with new.app.run_test(size=(80, 24)) as pilot:
        await ready(new, pilot)
        await press(new, pilot, "ctrl+o", until="About rivers")
        await press(new, pilot, *"danube", until="1 chat found")
        await same(new, pilot, "chats-found")


@pytest.mark.parametrize("size", SIZES, ids=lambda size: f"{size[0]}x{size[1]}")
async def test_cursor_branches_and_versions(machine: Machine, size: tuple[int, int]) -> None:
    new = world(machine=machine, resume="")
    async with new.app.run_test(size=size) as pilot:
        await ready(new, pilot)
        await wait_for(pilot, lambda: len(new.asked) == 2)
        await press(new, pilot, "tab", "k", until="branch 1/2")
        await same(new, pilot, f"cursor-{size[0]}")


async def test_interrupted(machine: Machine) -> None:
    """As after a crash, with thoughts that are open."""
    chat = last_chat(machine)
    chat.think = "show"
    version = chat.turns[1].replies[1]
    version.state, version.done = "interrupted", replace(version.done, finish_reason="cancelled")
    store = machine.open_store()
    store.save(chat_row(chat), message_rows(chat))
    store.close()
    new = world(machine=machine, resume="")
    async with new.app.run_test(size=(80, 24)) as pilot:
        await ready(new, pilot)
        await wait_for(pilot, lambda: "[interrupted]" in new.shown() and not new.screen.transcript.below)
        await same(new, pilot, "interrupted")


async def test_editing_and_asking(machine: Machine) -> None:
    new = world(machine=machine, resume="")
    async with new.app.run_test(size=(80, 24)) as pilot:
        await ready(new, pilot)
        await wait_for(pilot, lambda: len(new.asked) == 2)
        await press(new, pilot, "tab", "k", "e", until="Editing a question")
        await same(new, pilot, "editing")
        await press(new, pilot, "escape", "tab", "d", until="Delete it")
        await same(new, pilot, "asking")
