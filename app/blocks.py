"""Cuts streaming Markdown into closed blocks and one open block, so that only closed ones are drawn as Markdown (DESIGN 10).

A block closes at a blank line, at the end of a code fence, or where a fence begins. Inside a fence nothing closes. Only whole lines
count, so a chunk border can fall anywhere. The closed blocks and `open` are always exactly what was fed.
"""

from __future__ import annotations

import re
from itertools import pairwise

_FENCE = re.compile(r"[ \t>]*(?:[-*+]|\d{1,9}[.)])?[ \t]*(`{3,}|~{3,})([^\n]*)")


class Blocks:
    """One reply on its way."""

    def __init__(self) -> None:
        self.open = ""  # what is not closed yet
        self._scanned = 0  # offset in `open` of the first line that was not looked at
        self._text_seen = False  # something visible before `_scanned`
        self._fence = ""  # the run of ` or ~ that opened the fence we are in

    def feed(self, text: str) -> list[str]:
        """Add text; returns the sources of the blocks that closed by it."""
        self.open += text
        cuts = [0]
        while (end := self.open.find("\n", self._scanned)) >= 0:
            line, start, self._scanned = self.open[self._scanned : end], self._scanned, end + 1
            if self._fence:
                if self._closes(line):
                    self._fence, self._text_seen = "", False
                    cuts.append(end + 1)
            elif match := _FENCE.match(line):
                if match[1][0] == "~" or "`" not in match[2]:
                    self._fence = match[1]
                    cuts += [start] if self._text_seen else []
                self._text_seen = True
            elif not line.strip():
                cuts += [end + 1] if self._text_seen else []
                self._text_seen = False
            else:
                self._text_seen = True
        closed = [self.open[start:end] for start, end in pairwise(cuts)]
        self.open = self.open[cuts[-1] :]
        self._scanned -= cuts[-1]
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
