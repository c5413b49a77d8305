"""Do two models share a vocabulary? Read from their files alone, without a tokenizer: GGUF metadata, or tokenizer.json. No torch.

Two vocabularies are the same when every id that both have is the same token; a padded one may have more (as `engine.decoder.tokenizer`
judges at load). What a screen says before anything is loaded comes from here.
"""

from __future__ import annotations

import functools
import json
import mmap
import struct
from pathlib import Path
from typing import Any, Literal

from engine.words import counted

Relation = Literal["same", "other", "unknown"]
TOKENS = b"tokenizer.ggml.tokens"
STRING, ARRAY = 8, 9


def relation(one: Path, other: Path) -> tuple[Relation, str]:
    """How the vocabularies of two models on this machine stand to each other, and a clause for people."""
    left, right = tokens(one), tokens(other)
    if not left or not right:
        return "unknown", "the vocabulary cannot be read before loading"
    shared = left.keys() & right.keys()
    differing = sum(left[i] != right[i] for i in shared)
    if differing:
        return "other", f"{differing:,} of {counted(len(shared), 'id')} differ ({len(left):,} and {len(right):,} tokens)"
    more = f", {abs(len(left) - len(right)):,} more in one of them" if len(left) != len(right) else ""
    return "same", f"{len(shared):,} ids, all equal{more}"


def tokens(path: Path) -> dict[int, str]:
    """Token by id; empty when it cannot be told."""
    file = path if path.is_file() else path / "tokenizer.json"
    try:
        return _tokens(file, file.stat().st_mtime_ns)
    except OSError:
        return {}


@functools.lru_cache(maxsize=8)
def _tokens(file: Path, mtime_ns: int) -> dict[int, str]:
    try:
        return _from_gguf(file) if file.suffix == ".gguf" else _from_json(json.loads(file.read_text(encoding="utf-8")))
    except (OSError, ValueError, KeyError, TypeError, AttributeError, struct.error):
        return {}


def _from_json(whole: Any) -> dict[int, str]:
    vocab = whole["model"]["vocab"]
    pairs = ((i, token) for token, i in vocab.items()) if isinstance(vocab, dict) else enumerate(pair[0] for pair in vocab)  # unigram
    found = {int(i): token for i, token in pairs}
    return found | {int(added["id"]): added["content"] for added in whole.get("added_tokens", ())}


def _from_gguf(file: Path) -> dict[int, str]:
    """The array of tokens, found by its name: it stands in the metadata, which begins the file."""
    with file.open("rb") as opened, mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ) as view:
        at = view.find(struct.pack("<Q", len(TOKENS)) + TOKENS)
        if view[:4] != b"GGUF" or at < 0:
            return {}
        at += 8 + len(TOKENS)
        kind, inner, count = struct.unpack_from("<IIQ", view, at)
        if kind != ARRAY or inner != STRING:
            return {}
        at += 16
        unpack = struct.Struct("<Q").unpack_from
        found = {}
        for i in range(count):
            (length,) = unpack(view, at)
            found[i] = view[at + 8 : at + 8 + length].decode("utf-8", "replace")
            at += 8 + length
        return found
