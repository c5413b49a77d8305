"""The list of what a /command could become, above the prompt."""

from __future__ import annotations

from textual.content import Content
from textual.widgets import Static

from app.terminal import one_line

ROWS = 6


class Completion(Static):
    """At most six rows around the chosen one. Hidden when there is nothing to offer."""

    DEFAULT_CSS = """
    Completion { height: auto; max-height: 6; display: none; padding: 0 1; background: $panel; text-wrap: nowrap; text-overflow: ellipsis; }
    Completion.-open { display: block; }
    """

    def __init__(self) -> None:
        super().__init__()
        self._items: list[tuple[str, str]] = []
        self._at = 0

    @property
    def is_open(self) -> bool:
        return bool(self._items)

    @property
    def chosen(self) -> str:
        """The text to put into the prompt."""
        return self._items[self._at][0]

    def offer(self, items: list[tuple[str, str]]) -> None:
        """Show these, or hide."""
        if items != self._items:
            self._items, self._at = items, 0
            self._paint()

    def close(self) -> None:
        """Hide."""
        self.offer([])

    def move(self, step: int) -> None:
        """Up or down, round the end."""
        self._at = (self._at + step) % len(self._items)
        self._paint()

    def _paint(self) -> None:
        self.set_class(self.is_open, "-open")
        first = max(0, min(self._at - ROWS // 2, len(self._items) - ROWS))
        width = max((len(text) for text, _ in self._items), default=0) + 2
        rows = [
            Content.assemble((one_line(text).ljust(width), "bold reverse" if n == self._at else "bold"), (one_line(about), "dim"))
            for n, (text, about) in enumerate(self._items)
        ][first : first + ROWS]
        self.update(Content("\n").join(rows))
