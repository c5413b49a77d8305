"""What is shown instead of a broken layout in a window below 60 columns or 16 rows; CSS switches it on."""

from __future__ import annotations

from textual.widgets import Static

COLUMNS, ROWS = 60, 16


class TooSmall(Static):
    """One sentence."""

    DEFAULT_CSS = (
        "TooSmall { display: none; layer: top; width: 100%; height: 100%; content-align: center middle; background: $background; }"
    )

    def __init__(self) -> None:
        super().__init__(f"specchat needs a window of at least {COLUMNS} x {ROWS}.", markup=False)
