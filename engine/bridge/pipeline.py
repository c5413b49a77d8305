"""The encoder of a text that goes on: the tokenizer's own model, without what belongs to the start of a text or to markup.

Left out are the dummy prefix (a space that SentencePiece and some byte-level tokenizers put in front), NFC composition, which would
change bytes, and all special tokens: `</s>` in a reply is four characters. The vocabulary is shared with the tokenizer, not copied.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from tokenizers import Tokenizer as Backend


class Pipeline:
    """Texts to ids. The result need not spell the text: unknown characters and normalisers of other kinds are the caller's care."""

    def __init__(self, backend: Any) -> None:
        """`backend`: the `tokenizers.Tokenizer` of a model; it is left as it is."""
        normalizer = _without_start(state(backend.normalizer))
        splitter = _without_start(state(backend.pre_tokenizer))
        frame = {"version": "1.0", "added_tokens": [], "normalizer": normalizer, "pre_tokenizer": splitter}
        frame |= {"model": {"type": "BPE", "vocab": {}, "merges": []}, "truncation": None, "padding": None}
        empty = Backend.from_str(json.dumps(frame | {"post_processor": None, "decoder": None}))
        self._backend = Backend(backend.model)
        if empty.normalizer is not None:
            self._backend.normalizer = empty.normalizer
        if empty.pre_tokenizer is not None:
            self._backend.pre_tokenizer = empty.pre_tokenizer
        ordinary = {i: token for i, token in sorted(backend.get_added_tokens_decoder().items()) if not token.special}
        self._backend.add_tokens(list(ordinary.values()))
        here = {i: self._backend.token_to_id(token.content) for i, token in ordinary.items()}
        self._renamed = {mine: true for true, mine in here.items() if mine != true}  # ids behind the model's vocabulary are counted anew

    def encode(self, text: str) -> list[int]:
        """Ids of one text."""
        return self._true(self._backend.encode(text, add_special_tokens=False).ids)

    def encode_many(self, texts: Sequence[str]) -> list[list[int]]:
        """Ids of many texts, on all cores."""
        return [self._true(found.ids) for found in self._backend.encode_batch_fast(list(texts), add_special_tokens=False)]

    def normal(self, text: str) -> str:
        """The text as its normaliser rewrites it; SentencePiece's sign for a space, and bytes written as characters, are no change."""
        normalizer = self._backend.normalizer
        if normalizer is None or any(step["type"] == "ByteLevel" for step in parts(state(normalizer), "normalizers")):
            return text
        return normalizer.normalize_str(text).replace("▁", " ")

    def _true(self, ids: list[int]) -> list[int]:
        return [self._renamed.get(i, i) for i in ids] if self._renamed else ids


def state(part: Any) -> Any:
    """A part of a tokenizer (normaliser, pre-tokenizer, decoder) as the JSON object that its file holds; None for none."""
    return None if part is None else json.loads(part.__getstate__())


def parts(node: Any, inside: str) -> list[dict[str, Any]]:
    """A state as a flat list of its steps; `inside` is the key under which a sequence keeps its own."""
    if node is None:
        return []
    if node["type"] == "Sequence":
        return [step for one in node[inside] for step in parts(one, inside)]
    return [node]


def _is_prefix(node: Any) -> bool:
    """Whether a step doubles the space that a text begins with, as transformers writes the dummy prefix of a SentencePiece file."""
    return node["type"] == "Replace" and node["pattern"] == {"Regex": r"\A▁"} and node["content"] == "▁▁"


def _without_start(node: Any) -> Any:
    """A normaliser or pre-tokenizer without prefix and composition; None where nothing is left."""
    if node is None or node["type"] in ("Prepend", "NFC") or _is_prefix(node):
        return None
    if node["type"] == "Sequence":
        inside = "normalizers" if "normalizers" in node else "pretokenizers"
        kept = [step for step in map(_without_start, node[inside]) if step is not None]
        return {"type": "Sequence", inside: kept} if kept else None
    if node["type"] == "Metaspace":
        return node | {"prepend_scheme": "never"}
    if node["type"] == "ByteLevel":
        return node | {"add_prefix_space": False}
    return node
