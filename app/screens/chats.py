"""The saved chats: a list, newest first, and a search in titles and messages. Gives the chat to open, or None."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass

from textual.app import ComposeResult
from textual.containers import Vertical
from textual.content import Content
from textual.widgets import Input, OptionList, Static
from textual.widgets.option_list import Option

from app.archive import Listed
from app.commands import bindings
from app.saver import Saver
from app.screens.name import NameScreen
from app.screens.place import PlaceScreen
from app.terminal import for_terminal, one_line
from engine.errors import EngineError

DAY_S = 86_400.0
LOOK_S = 0.15  # typing is faster than searching


@dataclass(frozen=True, slots=True)
class Wanted:
    """What to open: a chat, and a message of it where a text was found."""

    key: int
    message: int | None = None


class ChatsScreen(PlaceScreen[Wanted | None]):
    """A filter and a list. What is deleted here can be brought back until the program ends."""

    WHERE = "chats"
    BINDINGS = bindings("chats")
    DEFAULT_CSS = """
    ChatsScreen Input.-textual-compact { border: none; height: 1; padding: 0 1 !important; background: $boost; }
    ChatsScreen OptionList { border: none; height: 1fr; padding: 0; background: $background; }
    ChatsScreen #none { padding: 1 2; height: 1fr; display: none; }
    """

    def __init__(self, saver: Saver, current: int, text: str = "") -> None:
        super().__init__("Chats")
        self._saver, self._current = saver, current
        self._text = text
        self._listed: list[Listed] = []
        self._searches = 0
        self.filter = Input(text, placeholder="Search in titles and messages", compact=True)
        self.filter.cursor_blink = False
        self.list = OptionList(markup=False, compact=True)

    def body(self) -> ComposeResult:
        with Vertical():
            yield self.filter
            yield self.list
            yield Static(id="none", markup=False)

    def on_mount(self) -> None:
        self.filter.focus()
        self.run_worker(self.look(), group="look", exclusive=True)

    def on_resize(self) -> None:
        if self._listed:
            self._show()

    # --- the list ----------------------------------------------------------------------------------------------------

    def on_input_changed(self, event: Input.Changed) -> None:
        if event.value == "/":  # the key that leads to the search, pressed in it
            self.filter.value = ""
            return
        self._text = event.value
        self.run_worker(self.look(LOOK_S), group="look", exclusive=True)

    async def look(self, rest_s: float = 0.0) -> None:
        """Search, and show what was found; the database works beside the screen."""
        await asyncio.sleep(rest_s)
        problem = ""
        try:
            self._listed = await asyncio.to_thread(lambda: self._saver.store.chats(self._text))
        except EngineError as error:
            self._listed, problem = [], f"{error.message}\n{error.hint}"
        self._searches += 1
        self._show(problem)

    def _show(self, problem: str = "") -> None:
        at = self.list.highlighted or 0
        self.list.set_options([Option(_row(chat, self._current, self.app.size.width - 2), str(chat.key)) for chat in self._listed])
        # An empty list that has the focus keeps it: in the filter, the key that brings a chat back would be a letter.
        self.list.display = bool(self._listed) or self.focused_in(self.list)
        nothing = self.query_one("#none", Static)
        nothing.display = not self._listed
        empty = "No chat has this text." if self._text.strip() else "No chat is saved yet."
        nothing.update(Content(for_terminal(problem or empty)))
        if self._listed:
            self.list.highlighted = min(at, len(self._listed) - 1)
        count = len(self._listed)
        self.title_bar.show("Chats", f"{count:,} {'chat' if count == 1 else 'chats'}" + (" found" if self._text.strip() else ""))
        self.show_keys(() if self._saver.deleted else ("chats_undelete",))

    @property
    def chosen(self) -> Listed | None:
        """The chat under the cursor."""
        at = self.list.highlighted
        return self._listed[at] if at is not None and at < len(self._listed) else None

    def on_option_list_option_selected(self, event: OptionList.OptionSelected) -> None:
        event.stop()
        self.do_chats_open("")

    def on_input_submitted(self, event: Input.Submitted) -> None:
        event.stop()
        self.do_chats_open("")

    # --- commands ----------------------------------------------------------------------------------------------------

    def do_chats_open(self, argument: str) -> None:
        chat = self.chosen
        if chat is not None:
            self.dismiss(Wanted(chat.key, chat.message))

    def do_chats_list(self, argument: str) -> None:
        if self._listed:
            self.list.focus()

    def do_chats_filter(self, argument: str) -> None:
        self.filter.focus()

    async def do_chats_rename(self, argument: str) -> None:
        chat = self.chosen
        title = await self.app.push_screen_wait(NameScreen("The title of this chat:", chat.name)) if chat is not None else None
        if chat is not None and title:
            await self._change(lambda: self._saver.store.rename(chat.key, title, one_line(title)))
            self.renamed(chat.key, title)

    def renamed(self, key: int, title: str) -> None:
        """Tell the chat screen, whose own copy would go over it."""
        keeper = getattr(self.app, "chat_screen", None)
        if keeper is not None and keeper.chat.key == key:
            keeper.chat.title = title

    async def do_chats_delete(self, argument: str) -> None:
        chat = self.chosen
        if chat is None:
            return
        if chat.key == self._current:
            self.toast("This chat is open. ^N begins a new one; then it can be deleted.", "warning")
            return
        if await self._change(lambda: self._saver.delete(chat.key)):
            self.toast(f"Deleted: {one_line(chat.name or chat.draft, 40)}. u brings it back, until specchat ends.")

    async def do_chats_undelete(self, argument: str) -> None:
        if self._saver.deleted:
            await self._change(self._saver.bring_back)

    async def _change(self, work: object) -> bool:
        """Do this with the database and show the list anew; False where it failed, which is said."""
        assert callable(work)
        try:
            await asyncio.to_thread(work)
            return True
        except EngineError as error:
            self.toast(f"{error.message} {error.hint}", "warning")
            return False
        finally:
            await self.look()

    def do_chats_leave(self, argument: str) -> None:
        self.dismiss(None)


def _row(chat: Listed, current: int, width: int) -> Content:
    """Two lines at most: title and facts, and where the text was found. A long title leaves room for the facts."""
    sign = "▸ " if chat.key == current else "  "
    facts = [when(chat.changed), f"{chat.turns} {'turn' if chat.turns == 1 else 'turns'}" if chat.turns else "unsent"]
    facts += [one_line(chat.model, 30)] if chat.model else []
    start, end = f"{chat.number:>4} {sign}", "   " + " · ".join(facts)
    title = one_line(chat.name or chat.draft, min(60, max(12, width - len(start) - len(end)))) or "(untitled)"
    row = Content.assemble((start, "dim"), (title, "bold"), (end, "dim"))
    return Content.assemble(row, (f"\n       {one_line(chat.excerpt)}", "")) if chat.excerpt else row


def when(then_s: float, now_s: float | None = None) -> str:
    """A time as people say it: the clock today, the day else."""
    now_s = time.time() if now_s is None else now_s
    then, now = time.localtime(then_s), time.localtime(now_s)
    if then[:3] == now[:3]:
        return time.strftime("%H:%M", then)
    if 0 <= now_s - then_s < 6 * DAY_S:
        return time.strftime("%a %H:%M", then)
    return time.strftime("%Y-%m-%d", then)
