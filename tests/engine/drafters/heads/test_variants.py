"""Forms of heads that the recorded cases lack: other layouts of the same families, other rotary rules, other sizes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from engine.drafters.heads import layers
from engine.drafters.heads.specs import Family
from tests.engine.drafters.heads.worlds import begin, make_heads, make_spec, make_target, reply

VARIANTS: dict[str, tuple[Family, dict[str, Any]]] = {
    "Medusa with the target's LM head": ("medusa", {"own_lm_head": False}),
    "Medusa of two blocks and three heads": ("medusa", {"n_heads": 3, "head_layers": 2}),
    "Hydra whose heads see no drafted token": ("hydra", {"grounded": False}),
    "Hydra of two heads": ("hydra", {"n_heads": 2}),
    "Hydra on an earlier hidden state": ("hydra", {"hidden_offset": 1}),
    "Hydra++ on an earlier hidden state": ("hydra++", {"hidden_offset": 1}),
    "EAGLE with biases on q, k and v": ("eagle2", {"qkv_bias": True}),
    "EAGLE without fc's bias": ("eagle2", {"fc_bias": False}),
    "EAGLE with one key head": ("eagle2", {"kv_heads": 1}),
    "EAGLE with a key head for each head": ("eagle2", {"kv_heads": 4}),
    "EAGLE with stretched positions": ("eagle2", {"rope_scaling": {"rope_type": "linear", "factor": 4.0}}),
    "EAGLE with positions stretched by length": ("eagle2", {"rope_scaling": {"rope_type": "dynamic", "factor": 2.0}}),
    "EAGLE-3 with all tokens": ("eagle3", {"draft_vocab": 60}),
    "EAGLE-3 with fewer tokens than candidates": ("eagle3", {"draft_vocab": 6}),
    "EAGLE-3 with an embedding of its own": ("eagle3", {"own_embedding": True}),
    "EAGLE-3 narrower than its target": ("eagle3", {"own_embedding": True, "hidden": 24, "target_hidden": 16}),
    "EAGLE-3 with the normed residual": ("eagle3", {"norm_before_residual": True}),
    "EAGLE-3 with other taps": ("eagle3", {"tap_layers": (1, 3, 6)}),
    "Gumiho with two parallel heads": ("gumiho", {"n_heads": 2}),
    "Gumiho with more candidates than tokens": ("gumiho", {"top_k": 70, "mlp_top_k": 70}),
}


@pytest.mark.parametrize("variant", VARIANTS)
def test_variant(variant: str) -> None:
    """It drafts, it changes nothing, and it tells positions apart: another text gives another tree."""
    family, changes = VARIANTS[variant]
    target = make_target(3, 60, family)
    drafter = make_heads(family, target, **changes)
    nodes = 0
    for case in range(6):
        prompt = [(7 * case + i) % 60 for i in range(5 + case)]
        plain = reply(target, prompt, None)
        run = reply(target, prompt, drafter, k=(1, 3, 9, 20, 40, 63)[case])
        assert run.ids == plain.ids
        nodes += sum(step.nodes for step in run.steps)
    assert nodes > 20


def test_an_earlier_hidden_state_is_the_input_of_the_layer_behind_it() -> None:
    """`hidden_state_offset` counts from the end of the list of hidden states, whose last one is behind the final norm."""
    target = make_target(3, 60)
    needs = [make_heads("hydra", target, hidden_offset=offset).needs for offset in (0, 1, 2)]
    assert [(n.taps, n.final) for n in needs] == [((), True), ((1,), False), ((0,), False)]
    eagle3 = make_target(3, 60, "eagle3")
    assert make_heads("eagle3", eagle3).needs.taps == (2, 4, 5)


def test_rotary_rules() -> None:
    """10000 is the default base; linear scaling divides the position; positions have no end."""
    spec = make_spec("eagle2", make_target(3, 60))
    cpu, wide = torch.device("cpu"), torch.float32
    plain = layers.Rotary(spec, 256, cpu, wide)
    cos, sin = plain.at(torch.tensor([0, 5, 100_000]))
    assert cos.shape == sin.shape == (3, 1, spec.head_dim)
    assert torch.equal(cos[0], torch.ones(1, spec.head_dim))
    angle = 5 * 10000 ** (-2 / spec.head_dim)  # second frequency
    assert float(cos[1, 0, 1]) == pytest.approx(float(torch.tensor(angle).cos()), abs=1e-6)
    assert float(sin[1, 0, 1]) == pytest.approx(-float(torch.tensor(angle).sin()), abs=1e-6)  # the rotation's minus
    assert torch.isfinite(cos).all()
    scaled = layers.Rotary(replace(spec, rope_scaling={"rope_type": "linear", "factor": 4.0}), 256, cpu, wide)
    assert torch.allclose(scaled.at(torch.tensor([20]))[0], plain.at(torch.tensor([5]))[0], atol=1e-5)
    other = layers.Rotary(replace(spec, rope_theta=5e5), 256, cpu, wide)
    assert not torch.allclose(other.at(torch.tensor([5]))[0], plain.at(torch.tensor([5]))[0], atol=1e-3)


def test_the_tree_depends_on_where_the_text_stands() -> None:
    """Rotary positions go on behind the confirmed pairs."""
    target = make_target(3, 60)
    drafter = make_heads("eagle2", target)
    ids = [1, 2, 3, 4, 5, 6]
    begin(target, ids, drafter)
    drafter._read(5)
    features: Any = drafter.head.features  # type: ignore[attr-defined]
    features.begin()
    first = features.level(1, [0, 0], [7, 8])
    features.begin()
    again = features.level(1, [0], [8])
    assert torch.allclose(first[1], again[0], atol=1e-5)  # siblings do not see one another
    features.begin()
    features.level(1, [0], [7])
    below = features.level(2, [0], [8])
    assert not torch.allclose(below[0], again[0], atol=1e-3)
