"""Bytes to ids and back. Numbers in brackets are the edge cases of the cross-tokenizer reference, section 6."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, normalizers

from engine.bridge.codec import REPAIRS, Codec
from engine.protocol import Message
from tests.engine.bridge import toys
from tests.engine.bridge.toys import byte_level, sentencepiece, wrap

TOKENIZERS = toys.sound()
FULL = [name for name in TOKENIZERS if name != "no fallback"]  # every byte can be spelled
SENTENCEPIECE = ("prepend", "metaspace", "no prefix", "unigram")
HARD = (
    "🙂 👩‍👩‍👧 🏳️‍🌈 龘龘",
    "e\u0301 cafe\u0301 A\u030a \u1100\u1161",
    "ﬁ İ １２３ ½",
    "\ufeffa\u00a0b\u2028c\u200d\u200b",
    "a\r\nb\r\n\r\n\tc\t\td\n\n\n    e",
    "a  b   c    d     ",
    " leading and trailing ",
    "</s> <|im_end|> <s>[INST] <unk> <0x0A> ▁under▁score▁ Ġx Ċ",
    "مرحبا بالعالم שלום हिन्दी 한국어 日本語",
    "don't can't 12345 1,104 == != -> \\n \0 \x7f",
    " . , n't 's ? !",
)


@pytest.fixture(scope="module")
def codecs_() -> dict[str, Codec]:
    return {name: Codec(tokenizer) for name, tokenizer in TOKENIZERS.items()}


@pytest.fixture(scope="module", autouse=True)
def _home_of_module(shelf_home: object) -> None:
    """The codecs of the module are made before a test's own fixture runs."""


@pytest.mark.parametrize("name", FULL)
@pytest.mark.parametrize("text", [*HARD, *toys.WORDS])
def test_what_is_spelled_is_exact_2_5_6_7_8_14_16_21_22(codecs_: dict[str, Codec], name: str, text: str) -> None:
    """[2] joined emoji [5] accents apart [6] compatibility forms [7] invisible characters [8] ends of lines [14] runs of spaces
    [16] contractions [21] nothing tidied [22] markup as words: the bytes come back, from ids that are no control tokens."""
    codec = codecs_[name]
    ids = codec.encode(text.encode())
    assert codec.spell(ids) == text.encode()
    assert not set(ids) & codec.table.control
    assert codec.encode_many([text.encode(), b"x"])[0] == ids


@pytest.mark.parametrize("name", FULL)
@settings(max_examples=150, deadline=None)
@given(text=st.text(st.characters(codec="utf-8"), max_size=40), start=st.integers(0, 20), stop=st.integers(0, 160))
def test_any_text_comes_back_cut_anywhere_1(name: str, text: str, start: int, stop: int) -> None:
    """[1] Property: every slice of every text, inside characters too; the whole part is what a window may hold."""
    codec = _shared(name)
    data = text.encode()[start:stop]
    assert codec.spell(codec.encode(data)) == data
    part = data[: Codec.whole(data)]
    assert len(data) - len(part) <= 3
    assert codec.spell(codec.encode(part)) == part


@pytest.mark.parametrize("name", FULL)
@settings(max_examples=150, deadline=None)
@given(data=st.binary(max_size=24))
def test_any_bytes_come_back_4(name: str, data: bytes) -> None:
    """[4] Bytes that are no UTF-8 are in a reply where the target put them."""
    codec = _shared(name)
    assert codec.spell(codec.encode(data)) == data
    assert codec.encode_many([data]) == [codec.encode(data)]
    assert codec.spell(codec.pieces(data)) == data


@settings(max_examples=200, deadline=None)
@given(text=st.text("ehlo wrd.\n<>/s▁é🙂", max_size=12))
def test_a_vocabulary_that_lacks_characters_spells_the_beginning(text: str) -> None:
    codec = _shared("no fallback")
    spelled = codec.spell(codec.encode(text.encode()))
    assert text.encode().startswith(spelled)
    rest = text.encode()[len(spelled) :]
    assert not rest or not codec.pieces(rest), "it stops only where no token fits"


_CODECS: dict[str, Codec] = {}


def _shared(name: str) -> Codec:
    if name not in _CODECS:
        _CODECS[name] = Codec(TOKENIZERS[name])
    return _CODECS[name]


def _may_become_whole(data: bytes) -> bool:
    """Whether bytes begin one character that more bytes can finish, by trying."""
    ends = (b"\x80\x80\x80", b"\x8f\xbf\xbf", b"\x90\x80\x80", b"\x9f\xbf\xbf", b"\xa0\x80\x80")
    for more in (end[:n] for end in ends for n in (1, 2, 3)):
        try:
            if len((data + more).decode()) == 1:
                return True
        except UnicodeDecodeError:
            continue
    return False


def test_what_is_held_back_is_what_may_become_a_character_1() -> None:
    """[1] All one- and two-byte endings, and all three-byte ones of three lead bytes."""
    endings = [bytes([a]) for a in range(256)] + [bytes([a, b]) for a in range(0x80, 256) for b in range(256)]
    endings += [bytes([a, b, c]) for a in (0xED, 0xF0, 0xF4) for b in range(0x80, 0xC0) for c in (0x41, 0x80, 0xBF)]
    for data in endings:
        waits = next((n for n in range(len(data), 0, -1) if _may_become_whole(data[-n:])), 0)
        assert Codec.whole(b"a" + data) == 1 + len(data) - waits, data


@settings(max_examples=400, deadline=None)
@given(text=st.text(max_size=5), cut=st.integers(0, 20))
def test_half_characters_are_held_back_1(text: str, cut: int) -> None:
    """[1] Of a text cut anywhere, exactly the unfinished character."""
    data = text.encode()[:cut]
    assert data[: Codec.whole(data)].decode() == data.decode("utf-8", "ignore")


@pytest.mark.parametrize(
    ("data", "held"),
    [
        (b"", 0),
        (b"abc", 0),
        ("🙂".encode(), 0),
        ("a🙂".encode()[:-1], 3),
        ("a🙂".encode()[:-3], 1),
        (b"a\xe9\xbe", 2),
        (b"a\xe9a", 0),  # [4] the character was never finished
        (b"a\xff", 0),
        (b"a\x80\x80\x80", 0),
        (b"\xed\xa0", 0),  # a surrogate can never become whole
        (b"\xf5\x80", 0),
    ],
)
def test_how_much_is_held_back(data: bytes, held: int) -> None:
    assert len(data) - Codec.whole(data) == held


@pytest.mark.parametrize("name", ["prepend", "metaspace", "unigram", "byte-level with a prefix"])
def test_no_dummy_prefix_inside_a_text_10_11(codecs_: dict[str, Codec], name: str) -> None:
    """[10] [11] The tokenizer by itself puts a space in front; a text that goes on gets none, and keeps its own."""
    codec, tokenizer = codecs_[name], TOKENIZERS[name]
    alone = tokenizer.encode("world", special=False)
    assert codec.spell(alone) == b" world"
    inside = codec.encode(b"world")
    assert inside != alone
    assert codec.spell(inside) == b"world"
    assert codec.encode(b" world") == alone
    assert codec.encode(b"hello world")[-len(alone) :] == alone
    assert codec.spell(codec.encode(b" rainbow")) == b" rainbow"
    assert tokenizer.encode("world", special=False) == alone, "the tokenizer itself is left as it is"


@pytest.mark.parametrize("name", ["byte-level", "no prefix", "ranks"])
def test_tokenizers_without_a_prefix_encode_as_they_do_themselves(codecs_: dict[str, Codec], name: str) -> None:
    for text in (*toys.WORDS, "a</s>b", "x <|im_end|>"):
        assert codecs_[name].encode(text.encode()) == TOKENIZERS[name].encode(text, special=False)


def test_an_nfc_tokenizer_still_spells_accents_apart_5(codecs_: dict[str, Codec]) -> None:
    """[5] Its own encoder would compose them; composed texts are written as it writes them."""
    codec, tokenizer = codecs_["NFC"], TOKENIZERS["NFC"]
    apart, composed = "cafe\u0301 noir", "caf\u00e9 noir"
    assert tokenizer.encode(apart, special=False) == tokenizer.encode(composed, special=False)
    assert codec.encode(composed.encode()) == tokenizer.encode(composed, special=False)
    assert codec.spell(codec.encode(apart.encode())) == apart.encode()


def test_half_a_character_then_a_letter_4(codecs_: dict[str, Codec]) -> None:
    """[4] The target wrote one byte of three and then `a`."""
    for name in FULL:
        codec = codecs_[name]
        ids = codec.encode(b"x \xe9a y")
        assert codec.spell(ids) == b"x \xe9a y"
        assert codec.encode(b"x ") == ids[: len(codec.encode(b"x "))]


def test_words_that_look_like_markup_are_words_22(codecs_: dict[str, Codec]) -> None:
    """[22] Also where the model itself would take the piece for the control token, as Unigram does."""
    for name in FULL:
        codec = codecs_[name]
        for word in toys.SPECIALS:
            ids = codec.encode(f"say {word} now".encode())
            assert not set(ids) & codec.table.control, (name, word)
            assert codec.spell(ids) == f"say {word} now".encode()


def test_signs_of_the_vocabulary_in_a_text(codecs_: dict[str, Codec]) -> None:
    """`▁` typed by a person is three bytes, not a space; `<0x41>` is six characters, not an A."""
    for name in SENTENCEPIECE:
        codec = codecs_[name]
        assert codec.spell(codec.encode("▁▁".encode())) == "▁▁".encode()
        assert codec.spell(codec.encode(b"<0x41>")) == b"<0x41>"
        many = ("▁a" * (2 * REPAIRS)).encode()
        assert codec.spell(codec.encode(many)) == many


def test_added_tokens_that_swallow_spaces_are_put_right_23() -> None:
    """[23] An ordinary added token that strips the spaces around it."""
    strip = AddedToken("<think>", lstrip=True, rstrip=True, normalized=False, special=False)
    codec = Codec(wrap(byte_level(added=[strip])))
    text = b"so  <think>   well<think>"
    assert codec.spell(codec.encode(text)) == text


def test_added_tokens_keep_their_ids_behind_the_specials_37() -> None:
    """[37] Ordinary added tokens whose ids do not follow the vocabulary, because special ones lie between."""
    backend = byte_level(specials=("<unk>",))
    backend.add_special_tokens(["<|im_start|>", "<|im_end|>"])
    backend.add_tokens([AddedToken("<think>", normalized=False), AddedToken("</think>", normalized=False)])
    tokenizer = wrap(backend)
    codec = Codec(tokenizer)
    ids = codec.encode(b"<think>hello</think>")
    assert ids == tokenizer.encode("<think>hello</think>", special=False)
    assert ids[0] == tokenizer.hf.convert_tokens_to_ids("<think>")


def test_ids_behind_the_models_rows_are_never_given_34() -> None:
    """[34] The tokenizer knows a token that the model has no row for."""
    tokenizer = wrap(byte_level(added=["<think>"]))
    last = tokenizer.hf.convert_tokens_to_ids("<think>")
    codec = Codec(tokenizer, last)
    ids = codec.encode(b"a <think> b")
    assert max(ids) < last
    assert codec.spell(ids) == b"a <think> b"
    assert last in Codec(tokenizer, last + 1).encode(b"a <think> b")


def test_of_twins_the_encoders_one_36(codecs_: dict[str, Codec]) -> None:
    """[36] Canonical is what the encoder emits, not the byte that comes first in the vocabulary."""
    codec, tokenizer = codecs_["no prefix"], TOKENIZERS["no prefix"]
    for text, token in ((b"e", "e"), (b"\n", "\n"), (b" ", "▁"), (b"    ", "▁▁▁▁")):
        assert codec.ids[text] == tokenizer.hf.convert_tokens_to_ids(token)
        assert codec.encode(text) == [codec.ids[text]]


@pytest.mark.parametrize("name", FULL)
def test_the_longest_tokens_that_fit(codecs_: dict[str, Codec], name: str) -> None:
    codec = codecs_[name]
    ids = codec.pieces(b"hello world")
    at = 0
    for i in ids:
        token = codec.table.tokens[i]
        assert token is not None
        longer = [t for t in codec.ids if b"hello world".startswith(t, at) and len(t) > len(token)]
        assert longer == []
        at += len(token)
    assert at == len(b"hello world")


def test_a_control_id_has_no_bytes(codecs_: dict[str, Codec]) -> None:
    codec = codecs_["byte-level"]
    with pytest.raises(AssertionError, match="control"):
        codec.spell([next(iter(codec.table.control))])


# --- the beginning of a reply ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "template", "lead"),
    [
        ("byte-level", toys.CHATML, b""),
        ("byte-level", None, b" "),  # "Assistant: Hello"
        ("no prefix", toys.CHATML, b""),
        ("prepend", toys.INST, b" "),  # "[/INST] Hello"
        ("metaspace", toys.INST, b" "),
        ("unigram", None, b" "),
        ("metaspace", toys.CHATML, b" "),  # behind the newline, which is a token by itself here, a stretch begins
        ("byte-level", "{{ messages.nothing.at_all }}", b""),
    ],
)
def test_the_space_in_front_of_a_reply_20(name: str, template: str | None, lead: bytes) -> None:
    """[20] Read off the template: what the model's first word looks like behind its prompt."""
    from dataclasses import replace

    tokenizer = toys.sound()[name]
    tokenizer.hf.chat_template = template
    codec = Codec(replace(tokenizer))
    assert codec.lead == lead
    for text in (b"", b"Hello", b" world", b"  x", "你好".encode(), b"\n\nhello"):
        ids = codec.first(text)
        assert codec.said(ids) == text
        assert codec.spell(ids) == lead + text


@pytest.mark.parametrize("name", ["prepend", "metaspace", "byte-level", "no prefix"])
def test_a_begun_reply_is_what_the_template_would_write_20(codecs_: dict[str, Codec], name: str) -> None:
    """[20] Prompt and first word together are the ids of the whole conversation."""
    codec, tokenizer = codecs_[name], TOKENIZERS[name]
    ask = [Message("user", "hello")]
    whole = tokenizer.hf(tokenizer.text([*ask, Message("assistant", "hello world")], reply=False), add_special_tokens=False)["input_ids"]
    begun = tokenizer.render(ask) + codec.first(b"hello world")
    assert whole[: len(begun)] == begun


def test_no_space_where_the_word_stands_in_the_prompts_last_stretch_20() -> None:
    """[20] ChatML on a vocabulary with a dummy prefix: "assistant\\nHello" is one stretch of text."""
    assert Codec(wrap(sentencepiece(prefix="metaspace", added=()))).lead == b""
    assert Codec(wrap(sentencepiece(added=()))).lead == b""


def test_a_special_token_that_swallows_the_newline_20() -> None:
    """[20] As Phi-3's `<|assistant|>`: the word behind it begins a stretch, so the dummy prefix stands there."""
    backend = sentencepiece()
    backend.add_special_tokens([AddedToken("<|reply|>", rstrip=True, special=True, normalized=False)])
    template = "{% for m in messages %}{{ '<|reply|>\n' if m['role'] == 'assistant' else '' }}{{ m['content'] }}{% endfor %}"
    template += "{% if add_generation_prompt %}<|reply|>\n{% endif %}"
    assert Codec(wrap(backend, template=template)).lead == b" "


def test_the_end_of_turn_of_the_template_24() -> None:
    """[24] Of several, the one that the template writes behind a reply; without a template the usual one."""
    chatml, inst = wrap(byte_level()), wrap(sentencepiece(), template=toys.INST)
    assert Codec(chatml).turn_end == chatml.hf.convert_tokens_to_ids("<|im_end|>")
    assert Codec(inst).turn_end == inst.hf.convert_tokens_to_ids("</s>")
    base = wrap(byte_level(), template=None)
    assert Codec(base).turn_end == base.hf.eos_token_id
    assert Codec(wrap(byte_level(), ends=())).turn_end is None


def test_normalisers_that_write_bytes_are_no_change() -> None:
    """A byte-level step may stand among the normalisers instead of behind them."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    backend = Tokenizer(models.BPE({letter: i for i, letter in enumerate(letters)}, []))
    backend.normalizer = normalizers.Sequence([normalizers.NFC(), normalizers.ByteLevel()])
    backend.decoder = decoders.ByteLevel()
    codec = Codec(wrap(backend, ends=()))
    assert codec.table.trouble is None
    for text in HARD:
        assert codec.spell(codec.encode(text.encode())) == text.encode()


def test_a_template_whose_signs_the_vocabulary_lacks() -> None:
    """What stands behind a reply may be no token at all: then the usual ending counts."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    backend = Tokenizer(models.BPE({"a": 0, "b": 1}, []))
    backend.pre_tokenizer, backend.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    codec = Codec(wrap(backend, ends=("b",)))
    assert (codec.lead, codec.turn_end) == (b"", 1)
    assert codec.spell(codec.encode(b"aaba")) == b"aa", "an ending is no text"
