"""What a transcript consists of beside replies: the person's messages, titles, and quiet one-line notes.

All text goes through `for_terminal`; nothing is markup.
"""

from __future__ import annotations

from textual.content import Content
from textual.widgets import Static

from app.terminal import for_terminal, one_line
from app.tree import Attachment
from engine.words import counted

FOLD_LINES, FOLD_CHARACTERS = 24, 2_000  # a longer prompt of the person is folded


class Note(Static):
    """One quiet line."""

    DEFAULT_CSS = "Note { height: auto; margin: 0 1 1 1; text-style: dim; }"

    def __init__(self, text: str) -> None:
        super().__init__(Content(for_terminal(text)))
        self.plain = text


class UserMessage(Static):
    """What the person sent; a very long one is folded."""

    DEFAULT_CSS = "UserMessage { height: auto; padding: 0 2 0 3; margin: 0 0 1 0; }"

    def __init__(self, text: str, attached: tuple[Attachment, ...] = ()) -> None:
        self.exact = text
        self.attached = attached
        whole = for_terminal(text)
        shown = folded(whole)
        note = f"\n… folded here; {counted(len(text), 'character')} in {counted(len(text.splitlines()), 'line')} were sent"
        fold = note if shown != whole else ""
        files = "\n".join(attachment_line(file) for file in attached) + ("\n" if attached and text else "")
        super().__init__(Content.assemble((files, "bold"), shown, (fold, "dim")))


def attachment_line(file: Attachment) -> str:
    """Name and size of an attached file, safe to draw."""
    lines = len(file.text.splitlines())
    return f"+ {one_line(file.name, 60)}  {counted(len(file.text), 'character')}, {counted(lines, 'line')}"


def folded(text: str) -> str:
    """The beginning of a text that would take too many rows, else all of it."""
    lines = text.split("\n")
    if len(lines) <= FOLD_LINES + 2 and len(text) <= FOLD_CHARACTERS + 200:
        return text
    return "\n".join(lines[:FOLD_LINES])[:FOLD_CHARACTERS]


class Title(Static):
    """Who speaks, and the numbers of the reply."""

    DEFAULT_CSS = "Title { height: 1; padding: 0 1; text-style: bold; text-wrap: nowrap; text-overflow: ellipsis; }"

    def __init__(self, who: str, sign: str) -> None:
        self._who = f"{sign} {one_line(who)}"
        super().__init__(Content(self._who))

    def numbers(self, text: str) -> None:
        """Put numbers behind the name."""
        self.update(Content.assemble(self._who, (f"   {text}" if text else "", "not bold dim")))
