"""Numbers in sentences: one token, 1,240 tokens. No torch."""

from __future__ import annotations


def counted(number: int, noun: str, plural: str = "") -> str:
    """A number and its noun, in the right form: 1 token, 0 tokens, 1,240 tokens, 2 replies."""
    return f"{number:,} {noun if number == 1 else plural or several(noun)}"


def several(noun: str) -> str:
    """The plural of an English noun: tokens, replies, matches, keys."""
    if noun.endswith("y") and noun[-2:-1] not in "aeiou":
        return f"{noun[:-1]}ies"
    return f"{noun}es" if noun.endswith(("s", "x", "ch", "sh")) else f"{noun}s"
