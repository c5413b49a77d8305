"""The saver: the newest state counts, trouble is told and tried again, the end waits for what is left."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest

from app.chat import Chat, ChatOptions
from app.saved import MessageRow, chat_row, message_rows
from app.saver import Saver
from app.store import Store
from engine.errors import EngineError
from tests.app.chats_made import talk
from tests.patience import PATIENCE_S, wait_until


def put(saver: Saver, chat: Chat) -> int:
    return saver.put(chat.key, chat_row(chat), [(row.key, row) for row in message_rows(chat)])


def test_what_is_put_is_written(tmp_path: Path) -> None:
    saver = Saver(lambda: Store(tmp_path / "chats.db"))
    chat = talk(("a", "b"))
    assert saver.wait(put(saver, chat), PATIENCE_S)
    assert (saver.numbers[chat.key], saver.problem) == (1, None)
    assert time.time() - saver.saved_s < 60
    saver.close(PATIENCE_S)
    assert [found.name for found in Store(tmp_path / "chats.db").chats()] == ["a"]


def test_the_newest_state_counts_and_functions_run_on_the_savers_thread(tmp_path: Path) -> None:
    gate = threading.Event()

    def slow() -> Store:
        gate.wait(PATIENCE_S)
        return Store(tmp_path / "chats.db")

    saver = Saver(slow)
    chat = Chat(ChatOptions())
    threads = []

    def row(text: str) -> MessageRow:
        threads.append(threading.current_thread().name)
        return MessageRow(1, None, "user", text, "done", True, 1.0, "{}")

    for text in ("first", "second", "third"):
        ticket = saver.put(chat.key, chat_row(chat), [(1, lambda text=text: row(text))])
    saver.put(chat.key, chat_row(chat), [(2, MessageRow(2, None, "user", "gone", "done", False, 2.0, "{}"))])
    saver.put(chat.key, chat_row(chat), [], (2,))
    gate.set()
    assert saver.wait_all(PATIENCE_S)
    assert saver.wait(ticket, 0.0)
    assert [message.text for message in saver.store.load(chat.key)[1]] == ["third"]
    assert set(threads) == {"specchat-saver"}
    assert len(threads) <= 2
    saver.close(PATIENCE_S)


def test_trouble_is_told_and_tried_again(tmp_path: Path) -> None:
    """Waiting ends at once with a problem; later everything is written, and the problem is gone."""
    broken = True

    def opener() -> Store:
        if broken:
            raise EngineError("No.", kind="locked")
        return Store(tmp_path / "chats.db")

    saver = Saver(opener, retry_s=0.02)
    chat = talk(("a", "b"))
    assert not saver.wait(put(saver, chat), PATIENCE_S)
    assert saver.problem is not None
    assert saver.problem.kind == "locked"
    later = talk(("c", "d"))
    put(saver, later)
    broken = False
    wait_until(lambda: saver.problem is None)
    assert saver.wait_all(PATIENCE_S)
    assert {found.name for found in saver.store.chats()} == {"a", "c"}
    saver.close(PATIENCE_S)


def test_the_end_tries_once_more_and_does_not_hang(tmp_path: Path) -> None:
    tries = 0

    def opener() -> Store:
        nonlocal tries
        tries += 1
        raise EngineError("No.", kind="unwritable")

    saver = Saver(opener, retry_s=3600.0)
    saver.wait(put(saver, talk(("a", "b"))), PATIENCE_S)
    saver.close(PATIENCE_S)
    assert not saver._thread.is_alive()
    assert tries == 2


def test_a_fault_of_ours_does_not_end_the_saving(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPECCHAT_HOME", str(tmp_path))  # the log
    saver = Saver(lambda: Store(tmp_path / "chats.db"), retry_s=0.02)
    chat = Chat(ChatOptions())

    def broken() -> MessageRow:
        raise ZeroDivisionError("never")

    saver.put(chat.key, chat_row(chat), [(1, broken)])
    saver.wait_all(PATIENCE_S)
    assert saver.problem is not None
    assert "ZeroDivisionError" in saver.problem.message
    saver.forget(chat.key)
    other = talk(("a", "b"))
    put(saver, other)
    wait_until(lambda: other.key in saver.numbers)
    assert saver.numbers[other.key] == 1
    saver.close(PATIENCE_S)
