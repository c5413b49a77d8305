"""Small tokenizers of every class, made on the spot: byte-level BPE, SentencePiece BPE and Unigram, ones that rewrite texts.

And one that is real."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, decoders, models, normalizers, pre_tokenizers, trainers
from tokenizers import Tokenizer as Backend
from transformers import PreTrainedTokenizerFast

from engine.decoder.tokenizer import Tokenizer, load_tokenizer

WORDS = (
    "The quick brown fox jumps over the lazy dog. Hello world, it's a rainbow: 12345 rain bow!\n\n    return x\n\tif you don't: pass\r\n",
    "naïve café 你好，世界。你好 é à ü 🙂 🙂 世界 hello world hel lo \n    \n        deep    return rainbow world hello the the the",
)
MISTRAL = Path(__file__).parents[2] / "data" / "mistral_v1"
SPECIALS = ("<unk>", "<s>", "</s>", "<|im_start|>", "<|im_end|>")
CHATML = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
INST = (
    "{% for m in messages %}{% if m['role'] == 'user' %}<s>[INST] {{ m['content'] }} [/INST]"
    "{% else %} {{ m['content'] }} </s>{% endif %}{% endfor %}"
)


def wrap(
    backend: Backend, name: str = "toy", template: str | None = CHATML, ends: Sequence[str] = ("<|im_end|>", "</s>"), **extra: Any
) -> Tokenizer:
    """The program's tokenizer around a backend; the specials that the backend knows are its control tokens."""
    ordinary = {token.content for token in backend.get_added_tokens_decoder().values() if not token.special}
    known = [token for token in SPECIALS if backend.token_to_id(token) is not None and token not in ordinary]
    roles = {"<unk>": "unk_token", "<s>": "bos_token", "</s>": "eos_token"}
    hf = PreTrainedTokenizerFast(tokenizer_object=backend, **{roles[t]: t for t in known if t in roles}, **extra)
    hf.add_special_tokens({"additional_special_tokens": [t for t in known if t not in roles]})
    hf.chat_template = template
    ids = {backend.token_to_id(end) for end in ends}
    return Tokenizer(hf, name, frozenset(i for i in ids if i is not None))


def byte_level(
    size: int = 420,
    words: Sequence[str] = WORDS,
    prefix: bool = False,
    normalizer: Any = None,
    added: Sequence[Any] = (),
    specials: Sequence[str] = SPECIALS,
    ranks: bool = False,
) -> Backend:
    """Byte-level BPE; `ranks`: a whole piece is looked up first, as tiktoken does."""
    backend = Backend(models.BPE(ignore_merges=ranks))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=prefix)
    backend.decoder = decoders.ByteLevel()
    letters = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=size, special_tokens=list(specials), initial_alphabet=letters, show_progress=False)
    backend.train_from_iterator(list(words) * 4, trainer)
    if normalizer is not None:
        backend.normalizer = normalizer
    backend.add_tokens([AddedToken(token, normalized=False) if isinstance(token, str) else token for token in added])
    return backend


def _trained(words: Sequence[str], size: int) -> tuple[list[str], list[tuple[str, str]]]:
    """Pieces and merges of a SentencePiece-like BPE."""
    import json

    backend = Backend(models.BPE(unk_token="<unk>"))
    backend.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="never")
    backend.train_from_iterator(list(words) * 4, trainers.BpeTrainer(vocab_size=size, special_tokens=["<unk>"], show_progress=False))
    model = json.loads(backend.to_str())["model"]
    merges = [tuple(m) if isinstance(m, list) else tuple(m.split(" ")) for m in model["merges"]]
    pieces = [token for token, _ in sorted(model["vocab"].items(), key=lambda item: item[1]) if token != "<unk>"]
    return pieces, merges


def sentencepiece(
    size: int = 330,
    words: Sequence[str] = WORDS,
    prefix: str = "prepend",
    fallback: bool = True,
    added: Sequence[Any] = ("▁▁", "▁▁▁▁", "\n", "\n\n"),
    normalizer: Any = None,
) -> Backend:
    """SentencePiece BPE with byte fallback. `prefix`: how the dummy prefix is made: prepend (Llama-2), metaspace, or none (Gemma).

    The added tokens are ordinary ones, as Gemma's runs of spaces and newlines; with `\\n` there is a twin of `<0x0A>`, and the
    letters have twins among the bytes too.
    """
    pieces, merges = _trained(words, size)
    every = [*SPECIALS, *(f"<0x{b:02X}>" for b in range(256) if fallback), *pieces]
    model = models.BPE({token: i for i, token in enumerate(every)}, merges, unk_token="<unk>", fuse_unk=True, byte_fallback=fallback)
    backend = Backend(model)
    spaces: list[Any] = [normalizers.Replace(" ", "▁")]
    if prefix == "prepend":
        spaces.insert(0, normalizers.Prepend("▁"))
    if prefix == "metaspace":
        backend.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="always", split=False)
        spaces = []
    steps = ([normalizer] if normalizer is not None else []) + spaces
    if steps:
        backend.normalizer = normalizers.Sequence(steps)
    strip = [decoders.Strip(" ", 1, 0)] if prefix != "none" else []
    backend.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), *strip])
    runs = prefix == "none"  # matched in what the normaliser made of the text, where no prefix gets in the way
    backend.add_tokens([AddedToken(token, normalized=runs) if isinstance(token, str) else token for token in added])
    return backend


def unigram(fallback: bool = True, normalizer: Any = None) -> Backend:
    """SentencePiece Unigram: pieces with scores, a dummy prefix, bytes to fall back to."""
    pieces, _ = _trained(WORDS, 330)
    scored = [(token, 0.0) for token in SPECIALS]
    scored += [(f"<0x{b:02X}>", -20.0) for b in range(256) if fallback]
    scored += [(token, -12.0 if len(token) == 1 else -8.0 - 0.001 * i) for i, token in enumerate(pieces)]
    backend = Backend(models.Unigram(scored, unk_id=0, byte_fallback=fallback))
    backend.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="always")
    backend.decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Metaspace(prepend_scheme="always")])
    if normalizer is not None:
        backend.normalizer = normalizer
    return backend


def sound() -> dict[str, Tokenizer]:
    """One of each class whose texts survive."""
    return {
        "byte-level": wrap(byte_level()),
        "ranks": wrap(byte_level(ranks=True)),
        "byte-level with a prefix": wrap(byte_level(prefix=True)),
        "NFC": wrap(byte_level(normalizer=normalizers.NFC())),
        "prepend": wrap(sentencepiece(), template=INST),
        "metaspace": wrap(sentencepiece(prefix="metaspace"), template=INST),
        "no prefix": wrap(sentencepiece(prefix="none")),
        "unigram": wrap(unigram(), template=INST),
        "no fallback": wrap(sentencepiece(fallback=False)),
    }


@cache
def mistral() -> Tokenizer:
    """The real one, of 32,000 pieces: a dummy prefix and byte fallback, as Llama 2 and Vicuna have. Loaded where it is asked for."""
    return load_tokenizer(MISTRAL, INST)
