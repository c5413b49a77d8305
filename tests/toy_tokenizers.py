"""Small real tokenizers of several classes, trained in the test on a few lines, and whole chats between tiny models that use them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any

import torch
from tokenizers import AddedToken, decoders, models, normalizers, pre_tokenizers, trainers
from tokenizers import Tokenizer as Backend
from transformers import PreTrainedTokenizerFast

from engine.bridge.codec import Codec
from engine.bridge.maps import vocabulary_map
from engine.decoder.linear import Dense
from engine.decoder.target import LeanTarget
from engine.decoder.tokenizer import Tokenizer
from engine.drafters.bridged import made
from engine.drafters.companion import Companion
from engine.drafters.cross import Cross, Method
from engine.protocol import Done, Event, Generate, Message, Notice, Sampling, Step
from engine.session import Session
from engine.speculation.control import Controller
from engine.speculation.draft import Drafter, Question
from engine.speculation.sampling import Filters
from tests.tiny import tiny_config, tiny_target

LINES = (
    "The quick brown fox jumps over the lazy dog, and the rainbow is over the river.\n\n",
    "def read(path):\n    if path is None:\n        return 12345\n\treturn path  # it's done\n",
    "It's a table: | a | b |\r\n| --- | --- |\r\n| 1 | 2 |\r\n",
    "你好，世界。长城很长。日本語の文章。Привет, мир. héllo naïve café. 👩‍👩‍👧 🙂🙂\n",
    "There were seven of them in the house there, and he said so himself: hello, hello there!\n",
)
SPECIAL = ("<|end|>", "<|user|>", "<|assistant|>", "<|system|>")
TEMPLATE = (
    "{% for m in messages %}<|{{ m['role'] }}|>{{ m['content'] }}<|end|>{% endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}"
)


def _wrapped(backend: Backend, name: str, special: Sequence[str] = SPECIAL, template: str | None = TEMPLATE) -> Tokenizer:
    backend.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in special])
    hf = PreTrainedTokenizerFast(tokenizer_object=backend, eos_token=special[0])
    hf.chat_template = template
    return Tokenizer(hf, name, frozenset({hf.eos_token_id}))


@cache
def byte_level(size: int, lines: int = len(LINES), name: str = "") -> Tokenizer:
    """Byte-level BPE with the splitting of GPT-2."""
    backend = Backend(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    trainer = trainers.BpeTrainer(vocab_size=size, initial_alphabet=alphabet, show_progress=False)
    backend.train_from_iterator(LINES[:lines] * 3, trainer)
    return _wrapped(backend, name or f"bytes{size}")


@cache
def shuffled(size: int, shift: int = 11) -> Tokenizer:
    """The same as `byte_level(size)` with other ids: token i there is token (i + shift) mod n here."""
    import json

    whole = json.loads(byte_level(size).hf.backend_tokenizer.to_str())
    n = len(whole["model"]["vocab"])
    whole["model"]["vocab"] = {token: (i + shift) % n for token, i in whole["model"]["vocab"].items()}
    whole["added_tokens"] = []
    return _wrapped(Backend.from_str(json.dumps(whole)), f"shuffled{size}")


@cache
def sentencepiece(size: int = 420, dummy: bool = False) -> Tokenizer:
    """BPE over characters with ▁ for spaces and byte fallback; with `dummy` texts get a space in front."""
    backend = Backend(models.BPE(byte_fallback=True, unk_token="<unk>", fuse_unk=True))
    signs = [normalizers.Replace(" ", "▁")]
    backend.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), *signs] if dummy else signs)
    backend.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    known = ["<unk>", *(f"<0x{b:02X}>" for b in range(256))]
    plain = [line.encode("ascii", "ignore").decode() for line in LINES] + ["你好，世界。"]
    trainer = trainers.BpeTrainer(vocab_size=size, special_tokens=known, show_progress=False)
    backend.train_from_iterator(plain * 3, trainer)
    import json

    whole = json.loads(backend.to_str())
    whole["added_tokens"] = []
    return _wrapped(Backend.from_str(json.dumps(whole)), f"pieces{size}{'-dummy' if dummy else ''}")


@cache
def codec(tokenizer: Callable[..., Tokenizer], *arguments: Any) -> Codec:
    """The codec of one of the above."""
    made = tokenizer(*arguments)
    return Codec(made, len(made.hf) + PADDING)


PADDING = 3  # rows behind the vocabulary that no token has
PAIRS: dict[str, tuple[tuple[Any, ...], tuple[Any, ...]]] = {  # target, drafter
    "same tokens, other ids": ((byte_level, 330), (shuffled, 330)),
    "coarse from fine": ((byte_level, 420), (byte_level, 290)),
    "fine from coarse": ((byte_level, 290), (byte_level, 420)),
    "bytes from pieces": ((byte_level, 360), (sentencepiece, 420)),
    "pieces from bytes": ((sentencepiece, 420), (byte_level, 360)),
    "dummy prefix from bytes": ((sentencepiece, 420, True), (byte_level, 360)),
}


def of(codec_of: tuple[Any, ...]) -> tuple[Tokenizer, Codec]:
    """Tokenizer and codec of one side of a pair."""
    make, *arguments = codec_of
    return make(*arguments), codec(make, *arguments)


def model(seed: int, side: Codec, window: int | None = None, context: int = 400, plain: bool = False) -> LeanTarget:
    """A tiny random model with the rows of a codec; a `plain` one writes small letters and spaces, and ends its turn now and then."""
    plainly = tiny_target(seed, tiny_config(len(side.table.tokens), window), context)
    if not plain:
        return plainly
    bias = [0.0 if token is not None and all(b in b"abcdefghijklmnopqrstuvwxyz " for b in token) else -40.0 for token in side.table.tokens]
    for end in side.table.ends:
        bias[end] = -2.0
    weights = plainly.model.weights
    assert isinstance(weights.head, Dense)
    return LeanTarget(replace(weights, head=Dense(weights.head._weight, torch.tensor(bias, dtype=torch.float64))), context)


def renumbered(model: LeanTarget, shift: int, size: int) -> LeanTarget:
    """The same model for `shuffled` ids."""
    weights = model.model.weights
    n = len(weights.embed)
    rows = torch.tensor([(i - shift) % size if i < size else i for i in range(n)])
    head = weights.head
    assert isinstance(head, Dense)
    bias = head._bias[rows] if head._bias is not None else None
    return LeanTarget(replace(weights, embed=weights.embed[rows], head=Dense(head._weight[rows], bias)), model.context)


def cross(
    how: str | Method, target: Codec, drafter: Codec, tokenizer: Tokenizer, runner: LeanTarget, name: str = "little", usual: float = 0.0
) -> Cross:
    """A drafter through the bridge: a method by its name, or a method; `auto` holds two."""

    def render(question: Question) -> list[int]:
        if question.raw is not None:
            return tokenizer.encode(question.raw, special=True)
        return tokenizer.render(question.messages, question.carry_on)

    maps = vocabulary_map(target, drafter)
    one = how if not isinstance(how, str) else made("slem" if how == "auto" else how, maps)
    two = made("pf", maps) if how == "auto" else one
    return Cross(name, Companion(runner, render, target, drafter), one, two, Filters(usual))


@dataclass
class Chat:
    """A session that remembers what it said."""

    target: LeanTarget
    tokenizer: Tokenizer
    events: list[Event] = field(default_factory=list)
    number: int = 0

    def __post_init__(self) -> None:
        self.session = Session(self.target, self.tokenizer, Sampling(0.0, 1.0, 0, 0.0, 1.0), (), Controller())

    def use(self, drafter: Drafter | None) -> Chat:
        self.session.loaded.drafter = drafter
        return self

    def ask(self, messages: Sequence[Message] | str, between: Callable[[], None] = lambda: None, **more: Any) -> Done:
        self.number += 1
        turns = (Message("user", messages),) if isinstance(messages, str) else tuple(messages)
        command = Generate(self.number, turns, **({"max_tokens": 40, "k": 4} | more))
        if command.raw is not None:
            command = replace(command, messages=())
        self.events = []
        return self.session.reply(command, self.events.append, lambda: False, between)

    @property
    def steps(self) -> list[Step]:
        return [event for event in self.events if isinstance(event, Step)]

    @property
    def notices(self) -> list[str]:
        return [event.text for event in self.events if isinstance(event, Notice)]
