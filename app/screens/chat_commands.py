"""What the commands of `app.commands` do on the chat screen: one method `do_NAME(argument)` each."""

from __future__ import annotations

from app.commands import Command
from app.screens.chat_history import LONGEST_TITLE
from app.screens.chat_looks import ChatLooks
from app.settings import METHODS
from app.terminal import one_line
from app.widgets.panel import Panel
from engine.catalog import bindings
from engine.catalog.specs import NONE


class ChatCommands(ChatLooks):
    """The methods behind keys, slash commands and palette."""

    def usage(self, command: Command) -> None:
        """Say how a command is written."""
        self.toast(f"/{command.slash} {command.usage}", "warning")

    async def do_send(self, argument: str) -> None:
        """Enter: an open completion first, then a command, then a question."""
        raise NotImplementedError

    def do_newline(self, argument: str) -> None:
        self.prompt.insert("\n")

    def do_back(self, argument: str) -> None:
        """Esc: the first that applies."""
        focused = self.focused
        if self.completion.is_open:
            self.completion.close()
        elif isinstance(focused, Panel) and focused.choices:
            focused.dismiss()
        elif self.selections or not self.prompt.selection.is_empty:
            self.clear_selection()
            self.prompt.move_cursor(self.prompt.cursor_location)
        elif self.situation.generating or self.situation.loading:
            self.do_stop("")
        elif self.editing is not None and focused is self.prompt:
            self.leave_edit()
        else:
            self.prompt.focus()

    def do_stop(self, argument: str) -> None:
        self.stop_asked = True
        self.client.stop()
        self.wake()

    def do_interrupt(self, argument: str) -> None:
        """Ctrl+C."""
        if text := self.prompt.selected_text or self.get_selected_text():
            self.copy(text, "The selection")
        elif self.situation.generating or self.situation.loading:
            self.do_stop("")
        else:
            self.toast("Ctrl+Q quits.")

    async def do_draft(self, argument: str) -> None:
        if not argument:
            await self.pick_drafter()
            return
        name, _, last = argument.rpartition(" ")
        name, method = (name.rstrip(), last.lower()) if name.strip() and last.lower() in METHODS else (argument, None)
        await self.swap(NONE if name.lower() == "off" else self.surroundings.catalog().drafter(name), method)

    async def do_model(self, argument: str) -> None:
        if not argument:
            await self.pick_target()
            return
        catalog = self.surroundings.catalog()
        if (heads := catalog.heads(argument)) is not None:
            await self.swap(bindings.instead(heads, self.loaded.target))
            return
        target = catalog.target(argument)
        await self.open_target(target, self.loaded.fitting(target, catalog.drafters_for(target)))

    async def do_new(self, argument: str) -> None:
        if self.held:
            self.toast("The question before waits for the model: Esc stops it.")
            return
        self.forget_chat()
        self.chat.clear()
        self.asked = self.before = self.editing = None
        self.meter.cleared()
        self.prompt.put("")
        self.show_attached()
        self.chat.title = one_line(argument)[:LONGEST_TITLE]
        await self.transcript.clear()
        self.prompt.focus()

    async def do_retry(self, argument: str) -> None:
        if self.held:
            return
        await self.again()

    def do_page_up(self, argument: str) -> None:
        self.transcript.action_page_up()

    def do_page_down(self, argument: str) -> None:
        self.transcript.action_page_down()

    def do_top(self, argument: str) -> None:
        if self.transcript.max_scroll_y:
            self.transcript.scroll_home(animate=False)

    def do_follow(self, argument: str) -> None:
        self.transcript.follow()

    def do_help(self, argument: str) -> None:
        from app.screens.help import HelpScreen

        self.app.push_screen(HelpScreen(argument))

    def do_quit(self, argument: str) -> None:
        self.app.exit(0)
