"""From a drafter's ids to a target's. Numbers in brackets are the edge cases of the cross-tokenizer reference, section 6."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from engine.bridge import maps, shelf
from engine.bridge.codec import Codec
from engine.bridge.maps import VocabularyMap, vocabulary_map
from tests.engine.bridge import toys
from tests.engine.bridge.toys import byte_level, sentencepiece, wrap

TOKENIZERS = toys.sound()
PAIRS = [(a, b) for a in ("byte-level", "prepend", "no prefix", "unigram", "no fallback") for b in TOKENIZERS if a != b]


@pytest.fixture(scope="module")
def toys_(shelf_home: Path) -> dict[str, Codec]:
    return {name: Codec(tokenizer) for name, tokenizer in TOKENIZERS.items()}


def _pieces(mapping: VocabularyMap, d: int) -> list[int]:
    return [int(mapping.first[d]), *mapping.rest.get(d, ())] if mapping.first[d] >= 0 else []


@pytest.mark.parametrize(("target", "drafter"), PAIRS)
def test_pieces_spell_the_token_and_are_the_targets_own(toys_: dict[str, Codec], target: str, drafter: str) -> None:
    """[15] [16] [35] Whatever the drafter token is, its pieces are its bytes, as the target's encoder writes them."""
    one, other = toys_[target], toys_[drafter]
    mapping = vocabulary_map(one, other)
    assert len(mapping.same) == len(mapping.first) == len(other.table.tokens)
    for d, token in enumerate(other.table.tokens):
        pieces = _pieces(mapping, d)
        if token is None:
            assert (mapping.same[d], pieces) == (-1, [])
            continue
        if mapping.same[d] >= 0:
            assert one.table.tokens[mapping.same[d]] == token
            assert mapping.same[d] == one.ids[token]
        else:
            assert token not in one.ids
        if pieces:
            assert one.spell(pieces) == token
            assert pieces == (one.encode(token) if Codec.whole(token) == len(token) and _is_text(token) else one.pieces(token))
        else:
            assert one.spell(one.encode(token)) != token, "only what cannot be spelled is unmappable"


def _is_text(data: bytes) -> bool:
    return data.decode("utf-8", "ignore").encode() == data


def test_a_map_to_itself_is_the_identity(toys_: dict[str, Codec]) -> None:
    """Where the drafter's vocabulary is part of the target's, pushing forward is masking."""
    codec = toys_["ranks"]  # where every piece is looked up whole
    mapping = vocabulary_map(codec, codec)
    text = [d for d, token in enumerate(codec.table.tokens) if token is not None]
    assert mapping.same[text].tolist() == text
    alone = [d for d in text if codec.encode_many([codec.table.tokens[d] or b""]) == [[d]]]
    assert len(alone) > 300
    assert mapping.first[alone].tolist() == alone
    assert mapping.intersection == len(text)


@pytest.mark.parametrize("text", [b"\n", b"    ", "é".encode(), "你好".encode(), b" hello", b" rainbow"])
def test_what_maps_by_strings_lose_is_there(toys_: dict[str, Codec], text: bytes) -> None:
    """Newlines, runs of spaces and other scripts between a byte-level and a SentencePiece vocabulary."""
    for one, other in ((toys_["byte-level"], toys_["no prefix"]), (toys_["no prefix"], toys_["byte-level"])):
        if (d := other.ids.get(text)) is not None:
            mapping = vocabulary_map(one, other)
            assert one.spell(_pieces(mapping, d)) == text
            if text in one.ids:
                assert mapping.same[d] == one.ids[text]


def test_signs_are_no_false_friends() -> None:
    """A target that has the character Ġ itself as a token must not take it for a drafter's space."""
    one = Codec(wrap(sentencepiece(prefix="none", words=(*toys.WORDS, "Ġ Ġ ĠĠ Ċ ▁"))))
    other = Codec(wrap(byte_level()))
    mapping = vocabulary_map(one, other)
    space = other.ids[b" "]
    assert one.table.tokens[mapping.same[space]] == b" "
    assert one.spell(one.encode("Ġ".encode())) == "Ġ".encode()


def test_several_drafter_tokens_of_the_same_bytes_share_a_target_token_36(toys_: dict[str, Codec]) -> None:
    """[36] Their masses add up on the canonical id."""
    one, other = toys_["byte-level"], toys_["no prefix"]
    mapping = vocabulary_map(one, other)
    twins = [i for i, token in enumerate(other.table.tokens) if token == b"e"]
    assert len(twins) == 2
    assert set(mapping.same[twins].tolist()) == set(mapping.first[twins].tolist()) == {one.ids[b"e"]}
    back = vocabulary_map(other, one)
    assert back.same[one.ids[b"e"]] == other.ids[b"e"] == other.encode(b"e")[0], "never the twin that its encoder does not emit"


def test_bytes_of_a_character_3_39(toys_: dict[str, Codec]) -> None:
    """[3] A token of several bytes of a character becomes the target's byte tokens. [39] Where it has none, it is unmappable."""
    words = ("🙂 🙂 🙂 🙂 😀 😀 😀 😁 😁 龘 龘",)
    drafter = Codec(wrap(byte_level(words=words)))
    parts = [d for d, token in enumerate(drafter.table.tokens) if token is not None and len(token) > 1 and not _is_text(token)]
    assert parts
    through = vocabulary_map(toys_["no prefix"], drafter)
    for d in parts:
        assert [toys_["no prefix"].table.tokens[i] for i in _pieces(through, d)] == [bytes([b]) for b in drafter.table.tokens[d] or b""]
    lost = vocabulary_map(toys_["no fallback"], drafter)
    assert all(lost.first[d] == -1 for d in parts)


def test_digits_15() -> None:
    """[15] `123` becomes three digits; the digits alone are what they are on the other side."""
    from tokenizers import pre_tokenizers

    together = Codec(wrap(byte_level(words=("123 123 123 12 12",))))
    backend = byte_level()
    backend.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), backend.pre_tokenizer])
    alone = Codec(wrap(backend))
    mapping = vocabulary_map(alone, together)
    assert [alone.table.tokens[i] for i in _pieces(mapping, together.ids[b"123"])] == [b"1", b"2", b"3"]
    assert vocabulary_map(together, alone).first[alone.ids[b"1"]] == together.ids[b"1"]


def test_a_larger_drafter_vocabulary_35() -> None:
    """[35] Its longer tokens become pieces; more rows on either side change nothing [34]."""
    small, large = wrap(byte_level(size=270)), wrap(byte_level(size=420))
    mapping = vocabulary_map(Codec(small), Codec(large))
    assert len(mapping.rest) > 50
    assert (mapping.first >= 0).sum() == Codec(large).table.mapped
    padded = vocabulary_map(Codec(small, 1000), Codec(large, 2000))
    size = len(mapping.first)
    assert len(padded.first) == 2000
    assert (padded.first[:size] == mapping.first).all()
    assert (padded.first[size:] == -1).all()


def test_control_tokens_and_endings_22_24(toys_: dict[str, Codec]) -> None:
    """[22] A control token is in no map. [24] Every ending of the drafter becomes the one that the target's template writes."""
    one, other = toys_["prepend"], toys_["byte-level"]
    mapping = vocabulary_map(one, other)
    for d in other.table.control:
        assert (mapping.same[d], mapping.first[d]) == (-1, -1)
    assert len(other.table.ends) == 2
    assert mapping.ends == dict.fromkeys(other.table.ends, one.turn_end)
    assert one.turn_end == one.ids.get(b"</s>", TOKENIZERS["prepend"].hf.convert_tokens_to_ids("</s>"))
    endless = Codec(wrap(byte_level(), ends=()))
    assert vocabulary_map(endless, other).ends == {}
    assert vocabulary_map(other, endless).ends == {}


# --- on disk --------------------------------------------------------------------------------------------------------


@pytest.fixture
def pair(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Codec, Codec]:
    monkeypatch.setenv("SPECCHAT_HOME", str(tmp_path))
    return Codec(TOKENIZERS["byte-level"]), Codec(TOKENIZERS["prepend"])


def _equal(a: VocabularyMap, b: VocabularyMap) -> bool:
    return all(np.array_equal(getattr(a, n), getattr(b, n)) for n in ("same", "first", "more", "later")) and a.ends == b.ends


def test_a_known_map_comes_from_the_disk_38(pair: tuple[Codec, Codec], monkeypatch: pytest.MonkeyPatch) -> None:
    """[38] Under both content hashes: another tokenizer never finds it."""
    made = vocabulary_map(*pair)
    calls: list[tuple[Codec, Codec]] = []
    original = maps._made
    monkeypatch.setattr(maps, "_made", lambda *of: calls.append(of) or original(*of))
    again = vocabulary_map(*pair)
    assert _equal(made, again)
    assert again.rest == made.rest
    assert calls == []
    vocabulary_map(pair[1], pair[0])
    vocabulary_map(Codec(wrap(byte_level(size=300))), pair[1])
    assert len(calls) == 2


@pytest.mark.parametrize("damage", ["rubbish", "short", "range", "offsets", "order", "type", "missing"])
def test_a_damaged_map_is_made_again(pair: tuple[Codec, Codec], damage: str, tmp_path: Path) -> None:
    """A wrong id would reach the target: every number is checked."""
    good = vocabulary_map(*pair)
    (file,) = (tmp_path / "cache" / "bridge").glob("map-*.npz")
    arrays = shelf.find(file.stem)
    assert arrays is not None
    first, more = arrays["first"], arrays["more"]
    changed = {
        "short": {"first": first[:-1]},
        "range": {"first": np.where(first == first.max(), len(pair[0].table.tokens), first).astype(np.int32)},
        "offsets": {"more": more + 1},
        "order": {"more": np.concatenate([more[:1], more[1:-1][::-1], more[-1:]])},
        "type": {"later": arrays["later"].astype(np.float32)},
    }
    if damage == "rubbish":
        file.write_bytes(file.read_bytes()[:-100])
    elif damage == "missing":
        shelf.put(file.stem, {name: array for name, array in arrays.items() if name != "later"})
    else:
        shelf.put(file.stem, arrays | changed[damage])
    assert _equal(vocabulary_map(*pair), good)
    restored = shelf.find(file.stem)
    assert restored is not None
    assert np.array_equal(restored["first"], first)
