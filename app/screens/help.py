"""Keys, commands and numbers, made from the command table."""

from __future__ import annotations

from rich.table import Table
from rich.text import Text
from textual.app import ComposeResult
from textual.containers import VerticalScroll
from textual.screen import ModalScreen
from textual.widgets import Static

from app.commands import PLACES, bindings, key_help, slash_help

NUMBERS = [
    ("now, avg", "tokens per second over the last 2 s (at least 8 steps), and over the reply; reading the prompt is not counted"),
    ("TTFT", "from Enter to the first visible text"),
    ("τ", "tokens per pass of the target; plain decoding has 1"),
    ("kept", "drafted tokens that the target confirmed"),
    ("2.1x", "speed against plain decoding, measured on the same question; est: plain was measured on this model, not on this question"),
    ("draft, verify", "shares of a step: drafting, the pass of the target; other: picking tokens, text; bridge: between two tokenizers"),
    ("mem, VRAM", "what the models take; in use of the graphics card"),
    ("ctx", "how much of the context is in use"),
]
TOKENS = [
    ("underlined, blue", "drafted and kept; the deeper in its draft, the stronger the colour"),
    ("bold, orange", "correction: the target's own token after a wrong draft"),
    ("bold italic", "bonus: the target's own token after a draft that was right to its end"),
    ("no look", "written without a drafter"),
    ("|", "a step begins"),
]


class HelpScreen(ModalScreen[None]):
    """A page to scroll; Esc closes it."""

    WHERE = "help"
    BINDINGS = bindings("help")

    def __init__(self, wanted: str = "") -> None:
        """`wanted`: only the rows in which this text stands; all of them where there is none."""
        super().__init__()
        self._wanted = wanted.casefold()

    def compose(self) -> ComposeResult:
        rebound = getattr(self.app, "rebound", {})
        with VerticalScroll(id="help"):
            pages = [
                ("Keys", key_help(None, rebound)),
                ("Commands", [*slash_help(), ("//", "Send a text that begins with a slash")]),
                ("Numbers", NUMBERS),
                ("Token view", TOKENS),
                *((title, key_help(where, rebound)) for where, title in PLACES.items()),
            ]
            found = [(title, [row for row in rows if self._wanted in " ".join(row).casefold()]) for title, rows in pages]
            if not any(rows for _, rows in found):
                found = pages
            for title, rows in ((title, rows) for title, rows in found if rows):
                yield Static(title, classes="help-title", markup=False)
                yield Static(_table(rows))

    def action_command(self, name: str) -> None:
        """The one command of this page: back."""
        self.do_help_back("")

    def do_help_back(self, argument: str) -> None:
        self.dismiss(None)

    def on_mount(self) -> None:
        box = self.query_one("#help")
        box.border_subtitle = "Esc closes"
        box.focus()


def _table(rows: list[tuple[str, str]]) -> Table:
    table = Table.grid(padding=(0, 2), expand=True)
    table.add_column(max_width=24, style="bold")
    table.add_column(ratio=1)
    for left, right in rows:
        table.add_row(Text(left), Text(right))
    return table
