"""Conversations for the tests of saving: made by the real rules, without an engine."""

from __future__ import annotations

from dataclasses import replace

from app.chat import Chat, ChatOptions
from app.saved import chat_row, message_rows
from app.store import Store
from engine.protocol import Done, Generate, Step
from engine.trace import scripted


def answer(chat: Chat, request: Generate, text: str, *, stopped: bool = False) -> None:
    """The reply to a request."""
    events = [event for _, event in scripted(text)]
    done = next(event for event in events if isinstance(event, Done))
    done = replace(done, reply=request.reply, seed=request.seed, finish_reason="cancelled" if stopped else "stop")
    assert chat.finished(done, tuple(event for event in events if isinstance(event, Step)), "big")


def talk(*turns: tuple[str, str], options: ChatOptions | None = None) -> Chat:
    """A chat with these questions and answers."""
    chat = Chat(options or ChatOptions())
    for question, text in turns:
        answer(chat, chat.ask(question), text)
    return chat


def keep(store: Store, chat: Chat) -> int:
    """Save the whole chat; returns its number."""
    return store.save(chat_row(chat), message_rows(chat))
