"""The database of chats: what goes in comes out, search, modes, layout, two programs at once, and all that can be wrong with a file."""

from __future__ import annotations

import os
import sqlite3
import stat
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app import archive, database, migrations
from app.chat import Chat, ChatOptions
from app.owners import is_alive, myself
from app.saved import MessageRow, chat_row, message_rows, restore, streaming_row
from app.store import Store
from app.traces import Packer
from engine.errors import EngineError
from engine.protocol import Sampling
from tests.app.chats_made import answer, keep, talk

ROOT = Path(__file__).parents[2]


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "chats.db")


def reopened(store: Store, chat: Chat) -> Chat:
    found = Chat(ChatOptions())
    restore(found, *store.load(chat.key))
    return found


def test_a_tree_comes_back_as_it_was(store: Store) -> None:
    """Branches, versions, what is chosen, settings, tokens with their origins, an unsent text."""
    chat = talk(("one", "First answer."), ("two", "Second answer."), ("three", "Third."))
    answer(chat, chat.request(), "Third, again.")
    answer(chat, chat.ask_instead(chat.turns[1], "two, otherwise"), "Another way.")
    chat.sampling, chat.seed, chat.k, chat.system = Sampling(0.5, top_k=7), 42, 3, "Be kind."
    chat.draft, chat.title, chat.max_tokens = "not yet", "A title", 99
    keep(store, chat)
    found = reopened(store, chat)
    assert message_rows(found) == message_rows(chat)
    assert replace(chat_row(found), number=0) == chat_row(chat)
    assert [turn.prompt for turn in found.turns] == ["one", "two, otherwise"]
    assert [[v.text for v in turn.replies] for turn in found.turns] == [["First answer."], ["Another way."]]
    assert found.turns[1].fork.items[0].replies[0].next.items[0].answer.text == "Third, again."  # type: ignore[union-attr]
    for old, new in zip(chat.turns, found.turns, strict=True):
        assert new.answer is not None
        assert old.answer is not None
        assert new.answer.segments == old.answer.segments
        assert "".join(segment.text for segment in new.answer.segments) == new.answer.text
        assert [step.accepted for step in new.answer.steps] == [step.accepted for step in old.answer.steps]
        assert new.answer.done.seed == old.answer.done.seed
    assert (found.sampling, found.seed, found.k, found.system) == (chat.sampling, 42, 3, "Be kind.")
    request = found.ask("more")
    assert [message.content for message in request.messages] == [
        "Be kind.",
        "one",
        "First answer.",
        "two, otherwise",
        "Another way.",
        "more",
    ]


@settings(max_examples=40, deadline=None)
@given(prompt=st.text(max_size=200), text=st.text(min_size=1, max_size=300), title=st.text(max_size=80))
def test_any_text_survives(prompt: str, text: str, title: str) -> None:
    """Also NUL, escape sequences, quotes and half surrogates, which become a question mark."""
    store = Store(None)
    chat = talk((prompt, text))
    chat.title = title
    keep(store, chat)
    found = reopened(store, chat)
    exact = "".join(segment.text for segment in chat.turns[0].answer.segments)  # type: ignore[union-attr]
    assert found.turns[0].prompt == prompt.encode("utf-8", "replace").decode()
    assert found.turns[0].answer is not None
    assert found.turns[0].answer.text == exact.encode("utf-8", "replace").decode()
    for part in (prompt, text, title):
        store.chats(part)
    store.close()


def test_files_are_for_their_owner_only(tmp_path: Path) -> None:
    old = os.umask(0o000)
    try:
        store = Store(tmp_path / "chats.db")
        keep(store, talk(("a", "b")))
        modes = {file.name: stat.S_IMODE(file.stat().st_mode) for file in tmp_path.iterdir()}
        assert set(modes) >= {"chats.db", "chats.db-wal"}
        assert set(modes.values()) == {0o600}
    finally:
        os.umask(old)


@pytest.mark.parametrize("indexed", [True, False])
def test_search_in_titles_and_messages(store: Store, indexed: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the index and without: the same chats, the newest first, and where the text is. Wildcards are ordinary characters."""
    first = talk(("about rivers", "The Danube flows 100% of the time."), ("more", "你好世界 and C++_11."))
    second = talk(("snow", "White."))
    second.title = "Rivers of ice"
    keep(store, first)
    time.sleep(0.002)
    keep(store, second)
    store.indexed = store.indexed and indexed
    names = {first.key: "first", second.key: "second"}

    def found(text: str) -> list[str]:
        return [names[chat.key] for chat in store.chats(text)]

    assert found("") == found("  ") == ["second", "first"]
    assert found("RIVERS") == ["second", "first"]
    assert found("danube") == found("100%") == found("世界") == found("你好世") == found("c++_1") == ["first"]
    assert found("%") == found("0%") == ["first"]
    assert found("1_0") == found("100_") == found('"') == found("absent") == []
    hit = store.chats("flows")[0]
    assert "The Danube flows 100%" in hit.excerpt
    assert hit.message == first.turns[0].answer.key  # type: ignore[union-attr]
    answer(first, first.request(), "A later version about glaciers.")
    keep(store, first)
    assert found("glaciers") == ["first"]
    store.save(chat_row(first), gone=[first.turns[1].key])
    assert found("glaciers") == []


def test_the_index_is_not_needed(store: Store, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A build of SQLite without FTS5 opens the same file, writes to it and searches it; with it, the new texts are found again."""
    chat = talk(("about rivers", "The Danube."))
    keep(store, chat)
    assert store.chats("danube")
    store.close()
    monkeypatch.setattr(database, "INDEX", "CREATE VIRTUAL TABLE IF NOT EXISTS other USING no_such_module(text)")
    plain = Store(tmp_path / "chats.db")
    assert not plain.indexed
    answer(chat, chat.ask("and"), "The Elbe.")
    keep(plain, chat)
    assert plain.chats("elbe")
    plain.close()
    monkeypatch.undo()
    again = Store(tmp_path / "chats.db")
    assert again.indexed
    assert again.chats("elbe")
    assert again.chats("danube")


def test_find_by_number_and_by_title(store: Store) -> None:
    with pytest.raises(EngineError, match="no saved chat yet"):
        store.find("")
    chats = [talk((f"question {n}", "x")) for n in range(3)]
    numbers = []
    for chat in chats:
        numbers.append(keep(store, chat))
        time.sleep(0.002)
    assert numbers == [1, 2, 3]
    assert store.find("").key == chats[2].key
    assert store.find("2").key == chats[1].key
    assert store.find("QUESTION 0").key == chats[0].key
    with pytest.raises(EngineError, match="no saved chat with the number 77"):
        store.find("77")


def test_changes_use_up_no_numbers(store: Store) -> None:
    """Numbers are what people type: the second chat is 2, however often the first was saved."""
    first = talk(("one", "x"))
    assert {keep(store, first) for _ in range(5)} == {1}
    assert keep(store, talk(("two", "y"))) == 2


def test_delete_and_bring_back(store: Store, tmp_path: Path) -> None:
    """Deleted chats leave the list at once, come back on demand, and leave the file at the end."""
    chat, other = talk(("a secret word: xylophone", "x")), talk(("b", "y"))
    keep(store, chat)
    keep(store, other)
    store.chats("xylophone")  # into the index
    store.delete(chat.key)
    assert [found.key for found in store.chats()] == [other.key]
    with pytest.raises(EngineError, match="no longer there"):
        store.load(chat.key)
    store.undelete(chat.key)
    assert len(store.chats()) == 2
    store.delete(chat.key)
    store.close()
    assert b"xylophone" not in (tmp_path / "chats.db").read_bytes()
    assert [found.key for found in Store(tmp_path / "chats.db").chats()] == [other.key]


def test_a_removed_message_takes_what_hangs_on_it(store: Store) -> None:
    chat = talk(("a", "1"), ("b", "2"), ("c", "3"))
    keep(store, chat)
    store.save(chat_row(chat), gone=[chat.turns[1].key])
    assert [turn.prompt for turn in reopened(store, chat).turns] == ["a"]


def test_prompts_for_the_history(store: Store) -> None:
    chat = talk(("one", "x"), ("one", "y"), ("two", "z"))
    keep(store, chat)
    assert store.prompts() == ["one", "two"]
    assert store.prompts(1) == ["two"]
    assert store.prompts(before=chat.turns[0].created_s) == []


def test_unsent_texts(store: Store) -> None:
    """Only one whose process has ended is taken up."""
    chat = Chat(ChatOptions())
    chat.draft = "half a thought"
    store.save(chat_row(chat))
    assert store.unsent() is None
    assert [found.draft for found in store.chats()] == ["half a thought"]
    store._db.execute("UPDATE chats SET owner = '1 0.0 ' || ?", (myself().split(" ", 2)[2],))
    assert store.unsent() == chat.key


def test_presets(store: Store) -> None:
    store.save_preset("Brief", '{"system": "short"}')
    store.save_preset("brief", '{"system": "shorter"}')
    assert list(store.presets().values()) == ['{"system": "shorter"}']
    assert store.delete_preset("BRIEF")
    assert not store.delete_preset("brief")


# --- crashes and other programs -------------------------------------------------------------------------------------


def streaming(store: Store, chat: Chat) -> MessageRow:
    request = chat.ask("and?")
    assert chat.version is not None
    assert chat.answering is not None
    from app.saved import turn_row

    done = replace(chat.version.done, reply=request.reply, text="so far", finish_reason="cancelled")
    row = streaming_row(chat.version, chat.answering, done, (), Packer())
    store.save(chat_row(chat), [turn_row(chat.answering), row])
    return row


def test_a_dead_process_leaves_an_interrupted_reply_a_living_one_does_not(store: Store, tmp_path: Path) -> None:
    chat = talk(("a", "1"))
    keep(store, chat)
    row = streaming(store, chat)
    assert Store(tmp_path / "chats.db").recover() == []
    host = myself().split(" ", 2)[2]
    store._db.execute(
        "UPDATE messages SET owner = ? WHERE key = ?", (f"{os.getpid()} 12345.0 {host}", row.key)
    )  # the number was given anew
    assert store.recover() == [chat.key]
    last = reopened(store, chat).turns[-1].answer
    assert last is not None
    assert (last.state, last.text, last.finish_reason) == ("interrupted", "so far", "cancelled")
    assert store.recover() == []


def test_owners() -> None:
    assert is_alive(myself(), False)
    pid, started, host = myself().split(" ", 2)
    assert not is_alive(f"{pid} {float(started) - 100} {host}", True)
    assert not is_alive("", True)
    assert not is_alive(f"x y {host}", True)
    assert is_alive(f"{pid} {started} elsewhere", True)
    assert not is_alive(f"{pid} {started} elsewhere", False)


def test_two_programs_write_at_the_same_time(tmp_path: Path) -> None:
    """Nothing is lost and nobody is refused."""
    assert programs(tmp_path, "ab", 25) == [0, 0]
    store = Store(tmp_path / "chats.db")
    assert {chat.name for chat in store.chats()} == {f"{name} {n}" for name in "ab" for n in range(25)}


def test_a_locked_file(tmp_path: Path) -> None:
    """Another program holds the right to write: a sentence after a while, and all is well once it lets go."""
    store = Store(tmp_path / "chats.db", busy_s=0.1)
    other = sqlite3.connect(tmp_path / "chats.db", isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    with pytest.raises(EngineError, match="locked by another program") as caught:
        keep(store, talk(("a", "b")))
    assert caught.value.kind == "locked"
    assert store.chats() == []
    other.execute("ROLLBACK")
    assert keep(store, talk(("a", "b"))) == 1


@pytest.mark.skipif(hasattr(os, "geteuid") and os.geteuid() == 0, reason="nothing is read-only for root")
def test_a_read_only_file(tmp_path: Path) -> None:
    Store(tmp_path / "chats.db").close()
    (tmp_path / "chats.db").chmod(0o400)
    with pytest.raises(EngineError, match="cannot be written"):
        keep(Store(tmp_path / "chats.db"), talk(("a", "b")))


def test_a_read_only_database(store: Store) -> None:
    store._db.execute("PRAGMA query_only = ON")
    with pytest.raises(EngineError) as caught:
        keep(store, talk(("a", "b")))
    assert caught.value.kind == "unwritable"
    assert "cannot be written" in caught.value.message


def test_a_path_that_cannot_be_opened(tmp_path: Path) -> None:
    with pytest.raises(EngineError) as caught:
        Store(tmp_path / "no such folder" / "chats.db")
    assert caught.value.kind == "unwritable"
    (tmp_path / "folder.db").mkdir()
    with pytest.raises(EngineError):
        Store(tmp_path / "folder.db")


@pytest.mark.parametrize("content", [b"this is no database at all, only some text\n" * 100, b"SQLite format 3\0" + b"\xff" * 4096])
def test_a_damaged_file_is_left_alone(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "chats.db").write_bytes(content)
    with pytest.raises(EngineError, match="is damaged") as caught:
        Store(tmp_path / "chats.db")
    assert "begin a new one" in caught.value.hint
    assert (tmp_path / "chats.db").read_bytes() == content


def test_a_page_that_was_overwritten(tmp_path: Path) -> None:
    """Damage inside the file shows when it is read, as a sentence."""
    store = Store(tmp_path / "chats.db")
    for n in range(30):
        keep(store, talk((f"q {n}", "long text " * 300)))
    store.close()
    data = bytearray((tmp_path / "chats.db").read_bytes())
    data[4096:] = os.urandom(len(data) - 4096)
    (tmp_path / "chats.db").write_bytes(data)
    with pytest.raises(EngineError, match="damaged"):
        Store(tmp_path / "chats.db").chats()


def test_a_full_disk(store: Store) -> None:
    """SQLite's own limit plays the full disk: nothing of the chat is half written, and it goes on when there is room."""
    pages = store._db.execute("PRAGMA page_count").fetchone()[0]
    store._db.execute(f"PRAGMA max_page_count = {pages + 2}")
    chat = talk(("a", "b " * 20_000))
    with pytest.raises(EngineError, match="the disk is full") as caught:
        keep(store, chat)
    assert caught.value.kind == "disk_full"
    assert store.chats() == []
    store._db.execute("PRAGMA max_page_count = 1000000")
    assert keep(store, chat) == 1


# --- layout ---------------------------------------------------------------------------------------------------------


def test_a_newer_file_is_not_touched(tmp_path: Path) -> None:
    db = sqlite3.connect(tmp_path / "chats.db")
    db.execute(f"PRAGMA user_version = {migrations.LATEST + 1}")
    db.close()
    with pytest.raises(EngineError, match="newer specchat") as caught:
        Store(tmp_path / "chats.db")
    assert caught.value.kind == "newer"


def test_steps_run_one_after_the_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An old file gets the missing steps, and keeps what it has."""
    store = Store(tmp_path / "chats.db")
    chat = talk(("a", "b"))
    keep(store, chat)
    store.close()
    monkeypatch.setattr(database, "STEPS", (*migrations.STEPS, ("ALTER TABLE chats ADD COLUMN colour TEXT NOT NULL DEFAULT 'blue'",)))
    monkeypatch.setattr(database, "LATEST", migrations.LATEST + 1)
    newer = Store(tmp_path / "chats.db")
    assert newer._db.execute("SELECT colour FROM chats").fetchall() == [("blue",)]
    assert newer._version() == migrations.LATEST + 1
    assert [turn.prompt for turn in reopened(newer, chat).turns] == ["a"]


def test_a_step_that_fails_leaves_the_file_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Store(tmp_path / "chats.db").close()
    broken = ("ALTER TABLE chats ADD COLUMN colour TEXT", "ALTER TABLE nothing ADD COLUMN x TEXT")
    monkeypatch.setattr(database, "STEPS", (*migrations.STEPS, broken))
    monkeypatch.setattr(database, "LATEST", migrations.LATEST + 1)
    with pytest.raises(EngineError):
        Store(tmp_path / "chats.db")
    monkeypatch.undo()
    store = Store(tmp_path / "chats.db")
    assert "colour" not in [row[1] for row in store._db.execute("PRAGMA table_info(chats)")]


MEETING = """
import sys, time
from pathlib import Path
from app.store import Store
from tests.app.chats_made import keep, talk
folder, name = Path(sys.argv[1]), sys.argv[2]
(folder / name).touch()
while not (folder / "go").exists():
    time.sleep(0.001)
store = Store(folder / "chats.db", busy_s=120)
for n in range(int(sys.argv[3])):
    keep(store, talk((f"{name} {n}", "x " * 200)))
store.close()
"""


def programs(folder: Path, names: str, chats: int) -> list[int]:
    """Programs that open the database of a folder at the same moment and each save some chats; returns how they ended."""
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    made = [subprocess.Popen([sys.executable, "-c", MEETING, str(folder), name, str(chats)], env=env, cwd=ROOT) for name in names]
    while not all((folder / name).exists() for name in names) and all(process.poll() is None for process in made):
        time.sleep(0.01)
    (folder / "go").touch()
    return [process.wait() for process in made]


def test_two_programs_make_the_layout_at_the_same_time(tmp_path: Path) -> None:
    assert programs(tmp_path, "abcd", 1) == [0] * 4
    assert {chat.name for chat in Store(tmp_path / "chats.db").chats()} == {"a 0", "b 0", "c 0", "d 0"}


def test_two_threads_make_the_layout_at_the_same_time(tmp_path: Path) -> None:
    """Many times, since a moment decides."""
    errors: list[Exception] = []

    def open_it(path: Path) -> None:
        try:
            store = Store(path, busy_s=120)
            keep(store, talk(("a", "b")))
            store.close()
        except Exception as error:
            errors.append(error)

    for n in range(8):
        threads = [threading.Thread(target=open_it, args=[tmp_path / f"{n}.db"]) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert errors == []
        assert len(Store(tmp_path / f"{n}.db").chats()) == 4


@pytest.mark.parametrize("holding", ["BEGIN IMMEDIATE", "BEGIN EXCLUSIVE"])
def test_a_new_file_waits_for_the_program_that_holds_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, holding: str) -> None:
    """SQLite refuses the change to WAL at once, whatever its timeout; here it is tried again until the other has let go."""
    other = sqlite3.connect(tmp_path / "chats.db", isolation_level=None)
    other.execute(holding)
    refused: list[float] = []

    def sleep(time_s: float) -> None:
        refused.append(time_s)
        if len(refused) == 3:
            other.execute("ROLLBACK")

    monkeypatch.setattr(database, "time", SimpleNamespace(sleep=sleep, monotonic=lambda: 0.0))
    assert keep(Store(tmp_path / "chats.db", busy_s=0.05), talk(("a", "b"))) == 1
    assert len(refused) == 3


def test_a_new_file_that_stays_locked(tmp_path: Path) -> None:
    """The waiting ends, with a sentence, and the file is as it was."""
    other = sqlite3.connect(tmp_path / "chats.db", isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    with pytest.raises(EngineError, match="locked by another program") as caught:
        Store(tmp_path / "chats.db", busy_s=0.1)
    assert caught.value.kind == "locked"
    other.execute("ROLLBACK")
    assert other.execute("SELECT count(*) FROM sqlite_master").fetchone() == (0,)
    Store(tmp_path / "chats.db").close()


def test_rows_of_another_version_open_all_the_same(store: Store) -> None:
    """Broken or unknown settings cost themselves, not the chat."""
    chat = talk(("a", "b"))
    keep(store, chat)
    for text in ("not json", "[]", '{"sampling": {"temperature": "hot", "top_p": 7}, "seed": -1, "system": 5, "think": "loud", "new": 1}'):
        store._db.execute("UPDATE chats SET settings = ?", (text,))
        store._db.execute("UPDATE messages SET extra = ?, trace = ?", (text, b"\x00 no trace"))
        found = reopened(store, chat)
        assert found.turns[0].answer is not None
        assert (found.turns[0].prompt, found.turns[0].answer.text) == ("a", "b")
        assert found.turns[0].answer.segments == ()
        assert (found.sampling, found.seed, found.system, found.think) == (Sampling(), None, None, "fold")


def test_excerpts() -> None:
    assert archive.excerpt("one two three", "TWO") == "one two three"
    assert archive.excerpt("x" * 100 + "here\nand there" + "y" * 200, "here").startswith("…" + "x" * 24 + "here and there")
