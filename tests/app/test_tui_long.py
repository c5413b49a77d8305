"""Long chats: a stretch of them is on the screen, more comes at its edges, what is looked at stays in its place."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from textual.pilot import Pilot
from textual.widgets import Markdown

from app.chat import Chat, ChatOptions
from app.saved import restore
from app.settings import SETTINGS
from app.store import Store
from app.widgets.stretch import MOST, OPENED
from app.widgets.transcript import LIVE_REPLIES
from engine.catalog.specs import NGRAM
from tests.app.chats_made import keep, talk
from tests.app.test_tui_commands import say
from tests.app.tui_world import BIG, Machine, World, ask, scripted, sees, settled, started, wait_for

TURNS = 250
BODY = "Here is **answer {n}**, with a list:\n\n- one\n- two\n\n```py\nfor i in range({n}):\n    print(i)\n```\n\nAnd an end, needle {n}."


@pytest.fixture(scope="module")
def long_chat(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A database with one chat of 500 messages."""
    folder = tmp_path_factory.mktemp("long")
    store = Store(folder / "chats.db")
    keep(store, talk(*[(f"Question {n}?", BODY.format(n=n)) for n in range(TURNS)]))
    store.close()
    return folder / "chats.db"


def world(chats: Path, *replies: str) -> World:
    return World(*(replies or ("New.",)), machine=Machine(chats=chats), options=ChatOptions(target=BIG, drafter=NGRAM, resume=""))


async def opened(app: World, pilot: Pilot[int]) -> None:
    await started(app, pilot)
    await wait_for(pilot, lambda: app.asked and app.asked[-1] == f"Question {TURNS - 1}?")
    view = app.screen.transcript
    await wait_for(pilot, lambda: view.below == 0 and not view._moving and "end" in app.shown())
    await settled(pilot)


def top_row(app: World) -> str:
    return app.shown().split("\n")[1].rstrip("▁▂▃▄▅▆▇█ ")


async def test_500_messages_open_with_few_widgets(long_chat: Path) -> None:
    """The time to open does not depend on the length of the chat: a dozen turns are drawn, each in a few widgets."""
    app = world(long_chat)
    async with app.app.run_test(size=(100, 30)) as pilot:
        await opened(app, pilot)
        assert len(app.replies) == OPENED
        assert len(list(app.screen.query("*"))) < OPENED * 8 + 40
        assert app.screen.transcript.below == 0
        start_s = time.process_time()  # on a busy machine only the work counts
        await app.screen.open_chat(app.screen.chat.key)
        await pilot.pause()
        assert time.process_time() - start_s < 3.0  # about 0.3 s


async def test_scrolling_up_brings_more_and_nothing_jumps(long_chat: Path) -> None:
    """At the upper edge earlier turns come in above; the rows that were seen stay where they are; the number of widgets is bounded."""
    app = world(long_chat)
    async with app.app.run_test(size=(100, 30)) as pilot:
        await opened(app, pilot)
        view = app.screen.transcript
        for _ in range(60):
            await pilot.press("pageup")
            await pilot.pause()
            await wait_for(pilot, lambda: not view._moving)
            assert len(app.replies) <= MOST + 12
            assert len(view.query(Markdown)) <= LIVE_REPLIES
        assert app.asked[-1] != f"Question {TURNS - 1}?"  # the end has left the screen
        questions = [int(text.split()[1][:-1]) for text in app.asked]
        assert questions == list(range(questions[0], questions[-1] + 1))
        await pilot.press("ctrl+end")
        await wait_for(pilot, lambda: app.asked[-1] == f"Question {TURNS - 1}?" and view.below == 0)


async def test_what_is_seen_stays_when_more_comes(long_chat: Path) -> None:
    app = world(long_chat)
    async with app.app.run_test(size=(100, 30)) as pilot:
        await opened(app, pilot)
        view = app.screen.transcript
        view.scroll_to(y=4, animate=False)
        await wait_for(pilot, lambda: view.scroll_y == 4)
        rows = [row.rstrip("▁▂▃▄▅▆▇█ ") for row in app.shown().split("\n")[3:20]]
        count = len(app.asked)
        view.scroll_to(y=2, animate=False)
        await wait_for(pilot, lambda: len(app.asked) > count and not view._moving)
        await pilot.pause()
        assert [row.rstrip("▁▂▃▄▅▆▇█ ") for row in app.shown().split("\n")[5:22]] == rows


async def test_the_cursor_walks_through_all_of_it(long_chat: Path) -> None:
    app = world(long_chat)
    async with app.app.run_test(size=(100, 30)) as pilot:
        await opened(app, pilot)
        view = app.screen.transcript
        await pilot.press("tab")
        for _ in range(60):
            await pilot.press("k")
            await wait_for(pilot, lambda: not view._moving)
        assert view.current is not None
        assert view.current.exact == BODY.format(n=TURNS - 31)  # 60 messages before the last one
        await pilot.press("g")
        await wait_for(pilot, lambda: view.current is not None and view.current.exact == "Question 0?")
        await wait_for(pilot, lambda: "Question 0?" in app.shown())
        for _ in range(45):
            await pilot.press("j")
            await wait_for(pilot, lambda: not view._moving)
        assert view.current.exact == BODY.format(n=22)
        assert len(app.replies) <= MOST + 12


async def test_find_reaches_what_is_not_on_the_screen(long_chat: Path) -> None:
    app = world(long_chat)
    async with app.app.run_test(size=(100, 30)) as pilot:
        await opened(app, pilot)
        await say(app, pilot, "/find needle 100.")
        await wait_for(pilot, lambda: "needle 100." in app.shown())
        await wait_for(pilot, lambda: app.screen.transcript.current is not None)
        assert app.screen.transcript.current is not None
        assert "answer 100" in app.screen.transcript.current.exact


async def test_a_question_in_the_middle_of_reading(long_chat: Path) -> None:
    """Sent while old turns are on the screen: the end comes back, and the conversation is whole."""
    app = world(long_chat, "New answer.")
    async with app.app.run_test(size=(100, 30)) as pilot:
        await opened(app, pilot)
        await pilot.press("tab", "g")
        await wait_for(pilot, lambda: app.asked[0] == "Question 0?")
        await pilot.press("escape")
        await ask(app, pilot, "And now?")
        await wait_for(pilot, lambda: "New answer." in app.shown())
        assert app.asked[-2:] == [f"Question {TURNS - 1}?", "And now?"]
        assert len(app.requests[0].messages) == 2 * TURNS + 1
        assert len(app.screen.chat.turns) == TURNS + 1
        await say(app, pilot, "/undo")
        await wait_for(pilot, lambda: app.asked[-1] == f"Question {TURNS - 1}?")


async def test_a_huge_message_does_not_keep_the_others_away(tmp_path: Path) -> None:
    """Half a million characters: few turns are drawn at first, and the chat opens."""
    store = Store(tmp_path / "chats.db")
    huge = "A paragraph of some words, again and again.\n\n" * 5_000
    keep(store, talk(("small", "x"), ("huge", huge), (f"Question {TURNS - 1}?", "end")))
    store.close()
    app = world(tmp_path / "chats.db")
    async with app.app.run_test(size=(100, 30)) as pilot:
        await opened(app, pilot)
        await sees(app, pilot, "end")
        assert len(app.asked) <= 2


@pytest.mark.parametrize("mode", ["start", "off", "end"])
async def test_where_the_view_goes(mode: str) -> None:
    """end: with the text; start: the question at the top, then still; off: it stays where the person is."""
    long = "".join(f"Paragraph {n}.\n\n" for n in range(80))
    app = World(long, scripted(long, step_s=0.02), speed=6.0)
    async with app.app.run_test(size=(80, 24)) as pilot:
        await started(app, pilot)
        await ask(app, pilot, "first")
        view = app.screen.transcript
        app.screen.change(next(setting for setting in SETTINGS if setting.path == "screen.follow"), mode)
        await wait_for(pilot, lambda: view.below == 0)
        app.screen.prompt.put("second")
        await pilot.press("enter")
        await wait_for(pilot, lambda: len(app.requests) == 2)
        await wait_for(pilot, lambda: app.rests)
        await pilot.pause(0.2)
        if mode == "end":
            await wait_for(pilot, lambda: view.below == 0 and "Paragraph 79." in app.shown())
        else:
            await wait_for(pilot, lambda: view.below > 100)
            if mode == "start":
                await wait_for(pilot, lambda: "second" in app.shown().split("\n")[3] and "Paragraph 1." in app.shown())


@pytest.mark.parametrize("mode", ["end", "start", "off"])
async def test_where_the_view_goes_is_kept(mode: str) -> None:
    machine = Machine()
    machine.kept = {"screen.follow": mode}
    app = World(machine=machine)
    async with app.app.run_test() as pilot:
        await started(app, pilot)
        assert app.screen.transcript.mode == mode


def test_a_chat_of_500_messages_is_read_quickly(long_chat: Path) -> None:
    """From the file to the tree; the traces are unpacked only when they are looked at."""
    store = Store(long_chat)
    key = store.chats()[0].key
    chat = Chat(ChatOptions())
    start_s = time.thread_time()
    restore(chat, *store.load(key))
    assert time.thread_time() - start_s < 1.0
    assert len(chat.turns) == TURNS
    assert all(turn.answer is not None and turn.answer._steps is None for turn in chat.turns)


async def test_a_note_waits_for_the_end_of_the_chat(long_chat: Path) -> None:
    """While only early turns are on the screen: it stands behind the last one, when that comes."""
    app = world(long_chat)
    async with app.app.run_test(size=(100, 30)) as pilot:
        await opened(app, pilot)
        view = app.screen.transcript
        await pilot.press("tab", "g")
        await wait_for(pilot, lambda: app.asked[0] == "Question 0?")
        await settled(pilot)
        place = view.scroll_y
        await app.screen.note("A quiet line.")
        await settled(pilot)
        assert view.scroll_y == place
        assert app.notes == []
        await pilot.press("ctrl+end")
        await sees(app, pilot, "A quiet line.")
        assert app.asked[-1] == f"Question {TURNS - 1}?"
