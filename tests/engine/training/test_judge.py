"""Tau from stored replies is that of real decoding, step by step."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from engine.decoder.target import LeanTarget
from engine.decoder.tokenizer import load_tokenizer
from engine.speculation.cost import Cost
from engine.training import measure, shards, shortlist
from engine.training.distill import Distiller
from engine.training.judge import judge, speedup
from engine.training.measure import Costs
from engine.training.protocol import Kind
from engine.training.seeds import Seed
from engine.training.shards import Store
from tests.engine.training.test_network import serving
from tests.engine.training.worlds import some_heads, stored_target
from tests.tiny_disk import tiny_model

ROWS = 200
FREE = Costs(Cost({1: 1.0, 2: 1.0, 4: 1.0}), Cost({0: 0.0, 3: 0.0}))


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> tuple[LeanTarget, Store]:
    """A target, and greedy replies of it. Its head is small, so that heads with a copy of it are right now and then."""
    folder = tiny_model(tmp_path_factory.mktemp("judge") / "target", 5)
    target = stored_target(folder)
    found: list[shards.Text] = []
    asked = (Seed(n, f"number {n}", None, 0.0, 12 + n, "judge") for n in range(6))
    Distiller(target, load_tokenizer(folder), 4).run(asked, lambda: True, found.append, lambda: False)
    at = tmp_path_factory.mktemp("texts")
    shards.write(at, found, "bf16")
    return target, Store(at)


@pytest.mark.parametrize("kind", ["hydra++", "medusa"])
def test_a_chain_in_a_chat_has_the_same_tau(world: tuple[LeanTarget, Store], kind: Kind) -> None:
    target, store = world
    heads, ids, taught = some_heads(kind, target, ROWS)
    with torch.no_grad():  # as good as the first guess can be: the target's own head on its own hidden states, then repeated
        taught.rows.copy_(shortlist.head_rows(target.model, ids))
    score = judge(heads, store, store.numbers, ids, shortlist.columns(ids, target.vocab_size), taught)
    drafter = serving(heads, ids, target)
    drafter.head._choices = ((0,), (0, 0), (0, 0, 0))  # type: ignore[attr-defined]
    texts = [store.read(number) for number in store.numbers]
    found = measure.measure(target, drafter, texts, 3, FREE, lambda: False)
    assert found is not None
    assert found.same_text
    assert found.tokens == sum(text.replied for text in texts)
    assert found.tau == pytest.approx(score.tau, abs=0.02)
    assert len(score.agreement) == len(score.kept) == 3


def test_right_heads_keep_everything(world: tuple[LeanTarget, Store], monkeypatch: pytest.MonkeyPatch) -> None:
    from engine.training import judge as judging

    target, store = world
    heads, ids, taught = some_heads("medusa", target, target.vocab_size)
    monkeypatch.setattr(judging, "guesses", lambda network, batch, taught: batch.labels.clamp(min=0))
    score = judge(heads, store, store.numbers, ids, shortlist.columns(ids, target.vocab_size), taught)
    assert score.agreement == pytest.approx((1.0, 1.0, 1.0))
    steps = sum(-(-store.replied(number) // 4) for number in store.numbers)
    assert score.steps == steps
    assert score.tau == pytest.approx(sum(map(store.replied, store.numbers)) / steps)
    monkeypatch.setattr(judging, "guesses", lambda network, batch, taught: torch.where(batch.labels == 0, 1, 0))
    assert judge(heads, store, store.numbers, ids, shortlist.columns(ids, target.vocab_size), taught).tau == 1.0


def test_the_expected_speedup() -> None:
    verify, draft = Cost({1: 10.0, 2: 11.0, 3: 12.0, 4: 13.0}), Cost({0: 0.0, 1: 1.0, 2: 2.0, 3: 3.0})
    assert speedup((0.5, 0.5, 0.5), verify, draft) == pytest.approx(max(1.5 * 10 / 12, 1.75 * 10 / 14, 1.875 * 10 / 16))
    assert speedup((0.0, 0.0, 0.0), verify, draft) == 1.0
    assert speedup((0.5,), Cost(), draft) == 0.0


def test_the_shortlist_has_what_was_written(world: tuple[LeanTarget, Store]) -> None:
    target, store = world
    used = {int(i) for number in store.numbers for i in store.read(number).ids[store.read(number).start :]}
    ids = shortlist.choose(store, store.numbers, max(len(used), 40), target.vocab_size)
    assert used <= set(ids.tolist())
    assert ids.tolist() == sorted(set(ids.tolist()))
    rest = sorted(set(ids.tolist()) - used)
    assert rest == [i for i in range(target.vocab_size) if i not in used][: len(rest)]
    assert shortlist.coverage(store, store.numbers, ids, target.vocab_size) == 1.0
    few = shortlist.choose(store, store.numbers, 3, target.vocab_size)
    assert 0.0 < shortlist.coverage(store, store.numbers, few, target.vocab_size) < 1.0
    assert set(few.tolist()) <= used


@pytest.mark.parametrize("quant", ["fp32", "int8"])
def test_the_heads_rows_are_those_that_run(tmp_path: Path, quant: str) -> None:
    target = stored_target(tiny_model(tmp_path / "target", 5), quant)
    ids = torch.tensor([0, 7, 100, 259])
    rows = shortlist.head_rows(target.model, ids)
    x = torch.randn((3, 64), dtype=target.model.weights.dtype)
    assert torch.allclose(x.float() @ rows.T, target.model.head(x)[:, ids], atol=0.05, rtol=0.02)


def test_the_spread_of_tau() -> None:
    assert measure.spread([]) == measure.spread([(10, 5)]) == 0.0
    assert measure.spread([(10, 5), (20, 10), (2, 1)]) == pytest.approx(0.0)
    # two texts, 2 and 1 tokens a step, ten steps each: the mean of two numbers that are 0.5 away from it
    assert measure.spread([(20, 10), (10, 10)]) == pytest.approx(1.96 * 0.5)
