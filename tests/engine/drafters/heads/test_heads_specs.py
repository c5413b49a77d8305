"""What heads are, from their tensors and config: where the two disagree the tensors decide, and keys that are absent have meanings."""

from __future__ import annotations

import math
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from engine.catalog.catalog import builtin
from engine.drafters.heads import layout
from engine.drafters.heads.describe import describe
from engine.drafters.heads.headers import read
from engine.drafters.heads.specs import GUMIHO, TREES, HeadSpec, TargetFacts
from engine.drafters.heads.suits import facts, facts_on_disk
from tests.engine.catalog.fakes import gguf_bytes
from tests.engine.drafters.heads import writing
from tests.engine.drafters.heads.writing import HYDRA, KV, LLAMA, MEDUSA, NH, TARGET, D, H, I, Tensors, V

FIXTURES = Path(os.environ.get("SPECCHAT_HEAD_FIXTURES", Path(__file__).parents[3] / "fixtures" / "heads"))


def spec_of(tensors: Tensors, config: dict[str, Any] | None, target: TargetFacts = TARGET, method: str = "auto") -> HeadSpec:
    return describe(config, {name: tuple(tensor.shape) for name, tensor in tensors.items()}, target, method, "tiny-heads")[0]


def without(config: dict[str, Any], *keys: str) -> dict[str, Any]:
    return {key: value for key, value in config.items() if key not in keys}


def test_sizes_of_a_layer_come_from_its_tensors() -> None:
    spec = spec_of(writing.eagle(), LLAMA | {"num_key_value_heads": 3, "intermediate_size": 7, "vocab_size": 9})
    assert (spec.hidden, spec.vocab, spec.layers, spec.intermediate) == (H, V, 1, I)
    assert (spec.heads, spec.kv_heads, spec.head_dim) == (NH, KV, D)
    assert spec_of(writing.eagle(), without(LLAMA, "num_key_value_heads")).kv_heads == KV  # absent does not mean ungrouped


def test_biases_are_there_when_the_tensors_are() -> None:
    """`bias` in a config is absent, false and ignored, in different files."""
    assert spec_of(writing.eagle(bias=True), LLAMA | {"bias": False}).fc_bias
    assert not spec_of(writing.eagle(bias=False), LLAMA | {"bias": True}).fc_bias
    assert spec_of(writing.gumiho(bias=True), LLAMA | {"bias": False}).fc_bias
    assert spec_of(writing.eagle(qkv_bias=True), LLAMA).qkv_bias
    assert not spec_of(writing.eagle(), LLAMA | {"qkv_bias": True}).qkv_bias


def test_the_rotary_base_is_the_heads_own() -> None:
    assert TARGET.rope_theta == 5e5
    for tensors in (writing.eagle(), writing.eagle3(), writing.gumiho()):
        assert spec_of(tensors, LLAMA).rope_theta == 10000
        assert spec_of(tensors, LLAMA | {"rope_theta": 500000.0}).rope_theta == 500000
        assert spec_of(tensors, LLAMA | {"rope_parameters": {"rope_theta": 3e4, "rope_type": "default"}}).rope_theta == 30000


def test_rotary_scaling() -> None:
    assert spec_of(writing.eagle(), LLAMA | {"rope_scaling": None}).rope_scaling is None
    found = spec_of(writing.eagle(), LLAMA | {"rope_scaling": {"type": "linear", "factor": 2.0}}).rope_scaling
    assert found is not None
    assert (found["rope_type"], found["factor"]) == ("linear", 2.0)


def test_position_limits_under_two_names() -> None:
    assert spec_of(writing.eagle(), LLAMA).max_positions == 256
    assert spec_of(writing.eagle(), without(LLAMA, "max_position_embeddings") | {"max_sequence_length": 77}).max_positions == 77
    assert spec_of(writing.eagle(), without(LLAMA, "max_position_embeddings")).max_positions == 2048


def test_eagle1_is_eagle2_by_request() -> None:
    assert spec_of(writing.eagle(), LLAMA).family == "eagle2"
    assert spec_of(writing.eagle(), LLAMA, method="eagle2").total == 60
    one = spec_of(writing.eagle(), LLAMA, method="eagle1")
    assert (one.family, one.total, one.depth) == ("eagle1", 26, 5)


def test_medusa_heads_are_counted() -> None:
    spec = spec_of(writing.medusa(), MEDUSA)  # which says 2, as the published configs do
    assert (spec.n_heads, spec.head_layers, spec.own_lm_head, spec.draft_vocab) == (5, 1, True, V)
    assert "2 heads" in spec.notes[0]
    assert "holds 5" in spec.notes[0]
    assert spec_of(writing.medusa(), MEDUSA | {"medusa_num_heads": 5}).notes == ()
    assert spec_of(writing.medusa(layers=2), MEDUSA).head_layers == 2
    assert spec_of(writing.medusa(heads=12), MEDUSA).n_heads == 12  # two digits


def test_medusa_without_lm_heads_uses_the_targets() -> None:
    spec = spec_of(writing.medusa(own=False), MEDUSA)
    assert not spec.own_lm_head
    assert spec.vocab == TARGET.vocab


def test_hydra() -> None:
    spec = spec_of(writing.hydra(), HYDRA | {"hydra_head_arch": "mlp", "hydra_num_layers": 1})
    assert (spec.family, spec.n_heads, spec.head_layers, spec.grounded, spec.own_lm_head) == ("hydra", 3, 1, True, True)
    spec = spec_of(writing.hydra(grounded=False), HYDRA | {"hydra_num_layers": 1})
    assert not spec.grounded  # although the config says so
    assert spec_of(writing.hydra(layers=3), HYDRA | {"hydra_num_layers": 1}).head_layers == 3
    assert spec_of(writing.hydra(), HYDRA | {"hydra_num_layers": 1, "hidden_state_offset": 2}).hidden_offset == 2


def test_the_prefix_layer_is_one_of_the_targets() -> None:
    """Hydra++ has no settings of its own: eps, heads and rotary come from the target."""
    spec = spec_of(writing.hydra_plus(), HYDRA | {"hydra_head_arch": "prefix-mlp"})
    assert (spec.family, spec.n_heads, spec.head_layers, spec.layers) == ("hydra++", 3, 4, 1)
    assert (spec.heads, spec.kv_heads, spec.head_dim, spec.intermediate) == (NH, KV, D, I)
    assert (spec.rms_eps, spec.rope_theta, spec.max_positions) == (TARGET.rms_eps, TARGET.rope_theta, TARGET.max_positions)
    scaled = replace(TARGET, rope_scaling={"rope_type": "llama3", "factor": 8.0})
    assert spec_of(writing.hydra_plus(), HYDRA, scaled).rope_scaling == scaled.rope_scaling


def test_gumiho() -> None:
    spec = spec_of(writing.gumiho(), LLAMA | {"num_hidden_layers": 9})
    assert (spec.family, spec.layers, spec.n_heads, spec.head_layers, spec.own_embedding) == ("gumiho", 2, 5, 6, True)
    assert (spec.total, spec.depth, spec.top_k, spec.mlp_top_k, spec.pruning, spec.serial) == (64, 6, 14, 35, 35, 2)
    assert spec_of(writing.gumiho(heads=3), LLAMA).depth == 4  # one more than the parallel heads


@pytest.mark.parametrize("config", [None, {}, {"num_attention_heads": 1}])
@pytest.mark.parametrize("row", GUMIHO)
def test_gumiho_settings_are_built_in(row: Any, config: dict[str, Any] | None) -> None:
    """Published heads may lack a usable config: the sizes say which they are."""
    name = {"vicuna": "vicuna-7b-v1.3", "13b": "llama-2-13b"}.get(row.name, f"{row.name}-xb")
    head_dim, groups = row.hidden // row.heads, 8 if row.intermediate in (28672, 14336) else row.heads
    spec = HeadSpec(
        "gumiho", row.hidden, row.vocab, row.vocab, row.hidden, layers=2, intermediate=row.intermediate, heads=row.heads, kv_heads=groups,
        head_dim=head_dim, n_heads=5, head_layers=6, own_embedding=True, fc_bias=True,
    )  # fmt: skip
    target = TargetFacts(name, row.hidden, row.vocab, 32)
    found, _ = describe(config, layout.expected(spec), target, "auto", "gumiho")
    assert (found.heads, found.kv_heads, found.head_dim) == (row.heads, groups, head_dim)
    assert (found.rms_eps, found.max_positions, found.rope_theta) == (row.rms_eps, row.max_positions, row.rope_theta)


def test_a_complete_config_goes_before_the_table() -> None:
    row = GUMIHO[0]
    sizes = {"intermediate": row.intermediate, "heads": 64, "kv_heads": 64, "head_dim": 64}
    spec = HeadSpec("gumiho", row.hidden, row.vocab, row.vocab, row.hidden, layers=2, n_heads=5, head_layers=6, own_embedding=True, **sizes)
    config = {"num_attention_heads": 64, "rms_norm_eps": 1e-3}
    found, _ = describe(config, layout.expected(spec), TargetFacts("vicuna", row.hidden, row.vocab, 32), "auto", "gumiho")
    assert (found.heads, found.rms_eps, found.max_positions) == (64, 1e-3, 2048)


def test_eagle3() -> None:
    spec = spec_of(writing.eagle3(), LLAMA | {"draft_vocab_size": 24})
    assert (spec.family, spec.vocab, spec.draft_vocab, spec.own_lm_head, spec.own_embedding) == ("eagle3", V, 24, True, False)
    assert spec.tap_layers == (2, 4, 5)  # of eight layers
    assert spec_of(writing.eagle3(), LLAMA, replace(TARGET, layers=32)).tap_layers == (2, 16, 29)
    whole = spec_of(writing.eagle3(draft=V), LLAMA)
    assert whole.draft_vocab == whole.vocab == V  # no table of offsets is needed


def test_eagle3_for_a_wider_target() -> None:
    tensors = writing.eagle3(embedding=True, target_hidden=2 * H)
    spec = spec_of(tensors, LLAMA | {"target_hidden_size": 2 * H}, replace(TARGET, hidden=2 * H))
    assert (spec.hidden, spec.target_hidden, spec.own_embedding) == (H, 2 * H, True)


@pytest.mark.parametrize(
    ("ids", "taps", "noted"),
    [
        ([2, 4, 5], (2, 4, 5), False),  # the usual ones, as inputs
        ([1, 3, 4], (2, 4, 5), False),  # the usual ones, counted as outputs
        ([3, 4, 6], (3, 4, 6), True),
        (None, (2, 4, 5), False),
    ],
)
@pytest.mark.parametrize("nested", [True, False])
def test_explicit_taps(ids: list[int] | None, taps: tuple[int, ...], noted: bool, nested: bool) -> None:
    key = {"eagle_aux_hidden_state_layer_ids": ids}
    spec = spec_of(writing.eagle3(), LLAMA | ({"eagle_config": key} if nested else key))
    assert spec.tap_layers == taps
    assert bool(spec.notes) == noted


def test_eagle3_as_the_speculators_library_writes_it() -> None:
    config = {
        "architectures": ["Eagle3Speculator"], "speculators_model_type": "eagle3", "draft_vocab_size": 24, "norm_before_residual": True,
        "target_hidden_size": None, "transformer_layer_config": LLAMA | {"head_dim": D, "rope_theta": 10000.0},
        "speculators_config": {"algorithm": "eagle3", "verifier": {"name_or_path": "org/base", "architectures": []}},
    }  # fmt: skip
    spec = spec_of(writing.eagle3(at="layers.0", embedding=True), config)
    assert (spec.family, spec.norm_before_residual, spec.own_embedding, spec.heads) == ("eagle3", True, True, NH)
    assert not spec_of(writing.eagle3(), LLAMA).norm_before_residual


def test_trees_are_the_published_ones() -> None:
    assert TREES["eagle2"] == {"total": 60, "depth": 5, "top_k": 10}
    assert TREES["eagle3"] == {"total": 60, "depth": 7, "top_k": 10}
    for family in ("medusa", "hydra", "hydra++"):
        assert TREES[family]["total"] == 64


def test_published_sizes() -> None:
    """The sizes in models.toml are those of the tensor lists here, in 16 bits: the two agree with the sizes on the hub where known."""
    known = builtin()
    shape = {"intermediate": 11008, "heads": 32, "kv_heads": 32, "head_dim": 128}
    both = {"own_embedding": True, "fc_bias": True, **shape}
    vocab, hidden = 32000, 4096
    specs = {
        "gumiho-vicuna-7b": HeadSpec("gumiho", hidden, vocab, vocab, hidden, layers=2, n_heads=5, head_layers=6, **both),
        "medusa-vicuna-7b": HeadSpec("medusa", hidden, vocab, vocab, hidden, n_heads=5, head_layers=1, own_lm_head=True),
        "eagle-vicuna-7b": HeadSpec("eagle2", hidden, vocab, vocab, hidden, layers=1, **both),
        # the repeated block once, and two embeddings that are never used
        "hydra-vicuna-7b": HeadSpec("hydra++", hidden, vocab, vocab, hidden, layers=1, n_heads=4, head_layers=2, own_lm_head=True, **shape),
    }
    for name, spec in specs.items():
        values = sum(math.prod(size) for size in layout.expected(spec).values())
        values += 2 * vocab * hidden if spec.family == "hydra++" else 0
        assert known.drafter(name).size == pytest.approx(2 * values, rel=0.01), name


# --- targets


def test_facts_of_a_target(tmp_path: Path) -> None:
    found = facts(LLAMA | {"rope_scaling": {"rope_type": "llama3", "factor": 8.0}, "rope_theta": 5e5, "vocab_size": V}, "t")
    assert (found.hidden, found.vocab, found.layers, found.heads, found.head_dim) == (H, V, 1, NH, D)
    assert found.rope_theta == 5e5
    assert found.rope_scaling == {"rope_type": "llama3", "factor": 8.0}
    metadata = {
        "general.architecture": "llama", "llama.block_count": 8, "llama.embedding_length": H, "llama.attention.head_count": NH,
        "llama.context_length": 512,
    }  # fmt: skip
    (tmp_path / "m.gguf").write_bytes(gguf_bytes(metadata, {"token_embd.weight": (V, H)}))
    found = facts_on_disk(tmp_path / "m.gguf", "m")
    assert (found.hidden, found.vocab, found.layers, found.heads, found.head_dim, found.max_positions) == (H, V, 8, NH, D, 512)


@pytest.mark.parametrize("case", sorted(folder.parent.name for folder in FIXTURES.glob("*/head")))
def test_recorded_heads(case: str) -> None:
    """The heads that the reference implementations ran: their family is found, every tensor is accounted for."""
    found = read(FIXTURES / case / "head")
    target = facts_on_disk(FIXTURES / case / "base", "base")
    spec, names = describe(found.config, found.shapes, target, "auto", case)
    assert spec.family == {"hydrapp": "hydra++", "eagle1": "eagle2", "eagle2_llama3style": "eagle2"}.get(case, case.partition("_fta")[0])
    unused = set(found.shapes) - set(names.values())
    assert unused <= {"t2d", "prefix_embeding_layer.embed_tokens.weight", "input_embed_fn.weight"}
