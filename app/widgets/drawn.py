"""Markdown as one cheap widget, for replies that nobody looks at closely: its text can be selected with the mouse and copied.

Textual does neither for what Rich draws. What is copied is what is seen, row by row; the exact text is copied by key.
"""

from __future__ import annotations

from rich.cells import cell_len
from rich.segment import Segment
from rich.style import Style
from textual.geometry import Size
from textual.selection import Selection
from textual.strip import Strip
from textual.visual import Visual
from textual.widgets import Static


class Drawn(Static):
    """Drawn once for each width and look, not for each move of a selection: it may be very long."""

    def __init__(self, source: str) -> None:
        from rich.markdown import Markdown  # with the first reply: the first frame does not wait for it

        super().__init__(Markdown(source, hyperlinks=False), classes="frozen")
        self.source = source
        self._drawn_for: tuple[Size, object] | None = None
        self._rows: list[Strip] = []

    def render_line(self, y: int) -> Strip:
        """One row, whose characters know their places, as a selection needs them."""
        rows = self._draw()
        if y >= len(rows):
            return Strip.blank(self.size.width, self.visual_style.rich_style)
        row, selection = rows[y], self.text_selection
        span = selection.get_span(y) if selection is not None else None
        if span is not None:
            row = _marked(row, span, self.screen.get_component_rich_style("screen--selection"))
        return row.apply_offsets(0, y)

    def get_selection(self, selection: Selection) -> tuple[str, str]:
        """What is seen of the selected part, without the blanks that fill its rows."""
        spans = [(row.text, selection.get_span(y)) for y, row in enumerate(self._draw())]
        return "\n".join(text[span[0] : _end(text, span)].rstrip() for text, span in spans if span is not None), "\n"

    def _draw(self) -> list[Strip]:
        wanted = (self.size, self.visual_style)
        if wanted != self._drawn_for:
            self._drawn_for = wanted
            self._rows = Visual.to_strips(self, self.visual, *self.size, self.visual_style)
        return self._rows


def _end(text: str, span: tuple[int, int]) -> int:
    return len(text) if span[1] < 0 else span[1]


def _marked(row: Strip, span: tuple[int, int], style: Style) -> Strip:
    """The row with the characters of the span, which counts characters and not cells, in the looks of a selection."""
    text = row.text
    start, end = cell_len(text[: span[0]]), cell_len(text[: _end(text, span)])
    middle = row.crop(start, end)
    marked = Strip(Segment.apply_style(middle, post_style=style), middle.cell_length)
    return Strip.join([row.crop(0, start), marked, row.crop(end)])
