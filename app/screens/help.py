"""Keys and commands, made from the command table."""

from __future__ import annotations

from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.screen import ModalScreen
from textual.widgets import Markdown, Static

from app.commands import help_text

NUMBERS = """
| Number | |
| --- | --- |
| now, avg | tokens per second: over the last 2 s and at least 8 steps, and over the reply; reading the prompt is not counted |
| TTFT | from Enter to the first visible text |
| τ | tokens per pass of the target; plain decoding has 1 |
| kept | drafted tokens that the target confirmed |
| 2.1x est | speed against plain decoding; est: plain is measured on this model, not on this prompt |
| ctx | how much of the context is in use |
"""


class HelpScreen(ModalScreen[None]):
    """A page to scroll; Esc closes it."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape,f1,q", "dismiss", "Close", show=False, priority=True)]

    def compose(self) -> ComposeResult:
        with VerticalScroll(id="help"):
            yield Static("Keys and commands", id="help-title")
            yield Markdown(help_text() + NUMBERS, open_links=False)
            yield Static("Esc closes", id="help-keys")

    def on_mount(self) -> None:
        self.query_one("#help").focus()
