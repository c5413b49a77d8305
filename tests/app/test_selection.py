"""Text of the transcript selected with the mouse and copied with Ctrl+C: also where a reply is one cheap widget, drawn by Rich."""

from __future__ import annotations

from pathlib import Path

import pytest
from textual.geometry import Offset
from textual.pilot import Pilot

from app.chat import ChatOptions
from app.store import Store
from app.widgets.drawn import Drawn
from engine.catalog.specs import NGRAM
from tests.app.chats_made import keep, talk
from tests.app.tui_world import BIG, Machine, World, ask, sees, settled, started, wait_for

REPLY = "The **first** answer.\n\n- 你好 one\n- two\n\n```py\nfor i in range(3):\n    print(i)\n```\n\nThe end of it."


@pytest.fixture
def chats(tmp_path: Path) -> Path:
    """A database with one short chat."""
    store = Store(tmp_path / "chats.db")
    keep(store, talk(("Question 0?", REPLY), ("Question 1?", "The second answer.")))
    store.close()
    return tmp_path / "chats.db"


def place(world: World, text: str) -> Offset:
    """Where on the screen a text begins, in cells."""
    for y, row in enumerate(world.shown().split("\n")):
        if text in row:
            return Offset(row.index(text), y)
    raise AssertionError(f"{text} is not on the screen")


async def drag(world: World, pilot: Pilot[int], start: Offset, end: Offset) -> None:
    """Both cells are part of the selection, where they are of one message."""
    world.app.copy_to_clipboard("")
    await pilot.mouse_down(offset=start)
    await pilot.hover(offset=end)
    await pilot.mouse_up(offset=end)
    await pilot.pause()
    await pilot.press("ctrl+c")
    await wait_for(pilot, lambda: world.app.clipboard)


async def opened(world: World, pilot: Pilot[int]) -> None:
    await started(world, pilot)
    await sees(world, pilot, "The end of it.", "The second answer.")
    await settled(pilot)


def reopened(chats: Path) -> World:
    return World("New.", machine=Machine(chats=chats), options=ChatOptions(target=BIG, drafter=NGRAM, resume=""))


async def test_a_part_of_a_reopened_chat(chats: Path) -> None:
    """Within a row, over rows, and over two messages."""
    world = reopened(chats)
    async with world.app.run_test(size=(80, 40)) as pilot:
        await opened(world, pilot)
        assert all(reply.frozen for reply in world.replies)
        start = place(world, "first answer")
        await drag(world, pilot, start, start + (4, 0))
        assert world.app.clipboard == "first"
        await drag(world, pilot, place(world, "for i in"), place(world, "print(i)") + (7, 0))
        assert world.app.clipboard == "for i in range(3):\n     print(i)"  # as it is seen, with the block's edge
        await drag(world, pilot, place(world, "first answer"), place(world, "The second") + (10, 0))  # Textual leaves the last cell out
        text = world.app.clipboard
        assert text.startswith("first answer.\n")
        assert "The end of it.\n" in text
        assert text.endswith("The second")
        assert "Question 1?" in text


async def test_wide_characters_are_one_each(chats: Path) -> None:
    """A cell of the second of them is that character, and what stands behind is not shifted."""
    world = reopened(chats)
    async with world.app.run_test(size=(80, 40)) as pilot:
        await opened(world, pilot)
        drawn = next(drawn for drawn in world.screen.query(Drawn) if "first" in drawn.source)
        y = place(world, "one").y
        row = next(row.text for row in drawn._draw() if "你好" in row.text)
        x = drawn.content_region.x + row.index("你")
        await drag(world, pilot, Offset(x, y), Offset(x + 2, y))
        assert world.app.clipboard == "你好"
        await drag(world, pilot, Offset(x + 5, y), Offset(x + 7, y))
        assert world.app.clipboard == "one"


async def test_the_selection_is_to_be_seen(chats: Path) -> None:
    """Its cells, and only they, have its background; drawing it does not draw the text anew; Esc takes it away."""
    world = reopened(chats)
    async with world.app.run_test(size=(80, 40)) as pilot:
        await opened(world, pilot)
        drawn = next(drawn for drawn in world.screen.query(Drawn) if "first" in drawn.source)
        rows, plain = drawn._draw(), drawn.render_line(0)
        start = place(world, "first answer")
        await drag(world, pilot, start, start + (4, 0))
        assert drawn._draw() is rows
        mark = world.screen.get_component_rich_style("screen--selection").bgcolor
        marked = [segment.text for segment in drawn.render_line(0) if segment.style is not None and segment.style.bgcolor == mark]
        assert "".join(marked) == "first"
        assert drawn.render_line(0).text == plain.text
        await pilot.press("escape")
        await wait_for(pilot, lambda: not world.screen.selections)
        assert all(segment.style is None or segment.style.bgcolor != mark for segment in drawn.render_line(0))


async def test_the_beginning_of_a_long_reply() -> None:
    """Of a reply of many blocks those before the last are one cheap widget."""
    world = World("".join(f"Paragraph {n} of it.\n\n" for n in range(200)))
    async with world.app.run_test(size=(80, 40)) as pilot:
        await started(world, pilot)
        await ask(world, pilot, "go")
        await pilot.press("ctrl+home")
        await sees(world, pilot, "Paragraph 3 of it.")
        await settled(pilot)
        assert list(world.screen.query(Drawn))
        await drag(world, pilot, place(world, "Paragraph 2 "), place(world, "Paragraph 3 ") + (10, 0))
        assert world.app.clipboard == "Paragraph 2 of it.\n\nParagraph 3"
