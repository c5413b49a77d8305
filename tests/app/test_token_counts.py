"""Coloured tokens always equal the verifier's counts: over a real session with drafters that draft trees, duplicates, stop ids and lies."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest

from app.record import Record
from engine.drafters.ngram import Ngram
from engine.protocol import Done, Generate, Message, Sampling, Step
from engine.session import Session
from engine.speculation.control import Controller
from engine.text import REPLACEMENT
from tests.engine.test_session import Letters
from tests.tiny import Adversary, tiny_config, tiny_target

BYTES = [bytes([b]) for b in "a好🎉é".encode()]


class Bytes(Letters):
    """A tokenizer with a byte a token: characters of several tokens, in any order, also broken ones."""

    def encode(self, text: str, special: bool) -> list[int]:
        return [BYTES.index(bytes([b])) % len(BYTES) if bytes([b]) in BYTES else 0 for b in text.encode()]

    def decode(self, ids: Sequence[int]) -> str:
        return b"".join(BYTES[i % len(BYTES)] for i in ids).decode("utf-8", "replace")


def record_of(session: Session, seed: int, temperature: float, stop: tuple[str, ...] = ()) -> tuple[Record, Done]:
    record, steps = Record(), []
    command = Generate(1, (Message("user", "abc"),), sampling=Sampling(temperature, 1.0, 0, 0.0, 1.0), seed=seed, max_tokens=40, stop=stop)
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
