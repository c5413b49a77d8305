"""The token view of a reply: its plain text, every piece in the look of its class (terminal-ui 3.7), and the legend.

Only `Segment` facts are used, so chains, trees and drafts from another tokenizer look alike, and half a character is never shown.
The text is cut at line ends into parts, so that a long reply under way redraws only its last one.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import accumulate

from textual.app import ComposeResult
from textual.containers import Vertical
from textual.content import Content
from textual.widgets import Static

from app.terminal import for_terminal
from app.widgets.line import Line
from engine.protocol import Origin, Segment

DEEPEST = 5  # positions behind this one look alike
PART_CHARACTERS = 1_000  # a part ends at the first line end behind as many
EDGE = "|"
LINE_END = "↵"
# A cue and a colour for each: without colours the cues tell the classes apart.
CUES: dict[Origin, str] = {"kept": "underline", "correction": "bold", "bonus": "bold italic", "plain": ""}
COLOURS = {  # theme variables, for dark and for light screens
    "token-kept-1": ("#b4d8ff", "#1f5c9e"),
    "token-kept-2": ("#9dcbff", "#195396"),
    "token-kept-3": ("#88bfff", "#134a8e"),
    "token-kept-4": ("#76b3fc", "#0d4186"),
    "token-kept-5": ("#66a8f7", "#07387e"),
    "token-correction": ("#ffa657", "#8a3d00"),
    "token-bonus": ("#f0f0f0", "#303030"),
    "token-rejected": ("#ff8a80", "#a31f18"),
}
LEGEND: tuple[tuple[str, Origin, int], ...] = (
    ("drafted and kept", "kept", 1),
    ("deep in the draft", "kept", DEEPEST),
    ("correction", "correction", 0),
    ("bonus", "bonus", 0),
)


def colours(dark: bool) -> dict[str, str]:
    """The variables for a theme."""
    return {name: pair[0 if dark else 1] for name, pair in COLOURS.items()}


def look(origin: Origin, position: int) -> str:
    """The style of a piece."""
    if origin == "kept":
        return f"$token-kept-{min(max(position, 1), DEEPEST)} {CUES[origin]}"
    return f"$token-{origin} {CUES[origin]}" if CUES[origin] else ""


def coloured(segments: Iterable[Segment], before: int = 0) -> tuple[Content, list[int]]:
    """The pieces as one text with an edge before each new step, and for each piece where it begins in that text.

    `before` is the step of the piece in front of the first, 0 when there is none. Between two tokens without a draft there is no
    edge: each of them is a step.
    """
    parts: list[str | tuple[str, str]] = []
    origin: Origin = "kept"
    starts: list[int] = []
    length = 0
    for segment in segments:
        if segment.text and before and segment.step != before and not origin == segment.origin == "plain":
            parts.append((EDGE, "dim"))
            length += len(EDGE)
        before, origin = (segment.step, segment.origin) if segment.text else (before, origin)
        starts.append(length)
        shown = for_terminal(segment.text).replace("\n", f"{LINE_END}\n")
        parts.append((shown, look(segment.origin, segment.position)))
        length += len(shown)
    return Content.assemble(*parts), starts


class Part(Static):
    """Some of the pieces."""

    def __init__(self, offset: int, before: int) -> None:
        super().__init__()
        self.offset_from = offset  # of its first character in the reply's text
        self.segments: list[Segment] = []
        self._before = before
        self._starts: list[int] = []
        self._shown = Content("")

    def paint(self) -> None:
        """Draw the pieces."""
        self._shown, self._starts = coloured(self.segments, self._before)
        text = self._shown
        self.update(text[:-1] if text.plain.endswith("\n") else text)  # the next part begins a new line anyway

    @property
    def length(self) -> int:
        """Characters of the reply in it."""
        return sum(len(segment.text) for segment in self.segments)

    def row(self, offset: int) -> int:
        """The row, from 0, of a character of the reply."""
        at, start = self.offset_from, len(self._shown)
        for segment, begins in zip(self.segments, self._starts, strict=True):
            at += len(segment.text)
            if at > offset:
                start = begins
                break
        return max(0, self._shown[: start + 1].get_height({}, max(1, self.content_size.width)) - 1)

    def offset_at(self, row: int) -> int:
        """The first character of the reply whose row is this one, or a later one."""
        starts = [0, *accumulate(len(segment.text) for segment in self.segments)]
        low, high = 0, len(self.segments)
        while low < high:
            middle = (low + high) // 2
            low, high = (low, middle) if self.row(self.offset_from + starts[middle]) >= row else (middle + 1, high)
        return self.offset_from + starts[low]


class TokenText(Vertical):
    """The parts of one reply."""

    DEFAULT_CSS = """
    TokenText { height: auto; padding: 0 2 0 3; margin: 0 0 1 0; }
    TokenText Part { height: auto; width: 100%; }
    """

    def __init__(self, segments: Iterable[Segment] = ()) -> None:
        super().__init__()
        self._parts = [Part(0, 0)]
        self._seen = 0  # segments taken in so far
        self._fresh: list[Part] = []
        self._take(list(segments))

    def compose(self) -> ComposeResult:
        self._fresh.clear()
        for part in self._parts:
            part.paint()
            yield part

    async def show(self, segments: list[Segment]) -> None:
        """Bring the view up to date with all segments of the reply so far."""
        open_part = self._parts[-1]
        self._take(segments[self._seen :])
        open_part.paint()
        for part in self._fresh:
            part.paint()
        if self._fresh:
            fresh, self._fresh = self._fresh, []
            await self.mount(*fresh)

    def _take(self, segments: list[Segment]) -> None:
        for segment in segments:
            part = self._parts[-1]
            part.segments.append(segment)
            if segment.text.endswith("\n") and part.length >= PART_CHARACTERS:
                fresh = Part(part.offset_from + part.length, segment.step)
                self._parts.append(fresh)
                self._fresh.append(fresh)
        self._seen += len(segments)

    def row(self, offset: int) -> int:
        """The row inside this widget of a character of the reply."""
        part = next((part for part in reversed(self._parts) if part.offset_from <= offset), self._parts[0])
        return part.virtual_region.y + part.row(offset)

    def offset_at(self, row: int) -> int:
        """The character of the reply at a row of this widget."""
        part = next((part for part in reversed(self._parts) if part.virtual_region.y <= row), self._parts[0])
        return part.offset_at(row - part.virtual_region.y)


class Legend(Line):
    """What the looks mean; shown while the token view is on."""

    DEFAULT_CSS = "Legend { display: none; background: $surface; } Legend.-on { display: block; }"

    def line(self, width: int) -> Content:
        items = [Content.styled(text, look(origin, position)) for text, origin, position in LEGEND]
        items += [Content.assemble((EDGE, "dim"), " step")]
        line = Content.styled(" Tokens:", "bold")
        for item in items:
            if line.cell_length + item.cell_length + 2 > width:
                break
            line = Content.assemble(line, "  ", item)
        return line
