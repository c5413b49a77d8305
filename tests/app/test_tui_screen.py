"""What is drawn: sizes, scrolling, hostile text, long replies, many messages, a full-speed engine."""

from __future__ import annotations

import asyncio
import time

import pytest
from textual.widgets import Markdown

from app.chat import ChatOptions
from app.screens.chat import IDLE_S
from app.widgets.formatted import Fence, Formatted
from app.widgets.reply import TAIL_STEP, Reply
from app.widgets.too_small import TooSmall
from engine.catalog.specs import NGRAM
from engine.protocol import Segment
from tests.app.tui_world import BIG, SHORT, TRACES, World, ask, held, load_trace, scripted, sees, settled, started, wait_for

MIXED = (
    "Text before.\n\n```py\nfor i in range(3):\n    print(i)\n```\n\n- one\n- two\n\n| a | b |\n| --- | --- |\n| 1 | 2 |\n\nThe end.\n\n"
)
PARAGRAPHS = "".join(f"Paragraph {n} of a long reply.\n\n" for n in range(120))


@pytest.mark.parametrize("size", [(80, 24), (120, 40), (60, 16), (200, 60)])
async def test_sizes(size: tuple[int, int]) -> None:
    """Header first, status and keys last, nothing wider than the window, the prompt inside."""
    world = World(trace=load_trace(TRACES / "chat.json"))
    async with world.app.run_test(size=size) as pilot:
        await started(world, pilot)
        await ask(world, pilot, "write fib")
        rows = world.shown().split("\n")
        assert len(rows) == size[1]
        assert rows[0].startswith(" specchat")
        assert "big" in rows[0]
        assert "draft: ngram" in rows[0]
        assert rows[-1].lstrip().startswith("Enter send")
        assert rows[-2].lstrip().startswith("idle")
        assert "tok/s" in rows[-2]
        assert "Ask something" in rows[-3]
        assert world.screen.transcript.size.height >= size[1] - 6


async def test_resize_keeps_everything() -> None:
    """From wide to narrow to too small and back."""
    world = World(MIXED * 3)
    async with world.app.run_test(size=(120, 40)) as pilot:
        await started(world, pilot)
        await ask(world, pilot, "go")
        world.screen.prompt.put("unsent")
        for size in ((80, 24), (60, 16), (59, 16), (60, 15), (20, 5), (120, 40)):
            await pilot.resize_terminal(*size)
            await pilot.pause()
            small = size[0] < 60 or size[1] < 16
            await wait_for(pilot, lambda small=small: world.screen.query_one(TooSmall).display is small)
            await wait_for(pilot, lambda small=small: ("specchat" in world.shown().split("\n")[0]) is not small)
            await wait_for(pilot, lambda: world.screen.focused is world.screen.prompt)
        assert world.screen.prompt.text == "unsent"
        await sees(world, pilot, "unsent", "The end.")


@pytest.mark.parametrize(
    ("text", "step", "last"),
    [(PARAGRAPHS, 100, "Paragraph 119"), ("".join(PARAGRAPHS.partition("Paragraph 60 ")[:1]) + MIXED, 60, "The end.")],
    ids=["too long to be drawn once more", "drawn once more as a whole"],
)
async def test_follows_only_at_the_end(text: str, step: int, last: str) -> None:
    """New text is followed; scrolling up stops that, and the view does not move, not even when the reply ends; End resumes."""
    reply = held(text, step)
    world = World(reply)
    async with world.app.run_test() as pilot:
        await started(world, pilot)
        world.screen.prompt.put("go")
        await pilot.press("enter")
        view = world.screen.transcript
        await wait_for(pilot, lambda: view.max_scroll_y > 30)
        await wait_for(pilot, lambda: view.below == 0)
        await settled(pilot)
        await pilot.press("pageup")
        await wait_for(pilot, lambda: view.below > 0)
        await settled(pilot)
        place = view.scroll_y
        text_there = [row[:70].rstrip() for row in world.shown().split("\n")[2:12]]
        reply.go()
        await wait_for(pilot, lambda: view.max_scroll_y > place + 40)
        assert view.scroll_y == place
        await sees(world, pilot, "lines below · ^End follows")
        await wait_for(pilot, lambda: world.rests)
        await settled(pilot)
        assert view.scroll_y == place
        assert [row[:70].rstrip() for row in world.shown().split("\n")[2:12]] == text_there
        await pilot.press("ctrl+end")
        await wait_for(pilot, lambda: view.below == 0)
        await sees(world, pilot, last)


async def test_end_in_an_empty_prompt_follows_again() -> None:
    world = World(PARAGRAPHS, PARAGRAPHS)
    async with world.app.run_test() as pilot:
        await started(world, pilot)
        await ask(world, pilot, "go")
        await wait_for(pilot, lambda: world.screen.transcript.below == 0)
        await pilot.press("ctrl+home")
        await wait_for(pilot, lambda: world.screen.transcript.scroll_y == 0)
        await pilot.press("end")
        await wait_for(pilot, lambda: world.screen.transcript.below == 0)


async def test_page_up_with_nothing_to_scroll_does_not_stop_following() -> None:
    world = World(PARAGRAPHS)
    async with world.app.run_test() as pilot:
        await started(world, pilot)
        await pilot.press("pageup", "ctrl+home")
        await ask(world, pilot, "go")
        await wait_for(pilot, lambda: "Paragraph 119" in world.shown())


async def test_the_end_is_the_same_as_one_drawing() -> None:
    """After streaming word by word the blocks are those of the whole text drawn at once."""
    text = MIXED * 2 + "1. a\n\n   more of a\n\n2. b\n   ```sh\n   ls\n   ```\n\n> quote\n\nlast"
    world = World(scripted(text, step_s=0.01), speed=1.0)
    async with world.app.run_test(size=(100, 50)) as pilot:
        await started(world, pilot)
        await ask(world, pilot, "go")
        streamed = world.replies[0].query_one(Markdown)
        whole = Formatted()
        await world.screen.transcript.add(whole)
        await whole.update(text)
        await wait_for(pilot, lambda: len(whole.children) == len(streamed.children))
        assert [type(block) for block in streamed.children] == [type(block) for block in whole.children]
        assert streamed.source == text


async def test_a_reply_that_grows_costs_one_layout_a_frame() -> None:
    """On a CPU the model waits for each."""
    world = World(scripted("word " * 400, step_s=0.02), speed=1.0)
    async with world.app.run_test(size=(60, 24)) as pilot:
        await started(world, pilot)
        world.screen.prompt.put("go")
        await pilot.press("enter")
        view = world.screen.transcript
        await wait_for(pilot, lambda: view.max_scroll_y > 2)
        layouts: list[int] = []
        world.screen.screen_layout_refresh_signal.subscribe(view, lambda _: layouts.append(view.max_scroll_y))
        await wait_for(pilot, lambda: view.max_scroll_y > 20)
        assert len(layouts) <= len(set(layouts)) + 2


async def test_an_open_block_grows_by_some_rows_at_a_time() -> None:
    """Each growth is a layout of the whole screen; what fits into the rows that there are is drawn at once all the same."""
    world = World()
    async with world.app.run_test(size=(60, 24)) as pilot:
        await started(world, pilot)
        reply = Reply("small")
        await world.screen.transcript.add(reply)
        heights: list[int] = []
        for n in range(10 * TAIL_STEP):
            reply.feed([Segment(f"line {n}\n", "plain", ())])
            await reply.paint()
            await sees(world, pilot, f"line {n}")
            heights.append(reply.query(".tail").first().size.height)
        assert heights == [TAIL_STEP * (n // TAIL_STEP + 1) for n in range(10 * TAIL_STEP)]
        reply.feed([Segment("\nThe next block", "plain", ())])
        await reply.paint()
        await sees(world, pilot, "The next block")
        assert reply.query(".tail").first().size.height == TAIL_STEP


async def test_code_is_coloured_once() -> None:
    Fence.highlight.cache_clear()
    world = World("Code:\n\n```py\nx = 1\n```\n\nDone.")
    async with world.app.run_test() as pilot:
        await started(world, pilot)
        await ask(world, pilot, "go")
        assert world.replies[0].query(Fence)
        assert Fence.highlight.cache_info().misses == 1


async def test_while_streaming_closed_blocks_are_markdown_and_the_open_one_is_plain() -> None:
    code = "\n".join(f"line_{n} = {n}" for n in range(200))
    held_reply = held(f"Before.\n\n```py\n{code}\n```\n\nAfter.", 120)
    world = World(held_reply)
    async with world.app.run_test(size=(80, 24)) as pilot:
        await started(world, pilot)
        world.screen.prompt.put("go")
        await pilot.press("enter")
        await wait_for(
            pilot, lambda: "lines above, shown when this block is complete" in "".join(str(s.content) for s in world.screen.query(".tail"))
        )
        reply = world.replies[0]
        assert reply.query_one(Markdown).source == "Before.\n\n"
        assert reply.query(".tail").first().size.height <= 61
        held_reply.go()
        await wait_for(pilot, lambda: world.rests)
        assert len(reply.query_one(Markdown).query("MarkdownFence")) == 1
        assert not reply.query(".tail").first().display


HOSTILE = [
    "\x1b]52;c;aGVsbG8=\x07 and \x1b[2J\x1b[H and \x9b31m",
    "[bold]not bold[/] [/foo] [@click=app.quit]x[/] [link=y] arr[0] = x[i]",
    "<script>alert(1)</script> <b>html</b>\n\n<div>\nblock of html\n</div>",
    "nul \x00 bell \x07 cr \r back \x08 del \x7f",
    "bidi \u202egnirts\u202c \u2066x\u2069",
    "你好，世界 👩‍👩‍👧 é ﷽",
]


@pytest.mark.parametrize("text", HOSTILE)
async def test_hostile_text_is_shown_as_text(text: str) -> None:
    """From the model, from the person and in code blocks: nothing is interpreted, nothing disappears."""
    reply = held(f"{text}\n\n```\n{text}\n```\n\nopen {text}", 1)
    world = World(reply)
    async with world.app.run_test(size=(120, 40)) as pilot:
        await started(world, pilot)
        world.screen.prompt.put("x")
        await pilot.press("enter")
        await wait_for(pilot, lambda: world.replies and world.replies[0].exact)
        assert not controls(world.shown())
        reply.go()
        await wait_for(pilot, lambda: world.rests)
        assert world.replies[0].exact == f"{text}\n\n```\n{text}\n```\n\nopen {text}"
        words = {"52;c;": "␛]52;c;aGVsbG8=␇", "[bold]": "[bold]not bold[/] [/foo] [@click=app.quit]x[/]", "<b>": "<b>html</b>"}
        wanted = [word for mark, word in words.items() if mark in text]
        await wait_for(pilot, lambda: all(world.shown().count(word) >= 2 for word in wanted))  # laid out, not only received
        shown = world.shown()
        assert not controls(shown)
        if "html" in text:
            assert "block of html" in shown
        if "nul" in text:
            assert "nul ␀ bell ␇ cr ␍ back ␈ del ␡" in shown
        if "bidi" in text:
            assert "bidi ‹202E›gnirts‹202C›" in shown


def controls(shown: str) -> list[str]:
    return [c for c in shown if c != "\n" and (ord(c) < 32 or 0x7F <= ord(c) < 0xA0 or c in "\u202e\u2066")]


async def test_hostile_names_and_prompts() -> None:
    name = "big\x1b[31m[bold]\nx"
    spec = type(BIG)(name, repo="org/big")
    world = World(SHORT, options=ChatOptions(target=spec, drafter=NGRAM))
    world.machine.disk.add(name)
    async with world.app.run_test(size=(120, 30)) as pilot:
        await started(world, pilot)
        await ask(world, pilot, "my [bold]text[/] \x1b]0;title\x07")
        await sees(world, pilot, "my [bold]text[/] ␛]0;title␇")
        shown = world.shown()
        assert not controls(shown)
        assert "big␛[31m[bold] x" in shown.split("\n")[0]
        assert world.requests[0].messages[0].content == "my [bold]text[/] \x1b]0;title\x07"


async def test_a_line_of_ten_thousand_characters() -> None:
    """It wraps, the screen stays alive, and the whole text is there."""
    line = "x" * 10_000
    world = World(f"before {line} after")
    async with world.app.run_test() as pilot:
        await started(world, pilot)
        await ask(world, pilot, "go")
        assert world.replies[0].exact == f"before {line} after"
        await wait_for(pilot, lambda: "after" in world.shown())
        assert world.screen.transcript.virtual_size.width <= 80


async def test_old_replies_become_cheap() -> None:
    """Of many replies only the newest are live Markdown; the others are one widget each, with the same text."""
    world = World(MIXED)
    async with world.app.run_test() as pilot:
        await started(world, pilot)
        for n in range(16):
            await ask(world, pilot, f"question {n}")
        replies = world.replies
        assert [reply.frozen for reply in replies] == [True] * 4 + [False] * 12
        assert len(world.screen.query(Markdown)) == 12
        assert all(len(list(reply.query("*"))) <= 4 for reply in replies[:4])
        world.screen.transcript.scroll_home(animate=False)
        await wait_for(pilot, lambda: "Text before." in world.shown() and "for i in range(3):" in world.shown())


async def test_full_speed_engine_does_not_freeze_the_screen() -> None:
    """5,000 tokens at once: the loop keeps answering, the queue does not grow without bound, the text is whole."""
    text = (MIXED * 220)[: 5000 * 7]
    world = World(scripted(text, kept=(0, 1, 4)), speed=40.0)
    async with world.app.run_test(size=(100, 30)) as pilot:
        await started(world, pilot)
        gaps: list[float] = []
        waiting: list[int] = []

        async def watch() -> None:
            while True:
                start_s = time.thread_time()  # of our own work: on a busy machine other things take time as well
                await asyncio.sleep(0.005)
                gaps.append(time.thread_time() - start_s)
                waiting.append(world.client.waiting)

        watcher = asyncio.create_task(watch())
        await ask(world, pilot, "go")
        watcher.cancel()
        assert world.replies[0].exact == text
        steps = sum(type(event).__name__ == "Step" for _, event in world.client.trace.replies[0])
        assert steps > 1500
        assert sorted(gaps)[int(len(gaps) * 0.99)] < 2.0  # about 0.3
        assert max(waiting) <= len(world.client.trace.replies[0])
        assert isinstance(world.replies[0], Reply)


@pytest.mark.parametrize("no_colour", [False, True])
async def test_no_colour(monkeypatch: pytest.MonkeyPatch, no_colour: bool) -> None:
    """With NO_COLOR everything drawn is a shade of grey; without it, it is not."""
    monkeypatch.delenv("NO_COLOR", raising=False)
    if no_colour:
        monkeypatch.setenv("NO_COLOR", "1")
    world = World(MIXED)
    async with world.app.run_test(size=(80, 40)) as pilot:
        await started(world, pilot)
        await ask(world, pilot, "go")
        await sees(world, pilot, "for i in range(3):")
        strips = world.screen._compositor.render_strips(world.app.size)
        styles = {segment.style for strip in strips for segment in strip if segment.style}
        colours = {tuple(c.get_truecolor()) for style in styles for c in (style.color, style.bgcolor) if c is not None}
        assert len(colours) > 3
        assert all(r == g == b for r, g, b in colours) is no_colour


async def test_nothing_moves_by_itself() -> None:
    """No animation, no blinking; an idle screen sets no work but a slow look for events."""
    world = World(SHORT)
    async with world.app.run_test() as pilot:
        await started(world, pilot)
        await ask(world, pilot, "go")
        assert world.app.animation_level == "none"
        assert not world.screen.prompt.cursor_blink
        drains = 0
        drain = world.client.drain

        def counted() -> list[object]:
            nonlocal drains
            drains += 1
            return drain()  # type: ignore[return-value]

        world.client.drain = counted  # type: ignore[method-assign, assignment]
        begun_s = time.monotonic()
        await asyncio.sleep(1.2)
        assert drains <= (time.monotonic() - begun_s) / IDLE_S + 2
