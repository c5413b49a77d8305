"""Whether a byte table tells the truth: tokens that no text produces, tokens that the decoder reads otherwise, texts that are rewritten."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from engine.bridge.pipeline import Pipeline

_BYTE = re.compile(r"<0x[0-9A-Fa-f]{2}>")
BROKEN_SHARE = 0.01  # above this share of wrong tokens the table is not trusted at all
# what tokenizers are known to lose: capitals, accents, ligatures and wide forms, spaces, ends of lines, characters without a width
PROBES = (
    "Ab", "É", "é", "ﬁ", "１２", "İ", "ß", "a  b", " a", "a ", "a\tb", "a\nb", "a\r\nb", "\n\n    a", "a\u00a0b", "\ufeffa",
    "a\u200db", "a\u2028b", "a…b", "½", "x²", "™", "你好，世界。", "العربية", "हिन्दी", "한국어", "👩‍👩‍👧", "it's", "``x``", "a , b .",
)  # fmt: skip


def unreachable(model: Any, added: set[str]) -> set[str]:
    """Tokens of a BPE model (its JSON) that no text can produce: neither a character, nor a byte, nor merged, nor added.

    Files in GGUF fill the vocabulary up with `[PAD151665]` and the like, which are ordinary tokens by their type.
    """
    if model["type"] != "BPE" or model.get("ignore_merges"):
        return set()
    mark, end = model.get("continuing_subword_prefix") or "", model.get("end_of_word_suffix") or ""
    if mark or end:
        return set()
    pairs = (merge.split(" ", 1) if isinstance(merge, str) else merge for merge in model["merges"])
    merged = {left + right for left, right in pairs}
    fallback = model.get("byte_fallback", False)
    return {
        token
        for token in model["vocab"].keys() - merged - added
        if len(token) > 1 and not (fallback and _BYTE.fullmatch(token)) and token != model.get("unk_token")
    }


def disagreeing(backend: Any, tokens: Sequence[bytes | None]) -> list[int]:
    """Ids whose bytes are whole characters, but not those that the tokenizer's own decoder gives behind another token."""
    whole: dict[int, str] = {}
    for i, token in enumerate(tokens):
        if token is not None:
            try:
                whole[i] = token.decode()
            except UnicodeDecodeError:
                continue  # part of a character: the decoder cannot be asked
    anchor = next((i for i, text in whole.items() if text.isascii() and text.isalpha()), next(iter(whole), None))
    if anchor is None:
        return []
    before = backend.decode([anchor], skip_special_tokens=False)
    read = backend.decode_batch([[anchor, i] for i in whole], skip_special_tokens=False)
    return [i for (i, text), found in zip(whole.items(), read, strict=True) if found != before + text]


def broken_table(wrong: int, of: int) -> str | None:
    """A clause where too many tokens are not what they seem."""
    return f"{wrong} of its {of} tokens do not read as they are written" if wrong > BROKEN_SHARE * of else None


def rewriting(pipeline: Pipeline, tokens: Sequence[bytes | None]) -> str | None:
    """A clause that shows how texts are changed on their way through the tokenizer; None where they survive.

    A character that the vocabulary lacks altogether is no change: such text cannot be drafted, that is all.
    """
    known = {token for token in tokens if token is not None}
    bytewise = all(bytes([b]) in known for b in set("".join(PROBES).encode()))
    characters = set("".join(token.decode("utf-8", "ignore") for token in known))
    for probe in PROBES:
        normal = pipeline.normal(probe)
        if normal != probe:
            return _clause(probe, normal)
        text = probe if bytewise else "".join(c for c in probe if c in characters)
        ids = pipeline.encode(text)
        spelled = [tokens[i] if i < len(tokens) else None for i in ids]
        if None in spelled:
            continue
        after = b"".join(token for token in spelled if token is not None)
        if after != text.encode():
            return _clause(text, after.decode("utf-8", "replace"))
    return None


def _clause(before: str, after: str) -> str:
    return f"its tokenizer rewrites texts: {before!a} becomes {after!a}"
