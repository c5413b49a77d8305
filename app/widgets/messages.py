"""What a transcript consists of: the person's messages, replies, and quiet one-line notes.

A reply under way shows its closed blocks as Markdown and the last lines of its open block as plain text; at its end it is drawn
once more as a whole. An old reply becomes one cheap widget (`freeze`). All text goes through `for_terminal`; nothing is markup.
"""

from __future__ import annotations

from markdown_it import MarkdownIt
from rich.markdown import Markdown as RichMarkdown
from textual.app import ComposeResult
from textual.containers import Vertical
from textual.content import Content
from textual.widgets import Markdown, Static

from app.blocks import Blocks, tail
from app.terminal import for_terminal, one_line

FOLD_LINES = 24  # a longer prompt of the person is folded
TAIL_LINES = 60


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
        lines = for_terminal(text).split("\n")
        left = len(lines) - FOLD_LINES
        body = "\n".join(lines[:FOLD_LINES] if left > 1 else lines)
        fold = f"\n… {left} more lines, {len(text):,} characters in all" if left > 1 else ""
        super().__init__(Content.assemble(body, (fold, "dim")))


class Title(Static):
    """Who speaks, and the numbers of the reply."""

    DEFAULT_CSS = "Title { height: 1; padding: 0 1; text-style: bold; text-wrap: nowrap; text-overflow: ellipsis; }"

    def __init__(self, who: str, sign: str) -> None:
        self._who = f"{sign} {one_line(who)}"
        super().__init__(Content(self._who))

    def numbers(self, text: str) -> None:
        """Put numbers behind the name."""
        self.update(Content.assemble(self._who, (f"   {text}", "not bold dim")))


class Reply(Vertical):
    """One reply."""

    DEFAULT_CSS = """
    Reply { height: auto; margin: 0 0 1 0; }
    Reply Markdown { padding: 0 1 0 3; margin: 0; }
    Reply .tail, Reply .frozen { height: auto; padding: 0 2 0 3; }
    Reply .foot { height: auto; padding: 0 1; display: none; text-style: dim; }
    """

    def __init__(self, who: str) -> None:
        super().__init__()
        self.exact = ""  # exact text so far
        self.frozen = False
        self._blocks = Blocks()
        self._fresh = ""  # closed but not drawn yet
        self.title = Title(who, "*")
        self._markdown = Markdown(open_links=False, parser_factory=parser)
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
        self._fresh += self._blocks.feed(text)

    async def paint(self) -> None:
        """Draw what has come since the last time."""
        if closed := self._fresh:
            self._fresh = ""
            await self._markdown.append(for_terminal(closed))
        shown, left = tail(self._blocks.open, TAIL_LINES)
        above = f"… {left} lines above, shown when this block is complete\n" if left else ""
        self._tail.update(Content.assemble((above, "dim"), for_terminal(shown).rstrip("\n")))
        self._tail.display = bool(shown.strip())

    async def finish(self, text: str, foot: str = "") -> None:
        """Draw the whole text once, as Markdown."""
        self.exact = text
        self._blocks, self._fresh = Blocks(), ""
        with self.app.batch_update():
            self._tail.display = False
            await self._markdown.update(for_terminal(text))
            self.foot(foot)

    def foot(self, text: str) -> None:
        """A line under the reply."""
        self._foot.update(Content(for_terminal(text)))
        self._foot.display = bool(text)

    async def freeze(self) -> None:
        """Become cheap: one widget instead of one per block."""
        if not self.frozen:
            self.frozen = True
            drawn = Static(RichMarkdown(for_terminal(self.exact), hyperlinks=False), classes="frozen")
            with self.app.batch_update():
                await self.mount(drawn, after=self._markdown)
                await self._markdown.remove()
                await self._tail.remove()

    def on_markdown_link_clicked(self, event: Markdown.LinkClicked) -> None:
        """A link is never opened: its address is shown, to be judged and copied."""
        event.stop()
        self.notify(one_line(event.href, 300), title="Link, not opened", markup=False)
