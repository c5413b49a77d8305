"""From a token as the vocabulary writes it to the bytes that it appends, as the tokenizer's decoder says.

Byte-level vocabularies (GPT-2 and all that came from it, tiktoken ranks too) write each byte as one printable character. SentencePiece
writes a space as ▁ and, where it falls back to bytes, `<0x0A>` for one byte. Other decoders put spaces or strip marks between tokens:
they have no bytes per token.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from engine.bridge.pipeline import parts

Spell = Callable[[str], bytes | None]
_BYTE = re.compile(r"<0x([0-9A-Fa-f]{2})>")


def alphabet() -> dict[int, str]:
    """The byte-level alphabet: printable Latin-1 bytes stand for themselves, the others for the characters from U+0100 on, in order."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [b for b in range(256) if b not in set(printable)]
    return {b: chr(b) for b in printable} | {b: chr(256 + i) for i, b in enumerate(others)}


_BACK = {char: byte for byte, char in alphabet().items()}
_TRANSLATE = {ord(char): chr(byte) for char, byte in _BACK.items()}


def byte_level(token: str) -> bytes | None:
    """Bytes of a byte-level token; None where a character is not of the alphabet."""
    return token.translate(_TRANSLATE).encode("latin-1") if _BACK.keys() >= set(token) else None


def speller(decoder: Any) -> tuple[str, Spell] | None:
    """(kind, spelling) for the state of a decoder; None where tokens have no bytes of their own. `decoder` None joins tokens by spaces."""
    steps = parts(decoder, "decoders")
    kinds = [step["type"] for step in steps]
    if kinds == ["ByteLevel"]:
        return "byte-level", byte_level
    signs: list[tuple[str, str]] = []
    for step in steps:
        if step["type"] == "Replace" and "String" in step["pattern"]:
            signs.append((step["pattern"]["String"], step["content"]))
        elif step["type"] == "Metaspace":
            signs.append((step["replacement"], " "))
        elif step["type"] not in ("ByteFallback", "Fuse", "Strip"):  # stripping concerns the start of a text only
            return None
    if not signs:
        return None
    fallback = "ByteFallback" in kinds

    def sentencepiece(token: str) -> bytes | None:
        if fallback and (found := _BYTE.fullmatch(token)):
            return bytes([int(found[1], 16)])
        for sign, meaning in signs:
            token = token.replace(sign, meaning)
        return token.encode("utf-8", "ignore")

    return "sentencepiece", sentencepiece
