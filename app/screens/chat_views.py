"""Other views of the chat: token by token, the numbers beside it, the screens over it."""

from __future__ import annotations

from app.screens.chat_replies import ReplyFlow
from app.widgets.messages import Reply


class ChatViews(ReplyFlow):
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

    def _place(self) -> tuple[Reply, int, int] | None:
        """The first reply in the view, the character of it at the top, and the rows above it when it begins further down."""
        top = round(self.transcript.scroll_y)
        for reply in self.query(Reply):
            region = reply.virtual_region
            if reply.display and region.bottom > top:
                return (reply, reply.offset_at(top - region.y), 0) if region.y <= top else (reply, -1, region.y - top)
        return None

    def _back_to(self, reply: Reply, offset: int, above: int) -> None:
        row = reply.row_of(offset) if offset >= 0 else -above
        self.transcript.scroll_to(y=max(0, reply.virtual_region.y + row), animate=False)
