"""Tokenizers and templates: exact text, turns, endings, sampling defaults, equality by content."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from engine.decoder.tokenizer import DEFAULTS, NO_TEMPLATE, Tokenizer, difference, load_tokenizer, sampling_defaults
from engine.errors import EngineError
from engine.protocol import Message
from tests.oracle import as_gguf, config_of, model_of

SPECIALS = ["<bos>", "<eos>", "<turn>", "<end>"]
CHAT = (
    "{{ bos_token }}{% for m in messages %}<turn>{{ m['role'] }}\n{{ m['content'] }}<end>\n{% endfor %}"
    "{% if add_generation_prompt %}<turn>assistant\n{% endif %}"
)
NO_SYSTEM = "{% if messages[0]['role'] == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}" + CHAT
TEXT = "The quick brown fox, naïve café 12345 — it's 🙂 fine.\n\n    indented  twice"
ASK = [Message("system", "Be brief."), Message("user", "Hi there")]


def _folder(path: Path, template: str | None = CHAT, words: str = TEXT, **extra: Any) -> Path:
    """A folder with a small byte-level BPE tokenizer and a config."""
    from tokenizers import Tokenizer as Backend
    from tokenizers import decoders, models, pre_tokenizers, processors, trainers
    from transformers import PreTrainedTokenizerFast

    backend = Backend(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=400, special_tokens=SPECIALS, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False
    )
    backend.train_from_iterator([words] * 4, trainer)
    backend.post_processor = processors.TemplateProcessing(single="<bos> $A", special_tokens=[("<bos>", 0)])
    hf = PreTrainedTokenizerFast(tokenizer_object=backend, bos_token="<bos>", eos_token="<eos>", **extra)
    hf.chat_template = template
    path.mkdir(exist_ok=True)
    hf.save_pretrained(path)
    config = config_of("llama")
    config.eos_token_id = 1
    config.save_pretrained(path)
    return path


def test_text_comes_back_exactly(tmp_path: Path) -> None:
    tokenizer = load_tokenizer(_folder(tmp_path / "m", clean_up_tokenization_spaces=True))
    for text in (TEXT, "do n't , tidy . this ?", " leading", "trailing ", "<eos> in words"):
        ids = tokenizer.encode(text, special=False)
        assert tokenizer.decode(ids) == text
        assert not set(ids) & set(range(len(SPECIALS)))
    assert tokenizer.encode("a<end>b", special=True) == [0, *tokenizer.encode("a", special=False), 3, *tokenizer.encode("b", special=False)]
    assert tokenizer.encode("<bos>a", special=True) == tokenizer.encode("a", special=True)  # one begin-of-text, not two
    assert tokenizer.decode([0, 3, 1]) == "<bos><end><eos>"


def test_a_chat_up_to_the_assistants_turn(tmp_path: Path) -> None:
    tokenizer = load_tokenizer(_folder(tmp_path / "m"))
    assert tokenizer.has_template
    assert tokenizer.notes == ()
    ids = tokenizer.render(ASK)
    assert tokenizer.decode(ids) == "<bos><turn>system\nBe brief.<end>\n<turn>user\nHi there<end>\n<turn>assistant\n"
    assert ids.count(0) == 1


def test_carrying_on_goes_on_where_the_reply_stopped(tmp_path: Path) -> None:
    tokenizer = load_tokenizer(_folder(tmp_path / "m"))
    prompt = tokenizer.render(ASK)
    begun = tokenizer.encode(" The quick", special=False)
    assert tokenizer.render([*ASK, Message("assistant", " The quick")], carry_on=True) == prompt + begun
    assert tokenizer.render([*ASK, Message("assistant", "")], carry_on=True) == prompt


def test_what_ends_a_turn_is_read_off_the_template(tmp_path: Path) -> None:
    assert load_tokenizer(_folder(tmp_path / "a")).eos_ids == {1, 3}  # the tokenizer's, and the template's <end>
    folder = _folder(tmp_path / "b", template="{% for m in messages %}{{ m['role'] }}: {{ m['content'] }}\n{% endfor %}")
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": [2, 5]}))
    assert load_tokenizer(folder).eos_ids == {1, 2, 5}


def test_a_template_without_a_system_role(tmp_path: Path) -> None:
    tokenizer = load_tokenizer(_folder(tmp_path / "m", template=NO_SYSTEM))
    assert tokenizer.decode(tokenizer.render(ASK)) == "<bos><turn>user\nBe brief.\n\nHi there<end>\n<turn>assistant\n"


@pytest.mark.parametrize(
    "template", ["{% for m in messages %}", "{{ raise_exception('never') }}", "{{ messages.nothing.at_all }}", "{{ 1 + 'a' }}"]
)
def test_a_broken_template_is_an_error_with_a_way_out(tmp_path: Path, template: str) -> None:
    folder = _folder(tmp_path / "m", template=template)
    with pytest.raises(EngineError) as error:
        load_tokenizer(folder)
    assert error.value.kind == "config"
    assert "models.toml" in error.value.hint
    assert load_tokenizer(folder, CHAT).decode(load_tokenizer(folder, CHAT).render(ASK)).endswith("<turn>assistant\n")


def test_a_template_that_opens_the_thoughts(tmp_path: Path) -> None:
    """As those of DeepSeek-R1 and QwQ do: read off the prompt. Not where the tag is closed again, is no token, or there is no template."""
    thinking = CHAT.replace("assistant\n{%", "assistant\n<think>\n{%")
    one: dict[str, Any] = {"additional_special_tokens": ["<think>", "</think>"]}
    assert load_tokenizer(_folder(tmp_path / "a", template=thinking, **one)).opens_thoughts
    closed = thinking.replace("<think>\n", "<think>\n\n</think>\n")
    assert not load_tokenizer(_folder(tmp_path / "b", template=closed, **one)).opens_thoughts
    assert not load_tokenizer(_folder(tmp_path / "c", **one)).opens_thoughts
    assert not load_tokenizer(_folder(tmp_path / "d", template=thinking)).opens_thoughts
    assert not load_tokenizer(_folder(tmp_path / "e", template=None, **one)).opens_thoughts


def test_no_template_means_plain_labels_and_a_note(tmp_path: Path) -> None:
    tokenizer = load_tokenizer(_folder(tmp_path / "m", template=None))
    assert not tokenizer.has_template
    assert tokenizer.notes == (NO_TEMPLATE,)
    assert "\nUser:" in tokenizer.stop
    assert tokenizer.eos_ids == {1}
    ids = tokenizer.render([*ASK, Message("assistant", " Hello"), Message("user", "Bye")])
    assert tokenizer.decode(ids) == "<bos>System: Be brief.\nUser: Hi there\nAssistant: Hello\nUser: Bye\nAssistant:"
    prompt = tokenizer.render(ASK)
    assert tokenizer.render([*ASK, Message("assistant", "Hel")], carry_on=True) == prompt + tokenizer.encode(" Hel", special=False)


def test_equality_is_by_content(tmp_path: Path) -> None:
    one = load_tokenizer(_folder(tmp_path / "one"))
    same = load_tokenizer(_folder(tmp_path / "same", template=None))
    other = load_tokenizer(_folder(tmp_path / "other", words="entirely different training words, so other merges"))
    assert difference(one, same) is None
    found = difference(one, other)
    assert found is not None
    left, right = one.vocabulary_table(), other.vocabulary_table()
    first = min(i for i in left.keys() & right.keys() if left[i] != right[i])
    assert found.startswith(f"id {first} is {left[first]!r} for one")
    longer = Tokenizer(same.hf, "longer")
    longer.hf.add_tokens(["[PAD999]"])  # ids that only one of them has are no difference
    assert difference(one, longer) is None


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        ({"do_sample": True, "temperature": 0.6, "top_p": 0.8, "top_k": 20, "repetition_penalty": 1.05}, (0.6, 0.8, 20, 0.0, 1.05)),
        ({"temperature": 0.3}, (0.3, 0.95, 0, 0.0, 1.0)),
        ({"do_sample": False, "temperature": 0.3}, (0.7, 0.95, 0, 0.0, 1.0)),
        ({"top_k": "many", "top_p": 7, "min_p": 0.1}, (0.7, 0.95, 0, 0.1, 1.0)),
        (None, (0.7, 0.95, 0, 0.0, 1.0)),
    ],
)
def test_sampling_defaults(tmp_path: Path, said: dict[str, Any] | None, expected: tuple[float, float, int, float, float]) -> None:
    if said is not None:
        (tmp_path / "generation_config.json").write_text(json.dumps(said))
    found = sampling_defaults(tmp_path)
    assert (found.temperature, found.top_p, found.top_k, found.min_p, found.repeat_penalty) == expected


def test_a_folder_without_a_tokenizer(tmp_path: Path) -> None:
    config_of("llama").save_pretrained(tmp_path)
    with pytest.raises(EngineError) as error:
        load_tokenizer(tmp_path)
    assert error.value.kind == "missing_weights"
    (tmp_path / "tokenizer.json").write_text("{ broken")
    with pytest.raises(EngineError) as error:
        load_tokenizer(tmp_path)
    assert error.value.kind == "corrupt_weights"


MISTRAL = Path(__file__).parents[2] / "data" / "mistral_v1" / "tokenizer.model"
AT = {"__type": "AddedToken", "lstrip": False, "normalized": False, "rstrip": False, "single_word": False}
VICUNA = {
    "add_bos_token": True,
    "add_eos_token": False,
    "bos_token": AT | {"content": "<s>"},
    "clean_up_tokenization_spaces": False,
    "eos_token": AT | {"content": "</s>"},
    "model_max_length": 2048,
    "pad_token": None,
    "padding_side": "right",
    "sp_model_kwargs": {},
    "tokenizer_class": "LlamaTokenizer",
    "unk_token": AT | {"content": "<unk>"},
}


def _pieces(path: Path, said: dict[str, Any] | None = None, config: dict[str, Any] | None = None) -> Path:
    """A folder with a SentencePiece file and no `tokenizer.json`."""
    path.mkdir()
    shutil.copy(MISTRAL, path / "tokenizer.model")
    for name, content in (("tokenizer_config.json", said), ("config.json", config)):
        if content is not None:
            (path / name).write_text(json.dumps(content))
    return path


@pytest.mark.parametrize(
    ("said", "config"),
    [
        (None, None),
        (None, {"model_type": "llama", "vocab_size": 32000}),
        ({"tokenizer_class": "LlamaTokenizer"}, {"model_type": "mistral"}),
        ({"tokenizer_class": "LlamaTokenizerFast", "legacy": None}, None),
        (VICUNA, {"model_type": "llama", "eos_token_id": 2}),
    ],
    ids=["the file alone", "no class", "mistral", "fast", "vicuna"],
)
def test_a_sentencepiece_file_by_itself_is_read_as_it_was_trained(tmp_path: Path, said: Any, config: Any) -> None:
    """Vicuna ships so. Runs of spaces are where transformers' own class goes wrong: it merges them before anything else."""
    import sentencepiece

    itself = sentencepiece.SentencePieceProcessor(model_file=str(MISTRAL))
    tokenizer = load_tokenizer(_pieces(tmp_path / "m", said, config))
    texts = (TEXT, " a", "  a", "a  b", "x\n\n    return x\n\tif  y", "    ", "</s> <s> <unk>", "1\r\n2  \n", "龘👩\u200d👧 \ufeff")
    for text in texts:
        ids = tokenizer.encode(text, special=False)
        assert ids == itself.encode(text)
        assert tokenizer.decode(ids) == text
    assert tokenizer.encode("hello", special=True) == [1, *itself.encode("hello")]
    assert tokenizer.encode("<s>hello</s>you", special=True) == [1, *itself.encode("hello"), 2, *itself.encode("you")]
    assert tokenizer.eos_ids == {2}
    assert [tokenizer.vocabulary_table()[i] for i in (0, 1, 2, 259, 31999)] == ["<unk>", "<s>", "</s>", "▁▁", "梦"]


def test_what_a_folder_says_about_its_sentencepiece_file_counts(tmp_path: Path) -> None:
    """No begin-of-text, and a dummy prefix only at the start of all, where the folder wants it so."""
    plain = load_tokenizer(_pieces(tmp_path / "a", VICUNA | {"add_bos_token": False, "legacy": False}))
    usual = load_tokenizer(_pieces(tmp_path / "b", VICUNA))
    assert plain.encode("hello", special=True) == usual.encode("hello", special=True)[1:]
    found = [[t.vocabulary_table()[i] for i in t.encode("you</s>you", special=True)] for t in (plain, usual)]
    assert found == [["▁you", "</s>", "you"], ["<s>", "▁you", "</s>", "▁you"]]


def test_other_folders_are_read_by_their_own_class(tmp_path: Path) -> None:
    """A `tokenizer.json` counts more than the file beside it, and a SentencePiece file of another kind is not Llama's."""
    for folder, named in ((_folder(tmp_path / "m"), "TokenizersBackend"), (tmp_path / "llama-2", "LlamaTokenizer")):
        if named == "LlamaTokenizer":
            load_tokenizer(_pieces(tmp_path / "v", VICUNA)).hf.save_pretrained(folder)
            said = json.loads((folder / "tokenizer_config.json").read_text())
            (folder / "tokenizer_config.json").write_text(json.dumps(said | {"tokenizer_class": named}))
            (folder / "tokenizer.model").unlink(missing_ok=True)
        before = load_tokenizer(folder)
        shutil.copy(MISTRAL, folder / "tokenizer.model")
        after = load_tokenizer(folder)
        assert difference(before, after) is None
        assert after.encode(TEXT, special=True) == before.encode(TEXT, special=True)
        assert type(after.hf).__name__ == type(before.hf).__name__ == named
    gemma = load_tokenizer(_pieces(tmp_path / "g", {"tokenizer_class": "GemmaTokenizer"}))
    assert type(gemma.hf).__name__ == "GemmaTokenizer"
    assert type(load_tokenizer(_pieces(tmp_path / "h", None, {"model_type": "gemma2"})).hf).__name__ == "GemmaTokenizer"


def _gguf(folder: Path, path: Path, pre: str) -> Path:
    """A GGUF file with the folder's tokenizer."""
    saved = json.loads((folder / "tokenizer.json").read_text())
    vocab = saved["model"]["vocab"]
    config = config_of("llama")
    config.vocab_size = len(vocab)
    tokens = [token for token, _ in sorted(vocab.items(), key=lambda item: item[1])]
    merges = [m if isinstance(m, str) else " ".join(m) for m in saved["model"]["merges"]]
    kinds = [3 if token in SPECIALS else 1 for token in tokens]
    extra = {"rope.dimension_count": 16}
    vocabulary = {"model": "gpt2", "pre": pre, "tokens": tokens, "token_type": kinds, "merges": merges, "bos_token_id": 0}
    return as_gguf(
        model_of(config), path, "llama", extra=extra, vocabulary=vocabulary | {"eos_token_id": 1, "eot_token_id": 3}, template=CHAT
    )


def test_the_tokenizer_of_a_gguf_file(tmp_path: Path) -> None:
    folder = _folder(tmp_path / "m")
    mine, theirs = load_tokenizer(_gguf(folder, tmp_path / "m.gguf", "gpt-2")), load_tokenizer(folder)
    assert difference(mine, theirs) is None
    assert mine.encode(TEXT, special=False) == theirs.encode(TEXT, special=False)
    assert mine.render(ASK) == theirs.render(ASK)
    assert mine.eos_ids == {1, 3}
    assert sampling_defaults(tmp_path / "m.gguf") == DEFAULTS


def test_digits_stand_alone_where_the_file_says_so(tmp_path: Path) -> None:
    folder = _folder(tmp_path / "m", words="a  12 345 6789 " * 9)
    together = load_tokenizer(_gguf(folder, tmp_path / "a.gguf", "gpt-2"))
    alone = load_tokenizer(_gguf(folder, tmp_path / "b.gguf", "smollm"))
    text = "a  12 345"
    tokens = [alone.decode([i]) for i in alone.encode(text, special=False)]
    assert "".join(tokens) == text
    assert all(not any(c.isdigit() for c in t) or len(t) == 1 for t in tokens)
    assert len(together.encode(text, special=False)) < len(tokens)


@pytest.mark.real
@pytest.mark.parametrize("name", ["smollm2-135m", "qwen2.5-coder-0.5b", "gemma-3-270m"])
def test_real_files_against_transformers(name: str) -> None:
    from transformers import AutoTokenizer

    from engine.catalog import catalog, hub

    path = hub.locate(catalog.load().target(name))
    if path is None or path.suffix != ".gguf":
        pytest.skip(f"specchat pull {name} first, from the mirror")
    tokenizer = load_tokenizer(path)
    theirs = AutoTokenizer.from_pretrained(str(path.parent), gguf_file=path.name)
    assert tokenizer.hf.get_vocab() == theirs.get_vocab()
    text = "def f(x):\n    return x + 1  # naïve café 🙂\n\nWhat's up?"
    assert tokenizer.encode(text, special=True) == (theirs(text)["input_ids"] if "smol" not in name else tokenizer.encode(text, True))
    assert tokenizer.decode(tokenizer.encode(text, special=False)) == text
    assert tokenizer.has_template == (name != "gemma-3-270m")
    for ending in ("<|im_end|>", "<eos>"):
        if ending in tokenizer.hf.get_vocab():
            assert tokenizer.hf.convert_tokens_to_ids(ending) in tokenizer.eos_ids
