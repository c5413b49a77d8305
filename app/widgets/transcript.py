"""The scrolling list of messages. It follows new text only while it is at the end; scrolling up stops that, the end resumes it.

Of a long conversation only a stretch is on the screen (`app.widgets.stretch`). A cursor walks over the messages while the list has
the focus.
"""

from __future__ import annotations

from textual.app import ComposeResult
from textual.widget import Widget

from app.commands import bindings
from app.tree import Attachment, Turn
from app.widgets.exchange import Exchange
from app.widgets.messages import UserMessage
from app.widgets.reply import Reply
from app.widgets.stretch import Stretch

LIVE_REPLIES = 12  # drawn as live Markdown
LIVE_CHARACTERS = 60_000


class Transcript(Stretch):
    """Messages, oldest first."""

    BINDINGS = bindings("transcript")
    # A list that is never lower than the view: an anchored view would push a short one down to its bottom.
    DEFAULT_CSS = """
    Transcript { height: 1fr; scrollbar-size-vertical: 1; }
    Transcript > Vertical { height: auto; min-height: 100%; padding-top: 1; }
    """

    def __init__(self) -> None:
        super().__init__()
        self.mode = "end"  # where the view goes while a reply is written: end, start or off
        self._rising: tuple[Exchange, int] | None = None  # a question on its way to the top, and where the view was left

    def compose(self) -> ComposeResult:
        yield self._messages

    def on_mount(self) -> None:
        self.anchor()

    # --- what is shown -----------------------------------------------------------------------------------------------

    async def say(self, text: str, attached: tuple[Attachment, ...] = ()) -> Exchange:
        """The person's message, at the end."""
        await self.to_end()
        exchange = Exchange(text, attached)
        await self._messages.mount(exchange)
        return exchange

    def answers(self, exchange: Exchange, turns: list[Turn]) -> None:
        """This exchange shows the last turn of the conversation."""
        exchange.turn, self._turns = turns[-1], turns
        exchange.show_branch()

    def show_reply(self, exchange: Exchange) -> None:
        """A reply begins: go there, as the person wants it."""
        if self.mode == "end":
            self.follow()
            return
        self.anchor(False)  # released only, it would take hold again wherever the question's way up touches the end
        if self.mode == "start":
            self._rising = (exchange, round(self.scroll_y))

    def grown(self) -> None:
        """A reply has become longer: its question goes up as far as there is room, until it is at the top or the reader scrolls."""
        if self._rising is not None:
            exchange, last = self._rising
            top = exchange.virtual_region.y
            y = min(top, round(self.max_scroll_y))
            self._rising = (exchange, y) if y < top and round(self.scroll_y) == last else None
            if round(self.scroll_y) == last:
                self.scroll_to(y=y, animate=False, immediate=True)

    async def add(self, widget: Widget) -> None:
        """A note or a panel, at the end; while the end is not on the screen, it waits for it."""
        self._later.append(widget)
        await self._bring_later()

    async def show(self, widget: Widget, *, go: bool) -> None:
        """The same, and go there: always, or only where the view is at the end already, since a reader who has scrolled up stays."""
        there = not self.below and self._last >= len(self._turns)
        if go:
            await self.to_end()
        await self.add(widget)
        if go or there:
            self.scroll_end(animate=False)  # not `follow`: a reply that grows is followed from here on only in the mode end

    async def clear(self) -> None:
        """Remove everything."""
        self._turns, self._first, self.current, self._later = [], 0, None, []
        await self._messages.remove_children()
        self.follow()

    async def cheapen(self) -> None:
        """Keep only the newest replies as live Markdown, so that long chats stay quick."""
        characters = 0
        for n, reply in enumerate(reversed(list(self.query(Reply)))):
            characters += len(reply.exact)
            if n and (n >= LIVE_REPLIES or characters > LIVE_CHARACTERS):
                await reply.freeze()

    # --- following ---------------------------------------------------------------------------------------------------

    def follow(self) -> None:
        """Go to the end and stay there."""
        if self._last < len(self._turns):
            self.call_later(self.to_end)
        self.anchor()

    def action_page_up(self) -> None:
        if self.max_scroll_y:  # else the end would be lost though nothing can move
            super().action_page_up()

    # --- the cursor --------------------------------------------------------------------------------------------------

    @property
    def places(self) -> list[UserMessage | Reply]:
        """What the cursor can stand on."""
        return [place for exchange in self.exchanges for place in exchange.places()]

    def on_focus(self) -> None:
        places = self.places
        if self.current not in places and places:
            bottom = self.scroll_y + self.size.height
            seen = [place for place in places if self._top(place) < bottom]
            self.point(seen[-1] if seen else places[-1], scroll=False)
        elif self.current is not None:
            self.point(self.current, scroll=False)

    def on_blur(self) -> None:
        if self.current is not None:
            self.current.remove_class("-current")

    def _top(self, place: Widget) -> int:
        parent = place.parent
        assert isinstance(parent, Widget)
        return parent.virtual_region.y + place.virtual_region.y

    def point(self, place: UserMessage | Reply, *, scroll: bool = True) -> None:
        """Put the cursor on a message."""
        if self.current is not None:
            self.current.remove_class("-current")
        self.current = place
        place.set_class(self.has_focus, "-current")
        if isinstance(place, Reply) and place.frozen:
            self.call_later(place.thaw)
        if scroll:
            self.scroll_to_widget(place, animate=False, top=place.size.height >= self.size.height)

    def to_row(self, reply: Reply, offset: int, tries: int = 20) -> None:
        """Scroll to a character of a reply, as soon as it has a place."""
        if not reply.is_attached or (not reply.size.height and not tries):
            return
        if not reply.size.height:
            self.call_after_refresh(self.to_row, reply, offset, tries - 1)
            return
        self.scroll_to(y=max(0, self._top(reply) + reply.row_of(offset) - self.size.height // 3), animate=False)

    async def move(self, by: int) -> None:
        """The cursor up or down; at the edge of a stretch more is fetched."""
        places = self.places
        if not places:
            return
        at = places.index(self.current) if self.current in places else len(places) - 1
        if at + by < 0 and self._first > 0 and not self._moving:
            self._moving = True
            await self._fetch(True)
        elif at + by >= len(places) and self._last < len(self._turns) and not self._moving:
            self._moving = True
            await self._fetch(False)
        places = self.places
        at = places.index(self.current) if self.current in places else at
        self.point(places[max(0, min(len(places) - 1, at + by))])

    @property
    def exchange(self) -> Exchange | None:
        """The turn under the cursor."""
        parent = self.current.parent if self.current is not None else None
        return parent if isinstance(parent, Exchange) else None
