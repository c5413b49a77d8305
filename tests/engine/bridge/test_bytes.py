"""Byte tables of every class of tokenizer. Numbers in brackets are the edge cases of the cross-tokenizer reference, section 6."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer, decoders, models, normalizers

from engine.bridge import bytes as tables
from engine.bridge import shelf, soundness
from engine.bridge.bytes import NO_BYTES, UNREADABLE, byte_table
from engine.bridge.codec import Codec
from engine.bridge.spelling import alphabet
from tests.engine.bridge import toys
from tests.engine.bridge.toys import byte_level, sentencepiece, unigram, wrap

SOUND = toys.sound()
TOY = SOUND["byte-level"]


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("byte-level", "byte-level"),
        ("ranks", "tiktoken"),
        ("NFC", "byte-level"),
        ("prepend", "sentencepiece"),
        ("metaspace", "sentencepiece"),
        ("unigram", "sentencepiece"),
    ],
)
def test_the_class_is_read_off_the_tokenizers_own_parts(name: str, kind: str) -> None:
    assert byte_table(SOUND[name]).kind == kind


@pytest.mark.parametrize("name", SOUND)
def test_whole_tokens_are_what_the_decoder_says(name: str) -> None:
    """Behind another token, so that no start of a text is stripped; never one id alone."""
    tokenizer = SOUND[name]
    table = byte_table(tokenizer)
    assert table.trouble is None
    backend = tokenizer.hf.backend_tokenizer
    anchor = next(i for i, token in enumerate(table.tokens) if token is not None and token.isalpha() and token.isascii())
    before = backend.decode([anchor])
    whole = 0
    for i, token in enumerate(table.tokens):
        if token is None or Codec.whole(token) < len(token) or "\ufffd" in token.decode("utf-8", "replace"):
            continue
        assert backend.decode([anchor, i], skip_special_tokens=False) == before + token.decode()
        whole += 1
    assert whole > 100


def test_the_byte_level_alphabet_is_the_librarys() -> None:
    from tokenizers import pre_tokenizers

    assert set(alphabet().values()) == set(pre_tokenizers.ByteLevel.alphabet())
    assert (alphabet()[ord(" ")], alphabet()[ord("\n")], alphabet()[ord("A")]) == ("Ġ", "Ċ", "A")


def test_parts_of_characters_are_bytes_1_3() -> None:
    """[1] [3] The halves of an emoji and of a rare Chinese character are tokens by themselves in all classes with bytes."""
    for name, text in (("byte-level", "🙂"), ("prepend", "龘"), ("unigram", "龘")):
        table = byte_table(SOUND[name])
        for byte in text.encode():
            assert bytes([byte]) in table.tokens, name


@pytest.mark.parametrize(
    ("backend", "words"),
    [
        (byte_level(normalizer=normalizers.Lowercase()), "'Ab' becomes 'ab'"),
        (byte_level(normalizer=normalizers.NFKC()), "becomes 'fi'"),
        (byte_level(normalizer=normalizers.NFD()), r"'\xc9' becomes 'E\u0301'"),
        (byte_level(normalizer=normalizers.Strip()), "' a' becomes 'a'"),
        (sentencepiece(normalizer=normalizers.Lowercase()), "'Ab' becomes 'ab'"),
        (sentencepiece(normalizer=normalizers.NFKC()), "becomes 'fi'"),
        (unigram(normalizer=normalizers.Nmt()), r"'a\tb' becomes 'a b'"),
        (sentencepiece(fallback=False, normalizer=normalizers.Lowercase()), "'Ab' becomes 'ab'"),
    ],
)
def test_texts_that_are_rewritten_are_trouble_6(backend: Tokenizer, words: str) -> None:
    """[6] Lower-casing, compatibility forms, spaces: the clause shows what happens. [7] No stripping either."""
    trouble = byte_table(wrap(backend)).trouble
    assert trouble is not None
    assert trouble.startswith("its tokenizer rewrites texts: ")
    assert trouble.endswith(words)


def test_composition_alone_is_no_trouble_5() -> None:
    """[5] NFC tokenizers (Qwen) are everywhere: the codec spells around it."""
    assert byte_table(SOUND["NFC"]).trouble is None


def test_a_vocabulary_that_lacks_characters_is_no_trouble() -> None:
    """Without byte fallback some texts cannot be drafted; those that can survive."""
    assert byte_table(SOUND["no fallback"]).trouble is None


def test_added_tokens_that_are_not_special_are_text_23() -> None:
    """[23] `<think>` is words; SentencePiece's runs of spaces are added tokens spelled with its sign."""
    thinking = wrap(byte_level(added=["<think>", "</think>", "🙂🙂"]))
    table = byte_table(thinking)
    for word in ("<think>", "</think>", "🙂🙂"):
        i = thinking.hf.convert_tokens_to_ids(word)
        assert table.tokens[i] == word.encode()
        assert i not in table.control
    runs = byte_table(SOUND["no prefix"])
    assert b"    " in runs.tokens
    assert b"\n\n" in runs.tokens
    assert "▁▁▁▁".encode() not in runs.tokens


def test_control_tokens_are_never_text_22_37() -> None:
    """[22] [37] Judged by what they are, not by id or by name."""
    for name, tokenizer in SOUND.items():
        table = byte_table(tokenizer)
        control = {tokenizer.hf.convert_tokens_to_ids(token) for token in toys.SPECIALS}
        assert table.control == control, name
        assert all(table.tokens[i] is None for i in control)
    plain = wrap(byte_level(specials=("<unk>",), added=["<|im_end|>"]), ends=())  # the same name, but an ordinary token
    i = plain.hf.convert_tokens_to_ids("<|im_end|>")
    assert i != TOY.hf.convert_tokens_to_ids("<|im_end|>")
    assert byte_table(plain).tokens[i] == b"<|im_end|>"


def test_a_letter_that_is_also_the_padding_token_stays_text() -> None:
    """Some files name `!` as padding: it would be lost to every text."""
    backend = byte_level()
    tokenizer = wrap(backend, pad_token="!")
    i = tokenizer.hf.convert_tokens_to_ids("!")
    assert i in tokenizer.hf.all_special_ids
    table = byte_table(tokenizer)
    assert table.tokens[i] == b"!"
    assert i not in table.control


def test_all_that_ends_a_turn_24() -> None:
    """[24] Several ids; also an ordinary token that the configuration names."""
    assert byte_table(TOY).ends == {TOY.hf.convert_tokens_to_ids(t) for t in ("<|im_end|>", "</s>")}
    dot = TOY.hf.convert_tokens_to_ids(".")
    named = byte_table(wrap(byte_level(), ends=("</s>", ".")))
    assert dot in named.ends
    assert dot in named.control
    assert named.tokens[dot] is None


def test_rows_behind_the_vocabulary_34() -> None:
    """[34] The model has more rows than its tokenizer has tokens, or fewer."""
    size = len(byte_table(TOY).tokens)
    padded = byte_table(TOY, size + 64)
    assert len(padded.tokens) == size + 64
    assert padded.tokens[size:] == (None,) * 64
    assert padded.tokens[:size] == byte_table(TOY).tokens
    cut = byte_table(TOY, size - 10)
    assert len(cut.tokens) == size - 10
    assert max(cut.control | cut.ends) < size - 10


def test_padding_that_a_file_keeps_as_ordinary_tokens() -> None:
    """GGUF: `[PAD151665]` is an ordinary token, which no merge makes: no text produces it."""
    whole = json.loads(byte_level().to_str())
    size = len(whole["model"]["vocab"])
    pads = {f"[PAD{size + i}]": size + i for i in range(8)}
    whole["model"]["vocab"] |= pads
    table = byte_table(wrap(Tokenizer.from_str(json.dumps(whole))))
    assert table.trouble is None
    assert all(table.tokens[i] is None and i not in table.control for i in pads.values())
    assert table.mapped == byte_table(TOY).mapped
    whole["model"]["ignore_merges"] = True  # ranks: here a text does produce it
    assert byte_table(wrap(Tokenizer.from_str(json.dumps(whole)))).tokens[size] == f"[PAD{size}]".encode()


def test_twins_both_keep_their_bytes_36() -> None:
    """[36] `<0x0A>` and `\\n`, `<0x65>` and `e`: what is the canonical one is the codec's to say."""
    tokenizer = SOUND["no prefix"]
    table = byte_table(tokenizer)
    for twins in (("<0x0A>", "\n"), ("<0x65>", "e"), ("<0x20>", "▁")):
        first, second = map(tokenizer.hf.convert_tokens_to_ids, twins)
        assert first != second
        assert table.tokens[first] == table.tokens[second] != None  # noqa: E711  both are the same bytes
    literal = wrap(sentencepiece(fallback=False, added=["<0x41>"]))  # no byte fallback... but its decoder has it
    assert byte_table(literal).tokens[literal.hf.convert_tokens_to_ids("<0x41>")] == b"A"


def test_a_token_that_the_decoder_reads_otherwise_is_not_certain() -> None:
    """An added `é` in a byte-level vocabulary is decoded as the byte E9: it cannot be trusted, the others can."""
    tokenizer = wrap(byte_level(added=["é"]))
    table = byte_table(tokenizer)
    assert table.tokens[tokenizer.hf.convert_tokens_to_ids("é")] is None
    assert table.trouble is None
    assert Codec(tokenizer).spell(Codec(tokenizer).encode("é".encode())) == "é".encode()


def test_a_table_that_is_wrong_altogether_is_trouble() -> None:
    class Liar:
        def decode(self, ids: list[int], skip_special_tokens: bool) -> str:
            return "a" * len(ids)

        def decode_batch(self, several: list[list[int]], skip_special_tokens: bool) -> list[str]:
            return [self.decode(ids, skip_special_tokens) for ids in several]

    wrong = soundness.disagreeing(Liar(), [b"a", b"b", None, b"c", b"\xc3"])
    assert wrong == [1, 3]
    assert soundness.broken_table(2, 100) == "2 of its 100 tokens do not read as they are written"
    assert soundness.broken_table(1, 100) is None


def test_a_decoder_of_the_wrong_class_is_noticed() -> None:
    """SentencePiece pieces behind a byte-level decoder: ▁ is not of its alphabet."""
    backend = sentencepiece(prefix="none")
    backend.decoder = decoders.ByteLevel()
    trouble = byte_table(wrap(backend)).trouble
    assert trouble is not None


@pytest.mark.parametrize("decoder", [decoders.WordPiece(), decoders.BPEDecoder(), None])
def test_tokens_without_bytes_of_their_own(decoder: Any) -> None:
    backend = byte_level()
    if decoder is None:
        backend = Tokenizer(models.WordLevel({"<unk>": 0, "hello": 1, "world": 2}, unk_token="<unk>"))
    else:
        backend.decoder = decoder
    table = byte_table(wrap(backend))
    assert (table.kind, table.trouble) == ("other", NO_BYTES)
    assert not any(table.tokens)


def test_a_tokenizer_without_a_table() -> None:
    class Slow:
        eos_token_id = 3
        chat_template = None
        all_special_ids = (3,)

    from engine.decoder.tokenizer import Tokenizer as Mine

    table = byte_table(Mine(Slow(), "slow", frozenset({3})), 10)
    assert (table.kind, table.trouble, len(table.tokens), table.ends) == ("other", UNREADABLE, 10, frozenset({3}))


# --- the hash and the disk ------------------------------------------------------------------------------------------


def test_the_key_is_the_content_38_57() -> None:
    """[38] [57] Other merges with the same vocabulary differ; another name, template or object does not."""
    one, same = byte_table(wrap(byte_level(), "one")), byte_table(wrap(byte_level(), "another", template=None))
    assert one.key == same.key
    whole = json.loads(byte_level().to_str())
    whole["model"]["merges"][-1], whole["model"]["merges"][-2] = whole["model"]["merges"][-2], whole["model"]["merges"][-1]
    other = wrap(Tokenizer.from_str(json.dumps(whole)), "one")
    assert other.vocabulary_table() == TOY.vocabulary_table()
    assert byte_table(other).key != one.key
    assert byte_table(TOY, 1000).key != one.key
    assert byte_table(wrap(byte_level(), ends=("</s>",))).key != one.key


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SPECCHAT_HOME", str(tmp_path))
    return tmp_path / "cache" / "bridge"


def test_a_known_table_comes_from_the_disk(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = {name: byte_table(tokenizer) for name, tokenizer in SOUND.items()}
    assert {f.suffix for f in home.iterdir()} == {".npz"}
    monkeypatch.setattr(tables, "_made", None)
    assert {name: byte_table(tokenizer) for name, tokenizer in SOUND.items()} == made


@pytest.mark.parametrize("damage", ["cut", "empty", "rubbish", "flipped", "another"])
def test_a_damaged_file_is_made_again(home: Path, damage: str) -> None:
    table = byte_table(TOY)
    (file,) = home.iterdir()
    good = file.read_bytes()
    at = good.index(b"hello")
    other = byte_table(SOUND["unigram"])
    (another,) = set(home.iterdir()) - {file}
    bad = {
        "cut": good[: len(good) // 2],
        "empty": b"",
        "rubbish": b"\x00" * 500,
        "flipped": good[:at] + b"HELLO" + good[at + 5 :],
        "another": another.read_bytes(),
    }[damage]
    file.write_bytes(bad)
    assert byte_table(TOY) == table
    assert byte_table(SOUND["unigram"]) == other
    assert file.read_bytes() != bad, "the good one takes its place"


def test_a_file_that_lacks_a_part_is_made_again(home: Path) -> None:
    table = byte_table(TOY)
    arrays = shelf.find(f"bytes-{table.key}")
    assert arrays is not None
    for missing in arrays:
        shelf.put(f"bytes-{table.key}", {name: array for name, array in arrays.items() if name != missing})
        assert byte_table(TOY) == table


def test_no_room_on_the_disk_costs_only_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    blocked = tmp_path / "home"
    blocked.write_text("a file where a folder should be")
    monkeypatch.setenv("SPECCHAT_HOME", str(blocked))
    assert byte_table(TOY).mapped > 300
    monkeypatch.setenv("SPECCHAT_HOME", str(tmp_path / "full"))

    def full(*_: Any, **__: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("engine.bridge.shelf.np.savez", full)
    assert byte_table(TOY).mapped > 300
    assert list((tmp_path / "full" / "cache" / "bridge").iterdir()) == []


def test_only_the_newest_files_are_kept(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import os

    monkeypatch.setattr(shelf, "KEPT", 2)
    for age, name in enumerate(("byte-level", "unigram", "prepend")):
        byte_table(SOUND[name])
        for file in home.iterdir():
            os.utime(file, (file.stat().st_mtime - 100, file.stat().st_mtime - 100))
        assert len(list(home.iterdir())) == min(2, age + 1)
    assert shelf.find(f"bytes-{byte_table(SOUND['prepend']).key}") is not None
