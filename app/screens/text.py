"""A long text to read: the exact prompt, the log, what the doctor found, the keys. It may come later than the screen."""

from __future__ import annotations

from textual.app import ComposeResult
from textual.containers import VerticalScroll
from textual.content import Content
from textual.widgets import Static

from app.commands import bindings
from app.screens.place import PlaceScreen
from app.terminal import for_terminal

MOST_SHOWN = 200_000  # characters; all of it is copied


class TextScreen(PlaceScreen[None]):
    """A page to scroll. `text` None: it is on its way, and `fill` brings it. With `end`, the last lines are shown first."""

    WHERE = "text"
    BINDINGS = bindings("text")
    DEFAULT_CSS = """
    TextScreen VerticalScroll { padding: 0 1; }
    TextScreen Static { width: 100%; height: auto; }
    """

    def __init__(self, title: str, fact: str = "", text: str | None = None, *, end: bool = False) -> None:
        super().__init__(title, fact)
        self.title_text = title
        self.exact = text
        self._end = end
        self._shown = Static(markup=False)

    def body(self) -> ComposeResult:
        with VerticalScroll():
            yield self._shown

    def on_mount(self) -> None:
        super().on_mount()
        self.query_one(VerticalScroll).focus()
        self._draw()

    def fill(self, text: str, fact: str = "") -> None:
        """The text has come."""
        self.exact = text
        self.title_bar.show(self.title_text, fact)
        self._draw()

    def _draw(self) -> None:
        text = "One moment…" if self.exact is None else self.exact
        more = len(text) - MOST_SHOWN
        if more > 0:
            text = f"… {more:,} more characters before this; y copies all of it.\n{text[-MOST_SHOWN:]}" if self._end else text[:MOST_SHOWN]
        self._shown.update(Content(for_terminal(text)))
        if self._end:
            self.call_after_refresh(self.query_one(VerticalScroll).scroll_end, animate=False)

    def do_text_copy(self, argument: str) -> None:
        if self.exact:
            self.app.copy_to_clipboard(self.exact)
            self.toast("The text was sent to the terminal's clipboard.")

    def do_text_back(self, argument: str) -> None:
        self.dismiss(None)
