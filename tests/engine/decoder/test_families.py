"""The lean decoder against transformers, family by family, on tiny random models in float32."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from engine.decoder.load import load_weights
from engine.decoder.target import LeanTarget
from tests.oracle import CASES, VOCAB, saved

LENGTH = 41  # longer than the windows, and than one stretch of a chunk below


def _logits(model: Any, ids: list[int]) -> torch.Tensor:
    with torch.inference_mode():
        return model(torch.tensor([ids]), use_cache=False).logits[0].float()


@pytest.mark.parametrize("case", CASES)
def test_logits_and_greedy_text(case: str, tmp_path: Path) -> None:
    model, folder = saved(case, tmp_path)
    target = LeanTarget(load_weights(folder, quant="fp32", use_cache=False), context=96)
    ids = torch.randint(3, VOCAB, (LENGTH,), generator=torch.Generator().manual_seed(1)).tolist()
    reference = _logits(model, ids)
    assert reference.std() > 0.1  # the model says something

    # the prompt in two chunks, then a tree behind it: a chain of the true text, and a wrong branch off the root
    target.prefill(ids[:17])
    target.prefill(ids[17:30])
    wrong = (ids[31] + 1) % VOCAB
    logits = target.verify(torch.tensor([ids[30], wrong, ids[31], ids[32], ids[33]]), (0, 0, 2, 3))
    assert (logits[[0, 2, 3, 4]] - reference[30:34]).abs().max() < 1e-4
    branch = _logits(model, [*ids[:31], wrong])[31]
    assert (logits[1] - branch).abs().max() < 1e-4

    # the kept path moves down, the next rows see it
    target.keep((0, 2, 3))
    assert target.length == 33
    logits = target.verify(torch.tensor(ids[33:36]), (0, 1))
    assert (logits - reference[33:36]).abs().max() < 1e-4

    # going back and on again
    target.truncate(20)
    target.prefill(ids[20:40])
    assert (target.verify(torch.tensor(ids[40:41]), ())[0] - reference[40]).abs().max() < 1e-4

    target.truncate(0)
    target.prefill(ids[:-1])
    text, root = [], ids[-1]
    for _ in range(24):
        root = int(target.verify(torch.tensor([root]), ()).argmax())
        target.keep((0,))
        text.append(root)
    with torch.inference_mode():
        out = model.generate(torch.tensor([ids]), do_sample=False, min_new_tokens=24, max_new_tokens=24, eos_token_id=None, pad_token_id=0)
    assert text == out[0, LENGTH:].tolist()
    assert len(set(text)) > 2
