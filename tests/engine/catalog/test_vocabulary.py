"""Vocabularies compared from files alone: tokenizer.json and GGUF, padded, damaged, missing."""

from __future__ import annotations

import json
import struct
from pathlib import Path

import pytest

from engine.catalog.vocabulary import relation, tokens

WORDS = ["<s>", "a", "b", "ab", "好"]


def folder(path: Path, words: list[str], added: list[str] = [], *, unigram: bool = False) -> Path:  # noqa: B006
    """A model folder with a tokenizer.json."""
    path.mkdir()
    vocab: object = [[word, -1.0] for word in words] if unigram else {word: i for i, word in enumerate(words)}
    more = [{"id": len(words) + i, "content": token} for i, token in enumerate(added)]
    (path / "tokenizer.json").write_text(json.dumps({"model": {"vocab": vocab}, "added_tokens": more}), encoding="utf-8")
    return path


def gguf(path: Path, words: list[str], *, before: bytes = b"") -> Path:
    """The beginning of a GGUF file: its tokens among other metadata."""

    def text(value: str) -> bytes:
        raw = value.encode()
        return struct.pack("<Q", len(raw)) + raw

    array = text("tokenizer.ggml.tokens") + struct.pack("<IIQ", 9, 8, len(words)) + b"".join(text(word) for word in words)
    path.write_bytes(b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + before + array + b"\0" * 64)
    return path


def test_the_same_in_every_form(tmp_path: Path) -> None:
    forms = [
        folder(tmp_path / "bpe", WORDS),
        folder(tmp_path / "unigram", WORDS, unigram=True),
        folder(tmp_path / "added", WORDS[:3], WORDS[3:]),
        gguf(tmp_path / "file.gguf", WORDS),
    ]
    for one in forms:
        assert tokens(one) == dict(enumerate(WORDS))
        for other in forms:
            assert relation(one, other) == ("same", "5 ids, all equal")


def test_padding_is_no_difference(tmp_path: Path) -> None:
    small, padded = folder(tmp_path / "one", WORDS), gguf(tmp_path / "two.gguf", [*WORDS, "[PAD5]", "[PAD6]"])
    assert relation(small, padded) == ("same", "5 ids, all equal, 2 more in one of them")


def test_another_vocabulary_says_how_much(tmp_path: Path) -> None:
    one, other = folder(tmp_path / "one", WORDS), folder(tmp_path / "other", ["<s>", "x", "b"])
    assert relation(one, other) == ("other", "1 of 3 ids differ (5 and 3 tokens)")


@pytest.mark.parametrize("content", ["", "{", '{"model": {}}', '{"model": {"vocab": 3}}', "[]", '{"model": {"vocab": {"a": "x"}}}'])
def test_what_cannot_be_read_is_unknown(tmp_path: Path, content: str) -> None:
    good, bad = folder(tmp_path / "good", WORDS), tmp_path / "bad"
    bad.mkdir()
    (bad / "tokenizer.json").write_text(content)
    assert relation(good, bad)[0] == "unknown"
    assert relation(good, tmp_path / "nowhere")[0] == "unknown"


def test_damaged_gguf_is_unknown(tmp_path: Path) -> None:
    whole = gguf(tmp_path / "whole.gguf", WORDS).read_bytes()
    for n, damaged in enumerate((b"", whole[:60], whole[:90], b"GGML" + whole[4:], b"GGUF" + b"\0" * 100)):
        file = tmp_path / f"{n}.gguf"
        file.write_bytes(damaged)
        assert tokens(file) == {}


def test_a_changed_file_is_read_again(tmp_path: Path) -> None:
    import os

    path = folder(tmp_path / "one", WORDS)
    assert len(tokens(path)) == 5
    file = path / "tokenizer.json"
    file.write_text(json.dumps({"model": {"vocab": {"z": 0}}}))
    os.utime(file, ns=(1, 1))
    assert tokens(path) == {0: "z"}
