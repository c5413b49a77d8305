"""Every published layout is read, exactly as it lies on disk; what is of no use is left behind; traps of real files."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from engine.drafters.heads.load import load_head
from tests.engine.drafters.heads import writing
from tests.engine.drafters.heads.writing import HYDRA, LLAMA, MEDUSA, TARGET, H, Tensors, V

UNUSED = {
    "t2d",
    "input_embed_fn.weight",
    "prefix_embeding_layer.embed_tokens.weight",
    "prefix_embeding_layer.layers.0.self_attn.rotary_emb.inv_freq",
}
CASES = {
    "eagle2": (writing.eagle, LLAMA, "pytorch_model.bin"),
    "eagle2 in safetensors": (writing.eagle, LLAMA, "model.safetensors"),
    "eagle3": (writing.eagle3, LLAMA, "pytorch_model.bin"),
    "eagle3 in safetensors": (writing.eagle3, LLAMA, "model.safetensors"),
    "gumiho": (writing.gumiho, LLAMA, "pytorch_model.bin"),
    "hydra": (writing.hydra, HYDRA | {"hydra_num_layers": 1, "hydra_head_arch": "mlp"}, "hydra_lm_head.pt"),
    "hydra++": (writing.hydra_plus, HYDRA | {"hydra_head_arch": "prefix-mlp"}, "hydra_lm_head.pt"),
    "medusa": (writing.medusa, MEDUSA, "medusa_lm_head.pt"),
    "medusa without LM heads": (lambda: writing.medusa(own=False), MEDUSA | {"version": "2"}, "medusa_lm_head.safetensors"),
}


def same(found: Tensors, wanted: Tensors) -> None:
    assert found.keys() == wanted.keys()
    for name, tensor in wanted.items():
        assert found[name].dtype == tensor.dtype
        assert torch.equal(found[name], tensor), name


@pytest.mark.parametrize("case", CASES)
def test_every_layout(case: str, tmp_path: Path) -> None:
    make, config, file = CASES[case]
    tensors = make()
    spec, found = load_head(writing.write(tmp_path / "h", tensors, config, file), TARGET)
    assert spec.family == case.split()[0]
    same(found, {name: tensor for name, tensor in tensors.items() if name not in UNUSED})


@pytest.mark.parametrize("case", ["eagle2", "gumiho", "hydra++", "medusa", "eagle3"])
@pytest.mark.parametrize("prefix", ["module.", "_orig_mod.module.", "draft_model."])
def test_prefixes_of_trainers(case: str, prefix: str, tmp_path: Path) -> None:
    make, config, file = CASES[case]
    tensors = make()
    _, found = load_head(writing.write(tmp_path / "h", {prefix + name: t for name, t in tensors.items()}, config, file), TARGET)
    same(found, {name: tensor for name, tensor in tensors.items() if name not in UNUSED})


@pytest.mark.parametrize("wrap", [lambda t: {"state_dict": t, "epoch": 3}, lambda t: {"model": {"module": t}}, lambda t: t | {"step": 7}])
def test_dictionaries_around_the_tensors(wrap: Callable[[Tensors], object], tmp_path: Path) -> None:
    tensors = writing.medusa()
    _, found = load_head(writing.write(tmp_path / "h", wrap(tensors), MEDUSA, "medusa_lm_head.pt"), TARGET)
    same(found, tensors)


def test_the_format_before_2020(tmp_path: Path) -> None:
    tensors = writing.hydra_plus()
    folder = writing.write(tmp_path / "h", {}, HYDRA, "hydra_lm_head.pt")
    torch.save(tensors, folder / "hydra_lm_head.pt", _use_new_zipfile_serialization=False)
    _, found = load_head(folder, TARGET)
    same(found, {name: tensor for name, tensor in tensors.items() if name not in UNUSED})


def test_gumiho_under_both_names_of_its_heads(tmp_path: Path) -> None:
    """The reference keeps `mlp.mlp.` in memory and stores `mlp.`."""
    _, short = load_head(writing.write(tmp_path / "a", writing.gumiho(), LLAMA), TARGET)
    _, long = load_head(writing.write(tmp_path / "b", writing.gumiho(prefix="mlp.mlp."), LLAMA), TARGET)
    same(short, long)
    assert "layers.0.mlp.up_proj.weight" in short


def test_eagle3_under_both_names_of_its_layer(tmp_path: Path) -> None:
    _, one = load_head(writing.write(tmp_path / "a", writing.eagle3(), LLAMA), TARGET)
    _, other = load_head(writing.write(tmp_path / "b", writing.eagle3(at="layers.0"), LLAMA), TARGET)
    same(one, other)


def test_offsets_of_a_small_vocabulary_stay_integers(tmp_path: Path) -> None:
    tensors = writing.eagle3()
    _, found = load_head(writing.write(tmp_path / "h", tensors, LLAMA), TARGET)
    assert found["d2t"].dtype == torch.int64
    ids = torch.arange(24) + found["d2t"]
    assert ids.tolist() == tensors["t2d"].nonzero().flatten().tolist()
    assert len(set(found["d2t"].tolist())) > 5  # an identity map would hide a mistake


def test_names_of_one_block_share_one_tensor(tmp_path: Path) -> None:
    """So that it is packed once."""
    _, found = load_head(writing.write(tmp_path / "h", writing.hydra_plus(), HYDRA, "hydra_lm_head.pt"), TARGET)
    assert found["hydra_mlp.0.3.linear.weight"] is found["hydra_mlp.0.5.linear.weight"] is found["hydra_mlp.0.7.linear.weight"]
    assert found["hydra_mlp.0.3.linear.weight"] is not found["hydra_mlp.1.3.linear.weight"]
    assert len({id(t) for t in found.values()}) == len(writing.hydra_plus(once=True)) - 3  # three are of no use


@pytest.mark.parametrize("family", ["hydra++", "hydra", "medusa"])
def test_a_repeated_block_that_was_stored_once(family: str, tmp_path: Path) -> None:
    """Exporters to safetensors drop the second name of a tensor."""
    file = "model.safetensors"
    if family == "hydra++":
        folder = writing.write(tmp_path / "h", writing.hydra_plus(once=True), HYDRA, file)
        names = [f"hydra_mlp.{k}.{j}.linear.weight" for k in range(3) for j in (3, 5, 7)]
    elif family == "hydra":
        folder = writing.write(tmp_path / "h", writing.hydra(layers=2), HYDRA, file)
        names = [f"hydra_mlp.{k}.{j}.linear.weight" for k in range(3) for j in (1, 2, 3)]
    else:
        tensors = {name: t for name, t in writing.medusa(layers=3).items() if name.split(".")[1] not in ("1", "2") or "linear" not in name}
        folder = writing.write(tmp_path / "h", tensors, MEDUSA | {"medusa_num_layers": 3}, file)
        names = [f"{k}.{j}.linear.weight" for k in range(5) for j in (0, 1, 2)]
    spec, found = load_head(folder, TARGET)
    assert spec.head_layers == {"hydra++": 4, "hydra": 4, "medusa": 3}[family]
    for i in range(0, len(names), 3):
        assert found[names[i]] is found[names[i + 1]] is found[names[i + 2]]


def test_weights_are_mapped_and_cost_no_memory(tmp_path: Path) -> None:
    big = {"embed_tokens.weight": torch.zeros(V, H, dtype=torch.float16), **writing.eagle()}
    big["layers.0.mlp.gate_proj.weight"] = big["layers.0.mlp.up_proj.weight"] = torch.zeros(300_000, H, dtype=torch.float16)
    big["layers.0.mlp.down_proj.weight"] = torch.zeros(H, 300_000, dtype=torch.float16)
    for file in ("pytorch_model.bin", "model.safetensors"):
        folder = writing.write(tmp_path / file, big, LLAMA, file)
        before = anonymous()
        _, found = load_head(folder, TARGET)
        assert anonymous() - before < 5_000_000 < found["layers.0.mlp.up_proj.weight"].nbytes


def anonymous() -> int:
    """Bytes of this process that are no mapped file."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("RssAnon"))
