"""Costs by the number of rows are those of a pass that is made again, not of the first of its width."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from engine import costs
from engine.cuda import notebook
from engine.drafters.ngram import Ngram
from engine.speculation.control import Controller
from engine.speculation.draft import Needs
from tests.tiny import tiny_target


def test_what_a_width_costs_once_is_not_taken_for_its_cost(monkeypatch: pytest.MonkeyPatch) -> None:
    target, control, now = tiny_target(1), Controller(), 0.0
    seen: set[int] = set()
    real = target.verify

    def verify(tokens: torch.Tensor, parents: tuple[int, ...]) -> torch.Tensor:
        nonlocal now
        now += len(tokens) + (0 if len(tokens) in seen else 100)
        seen.add(len(tokens))
        return real(tokens, parents)

    target.verify = verify  # type: ignore[method-assign]
    monkeypatch.setattr(costs, "perf_counter", lambda: now)
    begun: list[bool] = []
    for _ in range(2):
        costs.measure(target, Ngram(), control, lambda: begun.append(True))
    assert [control.verify.at(width) for width in costs.WIDTHS] == list(costs.WIDTHS)
    assert len(begun) == 1  # known the second time
    assert target.length == 0


def test_costs_of_a_card_are_kept(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Measured once per card, model and scheme; the next start only records the usual passes."""
    monkeypatch.setenv("SPECCHAT_HOME", str(tmp_path))
    monkeypatch.setattr(notebook, "card", lambda device: "a card")
    begun: list[str] = []
    rows: list[int] = []
    found: dict[str, Controller] = {}
    for start in ("first", "second", "another model", "first again"):
        target, control = tiny_target(1), Controller()
        real = target.verify
        monkeypatch.setattr(target, "verify", lambda tokens, parents, real=real: rows.append(len(tokens)) or real(tokens, parents))
        rows.clear()
        costs.measure(target, Ngram(), control, lambda start=start: begun.append(start), "x" if "another" not in start else "y")
        found[start] = control
        assert control.verify.known
        if start in ("second", "first again"):
            assert rows == [1, *costs.WARM, 1]
        if start == "another model":
            notebook.remember(torch.device("cpu"), "costs of x, trees", {"1": "much"})
    assert begun == ["first", "another model"]
    assert [found["second"].verify.at(w) for w in costs.WIDTHS] == [found["first"].verify.at(w) for w in costs.WIDTHS]
    heads = Ngram()
    heads.needs = Needs(max_nodes=64)
    target, control = tiny_target(1), Controller()
    costs.measure(target, heads, control, lambda: begun.append("trees"), "x")
    assert control.trees.known
    assert begun[-1] == "trees"  # chains are known, trees were a damaged note
