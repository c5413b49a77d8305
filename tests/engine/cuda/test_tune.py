"""Made ready for a card, on the CPU: the same products, slots and static passes, and a proof that must tell true from false."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from engine import places
from engine.cuda import notebook, tune
from engine.cuda.products import Planned
from engine.cuda.recorder import EagerRecorder
from engine.decoder.target import LeanTarget
from tests.gpu.shapes import random_weights
from tests.tiny import Adversary, tiny_target, write

CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("SPECCHAT_HOME", str(tmp_path))
    monkeypatch.setattr("tests.gpu.shapes.SHAPES", {"tiny": (128, 192, 2, 4, 2, 32, 512)})
    monkeypatch.setattr(tune, "STARTS", (57,))


def ready(head: str = "dense", exactly: bool = True, window: int | None = None) -> LeanTarget:
    weights = random_weights("tiny", "dense", head, CPU, torch.bfloat16, window)
    return tune.ready(weights, 700, exactly, EagerRecorder(CPU))


@pytest.mark.parametrize("head", ["dense", "int8"])
def test_exact_is_what_the_rows_say(head: str) -> None:
    target = ready(head)
    rng = random.Random(1)
    text = [rng.randrange(512) for _ in range(140)]
    target.prefill(text[:120])
    alone = []
    for row in range(16):
        alone.append(target.verify(torch.tensor(text[120 + row : 121 + row]), ())[0])
        target.keep((0,))
    target.truncate(120)
    same = all(
        torch.equal(logits[row], alone[row])
        for width in range(1, 17)
        for logits in [target.verify(torch.tensor(text[120 : 120 + width]), tuple(range(width - 1)))]
        for row in range(width)
    )
    if not all(linear.row_invariant for linear in tune._linears(target.model.weights)):
        pytest.skip("no bearable way to keep the bits of dense products on this processor")
    assert target.exact == same


@pytest.mark.parametrize("window", [None, 100])
def test_drafters_change_nothing_in_bf16(window: int | None) -> None:
    target = ready(window=window)
    if not target.exact:
        pytest.skip("dense products cannot be made to keep their bits on this processor")
    plain = write(target, [1, 2, 3], None, max_tokens=120)
    assert len(set(plain.ids)) > 10
    for tree in (False, True):
        drafter = Adversary(random.Random(2), 512, plain.ids, 3, honest=0.8, tree=tree)
        run = write(target, [1, 2, 3], drafter, max_tokens=120, k=9)
        assert run.ids == plain.ids
        assert sum(step.accepted for step in run.steps) > 20


def test_a_model_whose_rows_see_each_other_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    target = ready()
    real = target.model.head

    def leaking(x: torch.Tensor, norm: object = None) -> torch.Tensor:
        logits = real(x, norm)  # type: ignore[arg-type]
        return logits + 1e-3 * (len(x) > 5)

    if target.exact:
        assert tune.rows_agree(target)
    monkeypatch.setattr(target.model, "head", leaking)
    assert not tune.rows_agree(target)
    assert target.length == 0
    assert target.static is not None


def test_a_drafter_needs_no_proof() -> None:
    target = ready(exactly=False)
    assert not target.exact
    assert target.static is not None
    assert not any(isinstance(linear, Planned) for linear in tune._linears(target.model.weights))


def test_slots_are_made_at_once() -> None:
    target = ready(exactly=False)
    stores = [group.store for group in target.cache.groups]
    target.prefill([1] * 690)
    target.verify(torch.arange(8), tuple(range(7)))
    assert all(a is group.store for a, group in zip(stores, target.cache.groups, strict=True))


def test_elsewhere_nothing_of_this_happens() -> None:
    target = tiny_target(1)
    made = tune.lean(target.model.weights, 100)
    assert made.static is None
    assert made.model.weights is target.model.weights


def test_what_was_found_is_written_down(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(notebook, "card", lambda device: "a card, a driver")
    tried: list[int] = []
    real = tune.products.survey
    monkeypatch.setattr(tune.products, "survey", lambda *a: tried.append(1) or real(*a))
    proofs: list[int] = []
    proven = tune.rows_agree
    monkeypatch.setattr(tune, "rows_agree", lambda t: proofs.append(1) or proven(t))
    first, second = ready(), ready()
    shapes = {(linear.out_features, linear.in_features) for linear in tune._linears(first.model.weights)}
    assert len(tried) == len(shapes)
    assert len(proofs) <= 1
    assert first.exact == second.exact
    tables = [[linear.table for linear in tune._linears(t.model.weights) if isinstance(linear, Planned)] for t in (first, second)]
    assert tables[0] == tables[1] != []


def test_the_notebook_bears_anything(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(notebook, "card", lambda device: "a card")
    assert notebook.recall(CPU, "x") is None
    notebook.remember(CPU, "x", {"1": 0.5})
    notebook.remember(CPU, "y", True)
    assert (notebook.recall(CPU, "x"), notebook.recall(CPU, "y")) == ({"1": 0.5}, True)
    path = places.cache_dir() / "cuda.json"
    for broken in (
        "",
        "[]",
        '{"version": 0, "cards": {"a card": {"x": 1}}}',
        '{"version": 1, "cards": 3}',
        '{"version": 1, "cards": {"a card": 3}}',
    ):
        path.write_text(broken)
        assert notebook.recall(CPU, "x") is None
        notebook.remember(CPU, "x", 2)
        assert notebook.recall(CPU, "x") == 2
    notebook.remember(CPU, "z", object())  # no JSON: not kept
    assert notebook.recall(CPU, "z") is None
    monkeypatch.setattr(notebook, "card", lambda device: "another card")
    assert notebook.recall(CPU, "x") is None
    assert json.loads(path.read_text())["cards"]["a card"] == {"x": 2}


def test_a_damaged_note_is_measured_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(notebook, "card", lambda device: "a card")
    weights = replace(random_weights("tiny", "dense", "dense", CPU, torch.bfloat16))
    shape = tune._shape(weights.head, weights)
    notebook.remember(CPU, shape, {"seconds": {"1": "much"}})
    tune.invariant(weights, EagerRecorder(CPU))
    assert set(notebook.recall(CPU, shape)) == {"seconds", "alone", "placeless"}


def test_without_a_card_there_is_no_notebook() -> None:
    assert notebook.card(CPU) == ""
    notebook.remember(CPU, "x", 1)
    assert notebook.recall(CPU, "x") is None
    assert not (places.cache_dir() / "cuda.json").exists()
