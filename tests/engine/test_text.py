"""Ids to text, piece by piece: nothing lost, nothing doubled, stop strings cut wherever they fall."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, decoders, models

from engine.protocol import Segment
from engine.text import PATIENCE, REPLACEMENT, Detokenizer

Decode = Callable[[list[int]], str]
WORDS = ["Hello", " world", " the", "ing", "é", " 你好", "世界", "🙂", "\n\n", "STOP", "ST", "OP", "END.", " ", "a", "b", "👩\u200d👩"]


def _byte_characters() -> dict[int, str]:
    """GPT-2's printable stand-in of every byte."""
    good = [*range(33, 127), *range(161, 173), *range(174, 256)]
    table = {b: chr(b) for b in good}
    table |= {b: chr(256 + n) for n, b in enumerate(b for b in range(256) if b not in good)}
    return table


def byte_level() -> Tokenizer:
    """All single bytes, some words, and pieces of characters of two and three bytes."""
    table = _byte_characters()
    pieces = [bytes([b]) for b in range(256)] + [w.encode() for w in WORDS if len(w.encode()) > 1]
    pieces += ["🙂".encode()[:2], "🙂".encode()[2:], " 你".encode()[:2], b"END\xe4", b"\xbd\xa0STOP", b"\xff\xfe"]
    vocab = {"".join(table[b] for b in piece): i for i, piece in enumerate(dict.fromkeys(pieces))}
    tokenizer = Tokenizer(models.BPE(vocab, []))
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken("<|end|>", special=True)])
    return tokenizer


def sentence_piece() -> Tokenizer:
    """▁ for spaces, byte tokens for what is not in the vocabulary, the first space dropped: as Llama-2 and Mistral do."""
    words = [w.replace(" ", "▁") for w in WORDS] + ["▁a", "▁b", "▁▁", REPLACEMENT]
    vocab = {w: i for i, w in enumerate(dict.fromkeys(["<unk>", *(f"<0x{b:02X}>" for b in range(256)), *words]))}
    tokenizer = Tokenizer(models.BPE(vocab, [], byte_fallback=True, unk_token="<unk>"))
    tokenizer.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)])
    return tokenizer


def metaspace() -> Tokenizer:
    """The same vocabulary with the other decoder in use, which drops a space in front of the first token."""
    tokenizer = sentence_piece()
    tokenizer.decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Metaspace("▁", "always", True)])
    return tokenizer


def decoder_of(tokenizer: Tokenizer) -> Decode:
    return lambda ids: tokenizer.decode(list(ids), skip_special_tokens=False)


BYTES, PIECES, META = byte_level(), sentence_piece(), metaspace()
KINDS = {"byte-level": BYTES, "sentencepiece": PIECES, "metaspace": META}


def run(decode: Decode, ids: Sequence[int], stop: Sequence[str] = (), before: Sequence[int] = ()) -> tuple[Detokenizer, list[Segment], int]:
    """All pieces, and how many ids were taken."""
    detokenizer = Detokenizer(decode, stop, before)
    segments: list[Segment] = []
    taken = 0
    for i, token in enumerate(ids):
        segments += detokenizer.push(token, "kept" if i % 3 else "bonus", i % 3, i + 1)
        taken = i + 1
        if detokenizer.stopped:
            break
    segments += detokenizer.finish()
    assert "".join(s.text for s in segments) == detokenizer.text
    assert [t for s in segments for t in s.token_ids] == list(ids[:taken])
    for s in segments:  # a piece is of the class of its last token
        assert s.token_ids
        assert s.origin == ("kept" if (s.step - 1) % 3 else "bonus")
        assert s.position == (s.step - 1) % 3
    assert [s.step for s in segments] == sorted({s.step for s in segments})
    return detokenizer, segments, taken


def ids_of(tokenizer: Tokenizer) -> st.SearchStrategy[list[int]]:
    return st.lists(st.integers(0, tokenizer.get_vocab_size() - 1), max_size=40)


@settings(max_examples=300, deadline=None)
@given(ids_of(BYTES))
def test_byte_level_pieces_joined_are_the_whole_text_for_any_ids(ids: list[int]) -> None:
    """Also for bytes that are no UTF-8 at all, and for long runs of them."""
    decode = decoder_of(BYTES)
    assert run(decode, ids)[0].text == decode(ids)


@settings(max_examples=200, deadline=None)
@given(st.lists(st.sampled_from([*range(0x80, 0x100), 0x41]), min_size=6, max_size=40))
def test_byte_level_rubbish_is_shown_before_the_end(ids: list[int]) -> None:
    decode = decoder_of(BYTES)
    vocabulary = BYTES.get_vocab()
    table = _byte_characters()
    ids = [vocabulary[table[b]] for b in ids]
    detokenizer = Detokenizer(decode)
    shown = 0
    for n, token in enumerate(ids, start=1):
        shown += sum(len(s.token_ids) for s in detokenizer.push(token, "plain", 0, n))
        assert n - shown < 10  # a model that writes rubbish does not seem to hang
    detokenizer.finish()
    assert detokenizer.text == decode(ids)


@pytest.mark.parametrize("kind", ["sentencepiece", "metaspace"])
@settings(max_examples=200, deadline=None)
@given(data=st.data())
def test_byte_fallback_pieces_joined_are_the_whole_text_where_it_is_text(kind: str, data: st.DataObject) -> None:
    """Decoded at once, one bad byte spoils its whole run of byte tokens; piece by piece, characters before it stay."""
    ids = data.draw(ids_of(KINDS[kind]))
    decode = decoder_of(KINDS[kind])
    whole, text = decode(ids), run(decode, ids)[0].text
    if REPLACEMENT not in whole:
        assert text == whole
    rest = iter(text)
    assert all(c in rest for c in whole if c != REPLACEMENT)  # in order


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "text", ["Hello world", "the 你好世界🙂 é\n\n  a", "🙂🙂👩\u200d👩龘𝔘", f"a{REPLACEMENT}b{REPLACEMENT}", "   a", "ÿþ\x00\x7f", ""]
)
def test_text_spelled_in_single_bytes_or_words(kind: str, text: str) -> None:
    """However the characters are cut into tokens, the text is what was spelled, and no piece holds part of a character."""
    tokenizer = KINDS[kind]
    decode, vocabulary = decoder_of(tokenizer), tokenizer.get_vocab()
    if kind == "byte-level":
        ids = [vocabulary[_byte_characters()[b]] for b in text.encode()]
    else:
        ids = [vocabulary["▁"]] + [vocabulary[f"<0x{b:02X}>"] for b in text.encode()]  # its space is the dropped one
    detokenizer, segments, _ = run(decode, ids)
    assert detokenizer.text == text
    if REPLACEMENT not in text:
        assert not [s for s in segments if REPLACEMENT in s.text]


def test_a_character_is_shown_with_its_last_byte() -> None:
    decode = decoder_of(BYTES)
    vocabulary, table = BYTES.get_vocab(), _byte_characters()
    detokenizer = Detokenizer(decode)
    out = [detokenizer.push(vocabulary[table[b]], "kept", n + 1, 1) for n, b in enumerate("🙂x".encode())]
    assert [[s.text for s in part] for part in out] == [[], [], [], ["🙂"], ["x"]]
    assert out[3][0].token_ids == tuple(vocabulary[table[b]] for b in "🙂".encode())
    assert out[3][0].position == 4


def test_the_replacement_character_itself_waits_for_one_more_token() -> None:
    decode = decoder_of(PIECES)
    vocabulary = PIECES.get_vocab()
    detokenizer = Detokenizer(decode)
    assert detokenizer.push(vocabulary[REPLACEMENT], "plain", 0, 1) == []
    assert "".join(s.text for s in detokenizer.push(vocabulary["a"], "plain", 0, 2)) == f"{REPLACEMENT}a"
    assert detokenizer.push(vocabulary[REPLACEMENT], "plain", 0, 3) == []
    assert [s.text for s in detokenizer.finish()] == [REPLACEMENT]


# --- a continued reply --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("seed", range(8))
def test_a_continued_reply_goes_on_where_it_was(kind: str, seed: int) -> None:
    """The text behind `before` is what decoding everything adds to it, spaces included."""
    tokenizer = KINDS[kind]
    decode, vocabulary = decoder_of(tokenizer), tokenizer.get_vocab()
    rng = random.Random(seed)
    if kind == "byte-level":
        spell = [vocabulary[_byte_characters()[b]] for b in "".join(rng.choices(["你", "🙂", " a", "x", "龘"], k=30)).encode()]
    else:
        spell = []
        for word in rng.choices(["▁the", "a", "▁▁", "世界", "龘", "𝔘"], k=30):
            spell += [vocabulary[word]] if word in vocabulary else [vocabulary[f"<0x{b:02X}>"] for b in word.encode()]
    whole = decode(spell)
    cuts = [n for n in range(1, len(spell)) if whole.startswith(decode(spell[:n])) and REPLACEMENT not in decode(spell[:n])]
    for cut in cuts:
        before, ids = spell[:cut], spell[cut:]
        assert run(decode, ids, before=before)[0].text == whole[len(decode(before)) :]


# --- stop strings -------------------------------------------------------------------------------------------------------


def plain(text: str) -> tuple[Decode, list[int]]:
    """One character a token."""
    return (lambda ids: "".join(map(chr, ids))), [ord(c) for c in text]


def expected_cut(text: str, stop: Sequence[str]) -> tuple[str, int | None]:
    """Text up to the first stop string that becomes whole, and how many characters it takes to see it."""
    for n in range(1, len(text) + 1):
        found = [at for s in stop if s and (at := text[:n].find(s)) >= 0]
        if found:
            return text[: min(found)], n
    return text, None


STOPS = [("ab",), ("aab", "b"), ("abab", "bb"), ("aaa",), ("ba", "aba", "bbbb"), ("", "abba")]


@settings(max_examples=300, deadline=None)
@given(st.text("ab", max_size=24), st.sampled_from(STOPS), st.lists(st.integers(1, 5), min_size=24, max_size=24))
def test_any_stop_string_over_any_tokens(text: str, stop: tuple[str, ...], sizes: list[int]) -> None:
    """Tokens of one to five characters: stop strings begin and end in the middle of them, overlap, and hold one another."""
    tokens: list[str] = []
    rest = text
    for size in sizes:
        if rest:
            tokens.append(rest[:size])
            rest = rest[size:]
    detokenizer, _, taken = run(lambda ids: "".join(tokens[i] for i in ids), range(len(tokens)), stop)
    ends = [len("".join(tokens[: n + 1])) for n in range(len(tokens))]
    for n, end in enumerate(ends):
        found = [at for s in stop if s and (at := text[:end].find(s)) >= 0]
        if found:
            assert (detokenizer.text, detokenizer.stopped, taken) == (text[: min(found)], True, n + 1)
            return
    assert (detokenizer.text, detokenizer.stopped, taken) == (text[: sum(map(len, tokens))], False, len(tokens))


@settings(max_examples=150, deadline=None)
@given(st.text("ab", max_size=24), st.sampled_from(STOPS))
def test_one_character_a_token_stops_at_once(text: str, stop: tuple[str, ...]) -> None:
    decode, ids = plain(text)
    detokenizer, _, taken = run(decode, ids, stop)
    expected, seen = expected_cut(text, stop)
    assert detokenizer.text == expected
    assert taken == (seen or len(text))


def test_text_is_not_held_back_longer_than_needed() -> None:
    decode, ids = plain("abcSTxyzSTO")
    detokenizer = Detokenizer(decode, ("STOP",))
    shown = []
    for n, token in enumerate(ids):
        shown.append("".join(s.text for s in detokenizer.push(token, "plain", 0, n + 1)))
    assert shown == ["a", "b", "c", "", "", "STx", "y", "z", "", "", ""]
    assert [s.text for s in detokenizer.finish()] == ["S", "T", "O"]


def test_a_stop_string_with_bytes_of_characters_around_it() -> None:
    """The stop string shares tokens with parts of characters on both sides."""
    vocabulary, table = BYTES.get_vocab(), _byte_characters()

    def at(piece: bytes) -> int:
        return vocabulary["".join(table[b] for b in piece)]

    ids = [at(b"END\xe4"), at(b"\xbd\xa0STOP"), at(b"a")]
    decode = decoder_of(BYTES)
    assert decode(ids) == "END你STOPa"
    assert run(decode, ids, ("STOP",))[0].text == "END你"
    assert run(decode, ids, ("你S",))[0].text == "END"
    assert run(decode, ids, ("END",))[0].text == ""
    assert run(decode, ids[:1], ("END",))[0].text == ""  # the reply was cut by its length with half a character open
    assert run(decode, ids[:1], ("XEND",))[0].text == f"END{REPLACEMENT}"


def test_pieces_behind_a_stop_keep_their_ids_and_lose_their_text() -> None:
    decode, ids = plain("xSTOP")
    _, segments, _ = run(decode, ids, ("STOP",))
    assert [s.text for s in segments] == ["x", "", "", "", ""]
    assert [s.token_ids for s in segments] == [(i,) for i in ids]


# --- pictures of several characters -----------------------------------------------------------------------------------------

FAMILY, FLAGS = "👩\u200d👩\u200d👧", "🇩🇪🇫🇷"


def shown(text: str, stop: Sequence[str] = ()) -> tuple[list[str], str]:
    """What stands on the screen behind each character of a text whose characters are tokens, and at the end."""
    detokenizer = Detokenizer(lambda ids: "".join(map(chr, ids)), stop)
    seen = []
    for step, character in enumerate(text):
        detokenizer.push(ord(character), "plain", 0, step)
        seen.append(detokenizer.text)
    detokenizer.finish()
    return seen, detokenizer.text


@pytest.mark.parametrize("stop", [(), ("STOP",)])
def test_a_picture_is_not_shown_while_it_is_open_2(stop: tuple[str, ...]) -> None:
    """Case 2 of the cross-tokenizer notes: nothing on the screen ends with a joiner or half a flag; nothing is lost or waits longer."""
    seen, whole = shown(f"a{FAMILY}b{FLAGS}c", stop)
    assert whole == f"a{FAMILY}b{FLAGS}c"
    assert seen == [
        "a", "a👩", "a👩", "a👩\u200d👩", "a👩\u200d👩", f"a{FAMILY}", f"a{FAMILY}b",
        f"a{FAMILY}b", f"a{FAMILY}b🇩🇪", f"a{FAMILY}b🇩🇪", f"a{FAMILY}b{FLAGS}", f"a{FAMILY}b{FLAGS}c",
    ]  # fmt: skip


@pytest.mark.parametrize("text", ["\u200d" * 40, "a" + "\u200d" * 40, "🇩", "x👩\u200d"])
def test_a_picture_that_never_closes_is_shown_all_the_same(text: str) -> None:
    seen, whole = shown(text)
    assert whole == text
    assert all(len(text[: i + 1]) - len(one) < PATIENCE for i, one in enumerate(seen))


@settings(max_examples=300, deadline=None)
@given(st.text(st.sampled_from("a👩\u200d🇩🇪S"), max_size=40), st.sampled_from([(), ("SS",), ("\u200da",)]))
def test_joined_pieces_are_the_text_whatever_it_is_made_of(text: str, stop: tuple[str, ...]) -> None:
    end = min((at for s in stop if (at := text.find(s)) >= 0), default=len(text))
    detokenizer = Detokenizer(lambda ids: "".join(map(chr, ids)), stop)
    for step, character in enumerate(text):
        detokenizer.push(ord(character), "plain", 0, step)
        assert text.startswith(detokenizer.text)
        if detokenizer.stopped:
            break
    detokenizer.finish()
    assert detokenizer.text == text[:end]
