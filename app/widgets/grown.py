"""Widgets that grow with every frame of a reply, and what Textual does for them at each growth though it changes nothing.

It lays the screen out and draws it once more whenever a layout has changed the size of what is in a widget, as that may bring or take
a scroll bar. Most of these have no bar, and a bar that comes or goes asks for a layout by itself. And it draws all rows of a container
anew, also those that its children cover.
"""

from __future__ import annotations

from rich.style import Style
from textual.containers import Vertical, VerticalScroll
from textual.geometry import Region, Size
from textual.reactive import Reactive
from textual.strip import Strip
from textual.widget import Widget
from textual.widgets import Static


class _Ground(Widget):
    """Shows nothing of its own but its background and perhaps a border at its sides: one row stands for all."""

    virtual_size = Reactive(Size(0, 0), repaint=False)

    def render_line(self, y: int) -> Strip:
        return Strip.blank(self.size.width, Style(bgcolor=self.background_colors[1].rich_color))

    def render_lines(self, crop: Region) -> list[Strip]:
        return super().render_lines(Region(crop.x, crop.y, crop.width, min(1, crop.height))) * crop.height


class GrownStack(Vertical, _Ground):  # styles come from the first base alone
    """Others, one below the other."""


class GrownScroll(VerticalScroll, _Ground):
    """What scrolls."""


class GrownText(Static):
    """Text."""

    virtual_size = Reactive(Size(0, 0), repaint=False)
