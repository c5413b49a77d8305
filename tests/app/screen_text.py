"""What a screen shows, as text, and its looks as letters: small, stable pictures for tests.

`picture` is the text of every row and below it one letter per cell for its look (colour, bold, underline…), with a list of the looks.
"""

from __future__ import annotations

import string
from typing import Any

from rich.color import ColorType
from rich.style import Style
from textual.app import App

LETTERS = string.ascii_letters + string.digits
ATTRIBUTES = ("bold", "dim", "italic", "underline", "reverse", "strike")


def shown(app: App[Any]) -> str:
    """The whole screen as text, without spaces at the ends of rows."""
    return "\n".join(strip.text.rstrip() for strip in app.screen._compositor.render_strips(app.size))


def picture(app: App[Any]) -> str:
    """Text and looks."""
    looks: dict[str, str] = {}
    text, letters = [], []
    for strip in app.screen._compositor.render_strips(app.size):
        row = ""
        for segment in strip:
            look = _look(segment.style)
            letter = looks.setdefault(look, LETTERS[len(looks)] if len(looks) < len(LETTERS) else "?")
            row += letter * segment.cell_length
        text.append(strip.text.rstrip())
        letters.append(row)
    names = [f"{letter} {look}" for look, letter in looks.items()]
    return "\n".join([*text, "-" * app.size.width, *letters, "-" * app.size.width, *names]) + "\n"


def _look(style: Style | None) -> str:
    if style is None:
        return "plain"
    colours = [f"{name} {_colour(value)}" for name, value in (("fg", style.color), ("bg", style.bgcolor)) if value is not None]
    return " ".join([*colours, *(name for name in ATTRIBUTES if getattr(style, name))]) or "plain"


def _colour(colour: Any) -> str:
    return colour.get_truecolor().hex if colour.type is ColorType.TRUECOLOR else colour.name
