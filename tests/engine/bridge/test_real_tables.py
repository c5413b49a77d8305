"""Tables, codecs and maps of the real models: two byte-level BPE vocabularies and a SentencePiece one. Tokenizers only, no weights."""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest

from engine.bridge import calibration
from engine.bridge.bytes import byte_table
from engine.bridge.check import check, vocabulary_size
from engine.bridge.codec import Codec
from engine.bridge.maps import vocabulary_map
from engine.decoder.tokenizer import Tokenizer, load_tokenizer
from tests.engine.bridge.test_codec import HARD
from tests.real import GEMMA, PROMPTS, Q05, Q15, SMOL, find

HOME = os.environ.get("SPECCHAT_HOME")
pytestmark = pytest.mark.real
QUICK = (SMOL, Q05)
_LOADED: dict[str, tuple[Tokenizer, Codec]] = {}


@pytest.fixture(autouse=True)
def _real_home(_home: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """The models are where the person's are; the folder's own fixture points elsewhere."""
    if HOME is None:
        monkeypatch.delenv("SPECCHAT_HOME")
    else:
        monkeypatch.setenv("SPECCHAT_HOME", HOME)


def _loaded(name: str) -> tuple[Tokenizer, Codec]:
    if name not in _LOADED:
        _, path = find(name)
        tokenizer = load_tokenizer(path)
        _LOADED[name] = tokenizer, Codec(tokenizer, vocabulary_size(path))
    return _LOADED[name]


def _each(*names: str) -> list[object]:
    return [pytest.param(name, marks=pytest.mark.quick) if name in QUICK else name for name in names]


def _pairs(*pairs: tuple[str, str]) -> list[object]:
    return [pytest.param(*pair, marks=pytest.mark.quick) if set(pair) <= set(QUICK) else pair for pair in pairs]


@pytest.mark.parametrize("name", _each(SMOL, Q05, Q15, GEMMA))
def test_the_table_is_sound(name: str) -> None:
    tokenizer, codec = _loaded(name)
    table = codec.table
    assert table.trouble is None
    assert table.kind == ("sentencepiece" if name == GEMMA else "byte-level")
    assert table == byte_table(tokenizer, len(table.tokens)), "the one on the disk"
    assert table.ends <= table.control
    assert not any(table.tokens[i] for i in table.control)
    strings = tokenizer.vocabulary_table()
    pads = [i for i, token in strings.items() if token.startswith("[PAD")]
    assert all(table.tokens[i] is None for i in pads), "ordinary tokens by their type, but no text makes them"
    missing = {i for i, token in enumerate(table.tokens) if token is None} - table.control - set(pads)
    assert len(missing) < 10, [strings.get(i) for i in missing]


@pytest.mark.parametrize("name", _each(SMOL, Q05, Q15, GEMMA))
def test_real_texts_come_back_cut_anywhere(name: str) -> None:
    """[1] [2] [3] [5] [7] [8] [9] [22]"""
    tokenizer, codec = _loaded(name)
    texts = [calibration.text(part) for part in calibration.PARTS] + [text.encode() for text in (*HARD, *PROMPTS)]
    rng = random.Random(0)
    for text in texts:
        assert codec.spell(codec.encode(text)) == text
        for _ in range(20):
            at = rng.randrange(len(text))
            data = text[at : at + rng.randrange(1, 80)]
            ids = codec.encode(data)
            spelled = codec.spell(ids)
            assert data.startswith(spelled)
            if spelled != data:
                assert name == SMOL, "only SmolLM2 lacks some single bytes"
                assert codec.pieces(data[len(spelled) :]) == []
            assert not set(ids) & codec.table.control
    for prompt in PROMPTS:
        assert codec.encode(prompt.encode()) == tokenizer.encode(prompt, special=False)


@pytest.mark.parametrize("name", _each(SMOL, Q05, GEMMA))
def test_how_replies_begin_and_end(name: str) -> None:
    """[20] [24]"""
    tokenizer, codec = _loaded(name)
    assert codec.lead == (b" " if name == GEMMA else b"")  # the base model has no template: "Assistant: Hello"
    assert tokenizer.vocabulary_table()[codec.turn_end or 0] == ("<eos>" if name == GEMMA else "<|im_end|>")


@pytest.mark.parametrize(("target", "drafter"), _pairs((Q05, SMOL), (Q15, SMOL), (SMOL, Q05), (GEMMA, SMOL), (Q15, GEMMA), (SMOL, GEMMA)))
def test_the_map_of_a_pair(target: str, drafter: str) -> None:
    """[15] [35] [36] [39]: every drafter token that is text has pieces, and they spell it."""
    one, other = _loaded(target)[1], _loaded(drafter)[1]
    mapping = vocabulary_map(one, other)
    rest = mapping.rest
    unmapped = 0
    for d, token in enumerate(other.table.tokens):
        if mapping.first[d] < 0:
            unmapped += token is not None
            assert mapping.same[d] == -1
            continue
        assert one.spell([int(mapping.first[d]), *rest.get(d, ())]) == token
        assert mapping.same[d] == one.ids.get(token or b"", -1)
    assert unmapped <= (100 if target == SMOL else 0), "SmolLM2 lacks some single bytes"
    assert set(mapping.ends) == other.table.ends
    assert set(mapping.ends.values()) == {one.turn_end}


@pytest.mark.parametrize(("target", "drafter"), _pairs((Q05, SMOL), (GEMMA, SMOL), (Q15, GEMMA)))
def test_check_of_real_pairs(target: str, drafter: str) -> None:
    find(target), find(drafter)
    found = check(target, drafter)
    assert found["refused"] is None
    assert found["method"] in ("slem", "pf")
    assert found["coverage"]["chat"] > 0.8
    assert found["pieces"]["chat"] > 0.7


def test_the_qwen_models_share_one_vocabulary() -> None:
    """[34] [57]"""
    find(Q15), find(Q05)
    assert check(Q15, Q05)["method"] == "model"


def test_a_gguf_file_is_found_by_its_path() -> None:
    _, path = find(SMOL)
    assert isinstance(path, Path)
    assert check(str(path), str(path))["method"] == "model"
