"""The scrolling list of messages. It follows new text only while it is at the end; scrolling up stops that, the end resumes it."""

from __future__ import annotations

from textual.app import ComposeResult
from textual.containers import Vertical, VerticalScroll
from textual.widget import Widget

from app.widgets.messages import Reply, Title, UserMessage

LIVE_REPLIES = 12  # drawn as live Markdown
LIVE_CHARACTERS = 60_000


class Transcript(VerticalScroll):
    """Messages, oldest first."""

    # A list that is never lower than the view: an anchored view would push a short one down to its bottom.
    DEFAULT_CSS = """
    Transcript { height: 1fr; scrollbar-size-vertical: 1; }
    Transcript > Vertical { height: auto; min-height: 100%; padding-top: 1; }
    """

    def __init__(self) -> None:
        super().__init__()
        self._messages = Vertical()

    def compose(self) -> ComposeResult:
        yield self._messages

    def on_mount(self) -> None:
        self.anchor()

    async def say(self, text: str) -> tuple[Title, UserMessage]:
        """The person's message."""
        title, message = Title("You", ">"), UserMessage(text)
        await self._messages.mount(title, message)
        return title, message

    async def add(self, widget: Widget) -> None:
        """A reply, a note or a panel, at the end."""
        await self._messages.mount(widget)

    async def cheapen(self) -> None:
        """Keep only the newest replies as live Markdown, so that long chats stay quick."""
        characters = 0
        for n, reply in enumerate(reversed(list(self.query(Reply)))):
            characters += len(reply.exact)
            if n and (n >= LIVE_REPLIES or characters > LIVE_CHARACTERS):
                await reply.freeze()

    async def clear(self) -> None:
        """Remove everything."""
        await self._messages.remove_children()
        self.follow()

    def follow(self) -> None:
        """Go to the end and stay there."""
        self.anchor()

    @property
    def below(self) -> int:
        """Rows below the view."""
        return max(0, round(self.max_scroll_y - self.scroll_y))

    def action_page_up(self) -> None:
        if self.max_scroll_y:  # else the end would be lost though nothing can move
            super().action_page_up()
