"""Many texts at once give what each gives alone: to the bit where the kernels are our own."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from engine.decoder import linear
from engine.decoder.target import LeanTarget
from engine.speculation.draft import Needs
from engine.training.lanes import FINAL, Lanes
from tests.engine.training.worlds import plain_target, stored_target
from tests.tiny_disk import tiny_model


def alone(target: LeanTarget, ids: list[int], start: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Logits and hidden states behind ids[start:], one token a pass."""
    target.truncate(0)
    target.needs = FINAL
    target.prefill(ids[:start])
    logits, hidden = [], []
    for token in ids[start:]:
        logits.append(target.verify(torch.tensor([token]), ()))
        assert target.taps is not None
        hidden.append(target.taps.clone())
        target.keep((0,))
    target.needs = Needs()
    return torch.cat(logits), torch.cat(hidden)


def together(target: LeanTarget, texts: list[list[int]], starts: list[int], count: int, longest: int) -> list[tuple[torch.Tensor, ...]]:
    """The same for several texts, which begin and end at different times."""
    lanes = Lanes(target, count, longest)
    found: dict[int, tuple[list[torch.Tensor], list[torch.Tensor]]] = {i: ([], []) for i in range(len(texts))}
    open_: dict[int, tuple[int, int]] = {}  # lane -> text, next token
    waiting = list(range(len(texts)))
    while waiting or open_:
        for lane in range(count):
            if lane not in open_ and waiting:
                text = waiting.pop(0)
                target.truncate(0)
                target.prefill(texts[text][: starts[text]])
                lanes.begin(lane)
                open_[lane] = (text, starts[text])
        here = list(open_)
        logits, hidden = lanes.step(here, [texts[open_[lane][0]][open_[lane][1]] for lane in here])
        for row, lane in enumerate(here):
            text, at = open_[lane]
            found[text][0].append(logits[row : row + 1].clone())
            found[text][1].append(hidden[row : row + 1].clone())
            assert lanes.length(lane) == at + 1
            open_[lane] = (text, at + 1)
            if at + 1 == len(texts[text]):
                del open_[lane]
                lanes.end(lane)
    return [(torch.cat(logits), torch.cat(hidden)) for logits, hidden in found.values()]


def texts_of(vocab: int, seed: int = 0) -> tuple[list[list[int]], list[int]]:
    made = torch.Generator().manual_seed(seed)
    lengths = [9, 30, 14, 22, 11, 26, 17]
    texts = [torch.randint(vocab, (n,), generator=made).tolist() for n in lengths]
    return texts, [3, 5, 1, 8, 4, 0, 6]


@pytest.mark.parametrize("window", [None, 8])
def test_through_torch(window: int | None) -> None:
    target = plain_target(vocab=64, dtype=torch.float64, window=window)
    texts, starts = texts_of(64)
    for (logits, hidden), ids, start in zip(together(target, texts, starts, 3, 40), texts, starts, strict=True):
        expected, states = alone(target, ids, start)
        assert torch.allclose(logits.double(), expected.double(), atol=1e-9)
        assert torch.allclose(hidden, states, atol=1e-9)


def test_a_full_cache_is_tidied_up() -> None:
    """Room for two long texts at most: slots of ended ones are used again, those of open ones move."""
    target = plain_target(vocab=64, dtype=torch.float64)
    texts, starts = texts_of(64, 3)
    lanes_of = together(target, texts * 3, starts * 3, 2, 31)
    for (logits, _), ids, start in zip(lanes_of, texts * 3, starts * 3, strict=True):
        assert torch.allclose(logits.double(), alone(target, ids, start)[0].double(), atol=1e-9)


@pytest.mark.skipif(not linear.own_kernels(), reason="our kernels do not run on this processor")
@pytest.mark.parametrize("quant", ["nf4", "int8"])
@pytest.mark.parametrize("window", [None, 16])
def test_the_bits_are_those_of_a_chat(tmp_path: Path, quant: str, window: int | None) -> None:
    target = stored_target(tiny_model(tmp_path / "target", 2, head_dim=32), quant)
    if window is not None:
        config = replace(target.model.config, windows=(window, None))
        target = LeanTarget(replace(target.model.weights, config=config), 512)
    assert target.exact
    assert target.model.fused is not None
    texts, starts = texts_of(target.vocab_size)
    for (logits, hidden), ids, start in zip(together(target, texts, starts, 3, 40), texts, starts, strict=True):
        expected, states = alone(target, ids, start)
        assert torch.equal(logits, expected)
        assert torch.equal(hidden, states)
