"""From stored heads to running ones: number formats, what is shared with the target, own trees, refusals."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest
import torch

from engine.decoder import linear
from engine.drafters.heads import build, layout
from engine.drafters.heads.base import same
from engine.drafters.heads.fixed import EAGLE_1, MC_SIM_7B_63
from engine.drafters.heads.grow import checked
from engine.drafters.heads.specs import Family
from engine.errors import EngineError
from engine.speculation.draft import Needs
from engine.speculation.sampling import Filters
from tests.engine.decoder.test_attention import packed_target
from tests.engine.drafters.heads import writing
from tests.engine.drafters.heads.worlds import FAMILIES, make_heads, make_spec, make_target, reply

WIDE = {"heads": 3, "kv_heads": 1, "head_dim": 64, "intermediate": 320}  # shapes that every format can take
TWO_LAYERS: tuple[Family, ...] = tuple(f for f in FAMILIES if f != "eagle3")
needs_int8 = pytest.mark.skipif(not linear.own_kernels(), reason="this processor lacks the kernel")


@needs_int8
@pytest.mark.parametrize("family", TWO_LAYERS)
def test_quantized_heads_are_smaller_and_change_no_bit_of_the_text(family: Family) -> None:
    """On a target whose rows are the same bits in any tree: greedy and sampled texts are equal, not only nearly."""
    target = packed_target("int8", "int8", None, context=300)
    assert target.exact
    rng = random.Random(family)
    sizes = {}
    for quant in ("bf16", "int8", "nf4"):
        drafter = make_heads(family, target, quant=quant, **(WIDE if family not in ("medusa", "hydra") else {}))
        sizes[quant] = drafter.memory()
        branched = 0
        for case, filters in enumerate((Filters(), Filters(temperature=0.7, top_p=0.95))):
            prompt = [rng.randrange(503) for _ in range(40)]
            plain = reply(target, prompt, None, filters, seed=case, max_tokens=20)
            run = reply(target, prompt, drafter, filters, seed=case, max_tokens=20, k=30)
            assert run.ids == plain.ids
            branched += sum(step.nodes > step.drafted for step in run.steps)
        assert branched > 0
    assert sizes["nf4"] < sizes["int8"] < sizes["bf16"]


@needs_int8
@pytest.mark.parametrize("needs", [Needs(final=True), Needs(taps=(1,)), Needs(taps=(0, 1), final=True)], ids=str)
def test_exporting_hidden_states_changes_no_bit_of_the_logits(needs: Needs) -> None:
    target = packed_target("nf4", "int8", None, context=300)
    target.prefill(list(range(100)))
    tokens, parents = torch.tensor([7, 8, 9, 10, 11]), (0, 0, 1, 1)
    plain = target.verify(tokens, parents)
    assert target.taps is None
    target.needs = needs
    assert torch.equal(target.verify(tokens, parents), plain)
    taps = target.taps
    assert taps is not None
    assert taps.shape == (5, 192 * (len(needs.taps) + needs.final))
    if 0 in needs.taps:
        assert torch.equal(taps[:, :192], target.model.embed(tokens))
    if needs.final:
        assert torch.allclose(target.model.head(taps[:, -192:]), plain, atol=0.1)


@needs_int8
def test_a_target_in_bf16_and_heads_stored_in_fp16() -> None:
    """The reference hard-codes fp16; here everything takes the target's type."""
    target = packed_target("int8", "int8", None, context=300)
    spec = make_spec("gumiho", target, **WIDE)
    made = torch.Generator().manual_seed(1)
    tensors = {name: (torch.randn(shape, generator=made) * 0.1).half() for name, shape in layout.expected(spec).items()}
    drafter, scheme = build.build("gumiho", spec, tensors, target, "int8")
    assert scheme == "int8"
    assert reply(target, [1, 2, 3], drafter, k=20).ids == reply(target, [1, 2, 3], None).ids


@pytest.mark.parametrize("family", ["eagle2", "gumiho", "hydra", "hydra++"])
def test_what_is_the_targets_is_used_there(family: Family) -> None:
    """No copy of the LM head or the embedding; an own embedding that holds the target's numbers is dropped."""
    target = make_target(3, 40, family)
    spec = make_spec(family, target)
    made = torch.Generator().manual_seed(1)
    tensors = {name: torch.randn(shape, generator=made) for name, shape in layout.expected(spec).items()}
    own, _ = build.build(family, spec, dict(tensors), target, "fp32")
    shared: Any = own.head._shared  # type: ignore[attr-defined]
    assert shared._model is target.model
    if not spec.own_embedding:
        return
    tensors["embed_tokens.weight"] = target.model.weights.embed.clone()
    dropped, _ = build.build(family, spec, tensors, target, "fp32")
    assert dropped.memory() == own.memory() - target.model.weights.embed.nbytes
    assert dropped.head._shared._own is None  # type: ignore[attr-defined]


def test_two_tables_are_compared_block_by_block() -> None:
    table = torch.randn(100, 8)
    assert same(table.half(), table.half().float(), rows=7)
    assert not same(table, table[:99], rows=7)
    assert not same(table, torch.cat((table[:99], table[:1])), rows=7)


def test_a_repeated_block_is_packed_once() -> None:
    target = make_target(3, 40, "hydra++")
    spec = make_spec("hydra++", target)
    made = torch.Generator().manual_seed(1)
    tensors = {name: torch.randn(shape, generator=made) for name, shape in layout.expected(spec).items()}
    apart, _ = build.build("x", spec, dict(tensors), target, "fp32")
    for k in range(spec.n_heads):
        for j in (5, 7):
            tensors[f"hydra_mlp.{k}.{j}.linear.weight"] = tensors[f"hydra_mlp.{k}.3.linear.weight"]
            tensors[f"hydra_mlp.{k}.{j}.linear.bias"] = tensors[f"hydra_mlp.{k}.3.linear.bias"]
    once, _ = build.build("x", spec, tensors, target, "fp32")
    assert apart.memory() - once.memory() == 2 * spec.n_heads * 4 * spec.hidden**2


def test_loading_can_be_watched_and_stopped() -> None:
    target = make_target(3, 40)
    spec = make_spec("eagle2", target)
    tensors = {name: torch.randn(shape) for name, shape in layout.expected(spec).items()}
    seen: list[tuple[int, int]] = []
    build.build("x", spec, tensors, target, "fp32", progress=lambda stage, done, total: seen.append((done, total)))
    assert seen == sorted(seen)
    assert 0 < seen[-1][0] <= seen[-1][1]
    with pytest.raises(EngineError) as stopped:
        build.build("x", spec, tensors, target, "fp32", cancelled=lambda: True)
    assert stopped.value.kind == "cancelled"


# --- trees of one's own ---------------------------------------------------------------------------------------------


def test_the_published_trees_are_trees() -> None:
    assert checked(MC_SIM_7B_63, 4) == MC_SIM_7B_63
    assert checked(EAGLE_1, 5) == EAGLE_1
    assert (len(MC_SIM_7B_63), len(EAGLE_1)) == (63, 25)


@pytest.mark.parametrize(
    ("paths", "says"),
    [
        ([], "0 nodes"),
        ([[i] for i in range(65)], "65 nodes"),
        ([[0], [0, 1, 0]], "before its parent, or without it"),
        ([[0, 0], [0]], "before its parent, or without it"),
        ([[0], [0]], "stands in it twice"),
        ([[0], [-1]], "no"),
        ([[0], ["1"]], "is not a path of ranks"),
        ([[0], []], "is not a path of ranks"),
        ([[0], [0, 0], [0, 0, 0]], "deeper than the 2 tokens"),
    ],
)
def test_a_tree_that_cannot_be_used_is_a_sentence(paths: list[Any], says: str) -> None:
    with pytest.raises(EngineError) as refused:
        checked(paths, 2)
    assert says in refused.value.message
    assert refused.value.kind == "config"


def folder_of_medusa(at: Path) -> Path:
    return writing.write(at, writing.medusa(), writing.MEDUSA, "medusa_lm_head.pt")


def tiny_lean() -> Any:
    """A target of the sizes that `writing` has."""
    target = make_target(3, writing.V)
    target.model.config = type(target.model.config)(**{**_fields(target.model.config), "hidden_size": writing.H})
    return target


def _fields(config: Any) -> dict[str, Any]:
    return {name: getattr(config, name) for name in config.__slots__}


def test_a_tree_json_in_the_folder_takes_the_place_of_the_published_tree(tmp_path: Path) -> None:
    target = tiny_lean()
    folder = folder_of_medusa(tmp_path / "heads")
    drafter, _, notes = build.open_heads("heads", folder, "auto", target, "fp32")
    assert drafter.needs.max_nodes == 63
    assert any("5" in note for note in notes)  # the config says 2 heads, the file holds 5
    (folder / "tree.json").write_text(json.dumps([[0], [1], [0, 0], [0, 0, 0, 0, 0]][:3]))
    drafter, _, _ = build.open_heads("heads", folder, "medusa", target, "fp32")
    assert drafter.needs.max_nodes == 3
    for wrong in ("{", '{"a": 1}', "[1]"):
        (folder / "tree.json").write_text(wrong)
        with pytest.raises(EngineError) as refused:
            build.open_heads("heads", folder, "auto", target, "fp32")
        assert "no list of paths" in refused.value.message


def test_a_growing_tree_ignores_it_and_says_so(tmp_path: Path) -> None:
    target = tiny_lean()
    folder = writing.write(tmp_path / "heads", writing.eagle(), writing.LLAMA)
    (folder / "tree.json").write_text("[[0]]")
    _, _, notes = build.open_heads("heads", folder, "auto", target, "fp32")
    assert "not used" in notes[-1]
    drafter, _, notes = build.open_heads("heads", folder, "eagle1", target, "fp32")
    assert (drafter.method, drafter.needs.max_nodes, notes) == ("eagle1", 1, ())


def test_the_corrected_switch_is_part_of_the_method(tmp_path: Path) -> None:
    target = tiny_lean()
    folder = writing.write(tmp_path / "heads", writing.gumiho(), writing.LLAMA | {"num_hidden_layers": 2})
    for method, corrected in (("auto", False), ("gumiho", False), ("gumiho-corrected", True)):
        drafter, _, _ = build.open_heads("heads", folder, method, target, "fp32")
        assert drafter.head._corrected is corrected  # type: ignore[attr-defined]
        assert drafter.method == "gumiho"


def test_a_model_that_runs_through_transformers_shows_no_hidden_states(tmp_path: Path) -> None:
    with pytest.raises(EngineError) as refused:
        build.open_heads("heads", folder_of_medusa(tmp_path), "auto", None, "fp32")
    assert "runs through transformers" in refused.value.message
    assert refused.value.kind == "architecture"
