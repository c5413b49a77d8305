"""What a model's chat template says about its replies: the space that they begin with, and the id that ends them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from engine.errors import EngineError
from engine.protocol import Message

if TYPE_CHECKING:
    from engine.bridge.bytes import ByteTable
    from engine.decoder.tokenizer import Tokenizer

_MARK = "specchat-was-here"
_WORD = "Hello"
_ASK = (Message("user", "x"),)


@dataclass(frozen=True, slots=True)
class Habits:
    """`lead` is the space in front of a reply's first word that belongs to the format and not to the text; `end` ends a turn."""

    lead: bytes = b""
    end: int | None = None


def habits(tokenizer: Tokenizer, table: ByteTable) -> Habits:
    """Read off the template: how a reply begins behind the prompt, and what is written behind it."""
    usual = tokenizer.hf.eos_token_id
    end = usual if usual in table.ends else min(table.ends, default=None)
    if not tokenizer.has_template:  # plain role labels: "Assistant: Hello"
        return Habits(b" ", end)
    try:
        prompt = tokenizer.text(_ASK)
        head, found, tail = tokenizer.text([*_ASK, Message("assistant", _MARK)], reply=False).rpartition(_MARK)
    except EngineError:
        return Habits(b"", end)
    if found and tail.strip():
        behind = _ids(tokenizer, tail.lstrip())
        end = behind[0] if behind and behind[0] in table.ends else end
    if not found or head not in (prompt, prompt + " "):
        head = prompt
    before, after = _ids(tokenizer, prompt), _ids(tokenizer, head + _WORD)
    shared = next((i for i, (a, b) in enumerate(zip(before, after, strict=False)) if a != b), min(len(before), len(after)))
    tokens = [table.tokens[i] if i < len(table.tokens) else None for i in after[shared:]]
    begun = b"".join(token or b"" for token in tokens)
    return Habits(b" " if begun == f" {_WORD}".encode() else b"", end)


def _ids(tokenizer: Tokenizer, text: str) -> list[int]:
    return list(tokenizer.hf(text, add_special_tokens=False)["input_ids"])
