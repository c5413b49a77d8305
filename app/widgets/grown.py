"""Widgets that are as large as what is in them, and grow with every frame of a reply."""

from __future__ import annotations

from textual.containers import Vertical
from textual.geometry import Size
from textual.reactive import Reactive
from textual.widgets import Static

# Textual lays the screen out once more whenever a layout has changed the size of what is in a widget, as that may bring or take a
# scroll bar. These have none, so the second layout, half of what a frame costs, would change nothing.


class GrownStack(Vertical):
    """Others, one below the other."""

    virtual_size = Reactive(Size(0, 0))


class GrownText(Static):
    """Text."""

    virtual_size = Reactive(Size(0, 0))
