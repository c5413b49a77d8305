"""A real SentencePiece tokenizer with a dummy prefix and byte fallback, in both roles. Numbers are the edge cases of the cross-tokenizer
reference, section 6; the toys of every class are in the other files of this folder, and the properties of `Follower` hold for this one in
`test_align_properties`."""

from __future__ import annotations

import shutil
from functools import cache
from pathlib import Path

import pytest
import sentencepiece
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.bridge.align import Follower, Line
from engine.bridge.check import check, facts
from engine.bridge.codec import Codec
from engine.bridge.maps import vocabulary_map
from tests.engine.bridge import toys
from tests.engine.bridge.test_codec import HARD
from tests.engine.bridge.test_edges import drafter_of, kept, offers, talk
from tests.engine.bridge.toys import MISTRAL, byte_level, wrap

EACH = settings(max_examples=300, deadline=None)


@pytest.fixture(scope="module", autouse=True)
def _home_of_module(shelf_home: object) -> None:
    """Codecs are made before a test's own fixture runs."""


@cache
def real() -> Codec:
    return Codec(toys.mistral())


@cache
def toy(name: str = "byte-level") -> Codec:
    return Codec(toys.sound()[name])


@cache
def itself() -> sentencepiece.SentencePieceProcessor:
    """The file in the library that it was made with."""
    return sentencepiece.SentencePieceProcessor(model_file=str(MISTRAL / "tokenizer.model"))


def alone(text: str) -> list[str]:
    """Pieces as the tokenizer writes a text by itself."""
    tokenizer = toys.mistral()
    return [tokenizer.vocabulary_table()[i] for i in tokenizer.encode(text, special=False)]


def inside(text: str | bytes) -> list[str]:
    """Pieces of a text that goes on."""
    data = text.encode() if isinstance(text, str) else text
    return [toys.mistral().vocabulary_table()[i] for i in real().encode(data)]


def behind(before: str, text: str) -> list[str]:
    """Pieces of a text right behind another one in a reply."""
    line = Line(real(), b"")
    line.add(real().encode(before.encode()))
    return [toys.mistral().vocabulary_table()[i] for i in line.follow(text.encode())]


# --- the table ------------------------------------------------------------------------------------------------------


def test_the_byte_table_is_what_the_file_says() -> None:
    table = real().table
    assert (table.kind, table.trouble, len(table.tokens), table.mapped) == ("sentencepiece", None, 32000, 31997)
    assert (table.control, table.ends) == ({0, 1, 2}, {2})
    for i, token in enumerate(table.tokens):
        piece = itself().id_to_piece(i)
        if itself().is_control(i) or itself().is_unknown(i):
            assert token is None
        elif itself().is_byte(i):
            assert token == bytes([int(piece[3:5], 16)])
        else:
            assert token == piece.replace("▁", " ").encode()


def test_its_habits() -> None:
    assert (real().lead, real().turn_end) == (b" ", 2)  # "[/INST] Hello"
    tokenizer = toys.mistral()
    whole = tokenizer.hf("<s>[INST] hello [/INST] hello world </s>", add_special_tokens=False)["input_ids"]
    prompt = tokenizer.hf("<s>[INST] hello [/INST]", add_special_tokens=False)["input_ids"]
    begun = prompt + real().first(b"hello world")
    assert whole[: len(begun)] == begun


@EACH
@given(data=st.binary(max_size=24))
def test_any_bytes_come_back(data: bytes) -> None:
    ids = real().encode(data)
    assert real().spell(ids) == real().spell(real().pieces(data)) == data
    assert real().encode_many([data]) == [ids]
    assert not set(ids) & real().table.control


@EACH
@given(text=st.text(st.characters(codec="utf-8"), max_size=40), start=st.integers(0, 20), stop=st.integers(0, 160))
def test_any_text_comes_back_cut_anywhere(text: str, start: int, stop: int) -> None:
    """And a text that goes on is written as the tokenizer itself writes it behind a space."""
    data = text.encode()[start:stop]
    assert real().spell(real().encode(data)) == data
    if text and "▁" not in text:  # its own encoder takes the sign for a space
        assert real().encode(b" " + text.encode()) == itself().encode(text)


@pytest.mark.parametrize("text", [*HARD, *toys.WORDS])
def test_hard_texts_come_back_2_5_6_7_8_14_16_21_22(text: str) -> None:
    ids = real().encode(text.encode())
    assert real().spell(ids) == text.encode()
    assert not set(ids) & real().table.control


# --- edge cases ------------------------------------------------------------------------------------------------------


def test_a_smile_may_end_after_its_first_half_1() -> None:
    """As a drafter it waits for the rest, and then has one piece for it; as a target it takes no half for text."""
    smile, letters = "🙂".encode(), Codec(wrap(byte_level(size=262)))
    follower = Follower(letters, real(), at_start=False)
    ids = letters.encode(b"ab" + smile)
    assert len(ids) == 6
    follower.extend(ids[:4])
    follower.sync()
    assert (real().spell(follower.ids), follower.held) == (b"ab", smile[:2])
    follower.extend(ids[4:])
    follower.sync()
    assert follower.held == b""
    assert follower.ids[-1] == toys.mistral().hf.convert_tokens_to_ids("🙂")
    follower = Follower(real(), letters, at_start=False)
    follower.extend(real().encode(b"ab"))
    follower.sync()
    for n, token in enumerate(letters.encode(smile), 1):
        follower.put(token)
        assert [real().table.tokens[i] for i in follower.candidates()] == ([smile] if n == 4 else [])


@pytest.mark.parametrize(("target", "drafter"), [("mistral", "toy"), ("toy", "mistral")])
def test_joined_people_are_cut_anywhere_2(target: str, drafter: str) -> None:
    """15 pieces by themselves, of bytes and joiners; one id at a time no byte is lost, and half a person waits."""
    people = "👩\u200d👩\u200d👧"
    assert len(alone(people)) == 15
    assert inside(people) == alone(people)[1:] == ["<0xF0>", "<0x9F>", "<0x91>", "<0xA9>", "\u200d"] * 2 + [*alone(people)[-4:]]
    one, other = (real() if name == "mistral" else toy() for name in (target, drafter))
    follower = Follower(one, other, at_start=False)
    said = b""
    for token in one.encode(f"a {people} b".encode()):
        follower.extend([token])
        follower.sync()
        said += one.spell([token])
        assert other.spell(follower.ids) + follower.held == follower.read == said
        assert Codec.whole(said) == len(said) - len(follower.held)
    assert said == f"a {people} b".encode()


def test_bytes_of_another_granularity_are_not_equal_3() -> None:
    """`é¾`, two of the three bytes, is one token of the drafter: nothing for tli; pf has pieces for it, and slem the character."""
    assert alone("龘") == ["▁", "<0xE9>", "<0xBE>", "<0x98>"]
    backend = byte_level(size=len(toys.SPECIALS) + 257, words=["龘"])
    halves = Codec(wrap(backend))
    (pair,) = (i for i, token in enumerate(halves.table.tokens) if token is not None and len(token) > 1)
    half = halves.spell([pair])
    assert half in ("龘".encode()[:2], "龘".encode()[1:])
    maps = vocabulary_map(real(), halves)
    assert maps.same[pair] == -1
    assert [int(maps.first[pair]), *maps.rest[pair]] == [real().ids[bytes([b])] for b in half]
    follower = Follower(real(), halves, at_start=False)
    for token in halves.encode("龘".encode()):
        follower.put(token)
    assert [real().table.tokens[i] for i in follower.candidates()] == [b"\xe9", b"\xbe", b"\x98"]


def test_ends_of_lines_8() -> None:
    assert alone("\r\n") == ["▁\r", "<0x0A>"]
    assert inside("\r\n") == behind("a", "\r\n") == ["\r", "<0x0A>"]
    assert inside("a\r\nb") == ["a", "\r", "<0x0A>", "b"]


def test_the_dummy_prefix_10() -> None:
    """By itself a text gets a space; inside a reply it gets none, and keeps its own. The tokenizer is left as it is."""
    assert alone("hello") == ["▁hell", "o"]
    assert inside(" world") == behind("hello", " world") == ["▁world"]
    assert inside("world") == behind("hello\n", "world") == ["world"]
    assert real().encode(b"world") != toys.mistral().encode("world", special=False)
    assert real().encode(b" world") == toys.mistral().encode("world", special=False)
    assert alone("world") == ["▁world"]
    assert real().spell(real().first(b"hello")) == b" hello"
    assert real().said(real().first(b"hello world")) == b"hello world"


def test_the_same_word_has_other_ids_by_its_place_11() -> None:
    assert alone(" rainbow") == ["▁", "▁rain", "bow"]
    assert alone("rainbow") == inside(" rainbow") == behind("the", " rainbow") == ["▁rain", "bow"]
    assert inside("rainbow") == behind("the\n", "rainbow") == ["r", "ain", "bow"]  # there is no piece `rain`


def test_indentation_and_tables_13_14() -> None:
    """Runs of spaces have the lowest scores of all: the last space goes to the word, as in training."""
    assert inside("x\n\n    return x") == ["x", "<0x0A>", "<0x0A>", "▁▁▁", "▁return", "▁x"]
    assert inside("a  b") == ["a", "▁", "▁b"]


def test_digits_15() -> None:
    """One by one. A drafter's `12` is spelled in pieces; the other way tli offers `1` where the target wants `12`; the text has it."""
    assert inside("12345") == list("12345")
    assert [toy().table.tokens[i] for i in toy().encode(b"12345")] == [b"12", b"345"]
    maps = vocabulary_map(real(), toy())
    for token in (b"12", b"345"):
        i = toy().ids[token]
        assert [int(maps.first[i]), *maps.rest[i]] == [real().ids[bytes([b])] for b in token]
    text = b"hello\n12345"
    plain = talk(toy(), text, None)
    for method, offered in (("tli", [b"1", b"2"]), ("slem", [b"12", b"3"]), ("pf", [b"12"])):
        drafter = drafter_of(toy(), real(), real().lead + text, method)
        drafts = offers(drafter)
        run = talk(toy(), text, drafter, k=2)
        assert run.ids == plain.ids
        assert run.steps[0].emitted == 3  # `he`, `llo`, the end of the line
        assert [toy().table.tokens[i] for i in drafts[1].tokens] == offered
        assert run.steps[1].accepted == sum(a == b for a, b in zip(offered, (b"12", b"345"), strict=False))


def test_contractions_16() -> None:
    assert alone("don't") == ["▁don", "'", "t"]
    mine = toy().encode(b"don't")
    assert toy().spell(mine[-1:]) == b"'t"
    maps = vocabulary_map(real(), toy())
    assert [int(maps.first[mine[-1]]), *maps.rest[mine[-1]]] == [real().ids[b"'"], real().ids[b"t"]]


@pytest.mark.parametrize("word", ["</s>", "<s>", "<unk>", "[INST]"])
def test_markup_in_a_reply_is_words_22(word: str) -> None:
    """Its own encoder reads the real ids out of it; no bytes of a reply become one, as a target or as a drafter."""
    text = f"say {word} now{word}"
    if word != "[INST]":
        assert set(toys.mistral().hf(text)["input_ids"][1:]) & real().table.control
    for one, other in ((real(), toy()), (toy(), real())):
        follower = Follower(one, other)
        follower.extend(one.first(text.encode()))
        follower.sync()
        assert bytes(follower.read).removeprefix(other.lead) == text.encode()
        assert other.spell(follower.ids) == follower.read
        for token in other.encode(word.encode()):
            follower.put(token)
        found = follower.candidates()
        assert one.spell(found) == word.encode()
        assert not set(follower.ids) & other.table.control
        assert not set(found) & one.table.control


# --- beside another tokenizer ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["slem", "tli", "pf", "slrs"])
@pytest.mark.parametrize("role", ["target", "drafter"])
def test_a_reply_is_drafted_in_both_roles(role: str, method: str) -> None:
    one, other = (real(), toy()) if role == "target" else (toy(), real())
    text = "hello world, it's a rainbow: 12345\n\n    return x 🙂 </s> 你好".encode()
    plain = talk(one, one.lead + text, None)
    assert one.said(plain.ids) == text
    run = talk(one, one.lead + text, drafter_of(one, other, other.lead + text, method))
    assert (run.ids, run.reason) == (plain.ids, plain.reason)
    assert kept(run)[0] > (0.4 if method == "tli" else 0.8) * kept(run)[1] > 8


@pytest.mark.parametrize("role", ["target", "drafter"])
@pytest.mark.parametrize("other", ["byte-level", "unigram"])
def test_check_takes_it_in_both_roles(role: str, other: str) -> None:
    pair = [toys.mistral(), toys.sound()[other]]
    target, drafter = pair if role == "target" else pair[::-1]
    for temperature, method in ((0.0, "slem"), (0.7, "pf")):
        found = facts(target, drafter, temperature=temperature)
        assert (found["refused"], found["method"]) == (None, method)
        assert found[role] == {"class": "sentencepiece", "size": 32000, "mapped": 31997}
        assert found["intersection"] > 100
        assert all(share > (0.9 if role == "drafter" else 0.1) for share in found["pieces"].values())


def test_a_folder_with_nothing_but_the_file_is_not_refused(tmp_path: Path) -> None:
    """transformers writes the dummy prefix of such a file as a step of its own, which doubles a space: that is not what a reply gets."""
    bare, other = tmp_path / "bare", tmp_path / "toy"
    bare.mkdir()
    shutil.copy(MISTRAL / "tokenizer.model", bare)
    wrap(byte_level()).hf.save_pretrained(other)
    for pair in ((bare, other), (other, bare)):
        found = check(*map(str, pair))
        assert (found["refused"], found["method"]) == (None, "pf")
    assert check(str(bare), str(MISTRAL))["method"] == "model"
