"""Home-made heads that draft only some of the target's tokens: loaded strictly, and without any effect on the text."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from engine.drafters.heads import layout
from engine.drafters.heads.build import build
from engine.drafters.heads.drafter import HeadsDrafter
from engine.drafters.heads.load import load_head
from engine.drafters.heads.specs import Family
from engine.errors import EngineError
from engine.speculation.sampling import Filters
from tests.engine.drafters.heads import worlds, writing
from tests.engine.drafters.heads.writing import HYDRA, LLAMA, MEDUSA, TARGET, H, V

SHORT = 24
FAMILIES: tuple[Family, ...] = ("medusa", "hydra", "hydra++", "gumiho")


def d2t(vocab: int = V, rows: int = SHORT, seed: int = 0) -> torch.Tensor:
    kept = torch.randperm(vocab, generator=torch.Generator().manual_seed(seed))[:rows].sort().values
    return kept - torch.arange(rows)


def files(family: Family) -> tuple[writing.Tensors, dict[str, Any], str]:
    """Tensors, config and file name of a family with a shortlist."""
    if family == "gumiho":
        tensors, config, name = writing.gumiho(heads=1), LLAMA | {"vocab_size": V}, "model.safetensors"
        del tensors["embed_tokens.weight"]
        tensors["lm_head.weight"] = torch.randn(SHORT, H).half()
    elif family == "medusa":
        tensors, config, name = writing.medusa(heads=3), MEDUSA, "medusa_lm_head.pt"
    else:
        made = writing.hydra_plus() if family == "hydra++" else writing.hydra()
        tensors, config, name = made, HYDRA | ({} if family == "hydra++" else {"hydra_num_layers": 1}), "hydra_lm_head.pt"
    for key in tensors:
        if key.startswith("hydra_lm_head") or (family == "medusa" and key.endswith("1.weight") and key.count(".") == 2):
            tensors[key] = tensors[key][:SHORT]
    tensors["d2t"] = d2t()
    return tensors, config | {"vocab_size": V, "draft_vocab_size": SHORT}, name


@pytest.mark.parametrize("family", FAMILIES)
def test_loading(tmp_path: Path, family: Family) -> None:
    tensors, config, name = files(family)
    spec, found = load_head(writing.write(tmp_path / "heads", tensors, config, name), TARGET)
    assert (spec.family, spec.vocab, spec.draft_vocab, spec.own_lm_head) == (family, V, SHORT, True)
    assert not spec.own_embedding
    assert found["d2t"].dtype == torch.int64
    assert found.keys() == layout.expected(spec).keys() | {"d2t"}


@pytest.mark.parametrize("family", FAMILIES)
def test_the_table_must_be_there_and_right(tmp_path: Path, family: Family) -> None:
    tensors, config, name = files(family)
    wrong = dict(tensors) | {"d2t": tensors["d2t"] + V}
    with pytest.raises(EngineError, match="d2t"):
        load_head(writing.write(tmp_path / "beyond", wrong, config, name), TARGET)
    twice = dict(tensors) | {"d2t": -torch.arange(SHORT)}
    with pytest.raises(EngineError, match="d2t"):
        load_head(writing.write(tmp_path / "twice", twice, config, name), TARGET)
    short = dict(tensors) | {"d2t": tensors["d2t"][:-1].clone()}
    with pytest.raises(EngineError, match="d2t"):
        load_head(writing.write(tmp_path / "short", short, config, name), TARGET)
    del tensors["d2t"]
    with pytest.raises(EngineError):  # then the rows are taken for the target's vocabulary, which is another
        load_head(writing.write(tmp_path / "without", tensors, config, name), TARGET)


def test_a_published_gumiho_needs_its_embedding(tmp_path: Path) -> None:
    tensors, config, name = files("gumiho")
    del tensors["d2t"], tensors["lm_head.weight"]
    with pytest.raises(EngineError, match=r"embed_tokens\.weight is missing"):
        load_head(writing.write(tmp_path / "heads", tensors, config, name), TARGET)


def short_heads(family: Family, target: Any, seed: int) -> HeadsDrafter:
    """Random heads over a part of the vocabulary."""
    vocab = target.vocab_size
    changes: dict[str, Any] = {"draft_vocab": vocab // 2, "own_lm_head": True}
    if family == "gumiho":
        changes["own_embedding"] = False
    spec = worlds.make_spec(family, target, **changes)
    made = torch.Generator().manual_seed(seed)
    tensors = {}
    for name, shape in layout.expected(spec).items():
        wide = shape[-1] ** -0.5 if len(shape) > 1 else 0.2
        tensors[name] = torch.randn(shape, generator=made) * wide * (3.0 if "lm_head" in name else 1.0)
        if "norm" in name:
            tensors[name] = 1.0 + 0.1 * tensors[name]
    tensors["d2t"] = d2t(vocab, vocab // 2, seed)
    return build(family, spec, tensors, target, target.model.weights.scheme)[0]


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("temperature", [0.0, 0.7, 1.0])
def test_the_text_stays_the_targets(family: Family, temperature: float) -> None:
    target = worlds.make_target(3, 32, family, torch.float64)
    kept = 0
    for seed in range(4):
        drafter = short_heads(family, target, seed)
        listed = set((torch.arange(16) + d2t(32, 16, seed)).tolist())
        filters = Filters(temperature, top_p=0.95 if temperature == 0.7 else 1.0, repeat_penalty=1.2 if seed == 3 else 1.0)
        prompt = [(7 * i + seed) % 32 for i in range(9)]
        plain = worlds.reply(target, prompt, None, filters, seed, max_tokens=24, k=0)
        with_heads = worlds.reply(target, prompt, drafter, filters, seed, max_tokens=24, k=6)
        assert with_heads.ids == plain.ids
        kept += sum(step.accepted for step in with_heads.steps)
        assert any(step.nodes for step in with_heads.steps)
        assert drafter.head.names is not None
        assert set(drafter.head.names.tolist()) == listed
    assert kept > 0


@pytest.mark.parametrize("family", ["hydra", "hydra++", "gumiho"])
def test_embeddings_may_be_read_larger(tmp_path: Path, family: Family) -> None:
    tensors, config, name = files(family)
    spec, _ = load_head(writing.write(tmp_path / "heads", tensors, config | {"embedding_gain": 64}, name), TARGET)
    assert spec.embedding_gain == 64.0
    assert load_head(writing.write(tmp_path / "plain", tensors, config, name), TARGET)[0].embedding_gain == 1.0
    for wrong in (0, -1.0, "large", True):
        with pytest.raises(EngineError, match="embedding_gain"):
            load_head(writing.write(tmp_path / "wrong", tensors, config | {"embedding_gain": wrong}, name), TARGET)
