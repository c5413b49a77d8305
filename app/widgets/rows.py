"""A table of rows to walk through with the keys; sideways keys are left to the screen."""

from __future__ import annotations

from rich.text import Text
from textual.actions import SkipAction
from textual.widgets import DataTable


class Rows(DataTable[Text]):
    """Cells are `Text`, so that nothing in them is read as markup."""

    def __init__(self) -> None:
        super().__init__(cursor_type="row")

    def action_cursor_left(self) -> None:
        raise SkipAction

    def action_cursor_right(self) -> None:
        raise SkipAction
