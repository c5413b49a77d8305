"""Saved chats on the screen: opening, the list, search, titles, drafts, and what happens when saving fails."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from app.chat import Chat, ChatOptions
from app.owners import myself
from app.saved import chat_row, restore
from app.screens.chats import ChatsScreen, when
from app.screens.name import NameScreen
from app.store import Store
from app.widgets.reply import Reply
from engine.catalog.specs import NGRAM
from engine.errors import EngineError
from engine.protocol import Sampling
from tests.app.chats_made import keep, talk
from tests.app.test_tui_commands import say
from tests.app.tui_world import BIG, SHORT, Machine, World, ask, held, scripted, sees, started, wait_for
from tests.patience import PATIENCE_S


def world(folder: Path, *replies: str, resume: str | None = None, **options: object) -> World:
    """An application whose chats are in this folder."""
    chosen = ChatOptions(target=BIG, drafter=NGRAM, resume=resume, **options)  # type: ignore[arg-type]
    return World(*replies, machine=Machine(chats=folder / "chats.db"), options=chosen)


def saved(folder: Path) -> list[Chat]:
    """What is in the database now."""
    store = Store(folder / "chats.db")
    chats = []
    for listed in store.chats():
        chat = Chat(ChatOptions())
        restore(chat, *store.load(listed.key))
        chats.append(chat)
    store.close()
    return chats


def prepared(folder: Path, *chats: Chat) -> None:
    """Put chats into the database, the last one newest."""
    store = Store(folder / "chats.db")
    for chat in chats:
        keep(store, chat)
        time.sleep(0.002)
    store.close()


async def test_a_chat_is_saved_and_opens_again(tmp_path: Path) -> None:
    """With its versions, its seed, its numbers and its tokens; the screen after --continue is that of before."""
    first = world(tmp_path, "One.", "Uno.", "Two.", seed=5)
    async with first.app.run_test(size=(100, 30)) as pilot:
        await started(first, pilot)
        await ask(first, pilot, "count")
        await pilot.press("ctrl+r")
        await wait_for(pilot, lambda: len(first.requests) == 2 and first.rests)
        await ask(first, pilot, "go on")
        await sees(first, pilot, "Two.", f"seed {first.requests[-1].seed}")
        before = first.shown().split("\n")[1:-4]
    assert [chat.markdown() for chat in saved(tmp_path)] == [first.screen.chat.markdown()]
    again = world(tmp_path, "Three.", resume="")
    async with again.app.run_test(size=(100, 30)) as pilot:
        await started(again, pilot)
        await wait_for(pilot, lambda: len(again.replies) == 2)
        await wait_for(pilot, lambda: again.shown().split("\n")[1:-4] == before)
        assert "count" in again.shown().split("\n")[0]
        await ask(again, pilot, "and?")
        assert [m.content for m in again.requests[0].messages] == ["count", "Uno.", "go on", "Two.", "and?"]
        await pilot.press("ctrl+t")
        await wait_for(pilot, lambda: all(reply.as_tokens for reply in again.replies))


async def test_the_question_is_on_the_disk_before_the_first_token(tmp_path: Path) -> None:
    app = World(held(SHORT, 0), machine=Machine(chats=tmp_path / "chats.db"))
    async with app.app.run_test() as pilot:
        await started(app, pilot)
        app.screen.prompt.put("why?")
        await pilot.press("enter")
        await wait_for(pilot, lambda: app.requests)
        await wait_for(pilot, lambda: [[turn.prompt for turn in chat.turns] for chat in saved(tmp_path)] == [["why?"]])
        await pilot.press("escape")
        await wait_for(pilot, lambda: app.screen.prompt.text == "why?")
    assert [(chat.turns, chat.draft) for chat in saved(tmp_path)] == [([], "why?")]


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> asyncio.Event:
    """The last drawing of a reply waits until this is set."""
    drawn = asyncio.Event()
    finish = Reply.finish

    async def later(self: Reply, *what: Any) -> None:
        await drawn.wait()
        await finish(self, *what)

    monkeypatch.setattr(Reply, "finish", later)
    return drawn


async def test_a_reply_goes_on_while_it_is_drawn_for_the_last_time(tmp_path: Path, drawn: asyncio.Event) -> None:
    """The next one may begin as soon as the model is free."""
    app = World(scripted("One, two, ", finish_reason="length"), scripted("three."), machine=Machine(chats=tmp_path / "chats.db"))
    async with app.app.run_test() as pilot:
        await started(app, pilot)
        app.screen.prompt.put("count")
        await pilot.press("enter")
        await wait_for(pilot, lambda: app.requests and app.screen.chat.pending is None)
        app.screen.prompt.put("/continue")
        await pilot.press("enter")
        await wait_for(pilot, lambda: len(app.requests) == 2)
        drawn.set()
        await wait_for(pilot, lambda: app.rests and app.screen.chat.last is not None and app.screen.chat.last.text == "One, two, three.")
        assert [reply.exact for reply in app.replies] == ["One, two, three."]


async def test_a_reply_is_on_the_disk_before_it_is_drawn_for_the_last_time(tmp_path: Path, drawn: asyncio.Event) -> None:
    app = World(SHORT, machine=Machine(chats=tmp_path / "chats.db"))
    async with app.app.run_test() as pilot:
        await started(app, pilot)
        app.screen.prompt.put("why?")
        await pilot.press("enter")
        await wait_for(
            pilot,
            lambda: [[(a.text, a.state) for turn in chat.turns if (a := turn.answer)] for chat in saved(tmp_path)] == [[(SHORT, "done")]],
        )
        drawn.set()


async def test_the_list_opens_searches_renames_and_deletes(tmp_path: Path) -> None:
    prepared(tmp_path, talk(("about rivers", "The Danube.")), talk(("about snow", "White.")), talk(("about ice", "Cold.")))
    app = world(tmp_path)
    async with app.app.run_test(size=(100, 30), notifications=True) as pilot:
        await started(app, pilot)
        await pilot.press("ctrl+o")
        await wait_for(pilot, lambda: "about rivers" in app.shown())
        rows = [row for row in app.shown().split("\n") if "about" in row]
        assert [row.split()[0] for row in rows] == ["3", "2", "1"]
        await sees(app, pilot, "3 chats")
        await pilot.press(*"danube")
        await wait_for(pilot, lambda: "1 chat found" in app.shown())
        await sees(app, pilot, "The Danube.")
        await pilot.press("enter")
        await wait_for(pilot, lambda: app.asked == ["about rivers"])
        assert "about rivers" in app.shown().split("\n")[0]
        await wait_for(pilot, lambda: app.screen.transcript.current is app.replies[0])  # where it was found
        await pilot.press("ctrl+o")
        await wait_for(pilot, lambda: "about snow" in app.shown())
        await pilot.press("down", "down", "r")  # the list, then the second row
        await wait_for(pilot, lambda: isinstance(app.app.screen, NameScreen))
        await pilot.press(*" white", "enter")
        await wait_for(pilot, lambda: "about snow white" in app.shown())
        await pilot.press("d")
        await wait_for(pilot, lambda: "2 chats" in app.shown())
        assert "about snow white" not in "\n".join(app.shown().split("\n")[:12])
        await pilot.press("u")
        await wait_for(pilot, lambda: "3 chats" in app.shown())
        app.app.screen.list.highlighted = 2  # type: ignore[attr-defined]
        await pilot.press("d")
        await wait_for(pilot, lambda: any("This chat is open" in text for text in app.toasts))
        app.app.screen.list.highlighted = 0  # type: ignore[attr-defined]
        await pilot.press("d")
        await wait_for(pilot, lambda: "2 chats" in app.shown())
        await pilot.press("escape")
        await wait_for(pilot, lambda: app.app.screen is app.screen)
        await wait_for(pilot, lambda: app.screen.focused is app.screen.prompt)
    assert sorted(chat.name for chat in saved(tmp_path)) == ["about rivers", "about snow white"]


async def test_who_deletes_a_chat_is_told_at_once_how_to_undo_it(tmp_path: Path) -> None:
    """By a toast and in the key bar; also after the list was left, in the order of deleting, and when no chat is left."""
    prepared(tmp_path, talk(("about rivers", "The Danube.")), talk(("about snow", "White.")))
    app = world(tmp_path)
    async with app.app.run_test(size=(100, 30), notifications=True) as pilot:
        await started(app, pilot)
        await pilot.press("ctrl+o")
        await wait_for(pilot, lambda: "about snow" in app.shown())
        assert "bring back" not in app.shown()
        await pilot.press("down", "d")
        await wait_for(pilot, lambda: "Deleted: about snow. u brings it back, until specchat ends." in app.toasts)
        await sees(app, pilot, "1 chat", "Deleted: about snow.", "u bring back")
        await pilot.press("escape")
        await wait_for(pilot, lambda: app.app.screen is app.screen)
        await pilot.press("ctrl+o")
        await wait_for(pilot, lambda: "about rivers" in app.shown() and "u bring back" in app.shown())
        await pilot.press("down", "d")
        await sees(app, pilot, "0 chats", "No chat is saved yet.", "u bring back")
        await pilot.press("u")
        await sees(app, pilot, "1 chat", "about rivers")
        await pilot.press("u")
        await sees(app, pilot, "2 chats", "about snow")
        await wait_for(pilot, lambda: "bring back" not in app.shown())
    assert len(saved(tmp_path)) == 2


async def test_a_chat_that_cannot_be_deleted_is_not_said_to_be(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(store: Store, key: int) -> None:
        raise EngineError("The disk is full.", "Make room.")

    prepared(tmp_path, talk(("about rivers", "The Danube.")))
    app = world(tmp_path)
    monkeypatch.setattr(Store, "delete", refuse)
    async with app.app.run_test(notifications=True) as pilot:
        await started(app, pilot)
        await pilot.press("ctrl+o")
        await wait_for(pilot, lambda: "about rivers" in app.shown())
        await pilot.press("down", "d")
        await wait_for(pilot, lambda: "The disk is full. Make room." in app.toasts)
        await sees(app, pilot, "1 chat")
        await wait_for(pilot, lambda: "bring back" not in app.shown())
    assert not any("Deleted" in text for text in app.toasts)


@pytest.mark.parametrize("size", [(60, 16), (80, 24), (120, 40)])
async def test_the_list_at_each_size(tmp_path: Path, size: tuple[int, int]) -> None:
    """No row is wider than the window, hostile titles are text, the keys are at the bottom."""
    chats = [talk((f"question {n} [bold]x[/] \x1b]0;title\x07 你好 " + "long " * 30, "x")) for n in range(40)]
    prepared(tmp_path, *chats)
    app = world(tmp_path)
    async with app.app.run_test(size=size) as pilot:
        await started(app, pilot)
        await say(app, pilot, "/chats question")
        await wait_for(pilot, lambda: "40 chats found" in app.shown())
        rows = app.shown().split("\n")
        assert rows[0].startswith(" Chats")
        assert "Enter open" in rows[-1]
        title = "[bold]x[/] ␛]0;title␇ 你好" if size[0] > 60 else "[bold]x[/] ␛]0;…"
        await sees(app, pilot, title)
        assert isinstance(app.app.screen, ChatsScreen)


@pytest.mark.parametrize("size", [(60, 16), (80, 24)])
async def test_a_long_title_leaves_room_for_the_facts(tmp_path: Path, size: tuple[int, int]) -> None:
    prepared(tmp_path, talk(("Write a short function that reverses a list, then explain it in three sentences", "x")))
    app = world(tmp_path)
    async with app.app.run_test(size=size) as pilot:
        await started(app, pilot)
        await pilot.press("ctrl+o")
        await wait_for(pilot, lambda: "1 chat" in app.shown())
        row = next(row for row in app.shown().split("\n") if "Write a" in row)
        assert "…" in row
        assert row.endswith("1 turn · big")


async def test_the_key_of_the_search_pressed_in_it_is_no_text(tmp_path: Path) -> None:
    """The key bar names it while the search has the focus already."""
    prepared(tmp_path, talk(("about rivers", "The Danube.")), talk(("about snow", "White.")))
    app = world(tmp_path)
    async with app.app.run_test() as pilot:
        await started(app, pilot)
        await pilot.press("ctrl+o")
        await wait_for(pilot, lambda: "2 chats" in app.shown())
        await pilot.press("/", *"danube")
        await wait_for(pilot, lambda: "1 chat found" in app.shown())


async def test_an_empty_list_and_a_search_without_result(tmp_path: Path) -> None:
    app = world(tmp_path)
    async with app.app.run_test() as pilot:
        await started(app, pilot)
        await pilot.press("ctrl+o")
        await wait_for(pilot, lambda: "No chat is saved yet." in app.shown())
        await pilot.press("enter", *"xyz")
        await wait_for(pilot, lambda: "No chat has this text." in app.shown())
        await pilot.press("escape")
        await wait_for(pilot, lambda: app.app.screen is app.screen)


async def test_open_by_number_title_or_not_at_all(tmp_path: Path) -> None:
    prepared(tmp_path, talk(("about rivers", "The Danube.")), talk(("about snow", "White.")))
    for resume, asked in (("1", ["about rivers"]), ("snow", ["about snow"]), ("", ["about snow"]), (None, [])):
        app = world(tmp_path, resume=resume)
        async with app.app.run_test() as pilot:
            await started(app, pilot)
            await wait_for(pilot, lambda app=app, asked=asked: app.asked == asked)
    for resume, what in (("glaciers", "'glaciers' in its title"), ("77", "the number 77")):
        app = world(tmp_path, resume=resume)
        async with app.app.run_test() as pilot:
            await started(app, pilot)
            await wait_for(pilot, lambda app=app, what=what: app.panels and f"There is no saved chat with {what}." in app.panels[0].plain)
            assert "^O lists them all. The newest: 2 (about snow), 1 (about rivers)." in app.panels[0].plain
            await wait_for(pilot, lambda app=app: app.screen.focused is app.screen.prompt)


@pytest.mark.parametrize(("resume", "said"), [("", "There is no saved chat yet."), ("3", "Nothing was saved yet: ask something")])
async def test_nothing_to_open(tmp_path: Path, resume: str, said: str) -> None:
    app = world(tmp_path, resume=resume)
    async with app.app.run_test() as pilot:
        await started(app, pilot)
        await wait_for(pilot, lambda: app.panels and said in app.panels[0].plain)


async def test_an_empty_chat_says_so(tmp_path: Path) -> None:
    """It was saved for its unsent text, or for nothing; opening it by its number is no riddle."""
    first = world(tmp_path)
    async with first.app.run_test() as pilot:
        await started(first, pilot)
        first.screen.prompt.put("half a question")
        first.screen.keep_draft(now=True)
        await wait_for(pilot, lambda: first.screen.saver.numbers)
    app = world(tmp_path, resume="1")
    async with app.app.run_test(notifications=True) as pilot:
        await started(app, pilot)
        await wait_for(pilot, lambda: any("only its unsent text was kept" in toast for toast in app.toasts))
        assert app.screen.prompt.text == "half a question"


async def test_the_command_line_goes_over_saved_settings(tmp_path: Path) -> None:
    chat = talk(("a", "b"))
    chat.sampling, chat.seed, chat.system = Sampling(0.5, top_k=7), 42, "Be kind."
    prepared(tmp_path, chat)
    app = world(tmp_path, resume="", sampling=Sampling(temperature=0.0))
    async with app.app.run_test() as pilot:
        await started(app, pilot)
        await wait_for(pilot, lambda: app.asked == ["a"])
        found = app.screen.chat
        await wait_for(pilot, lambda: found.sampling == Sampling(0.0, top_k=7))
        assert (found.seed, found.system) == (42, "Be kind.")


async def test_settings_and_title_are_saved(tmp_path: Path) -> None:
    app = world(tmp_path, "One.")
    async with app.app.run_test() as pilot:
        await started(app, pilot)
        await ask(app, pilot, "hi")
        for text in ("/title My [bold]chat\x1b", "/temp 0.25", "/seed 42", "/system Be kind.", "/max 50", "/think show", "/topk 9"):
            await say(app, pilot, text)
        await wait_for(pilot, lambda: "My [bold]chat␛" in app.shown().split("\n")[0])
    chat = saved(tmp_path)[0]
    assert (chat.title, chat.seed, chat.system, chat.max_tokens, chat.think) == ("My [bold]chat␛", 42, "Be kind.", 50, "show")
    assert chat.sampling == Sampling(0.25, top_k=9)


async def test_unsent_text_is_kept(tmp_path: Path) -> None:
    """Per chat, over the end of the program, and for a chat that was never begun."""
    prepared(tmp_path, talk(("about rivers", "The Danube.")))
    app = world(tmp_path)
    async with app.app.run_test() as pilot:
        await started(app, pilot)
        app.screen.prompt.put("half a thought")
        await pilot.press("ctrl+o")
        await wait_for(pilot, lambda: "about rivers" in app.shown())
        await sees(app, pilot, "unsent")
        await pilot.press(*"danube")
        await wait_for(pilot, lambda: "1 chat found" in app.shown())
        await pilot.press("enter")
        await wait_for(pilot, lambda: app.asked == ["about rivers"])
        assert app.screen.prompt.text == ""
        app.screen.prompt.put("and the Elbe?")
    assert sorted(chat.draft for chat in saved(tmp_path)) == ["and the Elbe?", "half a thought"]
    again = world(tmp_path, resume="rivers")
    async with again.app.run_test() as pilot:
        await started(again, pilot)
        await wait_for(pilot, lambda: again.screen.prompt.text == "and the Elbe?")


async def test_an_unsent_text_of_a_dead_process_comes_back(tmp_path: Path) -> None:
    store = Store(tmp_path / "chats.db")
    chat = Chat(ChatOptions())
    chat.draft = "half a thought"
    store.save(chat_row(chat))
    host = myself().split(" ", 2)[2]
    store._db.execute("UPDATE chats SET owner = ?", (f"1 0.0 {host}",))
    store.close()
    app = world(tmp_path)
    async with app.app.run_test() as pilot:
        await started(app, pilot)
        await wait_for(pilot, lambda: app.screen.prompt.text == "half a thought")


async def test_prompts_of_earlier_sessions_may_come_late(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Behind a slow disk: what was sent meanwhile is in the history once, at its end."""
    prepared(tmp_path, talk(("long ago", "x")))
    gate, prompts = threading.Event(), Store.prompts

    def late(self: Store, *arguments: Any, **named: Any) -> list[str]:
        assert gate.wait(PATIENCE_S)
        return prompts(self, *arguments, **named)

    monkeypatch.setattr(Store, "prompts", late)
    app = world(tmp_path, "One.", "Two.")
    async with app.app.run_test() as pilot:
        await started(app, pilot)
        await ask(app, pilot, "first")
        await ask(app, pilot, "second")
        assert app.screen.saver.wait_all(PATIENCE_S)
        gate.set()
        await wait_for(pilot, lambda: len(app.screen.prompt._sent) > 2)
        seen = []
        for _ in range(4):
            await pilot.press("up")
            seen.append(app.screen.prompt.text)
        assert seen == ["second", "first", "long ago", "long ago"]


async def test_prompts_of_earlier_sessions_are_in_the_history(tmp_path: Path) -> None:
    prepared(tmp_path, talk(("first of all", "x"), ("second", "y")))
    app = world(tmp_path)
    async with app.app.run_test() as pilot:
        await started(app, pilot)
        await wait_for(pilot, lambda: app.screen.prompt._sent)
        await pilot.press("up", "up")
        await wait_for(pilot, lambda: app.screen.prompt.text == "first of all")


async def test_leaving_in_the_middle_of_a_reply_keeps_it_as_a_stopped_one(tmp_path: Path) -> None:
    """All of it, not only up to the last second, and the next start is an ordinary one."""
    app = World(held(SHORT * 40, 20), machine=Machine(chats=tmp_path / "chats.db"))
    async with app.app.run_test() as pilot:
        await started(app, pilot)
        app.screen.prompt.put("why?")
        await pilot.press("enter")
        await wait_for(pilot, lambda: app.replies and len(app.replies[0].exact) > 100)
        await pilot.press("ctrl+q")
        await wait_for(pilot, lambda: not app.app.is_running)
    answer = saved(tmp_path)[0].turns[0].answer
    assert answer is not None
    assert (answer.text, answer.state, answer.finish_reason) == (app.screen.reply.exact, "done", "cancelled")  # type: ignore[union-attr]
    again = world(tmp_path)
    async with again.app.run_test() as pilot:
        await started(again, pilot)
        assert again.asked == []


async def test_a_question_without_an_answer_says_so(tmp_path: Path) -> None:
    chat = Chat(ChatOptions())
    chat.ask("why?")
    chat.failed()
    prepared(tmp_path, chat)
    app = world(tmp_path, "Because.", resume="")
    async with app.app.run_test() as pilot:
        await started(app, pilot)
        await wait_for(pilot, lambda: "no answer yet · ^R answers" in app.shown())
        await pilot.press("ctrl+r")
        await wait_for(pilot, lambda: app.requests and app.rests)
        await wait_for(pilot, lambda: "Because." in app.shown() and "no answer yet" not in app.shown())


# --- when saving fails ----------------------------------------------------------------------------------------------


async def test_a_damaged_database_is_said_and_the_chat_goes_on(tmp_path: Path) -> None:
    (tmp_path / "chats.db").write_bytes(b"no database " * 500)
    app = world(tmp_path, "One.")
    async with app.app.run_test(size=(100, 30)) as pilot:
        await started(app, pilot)
        await wait_for(pilot, lambda: "NOT SAVED" in app.shown().split("\n")[0])
        await wait_for(pilot, lambda: app.panels)
        assert "is damaged" in app.panels[0].plain
        assert "NOT SAVED until this is mended" in app.panels[0].plain
        await ask(app, pilot, "hi")
        assert app.replies[0].exact == "One."
        assert len(app.panels) == 1
        await pilot.press("ctrl+o")
        await wait_for(pilot, lambda: "damaged" in app.shown() and isinstance(app.app.screen, ChatsScreen))
    assert (tmp_path / "chats.db").read_bytes() == b"no database " * 500


async def test_a_lock_that_goes_away(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What could not be written is written later, and the screen says both."""
    monkeypatch.setattr("app.saver.RETRY_S", 0.1)
    app = world(tmp_path, "One.")
    app.screen.saver._retry_s = 0.1
    app.machine.open_store = lambda: Store(tmp_path / "chats.db", busy_s=0.05)  # type: ignore[method-assign]
    app.screen.saver._opener = app.machine.open_store
    async with app.app.run_test(size=(100, 30), notifications=True) as pilot:
        await started(app, pilot)
        await wait_for(pilot, lambda: app.screen.saver.store)
        other = sqlite3.connect(tmp_path / "chats.db", isolation_level=None)
        other.execute("BEGIN IMMEDIATE")
        await ask(app, pilot, "hi")
        await wait_for(pilot, lambda: "NOT SAVED" in app.shown().split("\n")[0])
        await wait_for(pilot, lambda: app.panels and "locked by another program" in app.panels[0].plain)
        other.execute("ROLLBACK")
        await wait_for(pilot, lambda: "NOT SAVED" not in app.shown().split("\n")[0])
        await wait_for(pilot, lambda: any("Saved again" in text for text in app.toasts))
    assert [chat.markdown() for chat in saved(tmp_path)] == [app.screen.chat.markdown()]


async def test_a_full_disk(tmp_path: Path) -> None:
    app = world(tmp_path, "Words and more words. " * 3000)
    app.screen.saver._retry_s = 0.1
    async with app.app.run_test(size=(100, 30)) as pilot:
        await started(app, pilot)
        store = app.screen.saver.store
        pages = store._db.execute("PRAGMA page_count").fetchone()[0]
        store._db.execute(f"PRAGMA max_page_count = {pages + 2}")
        await ask(app, pilot, "hi")
        await wait_for(pilot, lambda: app.panels and "the disk is full" in app.panels[0].plain)
        assert "NOT SAVED" in app.shown().split("\n")[0]
        store._db.execute("PRAGMA max_page_count = 1000000")
        await wait_for(pilot, lambda: "NOT SAVED" not in app.shown().split("\n")[0])
    assert saved(tmp_path)[0].last.text == "Words and more words. " * 3000  # type: ignore[union-attr]


async def test_a_chat_that_another_program_deleted_is_saved_anew(tmp_path: Path) -> None:
    app = world(tmp_path, "One.", "Two.")
    app.screen.saver._retry_s = 0.1
    async with app.app.run_test() as pilot:
        await started(app, pilot)
        await ask(app, pilot, "first")
        assert app.screen.saver.wait_all(PATIENCE_S)
        other = Store(tmp_path / "chats.db")
        other.delete(app.screen.chat.key)
        other.close()
        await ask(app, pilot, "second")
        await wait_for(pilot, lambda: app.screen.saver.problem is None and app.screen.saver.wait_all(0.0))
    assert [[turn.prompt for turn in chat.turns] for chat in saved(tmp_path)] == [["first", "second"]]


def test_times_as_people_say_them() -> None:
    noon = time.mktime((2026, 6, 10, 12, 0, 0, 0, 0, -1))
    assert when(noon - 60, noon) == "11:59"
    assert when(noon - 2 * 86_400, noon) == "Mon 12:00"
    assert when(noon - 90 * 86_400, noon) == "2026-03-12"
