"""What the commands of `app.commands` do on the chat screen: one method `do_NAME(argument)` each."""

from __future__ import annotations

import math
from dataclasses import replace

from app.commands import Command
from app.screens.chat_views import ChatViews
from app.screens.help import HelpScreen
from app.screens.lists import drafter_list, model_list
from app.widgets.panel import Panel
from engine.catalog.specs import NONE

LONGEST_DRAFT = 64


class ChatCommands(ChatViews):
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
        else:
            self.prompt.focus()

    def do_stop(self, argument: str) -> None:
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

    def copy(self, text: str, what: str) -> None:
        """To the clipboard, through the terminal, which does not say whether it did."""
        self.app.copy_to_clipboard(text)
        self.toast(f"{what}: {len(text):,} characters sent to the terminal's clipboard.")

    async def do_draft(self, argument: str) -> None:
        if not argument:
            catalog = self.surroundings.catalog()
            await self.panel(drafter_list(catalog, self.surroundings, self.loaded))
            return
        await self.swap(NONE if argument.lower() == "off" else self.surroundings.catalog().drafter(argument))

    async def do_model(self, argument: str) -> None:
        catalog = self.surroundings.catalog()
        if not argument:
            await self.panel(model_list(catalog, self.surroundings, self.loaded))
            return
        target = catalog.target(argument)
        await self.open_target(target, self.loaded.fitting(target, catalog.drafters_for(target)))

    async def do_new(self, argument: str) -> None:
        if self.held:
            self.toast("The question before waits for the model: Esc stops it.")
            return
        self.chat.clear()
        self.asked = self.before = None
        self.meter.cleared()
        await self.transcript.clear()
        self.prompt.focus()

    async def do_retry(self, argument: str) -> None:
        if self.held:
            return
        await self.again()

    def do_copy(self, argument: str) -> None:
        if argument.lower() == "all":
            self.copy(self.chat.markdown(), "The chat")
        elif self.reply is not None and self.reply.exact:
            self.copy(self.reply.exact, "The reply so far")
        elif self.chat.last is not None:
            self.copy(self.chat.last.text, "The last reply")

    def do_k(self, argument: str) -> None:
        if argument.lower() == "auto":
            self.chat.k = None
            self.toast("The number of drafted tokens is decided live again, from the next reply on.")
        elif argument.isdecimal() and int(argument) <= LONGEST_DRAFT:
            self.chat.k = int(argument)
            self.toast(f"The next replies draft exactly {argument} tokens per step.")
        else:
            self.toast(f"/k takes a number from 0 to {LONGEST_DRAFT}, or auto.", "warning")

    def do_temp(self, argument: str) -> None:
        try:
            value = None if argument.lower() == "auto" else float(argument)
        except ValueError:
            value = math.nan
        if value is not None and not 0 <= value < math.inf:
            self.toast("/temp takes a number of 0 or more, or auto for the model's own.", "warning")
            return
        self.chat.sampling = replace(self.chat.sampling, temperature=value)
        self.toast(f"Temperature of the next replies: {'the model’s own' if value is None else f'{value:g}'}.")

    def do_seed(self, argument: str) -> None:
        if argument.lower() == "off":
            self.chat.seed = None
            self.toast("Each reply gets a fresh random seed.")
        elif argument.isdecimal() and int(argument) < 2**63:
            self.chat.seed = int(argument)
            self.toast(f"Seed {argument}: the same questions get the same text, with any drafter.")
        else:
            self.toast("/seed takes a whole number below 2^63, or off.", "warning")

    def do_system(self, argument: str) -> None:
        if argument.lower() == "off":
            self.chat.system = None
            self.toast("No system prompt.")
        elif argument:
            self.chat.system = argument
            self.toast("The system prompt counts from the next reply on.")
        else:
            self.toast(f"System prompt: {self.chat.system}" if self.chat.system else "There is no system prompt.")

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
        self.app.push_screen(HelpScreen())

    def do_quit(self, argument: str) -> None:
        self.app.exit(0)
