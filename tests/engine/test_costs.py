"""Costs by the number of rows are those of a pass that is made again, not of the first of its width."""

from __future__ import annotations

import pytest
import torch

from engine import costs
from engine.drafters.ngram import Ngram
from engine.speculation.control import Controller
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
