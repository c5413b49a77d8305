"""Exports, attached files, presets, sampling and links on the screen."""

from __future__ import annotations

import json
import stat
from pathlib import Path

import pytest

from app.export import LARGEST
from app.screens.ask import AskScreen
from engine.protocol import Sampling
from tests.app.test_tui_commands import say
from tests.app.test_tui_errors import TOO_LONG
from tests.app.tui_world import World, ask, started, wait_for


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


async def test_export_and_load(tmp_path: Path) -> None:
    """Three formats, exact text, for the owner's eyes, nothing overwritten; JSON and JSONL open again as a new chat."""
    text = "An answer\x1b[2J with [bold]marks[/]."
    world = World(text, "Uno.")
    async with world.app.run_test(notifications=True) as pilot:
        await started(world, pilot)
        await say(world, pilot, "/export md")
        await wait_for(pilot, lambda: "The chat is empty." in world.toasts)
        await ask(world, pilot, "What/is: this?")
        for n, kind in enumerate(("md", "json", "jsonl", "jsonl"), start=1):
            await say(world, pilot, f"/export {kind}")
            await wait_for(pilot, lambda n=n: sum("Written" in toast for toast in world.toasts) == n)
        await wait_for(pilot, lambda: (tmp_path / "what-is-this-2.jsonl").exists())
        assert (tmp_path / "what-is-this.md").read_text() == f"# What/is: this?\n\n**You**\n\nWhat/is: this?\n\n**Reply**\n\n{text}\n"
        lines = [json.loads(line) for line in (tmp_path / "what-is-this.jsonl").read_text().splitlines()]
        assert lines == [{"role": "user", "content": "What/is: this?"}, {"role": "assistant", "content": text}]
        whole = json.loads((tmp_path / "what-is-this.json").read_text())
        assert whole["messages"] == lines
        pieces = next(row["segments"] for row in whole["tree"] if row["role"] == "assistant")
        assert "".join(piece["text"] for piece in pieces) == text
        assert {piece["origin"] for piece in pieces} <= {"kept", "correction", "bonus", "plain"}
        assert stat.S_IMODE((tmp_path / "what-is-this.md").stat().st_mode) == 0o600
        await say(world, pilot, "/export md sub/none.md")
        await wait_for(pilot, lambda: world.panels and "cannot be written" in world.panels[-1].plain)
        for kind in ("json", "jsonl"):
            await pilot.press("ctrl+n")
            await wait_for(pilot, lambda: not world.asked)
            await say(world, pilot, f"/load what-is-this.{kind}")
            await wait_for(pilot, lambda: world.asked == ["What/is: this?"])
            assert world.replies[0].exact == text
        await ask(world, pilot, "more")
        assert [m.content for m in world.requests[-1].messages] == ["What/is: this?", text, "more"]


@pytest.mark.parametrize("content", ["no json", "{}", '{"messages": 5}', '[{"role": "user"}]', '{"role": "tool", "content": "x"}', ""])
async def test_a_file_that_is_no_chat(tmp_path: Path, content: str) -> None:
    """A sentence, and an empty chat."""
    (tmp_path / "x.json").write_text(content)
    world = World()
    async with world.app.run_test() as pilot:
        await started(world, pilot)
        await ask(world, pilot, "hello")
        await say(world, pilot, "/load x.json")
        await wait_for(pilot, lambda: world.panels)
        assert "x.json" in world.panels[0].plain
        assert world.screen.chat.turns == []
        assert world.asked == []


async def test_attach_a_file(tmp_path: Path) -> None:
    """Shown over the box and in the question, sent in front of it, gone after it; off takes it away; a question may be only a file."""
    (tmp_path / "notes [bold].txt").write_bytes(b"\xef\xbb\xbfline 1\r\nline \x1b[2J2\r\n")
    (tmp_path / "wide.txt").write_bytes("hé".encode("utf-16"))
    world = World("One.", "Two.", "Three.")
    async with world.app.run_test(size=(80, 30)) as pilot:
        await started(world, pilot)
        await say(world, pilot, "/attach notes [bold].txt")
        await wait_for(pilot, lambda: "+ notes [bold].txt  18 characters, 2 lines" in world.shown())
        await say(world, pilot, "/attach 'wide.txt'")
        await wait_for(pilot, lambda: "+ wide.txt  2 characters, 1 line" in world.shown())
        await ask(world, pilot, "Sum up.")
        fence = "```"
        first = f"File notes [bold].txt:\n{fence}\nline 1\nline \x1b[2J2\n{fence}"
        assert world.requests[0].messages[0].content == f"{first}\n\nFile wide.txt:\n{fence}\nhé\n{fence}\n\nSum up."
        assert world.shown().count("+ notes [bold].txt") == 1
        await ask(world, pilot, "And now?")
        assert world.requests[1].messages[-1].content == "And now?"
        await say(world, pilot, "/attach wide.txt")
        await say(world, pilot, "/attach off")
        await wait_for(pilot, lambda: world.shown().count("+ wide.txt") == 1)
        await say(world, pilot, "/attach wide.txt")
        await pilot.press("enter")
        await wait_for(pilot, lambda: len(world.requests) == 3)
        assert world.requests[2].messages[-1].content == f"File wide.txt:\n{fence}\nhé\n{fence}"


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"\x7fELF\x00\x01", "no text file"),
        (b"\xff\xd8\xff", "no text file"),
        (b"x" * (LARGEST + 1), "larger than 256 KiB"),
        (None, "no file"),
    ],
)
async def test_files_that_are_refused(tmp_path: Path, data: bytes | None, reason: str) -> None:
    if data is not None:
        (tmp_path / "file").write_bytes(data)
    world = World()
    async with world.app.run_test() as pilot:
        await started(world, pilot)
        await say(world, pilot, "/attach file")
        await wait_for(pilot, lambda: world.panels)
        assert reason in world.panels[0].plain
        assert world.screen.chat.attached == ()
        assert not world.screen.files.display


async def test_a_question_that_failed_gives_its_files_back(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("text")
    world = World(((0.0, TOO_LONG),))
    async with world.app.run_test() as pilot:
        await started(world, pilot)
        await say(world, pilot, "/attach a.txt")
        world.screen.prompt.put("why?")
        await pilot.press("enter")
        await wait_for(pilot, lambda: world.panels and world.screen.focused is world.panels[0])
        await pilot.press("n")
        await wait_for(pilot, lambda: world.screen.prompt.text == "why?")
        assert [file.name for file in world.screen.chat.attached] == ["a.txt"]
        assert world.screen.files.display


async def test_presets() -> None:
    """Kept, listed, taken in another chat, completed by name, deleted."""
    world = World("One.")
    async with world.app.run_test(size=(100, 30), notifications=True) as pilot:
        await started(world, pilot)
        for text in ("/preset", "/temp 0.3", "/system You are\nbrief.", "/max 99", "/preset save Brief one"):
            await say(world, pilot, text)
        await wait_for(pilot, lambda: any("Kept as preset Brief one" in text for text in world.toasts))
        assert "There is none yet." in world.panels[0].plain
        for text in ("/temp auto", "/system off", "/max off", "/preset"):
            await say(world, pilot, text)
        await wait_for(pilot, lambda: len(world.panels) == 2)
        assert "temperature 0.3 · max_tokens 99 · system: You are brief." in world.panels[1].plain
        world.screen.prompt.put("/preset use B")
        await wait_for(pilot, lambda: world.screen.completion.is_open and world.screen.completion.chosen == "/preset use Brief one")
        await say(world, pilot, "/preset use brief ONE")
        chat = world.screen.chat
        await wait_for(pilot, lambda: chat.max_tokens == 99)
        assert any("counts from the next reply on" in text for text in world.toasts)
        assert (chat.sampling, chat.system, chat.max_tokens) == (Sampling(temperature=0.3), "You are\nbrief.", 99)
        for text, answer in (("/preset use none", "There is no preset none"), ("/preset burn x", "/preset takes")):
            await say(world, pilot, text)
            await wait_for(pilot, lambda answer=answer: any(answer in toast for toast in world.toasts))
        await say(world, pilot, "/preset delete brief one")
        await wait_for(pilot, lambda: world.screen.preset_names == [])


async def test_sampling_of_this_chat() -> None:
    world = World("One.")
    async with world.app.run_test(notifications=True) as pilot:
        await started(world, pilot)
        for text in ("/topp 0.8", "/topk 40", "/minp 0.05", "/penalty 1.2", "/greedy", "/max 64"):
            await say(world, pilot, text)
        await ask(world, pilot, "hi")
        assert world.requests[0].sampling == Sampling(0.0, 0.8, 40, 0.05, 1.2)
        assert world.requests[0].max_tokens == 64
        for text in ("/topp 2", "/topk 1.5", "/minp -1", "/penalty 0", "/max 0", "/think hard"):
            await say(world, pilot, text)
            wrong = f"{text.split()[0]} takes"
            await wait_for(pilot, lambda wrong=wrong: any(toast.startswith(wrong) for toast in world.toasts))
        for text in ("/topp auto", "/topk auto", "/minp auto", "/penalty auto", "/temp auto", "/max off"):
            await say(world, pilot, text)
        await ask(world, pilot, "hi again")
        assert (world.requests[1].sampling, world.requests[1].max_tokens) == (Sampling(), None)


async def test_system_prompt_from_a_file(tmp_path: Path) -> None:
    (tmp_path / "system.txt").write_text("Be kind.\nAlways.\n")
    world = World("One.")
    async with world.app.run_test() as pilot:
        await started(world, pilot)
        await say(world, pilot, "/system @system.txt")
        await ask(world, pilot, "hi")
        assert world.requests[0].messages[0].content == "Be kind.\nAlways."
        await say(world, pilot, "/system @absent.txt")
        await wait_for(pilot, lambda: world.panels and "There is no file" in world.panels[0].plain)


@pytest.mark.parametrize(
    ("address", "key", "opened", "copied"),
    [
        ("https://example.org/x", "y", True, False),
        ("https://example.org/x", "c", False, True),
        ("https://example.org/x", "escape", False, False),
        ("ftp://example.org/x", "y", False, False),
    ],
)
async def test_links_are_asked_about(monkeypatch: pytest.MonkeyPatch, address: str, key: str, opened: bool, copied: bool) -> None:
    """A click shows the whole address; only a yes opens it, and only in the browser."""
    seen: list[str] = []
    world = World(f"See [the docs]({address}).")
    monkeypatch.setattr(world.app, "open_url", lambda url, **_: seen.append(url))
    async with world.app.run_test() as pilot:
        await started(world, pilot)
        await ask(world, pilot, "go")
        await wait_for(pilot, lambda: "the docs" in world.shown())
        rows = world.shown().split("\n")
        y = next(n for n, row in enumerate(rows) if "the docs" in row)
        await pilot.click(offset=(rows[y].index("the docs") + 2, y))
        await wait_for(pilot, lambda: isinstance(world.app.screen, AskScreen) and address in world.shown())
        await pilot.press(key)
        if key == "y" and not opened:
            await pilot.press("escape")
        await wait_for(pilot, lambda: world.app.screen is world.screen)
        assert seen == ([address] if opened else [])
        assert (world.app.clipboard == address) is copied
