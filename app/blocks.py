"""Cuts streaming Markdown into closed blocks and one open block, so that only closed ones are drawn as Markdown (DESIGN 10).

A block closes at a blank line, at the end of a code fence, or where a fence begins. Inside a fence nothing closes. Only whole lines
count, so a chunk border can fall anywhere. `closed + open` is always exactly what was fed.
"""

from __future__ import annotations

import re

_FENCE = re.compile(r"[ \t>]*(?:[-*+]|\d{1,9}[.)])?[ \t]*(`{3,}|~{3,})([^\n]*)")


class Blocks:
    """One reply on its way."""

    def __init__(self) -> None:
        self.open = ""  # what is not closed yet
        self._scanned = 0  # offset in `open` of the first line that was not looked at
        self._text_seen = False  # something visible before `_scanned`
        self._fence = ""  # the run of ` or ~ that opened the fence we are in

    def feed(self, text: str) -> str:
        """Add text; returns the source of the blocks that closed by it, "" for none."""
        self.open += text
        cut = 0
        while (end := self.open.find("\n", self._scanned)) >= 0:
            line, start, self._scanned = self.open[self._scanned : end], self._scanned, end + 1
            if self._fence:
                if self._closes(line):
                    self._fence, cut, self._text_seen = "", end + 1, False
            elif match := _FENCE.match(line):
                if match[1][0] == "~" or "`" not in match[2]:
                    self._fence = match[1]
                    cut = start if self._text_seen else cut
                self._text_seen = True
            elif not line.strip():
                cut, self._text_seen = (end + 1, False) if self._text_seen else (cut, False)
            else:
                self._text_seen = True
        closed, self.open = self.open[:cut], self.open[cut:]
        self._scanned -= cut
        return closed

    def _closes(self, line: str) -> bool:
        run = line.strip(" \t>")
        return len(run) >= len(self._fence) and set(run) == {self._fence[0]}


def tail(text: str, lines: int = 60, width: int = 200) -> tuple[str, int]:
    """The last lines of an open block, and how many lines before them are left out. A line without end counts by `width`."""
    start, left = len(text), lines * width
    for _ in range(lines):
        start = text.rfind("\n", 0, start)
        if start < 0:
            break
    start = max(start + 1, len(text) - left, 0)
    return text[start:], text.count("\n", 0, start)
