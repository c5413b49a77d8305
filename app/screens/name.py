"""Asks for one line of text."""

from __future__ import annotations

from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.content import Content
from textual.screen import ModalScreen
from textual.widgets import Input, Static

from app.terminal import for_terminal, one_line


class NameScreen(ModalScreen[str | None]):
    """Gives the line, None when the person leaves."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape", "dismiss(None)", "Leave", show=False, priority=True)]
    DEFAULT_CSS = """
    NameScreen { align: center middle; }
    NameScreen > Vertical { width: 90%; max-width: 76; height: auto; border: round $accent; background: $surface; padding: 0 1; }
    NameScreen Input { border: none; padding: 0; height: 1; background: $boost; }
    """

    def __init__(self, question: str, value: str = "") -> None:
        super().__init__()
        self._question, self._value = question, value

    def compose(self) -> ComposeResult:
        with Vertical() as box:
            box.border_subtitle = "Enter keeps · Esc leaves"
            yield Static(Content(for_terminal(self._question)))
            line = Input(one_line(self._value), compact=True, select_on_focus=False)
            line.cursor_blink = False
            yield line

    def on_input_submitted(self, event: Input.Submitted) -> None:
        event.stop()
        self.dismiss(event.value.strip())
