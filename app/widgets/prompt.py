"""The prompt box: one to ten rows, Enter sends, a pasted newline never does, Up and Down walk through what was sent before."""

from __future__ import annotations

from textual import events
from textual.message import Message
from textual.widgets import TextArea

from app.commands import bindings
from app.terminal import for_terminal

PLACEHOLDER = "Ask something, or / for commands"


class Prompt(TextArea):
    """Keys from the command table; those that depend on the cursor are handled here."""

    BINDINGS = bindings("prompt")
    DEFAULT_CSS = """
    Prompt { height: auto; min-height: 1; max-height: 10; border: none; padding: 0 1; background: $background; }
    Prompt:focus { border: none; }
    """

    class Walk(Message):
        """Up or Down (`step` -1 or 1) where the cursor cannot go further."""

        def __init__(self, step: int) -> None:
            super().__init__()
            self.step = step

    class Tab(Message):
        """Tab was pressed."""

    class End(Message):
        """End was pressed where the cursor is at the end already."""

    def __init__(self) -> None:
        super().__init__(compact=True, highlight_cursor_line=False, soft_wrap=True, placeholder=PLACEHOLDER)
        self.cursor_blink = False
        self._sent: list[str] = []
        self._back = 0  # how many prompts back we are
        self._draft = ""

    def put(self, text: str) -> None:
        """Replace the text, cursor at its end."""
        self.text = text
        self.move_cursor(self.document.end)

    def sent(self, text: str) -> None:
        """Remember a prompt and empty the box."""
        if not self._sent or self._sent[-1] != text:
            self._sent.append(text)
        self._back, self._draft = 0, ""
        self.text = ""

    def remember(self, prompts: list[str]) -> None:
        """What was sent in earlier sessions."""
        self._sent = [*prompts, *self._sent]

    def walk(self, step: int) -> None:
        """One prompt back (-1) or forward (1); the unsent text is kept at the near end."""
        back = self._back - step
        if not 0 <= back <= len(self._sent):
            return
        if self._back == 0:
            self._draft = self.text
        self._back = back
        self.put(self._sent[-back] if back else self._draft)
        if step < 0:
            self.move_cursor((0, 0))

    def action_cursor_up(self, select: bool = False) -> None:
        if not select and self.navigator.is_first_wrapped_line(self.cursor_location):
            self.post_message(self.Walk(-1))
        else:
            super().action_cursor_up(select)

    def action_cursor_down(self, select: bool = False) -> None:
        if not select and self.navigator.is_last_wrapped_line(self.cursor_location):
            self.post_message(self.Walk(1))
        else:
            super().action_cursor_down(select)

    def action_cursor_line_end(self, select: bool = False) -> None:
        if not select and self.cursor_location == self.document.end:
            self.post_message(self.End())
        super().action_cursor_line_end(select)

    async def _on_key(self, event: events.Key) -> None:
        if event.key == "tab":
            event.stop()
            event.prevent_default()
            self.post_message(self.Tab())
        elif event.key in ("shift+\r", "alt+\r"):  # Shift+Enter and Alt+Enter in the older of the two extended key protocols
            event.stop()
            event.prevent_default()
            self.insert("\n")

    async def _on_paste(self, event: events.Paste) -> None:
        """Paste as text with plain line ends; controls become symbols here, since the box must draw what it holds."""
        event.stop()
        event.prevent_default()
        text = for_terminal(event.text.replace("\r\n", "\n").replace("\r", "\n"))
        self.replace(text, *self.selection, maintain_selection_offset=False)
