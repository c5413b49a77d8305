"""A list of which several can be chosen, over the screen."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import ClassVar

from rich.cells import cell_len
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.content import Content
from textual.screen import ModalScreen
from textual.widgets import Static
from textual.widgets.selection_list import Selection

from app.terminal import column, one_line
from app.widgets.choices import Choices


class PickScreen(ModalScreen[list[str] | None]):
    """Gives the chosen names, or None."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "dismiss(None)", "Leave it as it was", show=False, id="pick_back"),
        Binding("enter", "take", "Take these", show=False, priority=True, id="pick_take"),
    ]
    DEFAULT_CSS = """
    PickScreen { align: center middle; }
    PickScreen Vertical { width: 90%; max-width: 76; height: auto; max-height: 80%; padding: 0 1; }
    PickScreen Vertical { border: round $accent; background: $surface; }
    PickScreen Choices { height: auto; max-height: 14; background: $surface; padding: 0; }
    PickScreen Choices, PickScreen Choices:focus { border: none; }
    """

    def __init__(self, title: str, items: Sequence[tuple[str, str]], chosen: Sequence[str], most: int) -> None:
        super().__init__()
        self._title, self._most = title, most
        width = max((cell_len(one_line(name)) for name, _ in items), default=0) + 2
        self.list = Choices(
            *(Selection(Content.assemble(column(name, width), (one_line(about), "dim")), name, name in chosen) for name, about in items)
        )
        self._note = Static(markup=False)
        self.opened: Callable[[], None] = lambda: None  # called once the list is there

    def add(self, name: str, about: str) -> None:
        """One more, found later."""
        self.list.add_option(Selection(Content.assemble(f"{one_line(name)}  ", (one_line(about), "dim")), name, False))

    def compose(self) -> ComposeResult:
        with Vertical() as box:
            box.border_title = Content(self._title)
            box.border_subtitle = "Space chooses · Enter takes · Esc back"
            yield self.list
            yield self._note

    def on_mount(self) -> None:
        self.list.focus()
        self.opened()

    def action_take(self) -> None:
        """Give what is chosen, unless it is too much."""
        names = list(self.list.selected)
        if len(names) > self._most:
            self._note.update(f"Up to {self._most}: {len(names)} are chosen.")
        else:
            self.dismiss(names)
