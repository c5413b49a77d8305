"""What a transcript consists of: the person's messages, replies, and quiet one-line notes.

A reply under way shows its closed blocks as Markdown and the last lines of its open block as plain text; at its end it is drawn
once more as a whole. An old reply becomes one cheap widget (`freeze`). All text goes through `for_terminal`; nothing is markup.
The same reply can be shown token by token instead (`show_tokens`); the view that is hidden draws nothing meanwhile.
"""

from __future__ import annotations

import asyncio
from collections import deque

from markdown_it import MarkdownIt
from rich.markdown import Markdown as RichMarkdown
from textual.app import ComposeResult
from textual.containers import Vertical
from textual.content import Content
from textual.widget import Widget
from textual.widgets import Markdown, Static

from app.blocks import Blocks, tail
from app.record import Record
from app.terminal import for_terminal, one_line
from app.widgets import reading
from app.widgets.token_view import TokenText

FOLD_LINES, FOLD_CHARACTERS = 24, 2_000  # a longer prompt of the person is folded
TAIL_LINES = 60
LIVE_BLOCKS = 80  # of one reply
PAINT_BLOCKS, PAINT_CHARACTERS = 16, 4_000  # drawn at a time


def parser() -> MarkdownIt:
    """As Textual's own, but HTML is text: it would vanish from the screen otherwise."""
    return MarkdownIt("gfm-like", {"html": False})


class Note(Static):
    """One quiet line."""

    DEFAULT_CSS = "Note { height: auto; margin: 0 1 1 1; text-style: dim; }"

    def __init__(self, text: str) -> None:
        super().__init__(Content(for_terminal(text)))
        self.plain = text


class UserMessage(Static):
    """What the person sent; a very long one is folded."""

    DEFAULT_CSS = "UserMessage { height: auto; padding: 0 2 0 3; margin: 0 0 1 0; }"

    def __init__(self, text: str) -> None:
        self.exact = text
        whole = for_terminal(text)
        shown = folded(whole)
        note = f"\n… folded here; {len(text):,} characters in {len(text.splitlines()):,} lines were sent"
        fold = note if shown != whole else ""
        super().__init__(Content.assemble(shown, (fold, "dim")))


def folded(text: str) -> str:
    """The beginning of a text that would take too many rows, else all of it."""
    lines = text.split("\n")
    if len(lines) <= FOLD_LINES + 2 and len(text) <= FOLD_CHARACTERS + 200:
        return text
    return "\n".join(lines[:FOLD_LINES])[:FOLD_CHARACTERS]


class Title(Static):
    """Who speaks, and the numbers of the reply."""

    DEFAULT_CSS = "Title { height: 1; padding: 0 1; text-style: bold; text-wrap: nowrap; text-overflow: ellipsis; }"

    def __init__(self, who: str, sign: str) -> None:
        self._who = f"{sign} {one_line(who)}"
        super().__init__(Content(self._who))

    def numbers(self, text: str) -> None:
        """Put numbers behind the name."""
        self.update(Content.assemble(self._who, (f"   {text}", "not bold dim")))


class Drawn(Static):
    """Markdown as one cheap widget."""

    def __init__(self, source: str) -> None:
        super().__init__(RichMarkdown(source, hyperlinks=False), classes="frozen")
        self.source = source


class Reply(Vertical):
    """One reply. At most `LIVE_BLOCKS` or so of its blocks are live widgets; those before are drawn by one widget."""

    DEFAULT_CSS = """
    Reply { height: auto; }
    Reply Markdown { padding: 0 1 0 3; margin: 0; }
    Reply .tail, Reply .frozen { height: auto; padding: 0 2 0 3; margin: 0 0 1 0; }
    Reply.-tokens > Markdown, Reply.-tokens > .tail, Reply.-tokens > .frozen { display: none; }
    Reply .foot { height: auto; padding: 0 1; margin: 0 0 1 0; display: none; text-style: dim; }
    """

    def __init__(self, who: str) -> None:
        super().__init__()
        self.exact = ""  # exact text so far
        self.record = Record()  # the same, token by token
        self.frozen = False
        self._tokens: TokenText | None = None  # the token view, while it is on
        self._blocks = Blocks()
        self._waiting: deque[str] = deque()  # blocks that are closed but not drawn yet
        self._whole = True  # all drawn blocks are in one Markdown
        self.title = Title(who, "*")
        self._markdown = self._empty()
        self._tail = Static(classes="tail")
        self._foot = Static(classes="foot")

    def compose(self) -> ComposeResult:
        yield self.title
        yield self._markdown
        yield self._tail
        yield self._foot

    def feed(self, text: str) -> None:
        """Add text; `paint` draws it."""
        self.exact += text
        self._waiting += self._blocks.feed(text)

    async def paint(self, lines: int = TAIL_LINES) -> None:
        """Draw what has come since the last time, or a good part of it where much has come at once; `lines` of the open block."""
        if self._tokens is not None:
            await self._tokens.show(self.record.segments)
            return
        await self._draw_blocks()
        shown, left = tail(self._blocks.open, min(lines, TAIL_LINES))
        above = f"… {left} lines above, shown when this block is complete\n" if left else ""
        content = Content.assemble((above, "dim"), for_terminal(shown).rstrip("\n"))
        visible = bool(shown.strip()) and not self._waiting
        size = self._tail.content_size  # most new words only fill the last line: a layout of the screen for them costs the engine dearly
        grows = visible != self._tail.display or not size.width or content.get_height({}, size.width) != size.height
        self._tail.update(content, layout=grows)
        if visible != self._tail.display:
            self._tail.display = visible

    async def finish(self, text: str, foot: str = "") -> None:
        """Draw the rest, a short reply once more as a whole: a later line can change how an earlier one is read."""
        assert text.startswith(self.exact), "the segments joined are the text"
        self.feed(text[len(self.exact) :])
        self._waiting.append(self._blocks.open)
        self._blocks = Blocks()
        while self._waiting and not (self._whole and len(self._markdown.children) + len(self._waiting) <= LIVE_BLOCKS):
            await self._draw_blocks()
            await asyncio.sleep(0)
        with self.app.batch_update():
            self._tail.display = False
            if self._waiting:
                self._waiting.clear()
                await self._markdown.update(for_terminal(text))
            self.foot(foot)
        if self._tokens is not None:
            await self._tokens.show(self.record.segments)

    async def _draw_blocks(self) -> None:
        source = ""
        for _ in range(PAINT_BLOCKS):
            if self._waiting and len(source) < PAINT_CHARACTERS:
                source += self._waiting.popleft()
        if not source:
            return
        await self._markdown.append(for_terminal(source))
        if len(self._markdown.children) > LIVE_BLOCKS:
            self._whole = False
            with self.app.batch_update():
                old, self._markdown = self._markdown, self._empty()
                await self.mount(self._drawn(old.source), self._markdown, after=old)
                await old.remove()

    @staticmethod
    def _empty() -> Markdown:
        return Markdown(open_links=False, parser_factory=parser)

    @staticmethod
    def _drawn(source: str) -> Drawn:
        return Drawn(source)

    @property
    def as_tokens(self) -> bool:
        """True while the token view is on."""
        return self._tokens is not None

    async def show_tokens(self, on: bool) -> None:
        """Show the token view, or the reading view again. A reply of which no tokens are known has only the latter."""
        if on == self.as_tokens or (on and not self.record):
            return
        with self.app.batch_update():
            self.set_class(on, "-tokens")
            if self._tokens is not None:
                old, self._tokens = self._tokens, None
                await old.remove()
                if not self.frozen and self._blocks.open:
                    await self.paint()
            else:
                self._tokens = TokenText(self.record.segments)
                await self.mount(self._tokens, before=self._foot)

    def offset_at(self, row: int) -> int:
        """The character of the reply that is shown at a row of this widget."""
        if self._tokens is not None:
            return self._tokens.offset_at(row - self._tokens.virtual_region.y)
        return reading.offset_at(self._reading(), row)

    def row_of(self, offset: int) -> int:
        """The row of this widget that shows a character of the reply."""
        if self._tokens is not None:
            return self._tokens.virtual_region.y + self._tokens.row(offset)
        return reading.row_of(self._reading(), offset)

    def _reading(self) -> list[tuple[Widget, str]]:
        drawn: list[tuple[Widget, str]] = [(widget, widget.source) for widget in self.query(Drawn)]
        return drawn if self.frozen else [*drawn, (self._markdown, self._markdown.source), (self._tail, self._blocks.open)]

    def foot(self, text: str) -> None:
        """A line under the reply."""
        self._foot.update(Content(for_terminal(text)))
        self._foot.display = bool(text)

    async def freeze(self) -> None:
        """Become cheap: no block is a widget of its own any more."""
        if not self.frozen:
            self.frozen = True
            with self.app.batch_update():
                await self.query(".frozen").remove()
                await self.mount(self._drawn(for_terminal(self.exact)), after=self._markdown)
                await self._markdown.remove()
                await self._tail.remove()

    def on_markdown_link_clicked(self, event: Markdown.LinkClicked) -> None:
        """A link is never opened: its address is shown, to be judged and copied."""
        event.stop()
        self.notify(one_line(event.href, 300), title="Link, not opened", markup=False)
