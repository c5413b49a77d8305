"""A question over the screen, with a few answers by key."""

from __future__ import annotations

from textual.app import ComposeResult
from textual.screen import ModalScreen

from app.widgets.panel import Choice, Panel


class AskScreen(ModalScreen[str]):
    """Gives the name of the choice; Esc means the last one."""

    DEFAULT_CSS = """
    AskScreen { align: center middle; }
    AskScreen Panel { width: 90%; max-width: 76; max-height: 90%; overflow-y: auto; background: $surface; }
    """

    def __init__(self, title: str, text: str, choices: tuple[Choice, ...]) -> None:
        super().__init__()
        self._panel = Panel(title, text, "", choices)

    def compose(self) -> ComposeResult:
        yield self._panel

    def on_mount(self) -> None:
        self._panel.focus()

    def on_key(self, event: object) -> None:
        if getattr(event, "key", "") == "escape":
            self._panel.dismiss()

    def on_panel_chosen(self, event: Panel.Chosen) -> None:
        event.stop()
        self.dismiss(event.name)
