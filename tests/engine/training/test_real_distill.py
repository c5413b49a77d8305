"""On real models: replies that are written side by side have the bits of a chat, Gemma's sliding layers included."""

from __future__ import annotations

import pytest
import torch

from engine.decoder.target import LeanTarget
from engine.training.distill import Distiller
from engine.training.seeds import Seed
from engine.training.shards import Text
from tests.engine.training.test_lanes import alone
from tests.real import GEMMA, PROMPTS, Q05, SMOL, session

pytestmark = pytest.mark.real


@pytest.mark.parametrize("name", [pytest.param(SMOL, marks=pytest.mark.quick), Q05, GEMMA])
def test_replies_side_by_side(name: str) -> None:
    made = session(name)
    target = made.target
    assert isinstance(target, LeanTarget)
    if not target.exact:
        pytest.skip("this CPU has no row-invariant kernels for the scheme")
    found: list[Text] = []
    asked = (Seed(n, prompt, None, 0.0, 20 + 4 * n) for n, prompt in enumerate(PROMPTS))
    distiller = Distiller(target, made.tokenizer, 6)
    assert distiller.run(asked, lambda: True, found.append, lambda: False)
    assert len(found) == len(PROMPTS)
    for text in found:
        logits, hidden = alone(target, text.ids[:-1].tolist(), text.start - 1)
        assert torch.equal(text.hidden[text.start - 1 :], hidden)
        assert text.ids[text.start :].tolist() == logits.argmax(-1).tolist()
