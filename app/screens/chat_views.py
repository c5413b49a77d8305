"""Other views of the chat: token by token, the numbers beside it, the screens over it."""

from __future__ import annotations

from app.record import Record
from app.screens.chat_settings import ChatSettings
from app.widgets.reply import Reply

STATS = ("line", "full", "off")
BESIDE_COLUMNS, BELOW_ROWS = 110, 22  # where there is room for the panel


class ChatViews(ChatSettings):
    """The methods behind the keys that change what is seen."""

    async def do_tokens(self, argument: str) -> None:
        """All replies token by token, or as text again; the place on the screen stays."""
        if argument.lower() not in ("", "on", "off"):
            self.toast("/tokens takes on or off.", "warning")
            return
        on = argument.lower() == "on" if argument else not self.tokens_on
        if on == self.tokens_on:
            return
        following, place = not self.transcript.below, self._place()
        self.tokens_on = on
        self.legend.set_class(on, "-on")
        replies = list(self.query(Reply))
        for reply in replies:
            await reply.show_tokens(on)
        if on and replies and not any(reply.record for reply in replies):
            self.toast("No tokens are known of these replies: they were written before. New ones will show theirs.")
        if following:
            self.transcript.follow()
        elif place is not None:
            self.call_after_refresh(self._back_to, *place)

    def do_steps(self, argument: str) -> None:
        """The steps of the last reply that the transcript shows."""
        replies = [reply for reply in self.query(Reply) if reply.display and reply.record.steps]
        if not replies:
            self.toast("No steps are known of these replies.")
            return
        ready = self.loaded.ready
        self._show_steps(replies[-1].record, ready.target if ready is not None else "", "the last reply")

    async def do_tokens_here(self, argument: str) -> None:
        """t: this one reply token by token, or as text again."""
        reply = self.transcript.current
        if not isinstance(reply, Reply):
            self.toast("Only a reply has tokens to show.")
            return
        if not reply.record:
            self.toast("No tokens are known of this reply: it was written before.")
        await reply.show_tokens(not reply.as_tokens)
        self.legend.set_class(any(one.as_tokens for one in self.query(Reply)), "-on")

    def do_steps_here(self, argument: str) -> None:
        """i: the steps of this reply."""
        reply = self.transcript.current
        if not isinstance(reply, Reply) or not reply.record.steps:
            self.toast("No steps are known of this message.")
            return
        ready = self.loaded.ready
        target = reply.version.model if reply.version is not None else ready.target if ready is not None else ""
        self._show_steps(reply.record, target, "this reply")

    def _show_steps(self, record: Record, target: str, which: str) -> None:
        from app.screens.steps import StepsScreen

        self.app.push_screen(StepsScreen(record, target, which))

    stats = "auto"  # the panel where there is room beside the transcript, else the line

    def on_resize(self) -> None:
        self.place_stats()

    @property
    def stats_now(self) -> str:
        """What is really shown: off, line or full."""
        if self.stats == "auto":
            return "full" if self.size.width >= BESIDE_COLUMNS else "line"
        return self.stats

    def place_stats(self) -> None:
        """Put line and panel where they have room."""
        full = self.stats_now == "full"
        beside = full and self.size.width >= BESIDE_COLUMNS
        below = full and not beside and self.size.height >= BELOW_ROWS
        self.status.display = self.stats_now != "off"
        self.query_one("#main").set_class(below, "-below")
        if (beside, below) != (self.panel_of_numbers.has_class("-beside"), self.panel_of_numbers.has_class("-below")):
            self.panel_of_numbers.set_class(beside, "-beside")
            self.panel_of_numbers.set_class(below, "-below")
            self.panel_of_numbers.show(self.meter.overlay(), self.loaded.ready)

    def do_stats(self, argument: str) -> None:
        """More numbers, one line of them, or none."""
        wanted = argument.lower() or STATS[(STATS.index(self.stats_now) + 1) % len(STATS)]
        if wanted not in STATS:
            self.toast("/stats takes off, line or full.", "warning")
            return
        if wanted == "full" and self.size.width < BESIDE_COLUMNS and self.size.height < BELOW_ROWS:
            self.toast(f"The panel needs a window of {BESIDE_COLUMNS} columns or {BELOW_ROWS} rows.")
            if not argument:
                wanted = "off"
        self.stats = wanted
        self.place_stats()

    def _place(self) -> tuple[Reply, int, int] | None:
        """The first reply in the view, the character of it at the top, and the rows above it when it begins further down."""
        top = round(self.transcript.scroll_y)
        for reply in self.query(Reply):
            region = reply.virtual_region
            if reply.display and region.bottom > top:
                return (reply, reply.offset_at(top - region.y), 0) if region.y <= top else (reply, -1, region.y - top)
        return None

    def _back_to(self, reply: Reply, offset: int, above: int, last: int = -1) -> None:
        """Until it stays: what has just been put in may not be laid out yet."""
        row = reply.row_of(offset) if offset >= 0 else -above
        if (place := max(0, reply.virtual_region.y + row)) != last:
            self.transcript.scroll_to(y=place, animate=False)
            self.call_after_refresh(self._back_to, reply, offset, above, place)
