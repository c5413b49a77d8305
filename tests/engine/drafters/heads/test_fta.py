"""Gumiho's Full Tree Attention is not built: where the reference's text differs from plain greedy with it, ours does not."""

from __future__ import annotations

import pytest
import torch
from safetensors.torch import load_file

from engine.drafters.heads import build
from tests.engine.drafters.heads.cases import FOLDER, has, open_base, open_head, params
from tests.engine.drafters.heads.worlds import reply

CASE, FILE = "gumiho_fta_divergence", "outputs"


@pytest.mark.skipif(not has(CASE, FILE), reason="the folder of fixtures has no recording of Full Tree Attention")
@pytest.mark.parametrize("corrected", [False, True])
def test_our_text_is_plain_greedy_where_full_tree_attention_is_not(corrected: bool) -> None:
    data, p = load_file(FOLDER / CASE / f"{FILE}.safetensors"), params(CASE, FILE)
    target = open_base(CASE)
    spec, tensors = open_head(
        CASE, target, depth=p["depth"], top_k=p["top_k"], total=p["total"], mlp_top_k=p["mlptopk"], pruning=p["pruning"]
    )
    drafter, _ = build.build(CASE, spec, tensors, target, "fp32", corrected)
    prompt, greedy = data["prompt"].reshape(-1).tolist(), data["greedy_ids"].tolist()
    assert data["fta_ids"].tolist() != greedy
    run = reply(target, prompt, drafter, max_tokens=len(greedy) - len(prompt), k=p["total"] - 1)
    assert prompt + run.ids == greedy
    assert sum(step.accepted for step in run.steps) > len(run.steps) / 2  # it was drafted and kept, not only decoded


@pytest.mark.skipif(not has("gumiho", "small_tree_fta"), reason="the folder of fixtures has no recording of Full Tree Attention")
def test_the_recordings_with_full_tree_attention_begin_as_ours() -> None:
    """Before the filled-in cells are accepted the two are the same."""
    with_fta, without = (load_file(FOLDER / "gumiho" / f"{name}.safetensors") for name in ("small_tree_fta", "small_tree"))
    for name in ("prompt", "prefill.hidden", "r0.draft_tokens"):
        assert torch.equal(with_fta[name], without[name])
