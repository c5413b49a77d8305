"""Hostile text everywhere: in replies, questions, titles, file names, attached files, presets, errors. It is text, and nothing breaks."""

from __future__ import annotations

import asyncio
from pathlib import Path

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from app.chat import Attachment, Chat, ChatOptions
from app.export import as_text, attach, file_name
from app.saved import chat_row
from app.store import Store
from app.terminal import one_line
from engine.catalog.specs import NGRAM
from engine.errors import EngineError
from tests.app.chats_made import keep, talk
from tests.app.test_tui_screen import controls
from tests.app.tui_world import BIG, Machine, World, scripted, wait_for

PIECES = st.sampled_from(
    [
        "\x1b]52;c;aGVsbG8=\x07", "\x1b[2J\x1b[H", "\x1b]0;title\x07", "\x1b[31m", "\x9b5A", "\x1bP$q\x1b\\",
        "\x00", "\x07", "\x08", "\r", "\x7f", "[/]", "[bold", "[bold]", "[@click=app.quit]x[/]", "[link=file:///]", "\\[",
        "$text-error", "\u202e", "\u2066", "\u2069", "\u2028", "\ufeff", "\u200b", "\u200f", "👩‍👩‍👧", "你好", "é",
        "<think>", "</think>", "<b>", "&lt;", "```", "~~~", "`", "| a | b |\n| - | - |", "- ", "1. ", "> ", "# ",
        "![x](y)", "[x](http://y)", "\n", "\n\n", "\t", " ", "word ", "x" * 200, "%s {0}", "\ud800",
    ]
)  # fmt: skip
HOSTILE = st.lists(PIECES | st.text(max_size=6), min_size=1, max_size=25).map("".join)
ONCE = settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])


@ONCE
@given(question=HOSTILE, reply=HOSTILE, title=HOSTILE, name=HOSTILE, error=HOSTILE)
def test_a_whole_session(tmp_path_factory: object, question: str, reply: str, title: str, name: str, error: str) -> None:
    """Sent, streamed, saved, listed, opened again: no control reaches the terminal, no text is lost, nothing is interpreted."""
    folder: Path = tmp_path_factory.mktemp("fuzz")  # type: ignore[attr-defined]
    asyncio.run(_session(folder / "chats.db", question, reply, title, name, error))


async def _session(chats: Path, question: str, reply: str, title: str, name: str, error: str) -> None:
    world = World(scripted(reply, step_s=0.01), speed=8.0, machine=Machine(chats=chats))
    exact = "".join(s.text for _, e in world.client.trace.replies[0] if hasattr(e, "segments") for s in e.segments)
    async with world.app.run_test(size=(80, 30), notifications=True) as pilot:
        await wait_for(pilot, lambda: world.screen.loaded.ready)
        world.screen.chat.title = title
        world.screen.chat.attached = (Attachment(name, reply),)
        world.screen.show_attached()
        await world.screen.send(question)
        await wait_for(pilot, lambda: world.requests and world.rests)
        await world.screen.trouble(EngineError(error, error, detail=error))
        world.screen.toast(error)
        await pilot.pause()
        assert not controls(world.shown())
        if exact:
            assert world.replies[0].exact == exact
        assert world.app.is_running
        await pilot.press("escape", "ctrl+o")
        await wait_for(pilot, lambda: world.app.screen is not world.screen)
        await pilot.pause()
        assert not controls(world.shown())
        await pilot.press("escape")
        assert world.app.clipboard == ""
    again = World("x", machine=Machine(chats=chats), options=ChatOptions(target=BIG, drafter=NGRAM, resume=""))
    async with again.app.run_test(size=(80, 30)) as pilot:
        await wait_for(pilot, lambda: again.asked or (again.panels and not exact))
        await pilot.press("tab", "k", "o")
        await pilot.pause()
        assert not controls(again.shown())
        if exact:
            stored = exact.encode("utf-8", "replace").decode()
            await wait_for(pilot, lambda: again.replies and again.replies[0].exact == stored)


@settings(max_examples=60, deadline=None)
@given(text=HOSTILE, title=HOSTILE)
def test_exports_and_searches(text: str, title: str) -> None:
    chat = talk((text, text))
    chat.title = title
    for kind in ("md", "json", "jsonl"):
        as_text(chat, kind)
    name = file_name(chat, "md")
    assert name.isascii()
    assert Path(name).name == name
    store = Store(None)
    keep(store, chat)
    draft = Chat(ChatOptions())
    draft.draft = title
    store.save(chat_row(draft))
    for listed in store.chats(text) + store.chats(title):
        assert not controls(one_line(listed.name) + one_line(listed.excerpt))
    store.close()


@settings(max_examples=60, deadline=None)
@given(data=st.binary(max_size=300), text=HOSTILE)
def test_any_file_is_attached_or_refused(tmp_path_factory: object, data: bytes, text: str) -> None:
    folder: Path = tmp_path_factory.mktemp("files")  # type: ignore[attr-defined]
    (folder / "file").write_bytes(data)
    for name in (str(folder / "file"), text):
        try:
            text = attach(name).text
        except EngineError as error:
            text = one_line(error.message)
            seen = controls(text)
        else:
            seen = [c for c in text if c == "\0"]
        assert not seen


async def test_lines_of_ten_thousand_characters() -> None:
    """In a question, a reply, a title, an attached file and an error."""
    line = "[bold]\x1b[1m" + "x" * 10_000
    world = World(f"before {line} after")
    async with world.app.run_test(size=(80, 30)) as pilot:
        await wait_for(pilot, lambda: world.screen.loaded.ready)
        world.screen.chat.title = line
        world.screen.chat.attached = (Attachment(line, line),)
        world.screen.show_attached()
        await world.screen.send(line)
        await wait_for(pilot, lambda: world.requests and world.rests)
        await world.screen.trouble(EngineError(line))
        await wait_for(pilot, lambda: world.panels)
        await pilot.pause()
        assert not controls(world.shown())
        assert world.screen.transcript.virtual_size.width <= 80
        assert "specchat" in world.shown().split("\n")[0]
