"""A screen beside the chat: a title row, what it shows, and a key bar. Its keys are the rows of the command table for its place.

A subclass sets `WHERE` and `BINDINGS = bindings(WHERE)`, yields its widgets from `body`, and has one `do_NAME(argument)` per command.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterable
from typing import ClassVar, Generic, TypeVar

from textual.app import ComposeResult
from textual.content import Content
from textual.screen import Screen
from textual.widget import Widget
from textual.widgets import Static

from app.commands import Where, place_bar
from app.terminal import for_terminal, one_line
from app.widgets.line import KeyBar, Line, spread
from app.widgets.too_small import TooSmall

Result = TypeVar("Result")


class TitleBar(Line):
    """What this screen is about on the left, a fact on the right."""

    def __init__(self, left: str, right: str = "") -> None:
        super().__init__(classes="title-bar")
        self._left, self._right = left, right

    def show(self, left: str, right: str = "") -> None:
        """Change the texts."""
        if (left, right) != (self._left, self._right):
            self._left, self._right = left, right
            self.refresh()

    def line(self, width: int) -> Content:
        demo = "DEMO" if self.app.title.endswith("DEMO") else ""
        facts = "  ".join(fact for fact in (one_line(self._right), demo) if fact)
        right = Content(f"{facts} ") if facts else Content("")
        return spread(Content.styled(f" {one_line(self._left)}", "bold"), right, width)


class PlaceScreen(Screen[Result], Generic[Result]):
    """See the module."""

    WHERE: ClassVar[Where]
    DEFAULT_CSS = """
    PlaceScreen .title-bar { background: $panel; }
    PlaceScreen KeyBar { dock: bottom; background: $panel; }
    """

    def __init__(self, title: str, fact: str = "") -> None:
        super().__init__()
        self.title_bar = TitleBar(title, fact)
        self.key_bar = KeyBar()

    def compose(self) -> ComposeResult:
        yield self.title_bar
        yield from self.body()
        yield self.key_bar
        yield TooSmall()

    def body(self) -> ComposeResult:
        """The widgets between title and key bar."""
        yield Static()

    def on_mount(self) -> None:
        self.show_keys()

    def show_keys(self, without: tuple[str, ...] = (), first: Iterable[tuple[str, str]] = ()) -> None:
        """The key bar, without some commands that make no sense now; `first` goes before them."""
        self.key_bar.show([*first, *place_bar(self.WHERE, without, getattr(self.app, "rebound", {})), ("^Q", "quit")])

    def action_command(self, name: str) -> None:
        """A key was pressed."""
        result = getattr(self, f"do_{name}")("")
        if inspect.isawaitable(result):
            self.run_worker(result, group="command")

    def toast(self, text: str, severity: str = "information") -> None:
        """A short confirmation in the corner."""
        self.notify(for_terminal(text), severity="warning" if severity == "warning" else "information", timeout=5, markup=False)

    def focused_in(self, widget: Widget) -> bool:
        """True when this widget has the focus."""
        return self.focused is widget
