"""The Markdown of a reply. HTML is text, links are never opened by themselves, and code is coloured once."""

from __future__ import annotations

from functools import lru_cache

from markdown_it import MarkdownIt
from textual.content import Content
from textual.widgets import Markdown
from textual.widgets.markdown import MarkdownFence

FENCES = 64


class Fence(MarkdownFence):
    """A block of code. Textual colours each twice, when it is made and when it gets its style, and all of them anew with each theme."""

    @classmethod
    @lru_cache(FENCES)
    def highlight(cls, code: str, language: str, ansi: bool = False, dark: bool = False) -> Content:
        return super().highlight(code, language, ansi, dark)


class Formatted(Markdown):
    """Markdown as live widgets."""

    BLOCKS = Markdown.BLOCKS | {"fence": Fence, "code_block": Fence}

    def __init__(self) -> None:
        parser = MarkdownIt("gfm-like", {"html": False})  # as Textual's own, but HTML is text: it would vanish from the screen
        super().__init__(open_links=False, parser_factory=lambda: parser)
