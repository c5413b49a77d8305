"""Byte tables: for every id of a tokenizer the exact bytes that it appends to a reply, or nothing.

Nothing for control tokens (they are never text), rows behind the vocabulary, tokens that no text produces, and tokens whose bytes are
not certain. Tables are judged by content, tested against the tokenizer itself when they are made, and kept on disk by a hash of the
whole tokenizer, so neither names nor files matter.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, cast

import numpy as np

from engine.bridge import shelf, soundness
from engine.bridge.pipeline import Pipeline, state
from engine.bridge.spelling import Spell, speller

if TYPE_CHECKING:
    from engine.decoder.tokenizer import Tokenizer

Kind = Literal["byte-level", "sentencepiece", "tiktoken", "other"]
VERSION = 2  # of the way tables are made
UNREADABLE = "its tokenizer has no table that specchat can read"
NO_BYTES = "its tokens do not join to exact text"


@dataclass(frozen=True, slots=True)
class ByteTable:
    """One tokenizer in bytes. `tokens` has a row per row of the model's vocabulary."""

    kind: Kind
    tokens: tuple[bytes | None, ...]  # by id; None = control, padded row, never produced by text, or not certain
    control: frozenset[int]  # special tokens and endings: never text
    ends: frozenset[int]  # those that end a turn
    trouble: str | None  # a clause why texts do not survive; None = sound
    key: str  # content hash

    @property
    def mapped(self) -> int:
        """How many ids have bytes."""
        return sum(token is not None for token in self.tokens)


def byte_table(tokenizer: Tokenizer, vocab_size: int | None = None) -> ByteTable:
    """The table of a tokenizer, self-tested, from the disk where it is known. `vocab_size`: rows of the model's output, where known."""
    backend = getattr(tokenizer.hf, "backend_tokenizer", None)
    if backend is None:
        return _nothing(tokenizer, vocab_size or 0, UNREADABLE)
    try:
        text = backend.to_str()
    except Exception:  # parts written in Python cannot be saved, and the library has no error class of its own
        return _nothing(tokenizer, vocab_size or 0, UNREADABLE)
    special = sorted(set(tokenizer.hf.all_special_ids))
    key = _hash(text, json.dumps([VERSION, vocab_size, sorted(tokenizer.eos_ids), special]))
    if (arrays := shelf.find(f"bytes-{key}")) is not None:
        try:
            return _unpack(arrays, key)
        except (KeyError, ValueError, TypeError, AssertionError, UnicodeDecodeError):
            shelf.drop(f"bytes-{key}")
    table = _made(backend, json.loads(text), special, tokenizer.eos_ids, vocab_size, key)
    shelf.put(f"bytes-{key}", _pack(table))
    return table


def _made(backend: Any, whole: Any, special: list[int], eos_ids: frozenset[int], vocab_size: int | None, key: str) -> ByteTable:
    vocabulary = backend.get_vocab(with_added_tokens=True)
    rows = vocab_size or max(vocabulary.values(), default=-1) + 1
    ends = frozenset(i for i in eos_ids if i < rows)
    added = backend.get_added_tokens_decoder()
    pipeline = Pipeline(backend)
    control = {i for i, token in added.items() if token.special} | set(special)
    control = {i for i in control if not _is_plain(pipeline, backend, i)} | ends
    control = {i for i in control if i < rows}
    how = speller(state(backend.decoder))
    if how is None:
        return ByteTable("other", (None,) * rows, frozenset(control), ends, NO_BYTES, key)
    kind, spell = how
    tokens: list[bytes | None] = [None] * rows
    never = soundness.unreachable(whole["model"], {token.content for token in added.values()})
    for token, i in vocabulary.items():
        if i < rows and i not in control and token not in never:
            tokens[i] = _bytes_of(token, spell, i in added and kind == "byte-level") or None
    broken = soundness.disagreeing(backend, tokens)
    trouble = soundness.broken_table(len(broken), len(vocabulary)) or soundness.rewriting(pipeline, tokens)
    for i in broken:
        tokens[i] = None
    if kind == "byte-level" and whole["model"].get("ignore_merges"):
        kind = "tiktoken"  # ranks: a whole piece is looked up before anything is merged
    return ByteTable(cast(Kind, kind), tuple(tokens), frozenset(control), ends, trouble, key)


def _bytes_of(token: str, spell: Spell, literal: bool) -> bytes | None:
    return token.encode("utf-8", "ignore") if literal else spell(token)


def _is_plain(pipeline: Pipeline, backend: Any, i: int) -> bool:
    """A single character that a tokenizer also uses for padding and the like stays text."""
    content = backend.id_to_token(i)
    return content is not None and len(content) == 1 and pipeline.encode(content) == [i]


def _nothing(tokenizer: Tokenizer, rows: int, why: str) -> ByteTable:
    ends = frozenset(i for i in tokenizer.eos_ids if i < rows)
    return ByteTable("other", (None,) * rows, ends, ends, why, _hash(tokenizer.name, f"{rows} {sorted(ends)}"))


def _hash(*texts: str) -> str:
    digest = hashlib.blake2b(digest_size=16)
    for text in texts:
        digest.update(f"{len(text)}:".encode() + text.encode("utf-8", "surrogatepass"))
    return digest.hexdigest()


# --- on disk --------------------------------------------------------------------------------------------------------


def _pack(table: ByteTable) -> dict[str, np.ndarray]:
    facts = json.dumps({"kind": table.kind, "trouble": table.trouble, "key": table.key})
    return {
        "lengths": np.array([-1 if token is None else len(token) for token in table.tokens], dtype=np.int32),
        "text": np.frombuffer(b"".join(token or b"" for token in table.tokens), dtype=np.uint8),
        "control": np.array(sorted(table.control), dtype=np.int64),
        "ends": np.array(sorted(table.ends), dtype=np.int64),
        "facts": np.frombuffer(facts.encode(), dtype=np.uint8),
    }


def _unpack(arrays: dict[str, np.ndarray], key: str) -> ByteTable:
    facts = json.loads(arrays["facts"].tobytes().decode())
    assert facts["key"] == key
    text = arrays["text"].tobytes()
    lengths = arrays["lengths"]
    stops = np.cumsum(np.maximum(lengths, 0))
    assert (int(stops[-1]) if len(stops) else 0) == len(text)
    spans = zip(lengths.tolist(), stops.tolist(), strict=True)
    tokens = tuple([None if length < 0 else text[stop - length : stop] for length, stop in spans])
    control, ends = (frozenset(arrays[name].tolist()) for name in ("control", "ends"))
    return ByteTable(facts["kind"], tokens, control, ends, facts["trouble"], key)
