"""The Textual application: screens, engine wiring, palette. `run_chat` is what `specchat` without a command does."""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import ClassVar

from textual.app import App, SystemCommand
from textual.binding import BindingType
from textual.events import Event, Key, Paste
from textual.screen import Screen

from app import clipboard
from app.chat import ChatOptions
from app.commands import COMMANDS, bindings, key_label, keys_of
from app.hangup import CAN_LOOK, EXIT_CODE, LOOK_S, hung_up, let_go
from app.keys import InOrder
from app.screens.ask import AskScreen
from app.screens.chat import ChatScreen
from app.surroundings import Surroundings
from app.textual_fixes import calm_pastes, lose_writes, teach_alt_enter
from app.widgets.panel import Choice
from app.widgets.token_view import colours
from app.widgets.too_small import COLUMNS, ROWS
from engine.client import Client, EngineClient

__all__ = ["ChatOptions", "SpecChat", "run_chat"]


class SpecChat(App[int]):
    """One chat screen for now; others are pushed over it and the engine goes on below them."""

    CSS_PATH = Path(__file__).with_name("app.tcss")
    TITLE = "specchat"
    BINDINGS: ClassVar[list[BindingType]] = bindings("app")
    HORIZONTAL_BREAKPOINTS = [(0, "-tiny"), (COLUMNS, "-narrow"), (110, "-wide")]  # noqa: RUF012 - as the base class declares it
    VERTICAL_BREAKPOINTS = [(0, "-flat"), (ROWS, "-short"), (22, "-tall")]  # noqa: RUF012

    def __init__(self, options: ChatOptions, client: Client | None = None, surroundings: Surroundings | None = None) -> None:
        teach_alt_enter()
        calm_pastes()
        lose_writes()
        super().__init__()
        self.animation_level = "none"
        self.client = client if client is not None else EngineClient()
        surroundings = surroundings or Surroundings()
        if surroundings.demo:
            self.title = f"{self.TITLE} DEMO"
        self.config = surroundings.config()
        self.rebound = self.config.keys  # keys of the person's own, by command
        self.set_keymap(dict(self.rebound))
        self.wants_demo = False  # leave, and open the demo
        self.chat_screen = ChatScreen(self.client, options, surroundings)
        self.typed = InOrder(self, super().on_event)

    def on_mount(self) -> None:
        self.run_worker(self.typed.run(), group="keys")
        if CAN_LOOK and not self.is_headless:
            self.set_interval(LOOK_S, self._look_for_terminal)

    def on_ready(self) -> None:
        """The first frame is there. Garbage, not searched for so far, is again, and not in what was imported: that stays."""
        if not gc.isenabled():
            gc.freeze()
            gc.enable()

    def _look_for_terminal(self) -> None:
        """Leave when nobody can be there any more."""
        if hung_up():
            let_go()
            self.exit(EXIT_CODE)

    async def on_event(self, event: Event) -> None:
        """Keys in their order."""
        if isinstance(event, Key | Paste) and not event.is_forwarded:
            self.typed.put(event)
        else:
            await super().on_event(event)

    def get_theme_variable_defaults(self) -> dict[str, str]:
        """Colours of our own, for dark and for light themes."""
        return colours(self.current_theme.dark)

    def get_default_screen(self) -> Screen[None]:
        return self.chat_screen

    def copy_to_clipboard(self, text: str) -> None:
        """Through the terminal, and through the desktop's own tool where there is one."""
        super().copy_to_clipboard(text)
        if (command := clipboard.tool()) is not None:
            clipboard.put(text, command)

    def action_command(self, name: str) -> None:
        """Keys that work on every screen."""
        assert name == "quit", name
        if getattr(self.screen, "running", False):
            self.run_worker(self._leave_a_measurement(), group="quit")
        else:
            self.exit(0)

    async def _leave_a_measurement(self) -> None:
        yes, no = Choice("y", "Leave, it is lost", "yes"), Choice("escape", "Go on measuring", "no")
        question = AskScreen("A measurement is under way.", "Esc in it stops it and keeps what there is.", (yes, no))
        if await self.push_screen_wait(question) == "yes":
            self.exit(0)

    def get_system_commands(self, screen: Screen[object]) -> Iterable[SystemCommand]:
        """The palette: what can be done now, from the command table; and the theme."""
        if isinstance(screen, ChatScreen):
            for command in COMMANDS:
                if command.palette and not command.when(screen.situation):
                    keys = f"  {key_label(keys_of(command, self.rebound))}" if command.keys else ""
                    title = command.name.capitalize().replace("_", " ") + keys
                    yield SystemCommand(title, command.help, partial(screen.run_command, command))
        yield SystemCommand("Theme", "Choose the colours", self.action_change_theme)


def run_chat(options: ChatOptions, client: Client | None = None, surroundings: Surroundings | None = None) -> int:
    """Open the chat and return the exit code. The terminal is restored before the engine is waited for, two seconds at most."""
    if os.environ.get("TERM") == "dumb":
        print("The chat needs a terminal that can move the cursor (TERM is dumb). Use: specchat run 'PROMPT'.", file=sys.stderr)
        return 2
    app = SpecChat(options, client, surroundings)
    try:
        code = app.run(mouse=app.config.get("screen.mouse") is not False)
    finally:
        app.client.close(2.0)
    if app.wants_demo:
        from app.demo import demo

        return run_chat(*demo())
    if app.chat_screen.chat.number and app.chat_screen.chat.root.items and not app.chat_screen.surroundings.demo:
        print(f"`specchat --chat {app.chat_screen.chat.number}` opens this chat again.", file=sys.stderr)
    return app.return_code or code or 0
