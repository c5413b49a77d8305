"""A stretch of a conversation on the screen: `MOST` turns at most; more come at its edges, and what is looked at stays in its place."""

from __future__ import annotations

from textual.widget import Widget

from app.tree import Turn
from app.widgets.exchange import Exchange
from app.widgets.grown import GrownScroll, GrownStack
from app.widgets.messages import UserMessage
from app.widgets.reply import Reply

OPENED, CHUNK, MOST = 12, 10, 40  # turns: at first, at a time, in all
OPENED_CHARACTERS = 40_000  # at first
EDGE = 3  # rows from the top or the end where more is fetched


class Stretch(GrownScroll):
    """The scrolling part of the transcript. Replies that come from the conversation are drawn cheaply."""

    def __init__(self) -> None:
        super().__init__()
        self._messages = GrownStack()
        self._turns: list[Turn] = []  # the whole conversation
        self._first = 0  # the first of them that is on the screen
        self._moving = False  # more is being fetched
        self.unfolded = False  # thoughts of messages that come are shown
        self.current: UserMessage | Reply | None = None  # where the cursor is
        self._later: list[Widget] = []  # notes that belong behind the last turn, while that is not on the screen

    def follow(self) -> None:
        """Go to the end and stay there."""
        raise NotImplementedError

    @property
    def exchanges(self) -> list[Exchange]:
        """The turns on the screen."""
        return [child for child in self._messages.children if isinstance(child, Exchange)]

    @property
    def below(self) -> int:
        """Rows below the view."""
        return max(0, round(self.max_scroll_y - self.scroll_y))

    async def open(self, turns: list[Turn], around: Turn | None = None) -> None:
        """Show a conversation, at its end or around one turn."""
        self.current = None
        if turns is not self._turns:
            self._turns, self._later = turns, []
        self._moving = True
        end = min(len(turns), turns.index(around) + OPENED // 2) if around is not None else len(turns)
        self._first, size = end, 0
        while self._first > 0 and end - self._first < OPENED and (size <= OPENED_CHARACTERS or self._first == end):
            self._first -= 1
            size += _size(turns[self._first])
        with self.app.batch_update():
            await self._messages.remove_children()
            await self._messages.mount(*self._made(turns[self._first : end]))
            await self._bring_later()
        if around is None:
            self.follow()
        else:
            self.release_anchor()
        self.call_after_refresh(self._opened)

    def _opened(self) -> None:
        self._moving = False

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

    @property
    def _last(self) -> int:
        """The turn behind the last one on the screen."""
        return self._first + sum(exchange.turn is not None for exchange in self.exchanges)

    def watch_scroll_y(self, old_value: float, new_value: float) -> None:
        super().watch_scroll_y(old_value, new_value)
        if not self._moving and round(old_value) != round(new_value) and self._at_edge(new_value < old_value):
            self._moving = True
            self.call_after_refresh(self._come, new_value < old_value)

    def _at_edge(self, up: bool) -> bool:
        if up:
            return self.scroll_y < EDGE and self._first > 0
        return self.below < EDGE and self._last < len(self._turns)

    async def _come(self, up: bool) -> None:
        """More turns, if the view is still at the edge: it may only have passed by on its way."""
        if self._at_edge(up):
            await self._fetch(up)
        else:
            self._moving = False

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
                    await self._bring_later()
            self.call_after_refresh(self._settle, mark, before)
        except BaseException:
            self._moving = False
            raise

    async def _bring_later(self) -> None:
        if self._later and self._last >= len(self._turns):
            later, self._later = self._later, []
            await self._messages.mount(*later)

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

    def _settle(self, mark: Exchange, before: int, last: int | None = None) -> None:
        """Until it stays: what has just been put in may not be laid out yet."""
        place = mark.virtual_region.y - before
        if mark.is_attached and place != last:
            self.scroll_to(y=place, animate=False, immediate=True)
            self.call_after_refresh(self._settle, mark, before, place)
        else:
            self._moving = False

    async def to_end(self) -> None:
        """Have the last turns on the screen."""
        if self._last < len(self._turns):
            await self.open(self._turns)

    async def reveal(self, turn: Turn) -> Exchange | None:
        """Have a turn on the screen; None when it is not part of the conversation."""
        if turn not in self._turns:
            return None
        if not self._first <= self._turns.index(turn) < self._last:
            await self.open(self._turns, turn)
        return next((exchange for exchange in self.exchanges if exchange.turn is turn), None)


def _size(turn: Turn) -> int:
    return len(turn.prompt) + (len(turn.answer.text) if turn.answer is not None else 0)


def _as_it_is(exchange: Exchange, turn: Turn) -> bool:
    shown = exchange.reply.version if exchange.reply is not None else None
    return exchange.turn is turn and shown is turn.answer
