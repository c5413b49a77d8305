"""A reply in the transcript.

Under way it shows its closed blocks as Markdown and the last lines of its open block as plain text; at its end it is drawn
once more as a whole. An old reply becomes one cheap widget (`freeze`), and live again when someone looks at it closely (`thaw`). All
text goes through `for_terminal`; nothing is markup.
The same reply can be shown token by token instead (`show_tokens`); the view that is hidden draws nothing meanwhile.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterable
from typing import TYPE_CHECKING

from textual.app import ComposeResult
from textual.content import Content
from textual.message import Message
from textual.widget import Widget
from textual.widgets import Static

from app.blocks import Blocks, tail
from app.record import Record
from app.terminal import for_terminal
from app.thoughts import Thoughts, split_version
from app.tree import Version
from app.widgets import reading
from app.widgets.drawn import Drawn
from app.widgets.grown import GrownStack, GrownText
from app.widgets.messages import Title
from app.widgets.thinking import Thinking
from app.widgets.token_view import TokenText
from engine.protocol import Segment
from engine.words import counted

if TYPE_CHECKING:  # imported with the first reply: the first frame does not wait for Markdown
    from textual.widgets import Markdown

    from app.widgets.formatted import Formatted

TAIL_LINES = 60
TAIL_STEP = 4  # rows that the open block grows by: most new words then need no layout of the screen, which costs the engine dearly
LIVE_BLOCKS = 80  # of one reply
THAW_LINES = 400
PAINT_BLOCKS, PAINT_CHARACTERS = 16, 4_000  # drawn at a time


class Reply(GrownStack):
    """One reply. At most `LIVE_BLOCKS` or so of its blocks are live widgets; those before are drawn by one widget."""

    DEFAULT_CSS = """
    Reply { height: auto; }
    Reply Markdown { padding: 0 1 0 3; margin: 0; }
    Reply .tail, Reply .frozen { height: auto; padding: 0 2 0 3; margin: 0 0 1 0; }
    Reply.-tokens > Markdown, Reply.-tokens > .tail, Reply.-tokens > .frozen { display: none; }
    Reply .foot { height: auto; padding: 0 1; margin: 0 0 1 0; display: none; text-style: dim; }
    """

    class Link(Message):
        """A link was clicked."""

        def __init__(self, address: str) -> None:
            super().__init__()
            self.address = address

    def __init__(self, who: str, version: Version | None = None, *, opened: bool = False, unfolded: bool = False) -> None:
        """`version` is an answer that is complete; `opened` says that this model's template opens the thoughts."""
        super().__init__()
        self.version = version
        self.exact = version.text if version is not None else ""  # exact text so far
        self.frozen = version is not None
        self.unfolded = unfolded  # the thoughts are shown
        self._record: Record | None = None if version is not None else Record()
        self._thoughts = split_version(version) if version is not None else Thoughts(opened)
        self._thinking = Thinking()
        self._restart = False  # what was drawn as text has turned out to be thoughts
        self._tokens: TokenText | None = None  # the token view, while it is on
        self._blocks = Blocks()
        self._waiting: deque[str] = deque()  # blocks that are closed but not drawn yet
        self._whole = True  # all drawn blocks are in one Markdown
        self.title = Title(who, "*")
        self._markdown = formatted()
        self._tail = GrownText(classes="tail")
        self._foot = Static(classes="foot")

    def compose(self) -> ComposeResult:
        yield self.title
        yield self._thinking
        if self.frozen:
            yield Drawn(for_terminal(self.said))
        else:
            yield self._markdown
            yield self._tail
        yield self._foot

    def on_mount(self) -> None:
        self._thinking.show(self._thoughts, self.unfolded)

    @property
    def record(self) -> Record:
        """The reply token by token; that of an old one is read when it is asked for."""
        if self._record is None:
            assert self.version is not None
            self._record = Record()
            for step in self.version.steps:
                self._record.add(step)
            self._record.finish(self.version.done)
        return self._record

    @property
    def said(self) -> str:
        """The text without the thoughts."""
        return self.exact[len(self._thoughts.source) :]

    @property
    def thoughts(self) -> Thoughts:
        """What it thinks, or thought."""
        return self._thoughts

    @property
    def behind(self) -> bool:
        """More has come than was drawn: another `paint` goes on, also where nothing new comes for a while."""
        return bool(self._waiting) and self._tokens is None

    def begin(self, version: Version) -> None:
        """It continues this answer. Before it is mounted."""
        assert self._record is not None
        for step in version.steps:
            self._record.add(step)
        self.feed(version.segments or [Segment(version.text, "plain", ())])

    def fold(self, folded: bool) -> None:
        """Show the thoughts as one line, or whole."""
        self.unfolded = not folded
        self._thinking.show(self._thoughts, self.unfolded)

    def feed(self, segments: Iterable[Segment]) -> None:
        """Add text; `paint` draws it."""
        pieces = list(segments)
        late = self._thoughts.late
        self.exact += "".join(piece.text for piece in pieces)
        said = self._thoughts.feed(pieces)
        if self._thoughts.late and not late:
            self._restart, said = True, self.said
            self._blocks = Blocks()
            self._waiting.clear()
        self._waiting += self._blocks.feed(said)

    async def paint(self, lines: int = TAIL_LINES) -> None:
        """Draw what has come since the last time, or a good part of it where much has come at once; `lines` of the open block."""
        if self._tokens is not None:
            await self._tokens.show(self.record.segments)
            return
        self._thinking.show(self._thoughts, self.unfolded)
        with self.app.batch_update():  # one layout, though a block that ends changes both
            await self._draw_blocks()
            self._draw_tail(min(lines, TAIL_LINES))

    def _draw_tail(self, lines: int) -> None:
        shown, left = tail(self._blocks.open, lines)
        above = f"… {counted(left, 'line')} above, shown when this block is complete\n" if left else ""
        content = Content.assemble((above, "dim"), for_terminal(shown).rstrip("\n"))
        visible = bool(shown.strip()) and not self._waiting
        size = self._tail.content_size
        rows = content.get_height({}, size.width) if size.width else 1
        room = max(rows, min(-(-rows // TAIL_STEP) * TAIL_STEP, TAIL_LINES + 1))  # there is one line more: what is above
        grows = visible != self._tail.display or room != size.height
        self._tail.update(content, layout=grows)
        if grows:
            self._tail.styles.min_height = room
        if visible != self._tail.display:
            self._tail.display = visible

    async def draw(self) -> None:
        """Draw all closed blocks that there are, and the end of the open one."""
        while self._waiting:
            await self._draw_blocks()
        await self.paint()

    async def finish(self, text: str, foot: str = "") -> None:
        """Draw the rest, a short reply once more as a whole: a later line can change how an earlier one is read."""
        assert text.startswith(self.exact), "the segments joined are the text"
        if rest := text[len(self.exact) :]:
            self.feed([Segment(rest, "plain", ())])
        self._waiting += self._blocks.feed(self._thoughts.end())
        self._thinking.show(self._thoughts, self.unfolded)
        self._waiting.append(self._blocks.open)
        self._blocks = Blocks()
        while self._waiting and not (self._whole and len(self._markdown.children) + len(self._waiting) <= LIVE_BLOCKS):
            await self._draw_blocks()
            await asyncio.sleep(0)
        with self.app.batch_update():
            self._tail.display = False
            if self._waiting:
                self._waiting.clear()
                await self._markdown.update(for_terminal(self.said))
            self.foot(foot)
        if self._tokens is not None:
            await self._tokens.show(self.record.segments)

    async def _draw_blocks(self) -> None:
        if self._restart:
            self._restart, self._whole = False, True
            await self.query(".frozen").remove()
            await self._markdown.update("")
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
                old, self._markdown = self._markdown, formatted()
                await self.mount(Drawn(old.source), self._markdown, after=old)
                await old.remove()

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
        drawn: list[tuple[Widget, str]] = [(self._thinking, self._thoughts.source)] if self._thoughts.source else []
        drawn += [(widget, widget.source) for widget in self.query(Drawn)]
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
                await self.mount(Drawn(for_terminal(self.said)), after=self._markdown)
                await self._markdown.remove()
                await self._tail.remove()

    async def thaw(self) -> None:
        """Become live again, unless it is very long."""
        if self.frozen and self.said.count("\n") <= THAW_LINES:
            self.frozen = False
            self._markdown, self._tail = formatted(), GrownText(classes="tail")
            self._tail.display = False
            self._blocks, self._whole = Blocks(), True
            with self.app.batch_update():
                await self.mount(self._markdown, self._tail, before=self._foot)
                await self._markdown.update(for_terminal(self.said))
                await self.query(".frozen").remove()

    def on_markdown_link_clicked(self, event: Markdown.LinkClicked) -> None:
        """A link is never opened unasked."""
        event.stop()
        self.post_message(self.Link(event.href))


def formatted() -> Formatted:
    """Live Markdown, empty as yet."""
    from app.widgets.formatted import Formatted

    return Formatted()
