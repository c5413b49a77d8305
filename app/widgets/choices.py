"""A list of which several can be chosen, whose marks can be told apart without colours."""

from __future__ import annotations

from rich.segment import Segment
from textual.strip import Strip
from textual.widgets import SelectionList

CHOSEN, NOT_CHOSEN = "X", " "
INNER = 1  # the segment between the sides of the mark, checked with textual 8.2.8


class Choices(SelectionList[str]):
    """As its base, but an empty mark is empty: there it has the same X in another colour."""

    def render_line(self, y: int) -> Strip:
        """One row."""
        strip = super().render_line(y)
        row = self.scroll_offset.y + y
        if not 0 <= row < self.option_count:
            return strip
        segments = list(strip)
        mark = segments[INNER]
        chosen = self.get_option_at_index(row).value in self.selected
        segments[INNER] = Segment(CHOSEN if chosen else NOT_CHOSEN, mark.style, mark.control)
        return Strip(segments)
