"""Where in a reply's source a row of its reading view lies, and back; so that switching to the token view keeps the place.

Exact to the block, within a block by its lines: rendered Markdown has no finer relation to its source.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import accumulate

from textual.widget import Widget


@dataclass(frozen=True, slots=True)
class Stretch:
    """Rows `top` up to `top + height` of a reply show its source from `start` to `end`."""

    top: int
    height: int
    start: int
    end: int


def stretches(shown: list[tuple[Widget, str]]) -> Iterator[Stretch]:
    """What the widgets of a reading view show, each with its source, in order."""
    from textual.widgets import Markdown  # when there is a reply: the first frame does not wait for it
    from textual.widgets.markdown import MarkdownBlock

    start = 0
    for widget, source in shown:
        top = widget.virtual_region.y
        if isinstance(widget, Markdown) and widget.children:
            lines = [0, *accumulate(len(line) for line in source.splitlines(keepends=True))]
            for block in widget.children:
                if isinstance(block, MarkdownBlock):
                    first, last = (min(line, len(lines) - 1) for line in block.source_range)
                    region = block.virtual_region
                    yield Stretch(top + region.y, max(1, region.height), start + lines[first], start + lines[last])
        else:
            yield Stretch(top, max(1, widget.virtual_region.height), start, start + len(source))
        start += len(source)


def offset_at(shown: list[tuple[Widget, str]], row: int) -> int:
    """The character of the source at a row."""
    found = Stretch(0, 1, 0, 0)
    for stretch in stretches(shown):
        if stretch.top > row:
            break
        found = stretch
    share = min(1.0, max(0, row - found.top) / found.height)
    return found.start + round(share * (found.end - found.start))


def row_of(shown: list[tuple[Widget, str]], offset: int) -> int:
    """The row of a character of the source."""
    found = Stretch(0, 1, 0, 0)
    for stretch in stretches(shown):
        if stretch.start > offset:
            break
        found = stretch
    share = min(1.0, (offset - found.start) / max(1, found.end - found.start))
    return found.top + min(found.height - 1, round(share * found.height))
