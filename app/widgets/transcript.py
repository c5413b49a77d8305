"""The scrolling list of messages. It follows new text only while it is at the end; scrolling up stops that, the end resumes it.

Of a long conversation only a stretch is on the screen: `MOST` turns at most, and more come when a reader gets to its edge. A cursor
walks over the messages while the list has the focus.
"""

from __future__ import annotations

from textual.app import ComposeResult
from textual.containers import Vertical, VerticalScroll
from textual.widget import Widget

from app.commands import bindings
from app.tree import Attachment, Turn
from app.widgets.exchange import Exchange
from app.widgets.messages import UserMessage
from app.widgets.reply import Reply

LIVE_REPLIES = 12  # drawn as live Markdown
LIVE_CHARACTERS = 60_000
OPENED, CHUNK, MOST = 12, 10, 40  # turns: at first, at a time, in all
OPENED_CHARACTERS = 40_000  # at first
EDGE = 3  # rows from the top or the end where more is fetched


class Transcript(VerticalScroll):
    """Messages, oldest first."""

    BINDINGS = bindings("transcript")
    # A list that is never lower than the view: an anchored view would push a short one down to its bottom.
    DEFAULT_CSS = """
    Transcript { height: 1fr; scrollbar-size-vertical: 1; }
    Transcript > Vertical { height: auto; min-height: 100%; padding-top: 1; }
    """

    def __init__(self) -> None:
        super().__init__()
        self._messages = Vertical()
        self._turns: list[Turn] = []  # the whole conversation
        self._first = 0  # the first of them that is on the screen
        self._moving = False  # more is being fetched
        self.unfolded = False  # thoughts of messages that come are shown
        self.mode = "end"  # where the view goes while a reply is written: end, start or off
        self.current: UserMessage | Reply | None = None

    def compose(self) -> ComposeResult:
        yield self._messages

    def on_mount(self) -> None:
        self.anchor()

    # --- what is shown -----------------------------------------------------------------------------------------------

    @property
    def exchanges(self) -> list[Exchange]:
        """The turns on the screen."""
        return [child for child in self._messages.children if isinstance(child, Exchange)]

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
        self.release_anchor()
        if self.mode == "start":
            self.call_after_refresh(self.scroll_to_widget, exchange, animate=False, top=True)

    async def add(self, widget: Widget) -> None:
        """A note or a panel, at the end."""
        await self._messages.mount(widget)

    async def open(self, turns: list[Turn], around: Turn | None = None) -> None:
        """Show a conversation, at its end or around one turn."""
        self.current = None
        self._turns = turns
        end = min(len(turns), turns.index(around) + OPENED // 2) if around is not None else len(turns)
        self._first, size = end, 0
        while self._first > 0 and end - self._first < OPENED and (size <= OPENED_CHARACTERS or self._first == end):
            self._first -= 1
            size += _size(turns[self._first])
        with self.app.batch_update():
            await self._messages.remove_children()
            await self._messages.mount(*self._made(turns[self._first : end]))
        if around is None:
            self.follow()

    async def show_from(self, turns: list[Turn]) -> None:
        """The conversation has another course from some turn on: keep what is the same, replace the rest."""
        shown = self.exchanges
        same = 0
        while same < len(shown) and self._first + same < len(turns) and _as_it_is(shown[same], turns[self._first + same]):
            same += 1
        if not same and turns and self._first:
            await self.open(turns)
            return
        self._turns, self.current = turns, None
        with self.app.batch_update():
            if same < len(shown):
                children = list(self._messages.children)
                await self._messages.remove_children(children[children.index(shown[same]) :])
            await self._messages.mount(*self._made(turns[self._first + same :][:MOST]))

    def _made(self, turns: list[Turn]) -> list[Exchange]:
        return [Exchange.of(turn, unfolded=self.unfolded) for turn in turns]

    async def clear(self) -> None:
        """Remove everything."""
        self._turns, self._first, self.current = [], 0, None
        await self._messages.remove_children()
        self.follow()

    async def cheapen(self) -> None:
        """Keep only the newest replies as live Markdown, so that long chats stay quick."""
        characters = 0
        for n, reply in enumerate(reversed(list(self.query(Reply)))):
            characters += len(reply.exact)
            if n and (n >= LIVE_REPLIES or characters > LIVE_CHARACTERS):
                await reply.freeze()

    # --- a stretch of a long conversation ----------------------------------------------------------------------------

    @property
    def _last(self) -> int:
        """The turn behind the last one on the screen."""
        return self._first + sum(exchange.turn is not None for exchange in self.exchanges)

    def watch_scroll_y(self, old_value: float, new_value: float) -> None:
        super().watch_scroll_y(old_value, new_value)
        if not self._moving and round(old_value) != round(new_value):
            up = new_value < old_value
            if (up and new_value < EDGE and self._first > 0) or (not up and self.below < EDGE and self._last < len(self._turns)):
                self._moving = True
                self.call_later(self._fetch, up)

    async def _fetch(self, up: bool) -> None:
        """More turns at one edge, fewer at the other; what is looked at stays in its place."""
        try:
            shown = self.exchanges
            mark = shown[0] if up else shown[-1]
            before = mark.virtual_region.y - round(self.scroll_y)
            with self.app.batch_update():
                if up:
                    first = max(0, self._first - CHUNK)
                    await self._messages.mount(*self._made(self._turns[first : self._first]), before=0)
                    self._first = first
                    await self._trim(shown[max(0, MOST - CHUNK) :])
                else:
                    await self._messages.mount(*self._made(self._turns[self._last :][:CHUNK]))
                    extra = shown[: max(0, len(self.exchanges) - MOST)]
                    await self._trim(extra)
                    self._first += len(extra)
            self.call_after_refresh(self._settle, mark, before)
        except BaseException:
            self._moving = False
            raise

    async def _trim(self, exchanges: list[Exchange]) -> None:
        """Take turns off the screen, with the notes behind each; never one that is being answered."""
        keep = {
            exchange for exchange in exchanges if exchange.turn is None or (exchange.reply is not None and exchange.reply.version is None)
        }
        if keep:
            return
        gone: list[Widget] = []
        taking = False
        for child in self._messages.children:
            taking = child in exchanges if isinstance(child, Exchange) else taking
            if taking:
                gone.append(child)
        await self._messages.remove_children(gone)

    def _settle(self, mark: Exchange, before: int) -> None:
        if mark.parent is not None:
            self.scroll_to(y=mark.virtual_region.y - before, animate=False, immediate=True)
        self._moving = False

    async def to_end(self) -> None:
        """Have the last turns on the screen."""
        if self._last < len(self._turns):
            await self.open(self._turns)

    # --- following ---------------------------------------------------------------------------------------------------

    def follow(self) -> None:
        """Go to the end and stay there."""
        if self._last < len(self._turns):
            self.call_later(self.to_end)
        self.anchor()

    @property
    def below(self) -> int:
        """Rows below the view."""
        return max(0, round(self.max_scroll_y - self.scroll_y))

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

    def to_row(self, reply: Reply, offset: int) -> None:
        """Scroll to a character of a reply."""
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

    async def reveal(self, turn: Turn) -> Exchange | None:
        """Have a turn on the screen; None when it is not part of the conversation."""
        if turn not in self._turns:
            return None
        if not self._first <= self._turns.index(turn) < self._last:
            await self.open(self._turns, turn)
        return next((exchange for exchange in self.exchanges if exchange.turn is turn), None)

    @property
    def exchange(self) -> Exchange | None:
        """The turn under the cursor."""
        parent = self.current.parent if self.current is not None else None
        return parent if isinstance(parent, Exchange) else None


def _size(turn: Turn) -> int:
    return len(turn.prompt) + (len(turn.answer.text) if turn.answer is not None else 0)


def _as_it_is(exchange: Exchange, turn: Turn) -> bool:
    shown = exchange.reply.version if exchange.reply is not None else None
    return exchange.turn is turn and shown is turn.answer
