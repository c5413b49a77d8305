"""The thoughts of a reply: one folded line, or their text, dim."""

from __future__ import annotations

from textual.content import Content
from textual.widgets import Static

from app.terminal import for_terminal
from app.thoughts import Thoughts
from engine.words import counted


class Thinking(Static):
    """Hidden where there are no thoughts."""

    DEFAULT_CSS = "Thinking { height: auto; padding: 0 2 0 3; margin: 0 0 1 0; display: none; text-style: dim; }"

    def __init__(self) -> None:
        super().__init__()
        self._shown = ""

    def show(self, thoughts: Thoughts, unfolded: bool) -> None:
        """Bring up to date; repaints only what has changed."""
        there = bool(thoughts.text) or thoughts.inside
        tokens = f" ({counted(thoughts.tokens, 'token')})" if thoughts.tokens else ""
        words = "thinking" if thoughts.inside else "thoughts"
        text = f"{'▾' if unfolded else '▸'} {words}{tokens}"
        if unfolded:
            text += f"\n{thoughts.text}"
        if there != self.display:
            self.display = there
        if there and text != self._shown:
            self._shown = text
            self.update(Content(for_terminal(text)))
