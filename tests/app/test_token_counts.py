"""Coloured tokens always equal the verifier's counts: over a real session with drafters that draft trees, duplicates, stop ids and lies."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

from app.record import Record
from engine.bridge.codec import Codec
from engine.drafters.bridged import METHODS
from engine.drafters.ngram import Ngram
from engine.protocol import Done, Generate, Message, Sampling, Step
from engine.session import Session
from engine.speculation.control import Controller
from engine.text import REPLACEMENT
from tests.engine.test_session import Letters
from tests.tiny import Adversary, tiny_config, tiny_target
from tests.toy_tokenizers import byte_level, cross, model, of, sentencepiece

BYTES = [bytes([b]) for b in "a好🎉é".encode()]


class Bytes(Letters):
    """A tokenizer with a byte a token: characters of several tokens, in any order, also broken ones."""

    def encode(self, text: str, special: bool) -> list[int]:
        return [BYTES.index(bytes([b])) % len(BYTES) if bytes([b]) in BYTES else 0 for b in text.encode()]

    def decode(self, ids: Sequence[int]) -> str:
        return b"".join(BYTES[i % len(BYTES)] for i in ids).decode("utf-8", "replace")


def record_of(session: Session, seed: int, temperature: float, stop: tuple[str, ...] = (), k: int | None = None) -> tuple[Record, Done]:
    record, steps = Record(), []
    sampling = Sampling(temperature, 1.0, 0, 0.0, 1.0)
    command = Generate(1, (Message("user", "abc"),), sampling=sampling, seed=seed, max_tokens=40, stop=stop, k=k)
    done = session.reply(command, steps.append, lambda: False, lambda: None)
    for event in steps:
        if isinstance(event, Step):
            record.add(event)
    record.finish(done)
    return record, done


def check(record: Record, done: Done) -> None:
    """What is coloured is what was counted."""
    assert record.text == done.text
    tokens = record.tokens()
    ids = tuple(token.id for token in tokens)
    assert ids == done.token_ids
    for step in record.steps:
        mine = [token for token in tokens if token.step == step.index]
        kept = [token.position for token in mine if token.origin == "kept"]
        assert len(mine) == step.emitted
        assert kept == list(range(1, min(step.accepted, step.emitted) + 1))
        assert len(kept) == step.accepted - (step.accepted > step.emitted)  # a kept stop id is counted and shows nothing
        for own in mine[len(kept) :]:
            right = ("bonus",) if step.accepted == step.drafted else ("correction",) if not step.accepted else ("correction", "bonus")
            assert own.origin in (right if step.drafted else ("plain",))
    at = 0
    for segment in record.segments:  # a piece has the class of its last token
        at += len(segment.token_ids)
        last = tokens[at - 1]
        assert (segment.origin, segment.position, segment.step) == (last.origin, last.position, last.step)
        assert (segment.origin == "kept") == (0 < segment.position <= record.steps[segment.step - 1].accepted)


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_trees_duplicates_and_stop_ids(seed: int, temperature: float) -> None:
    """Adversarial drafts, with a stop id among them."""
    target = tiny_target(seed, tiny_config(32))
    plain = Session(target, Letters((5,)), Sampling(0.7, 1.0, 0, 0.0, 1.0), (), Controller())  # type: ignore[arg-type]
    _, truth = record_of(plain, seed, temperature)
    session = Session(target, Letters((5,)), Sampling(0.7, 1.0, 0, 0.0, 1.0), (), Controller())  # type: ignore[arg-type]
    prompt_len = truth.prompt_tokens
    text = [*truth.token_ids, *([truth.stop_id] if truth.stop_id is not None else [])]
    session.loaded.drafter = Adversary(random.Random(seed), 32, text, prompt_len, honest=0.8)  # type: ignore[assignment]
    record, done = record_of(session, seed, temperature)
    assert done.token_ids == truth.token_ids
    check(record, done)


@pytest.mark.parametrize("seed", range(8))
def test_stop_texts_cut_a_draft(seed: int) -> None:
    target = tiny_target(seed, tiny_config(32))
    session = Session(target, Letters(), Sampling(0.7, 1.0, 0, 0.0, 1.0), (), Controller())  # type: ignore[arg-type]
    whole, truth = record_of(session, seed, 1.0)
    cut = whole.text[10:12]
    session.loaded.drafter = Adversary(random.Random(seed), 32, list(truth.token_ids), truth.prompt_tokens, honest=1.0)  # type: ignore[assignment]
    record, done = record_of(session, seed, 1.0, (cut,))
    assert cut not in record.text
    check(record, done)


@pytest.mark.parametrize("seed", range(8))
def test_characters_of_several_tokens(seed: int) -> None:
    """A byte a token: pieces of several tokens, over several steps, and broken ones. Half a character is never a piece of its own."""
    target = tiny_target(seed, tiny_config(len(BYTES)))
    session = Session(target, Bytes(), Sampling(0.7, 1.0, 0, 0.0, 1.0), (), Controller())  # type: ignore[arg-type]
    session.loaded.drafter = Ngram("ngram", 1, 4)  # type: ignore[assignment]
    record, done = record_of(session, seed, 1.0)
    check(record, done)
    assert any(len(segment.token_ids) > 1 for segment in record.segments) or REPLACEMENT not in record.text


class Knowing:
    """Stands for a drafter's model: it knows the text that is to come, and writes it in the longest tokens that its tokenizer has."""

    vocab_size = context = 1000

    def __init__(self, codec: Codec, text: bytes) -> None:
        self.tokens, self.text, self.length = codec.table.tokens, text, 0
        self.ids: list[int] = []
        self.end = next(iter(codec.table.ends))

    def verify(self, tokens: Tensor, parents: Sequence[int]) -> Tensor:
        paths: list[list[int]] = [[*self.ids[: self.length], int(tokens[0])]]
        for token, parent in zip(tokens[1:].tolist(), parents, strict=True):
            paths.append([*paths[parent], token])
        self.seen = paths
        return torch.stack([self._behind(path) for path in paths])

    def _behind(self, path: list[int]) -> Tensor:
        """Logits (D,): what the text says behind the prompt and this much of it; the prompt ends with the last control token."""
        start = max((i + 1 for i, token in enumerate(path) if self.tokens[token] is None), default=0)
        said = b"".join(self.tokens[token] or b"" for token in path[start:])
        said = said if self.text.startswith(said) else said.removeprefix(b" ")  # the format's own space
        rest = self.text[len(said) :] if self.text.startswith(said) else b""
        fits = [i for i, token in enumerate(self.tokens) if token and rest.startswith(token)]
        logits = torch.full((len(self.tokens),), -20.0, dtype=torch.float64)
        logits[max(fits, key=lambda i: len(self.tokens[i] or b""), default=self.end)] = 20.0
        return logits

    def keep(self, rows: Sequence[int]) -> None:
        self.ids = self.seen[rows[-1]]
        self.length = len(self.ids)

    def next(self, ids: list[int]) -> Tensor:
        logits = self.verify(torch.tensor(ids), range(len(ids) - 1))
        self.keep(range(len(ids)))
        return logits[-1:]

    def prefill(self, ids: list[int], *more: object) -> None:
        self.ids = [*self.ids[: self.length], *ids]
        self.length = len(self.ids)

    def memory(self) -> tuple[int, int]:
        return 0, 0

    def truncate(self, length: int) -> int:
        self.length = min(self.length, length)
        return self.length


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("how", METHODS)
@pytest.mark.parametrize(
    "words", [(byte_level, 420), (sentencepiece, 420), (sentencepiece, 420, True)], ids=["bytes", "pieces", "dummy prefix"]
)
def test_drafts_of_another_tokenizer_are_coloured_as_tokens_of_the_target(words: Any, how: str, temperature: float) -> None:
    """Origins and places are those after translation: a word of the drafter is several tokens here."""
    (tokenizer, target), (other, drafter) = of((byte_level, 256)), of(words)
    session = Session(model(7, target, plain=True), tokenizer, Sampling(0.7, 1.0, 0, 0.0, 1.0), (), Controller())
    _, truth = record_of(session, 3, temperature)
    session.loaded.drafter = cross(how, target, drafter, other, Knowing(drafter, truth.text.encode()))  # type: ignore[arg-type]
    record, done = record_of(session, 3, temperature, k=4)
    check(record, done)
    assert done.token_ids == truth.token_ids
    kept = [token for token in record.tokens() if token.origin == "kept"]
    assert len(kept) > len(record.steps)  # several to a step: the colours had something to tell
    assert {token.position for token in kept} >= {1, 2}
