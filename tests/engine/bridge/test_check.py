"""`specchat check` behind the command line: facts, choice, refusals, and where tokenizers are found. No weights, no network."""

from __future__ import annotations

import json
import socket
from pathlib import Path
from typing import Any

import pytest
from tokenizers import normalizers

from engine.bridge import calibration
from engine.bridge.check import check, facts, main, tokenizer_place, vocabulary_size
from engine.bridge.choice import choose
from engine.bridge.codec import Codec
from engine.bridge.maps import vocabulary_map
from engine.catalog import catalog
from engine.decoder.tokenizer import Tokenizer
from engine.errors import EngineError
from tests.engine.bridge import toys
from tests.engine.bridge.toys import byte_level, sentencepiece, wrap
from tests.oracle import as_gguf, config_of, model_of

OTHER = ("entirely different words in training give other merges",)
KEYS = ["target", "drafter", "intersection", "coverage", "pieces", "method", "reasons", "refused"]


@pytest.fixture(autouse=True)
def _no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise AssertionError("check never uses the network")

    monkeypatch.setattr(socket.socket, "connect", refuse)


def _saved(tokenizer: Tokenizer, folder: Path) -> Path:
    """A folder that holds nothing but tokenizer files."""
    tokenizer.hf.save_pretrained(folder)
    assert not list(folder.glob("*.safetensors"))
    return folder


@pytest.fixture
def folders(tmp_path: Path) -> dict[str, Path]:
    made = {
        "bpe": wrap(byte_level()),
        "sp": wrap(sentencepiece(prefix="none")),
        "low": wrap(byte_level(words=OTHER, normalizer=normalizers.Lowercase())),
    }
    return {name: _saved(tokenizer, tmp_path / name) for name, tokenizer in made.items()}


def test_the_facts_of_a_pair(folders: dict[str, Path]) -> None:
    found = check(str(folders["bpe"]), str(folders["sp"]))
    assert list(found) == KEYS
    assert json.loads(json.dumps(found)) == found
    for side, kind in (("target", "byte-level"), ("drafter", "sentencepiece")):
        assert list(found[side]) == ["class", "size", "mapped"]
        assert found[side]["class"] == kind
        assert 0 < found[side]["mapped"] < found[side]["size"]
    one, other = Codec(wrap(byte_level())), Codec(wrap(sentencepiece(prefix="none")))
    assert found["intersection"] == vocabulary_map(one, other).intersection
    for shares in (found["coverage"], found["pieces"]):
        assert list(shares) == ["chat", "code", "multilingual"]
        assert all(0 < share <= 1 for share in shares.values())
    assert found["refused"] is None
    assert found["method"] == "pf", "the target's own temperature is 0.7"
    assert "id 0 is" in found["reasons"][0] or "id 5 is" in found["reasons"][0]
    assert any("slem at temperature 0 and pf above" in reason for reason in found["reasons"])


def test_the_method_follows_the_targets_own_temperature(folders: dict[str, Path]) -> None:
    (folders["bpe"] / "generation_config.json").write_text(json.dumps({"temperature": 0.0, "do_sample": True}))
    found = check(str(folders["bpe"]), str(folders["sp"]))
    assert found["method"] == "slem"
    assert any("own temperature is 0." in reason for reason in found["reasons"])


def test_one_vocabulary_needs_no_translation_34_57(folders: dict[str, Path], tmp_path: Path) -> None:
    """[34] [57] More rows, another name or template: equal ids decide."""
    other = _saved(wrap(byte_level(), template=None), tmp_path / "named-otherwise")
    (other / "config.json").write_text(json.dumps({"vocab_size": 512, "model_type": "llama"}))
    found = check(str(folders["bpe"]), str(other))
    assert found["method"] == "model"
    assert found["drafter"]["size"] == 512
    assert found["coverage"] == dict.fromkeys(calibration.PARTS, 1.0)
    assert "no translation" in found["reasons"][0]
    assert any("no chat template" in reason for reason in found["reasons"]), "[33] a drafter without a template is worth a word"
    differs = check(str(folders["bpe"]), str(_saved(wrap(byte_level(words=OTHER)), tmp_path / "bpe-2")))
    assert differs["method"] == "pf", "a like name is no like vocabulary"


@pytest.mark.parametrize(("target", "drafter", "role"), [("low", "bpe", "target"), ("bpe", "low", "drafter")])
def test_what_rewrites_texts_is_refused_6(folders: dict[str, Path], target: str, drafter: str, role: str) -> None:
    """[6] In either role, with the reason."""
    found = check(str(folders[target]), str(folders[drafter]))
    assert found["method"] is None
    assert found["refused"] == f"low cannot be {role} beside another tokenizer: its tokenizer rewrites texts: 'Ab' becomes 'ab'."
    assert found["intersection"] > 0, "the facts are there all the same"


@pytest.mark.parametrize("role", ["target", "drafter"])
def test_a_table_with_many_wrong_tokens_is_refused(tmp_path: Path, role: str) -> None:
    """Added letters that a byte-level decoder reads as bytes: the texts survive, since such letters are spelled around, but what the
    model means by these tokens is not known. A few are only left out; more than one in a hundred, and the table is not trusted."""
    good = _saved(wrap(byte_level(words=OTHER)), tmp_path / "good")
    for letters in ("äëï", "äëïöüé"):
        bad = wrap(byte_level(added=list(letters)))
        folder = _saved(bad, tmp_path / f"letters-{len(letters)}")
        found = check(*map(str, (folder, good) if role == "target" else (good, folder)))
        table = Codec(bad).table
        assert all(table.tokens[bad.hf.convert_tokens_to_ids(letter)] is None for letter in letters)
        if len(letters) == 3:
            assert (found["refused"], found["method"]) == (None, "pf")
    why = f"6 of its {len(table.tokens)} tokens do not read as they are written"
    assert found["refused"] == f"letters-6 cannot be {role} beside another tokenizer: {why}."
    assert found["method"] is None
    assert found[role]["mapped"] == table.mapped, "the facts are there all the same"


def test_a_rewriting_tokenizer_beside_itself_is_sound(folders: dict[str, Path]) -> None:
    """Ids need no bytes."""
    assert check(str(folders["low"]), str(folders["low"]))["method"] == "model"


def test_tokens_without_bytes_are_refused() -> None:
    from tokenizers import decoders

    backend = byte_level(words=OTHER)
    backend.decoder = decoders.WordPiece()
    found = facts(wrap(byte_level(), "good"), wrap(backend, "words"))
    assert found["refused"] == "words cannot be drafter beside another tokenizer: its tokens do not join to exact text."
    assert found["intersection"] is None
    assert set(found["coverage"].values()) == {None}
    assert found["drafter"] == {"class": "other", "size": len(backend.get_vocab()), "mapped": 0}


def test_a_vocabulary_without_text_is_refused() -> None:
    from tokenizers import Tokenizer as Backend
    from tokenizers import decoders, models

    backend = Backend(models.BPE({token: i for i, token in enumerate(toys.SPECIALS)}, [], unk_token="<unk>"))
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens(list(toys.SPECIALS))
    refused = choose(Codec(wrap(byte_level())), Codec(wrap(backend, "empty"))).refused
    assert refused == "empty cannot be drafter beside another tokenizer: it has no token that is text."


def test_unwise_is_allowed_and_says_what_to_expect(tmp_path: Path) -> None:
    """Few common tokens, a drafter that is too large, tokens that cannot be written."""
    target = _saved(wrap(sentencepiece(fallback=False, prefix="none")), tmp_path / "poor")
    drafter = _saved(wrap(byte_level()), tmp_path / "large")
    (target / "model.safetensors").write_bytes(b"x" * 1000)
    (drafter / "model.safetensors").write_bytes(b"x" * 900)
    found = check(str(target), str(drafter))
    assert found["refused"] is None
    assert found["method"] == "pf"
    reasons = "\n".join(found["reasons"])
    assert "large has 90% of the size of poor: drafting will hardly pay" in reasons
    assert "tokens of large cannot be written with tokens of poor; they are never drafted" in reasons
    assert "expect few drafts to be kept" in reasons
    (drafter / "model.safetensors").write_bytes(b"x" * 300)
    assert "hardly pay" not in "\n".join(check(str(target), str(drafter))["reasons"])


def test_coverage_and_pieces_are_counted_token_by_token() -> None:
    """By hand: letters against whole words."""
    from tokenizers import Tokenizer as Backend
    from tokenizers import decoders, models

    def made(words: list[str]) -> Codec:
        merges, vocabulary = [], {letter: i for i, letter in enumerate("abcĠ")}
        for word in words:
            merges.append((word[:-1], word[-1]))
            vocabulary[word] = len(vocabulary)
        backend = Backend(models.BPE(vocabulary, merges))
        from tokenizers import pre_tokenizers

        backend.pre_tokenizer, backend.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
        return Codec(wrap(backend, ends=()))

    letters, pairs, threes = made([]), made(["ab"]), made(["ab", "abc"])
    text = b"abcab"
    for target, drafter, coverage, pieces in (
        (letters, pairs, 1 / 3, 3 / 3),  # ab|c|ab: only c is common, but ab begins with a, as the target does
        (pairs, letters, 5 / 5, 1 / 5),  # a b c a b: only c stands where the target has it too
        (threes, pairs, 3 / 3, 1 / 3),  # abc|ab: ab is not how abc begins; c starts inside; ab fits
        (pairs, pairs, 1.0, 1.0),
    ):
        mapping = vocabulary_map(target, drafter)
        assert calibration.shares(target, drafter, mapping, text) == pytest.approx((coverage, pieces))


def test_the_bundled_texts() -> None:
    """Chat, code and many scripts; they come with the package."""
    parts = {part: calibration.text(part).decode() for part in calibration.PARTS}
    assert all(5_000 < len(text.encode()) < 50_000 for text in parts.values())
    assert "    return" in parts["code"]
    assert "\t" in parts["code"]
    scripts = {
        "latin": "ß",
        "greek": "ο",
        "cyrillic": "ж",
        "arabic": "ب",
        "hebrew": "ש",
        "deva": "क",
        "thai": "ก",
        "han": "长",
        "kana": "の",
    }
    scripts |= {"hangul": "리", "zwj": "\u200d", "emoji": "🙂", "tamil": "ம", "viet": "ờ"}
    assert [name for name, char in scripts.items() if char not in parts["multilingual"]] == []
    assert "\ufffd" not in "".join(parts.values())


# --- where tokenizers are -------------------------------------------------------------------------------------------


def test_a_gguf_file_with_its_padding(tmp_path: Path, folders: dict[str, Path]) -> None:
    whole = json.loads((folders["bpe"] / "tokenizer.json").read_text())
    vocabulary = sorted(whole["model"]["vocab"].items(), key=lambda item: item[1])
    tokens = [token for token, _ in vocabulary] + ["[PAD386]", "[PAD387]"]
    config = config_of("llama")
    config.vocab_size = len(tokens)
    kinds = [3 if token in toys.SPECIALS else 1 for token in tokens]
    merges = [m if isinstance(m, str) else " ".join(m) for m in whole["model"]["merges"]]
    table = {"model": "gpt2", "pre": "gpt-2", "tokens": tokens, "token_type": kinds, "merges": merges}
    path = as_gguf(
        model_of(config),
        tmp_path / "m.gguf",
        "llama",
        extra={"rope.dimension_count": 16},
        vocabulary=table | {"eos_token_id": 4, "bos_token_id": 1},
        template=toys.CHATML,
    )
    assert vocabulary_size(path) == len(tokens)
    found = check(str(path), str(folders["sp"]))
    assert found["target"]["size"] == len(tokens)
    assert found["target"]["mapped"] == Codec(wrap(byte_level())).table.mapped, "[PAD…] is no text"
    assert check(str(path), str(folders["bpe"]))["method"] == "model"


def test_a_hub_id_whose_weights_are_not_there(folders: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    with pytest.raises(EngineError) as error:
        check("some/where", str(folders["sp"]))
    assert error.value.kind == "missing_weights"
    assert error.value.hint == "Run: specchat pull some/where"
    repo = tmp_path / "hub" / "models--some--where"
    snapshot = repo / "snapshots" / ("0" * 40)
    snapshot.parent.mkdir(parents=True)
    folders["bpe"].rename(snapshot)
    (repo / "refs").mkdir()
    (repo / "refs" / "main").write_text("0" * 40)
    assert tokenizer_place(catalog.load().target("some/where")) == snapshot
    assert check("some/where", str(folders["sp"]))["target"]["class"] == "byte-level"


def test_a_name_from_the_catalog_that_is_not_on_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, folders: dict[str, Path]) -> None:
    monkeypatch.setenv("SPECCHAT_HOME", str(tmp_path / "empty"))
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "empty-hub"))
    with pytest.raises(EngineError) as error:
        check(str(folders["bpe"]), "smollm2-135m")
    assert error.value.hint == "Run: specchat pull smollm2-135m"


@pytest.mark.parametrize("name", ["ngram", "none", "auto"])
def test_what_has_no_tokenizer_is_said(folders: dict[str, Path], name: str) -> None:
    with pytest.raises(EngineError, match="nothing to check"):
        check(str(folders["bpe"]), name)


@pytest.mark.parametrize(
    ("config", "size"),
    [
        ({"vocab_size": 7}, 7),
        ({"text_config": {"vocab_size": 8}, "vocab_size": 9}, 8),
        ({"text_config": {}, "vocab_size": 9}, 9),
        ({}, None),
        ({"vocab_size": "many"}, None),
        ([], None),
        (None, None),
    ],
)
def test_how_many_rows_a_model_has(tmp_path: Path, config: Any, size: int | None) -> None:
    if config is not None:
        (tmp_path / "config.json").write_text(json.dumps(config))
    assert vocabulary_size(tmp_path) == size


def test_as_a_program(folders: dict[str, Path], capsys: pytest.CaptureFixture[str]) -> None:
    import logging

    try:
        assert main([str(folders["bpe"]), str(folders["sp"])]) == 0
        assert list(json.loads(capsys.readouterr().out.splitlines()[-1])) == KEYS
        assert main([str(folders["bpe"]), "no-such-model"]) == 0
        error = json.loads(capsys.readouterr().out.splitlines()[-1])["error"]
        assert error["kind"] == "unknown_name"
    finally:
        logging.disable(logging.NOTSET)
