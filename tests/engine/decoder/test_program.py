"""The layers as one list of kernels against the ordinary way: the same bits."""

from __future__ import annotations

import pytest
import torch

from engine.decoder import linear
from engine.decoder.program import MOST_ROWS, possible
from engine.speculation.draft import Needs
from tests.engine.decoder.test_attention import packed_target

pytestmark = pytest.mark.skipif(not linear.own_kernels(), reason="our kernels do not run on this processor")


@pytest.mark.parametrize("window", [None, 100])
@pytest.mark.parametrize("scheme", ["nf4", "int8"])
def test_a_program_gives_the_bits_of_the_ordinary_way(scheme: str, window: int | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Chains and trees, as the cache grows and slides, widths in turn, hidden states behind the last layer too."""
    listed, plain = packed_target(scheme, "int8", window), packed_target(scheme, "int8", window)
    assert possible(listed.model.weights)
    monkeypatch.setattr(plain.model, "_listable", False)
    made = torch.Generator().manual_seed(1)
    for target in (listed, plain):
        target.needs = Needs(final=True)
        target.prefill([1 + i % 500 for i in range(490)])
    for step in range(40):
        rows = 1 + step % 12
        parents = tuple(max(0, i - 1 - step % 2) for i in range(rows - 1)) if step % 3 else tuple(range(rows - 1))
        tokens = torch.randint(0, 503, (rows,), generator=made)
        ours, theirs = (target.verify(tokens, parents) for target in (listed, plain))
        assert torch.equal(ours, theirs), step
        assert listed.taps is not None
        assert torch.equal(listed.taps, plain.taps)
        path = [0]
        while (child := next((i + 1 for i, p in enumerate(parents) if p == path[-1]), None)) is not None:
            path.append(child)
        for target in (listed, plain):
            target.keep(tuple(path))
    assert listed.model._programs
    assert not plain.model._programs


def test_taps_and_wide_passes_go_the_ordinary_way() -> None:
    target = packed_target("nf4", "int8", None)
    target.prefill([1] * 20)
    target.verify(torch.arange(MOST_ROWS + 1), tuple(range(MOST_ROWS)))
    target.needs = Needs(taps=(1,))
    target.verify(torch.tensor([5]), ())
    assert target.taps is not None
    assert not target.model._programs


def test_what_a_program_holds_is_counted() -> None:
    target = packed_target("nf4", "int8", None)
    target.prefill([1] * 20)
    before = target.memory()[0]
    assert before > target.model.weights.nbytes  # rotary tables
    target.verify(torch.tensor([5, 6]), (0,))
    one = target.memory()[0]
    assert one > before
    target.verify(torch.tensor([5, 6]), (0,))
    assert target.memory()[0] == one
