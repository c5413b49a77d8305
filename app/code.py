"""Code blocks of a Markdown text, from its source: what is copied has no line breaks of the screen in it."""

from __future__ import annotations


def code_blocks(text: str) -> list[str]:
    """The contents of all fenced and indented blocks, in order, also of those inside lists and quotes."""
    from markdown_it import MarkdownIt  # when a block is copied: the first frame does not wait for it

    return [token.content for token in MarkdownIt("commonmark").parse(text) if token.type in ("fence", "code_block")]
