"""Safetensors and pickles behind one protocol: names, shards, damage, and no code from pickles."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from engine.decoder.load import load_weights
from engine.decoder.source import canonical, open_source
from engine.errors import EngineError
from tests.oracle import config_of, model_of, saved

WEIGHTS = "model.safetensors"


def _error(path: Path) -> EngineError:
    with pytest.raises(EngineError) as error:
        load_weights(path, quant="fp32", use_cache=False)
    return error.value


def test_tensors_are_mapped_not_copied(tmp_path: Path) -> None:
    model, folder = saved("qwen3", tmp_path)
    source = open_source(folder)
    name = "model.layers.1.mlp.down_proj.weight"
    assert torch.equal(source.read(name), model.state_dict()[name])
    assert torch.equal(source.read_rows(name, 3, 9), model.state_dict()[name][3:9])
    assert source.shape(name) == (64, 96)
    assert source.dtype(name) == torch.float32
    first, second = source.mapped(name), source.mapped(name)
    assert first is not None
    assert second is not None
    assert first.data_ptr() == second.data_ptr()
    assert source.names() == set(model.state_dict())


def test_names_of_multimodal_checkpoints() -> None:
    plain = "model.layers.0.self_attn.q_proj.weight"
    for name in (
        plain,
        f"language_model.{plain}",
        "model.language_model.layers.0.self_attn.q_proj.weight",
        "layers.0.self_attn.q_proj.weight",
    ):
        assert canonical(name) == plain
    assert canonical("language_model.lm_head.weight") == "lm_head.weight"
    for name in ("vision_tower.encoder.weight", "model.vision_tower.x", "multi_modal_projector.y", "model.multi_modal_projector.z"):
        assert canonical(name) is None


def test_the_text_part_of_a_multimodal_gemma(tmp_path: Path) -> None:
    model, folder = saved("gemma3", tmp_path)
    tensors = load_file(folder / WEIGHTS)
    renamed = {f"language_model.{name}": tensor.clone() for name, tensor in tensors.items()} | {"vision_tower.a": torch.ones(2, 2)}
    save_file(renamed, folder / WEIGHTS)
    text = json.loads((folder / "config.json").read_text())
    text.pop("architectures", None)
    (folder / "config.json").write_text(json.dumps({"model_type": "gemma3", "text_config": text, "vision_config": {}}))
    source = open_source(folder)
    assert "model.layers.0.mlp.up_proj.weight" in source.names()
    weights = load_weights(folder, quant="fp32", use_cache=False)
    assert weights.config.family == "gemma3_text"
    assert torch.equal(weights.embed, model.model.embed_tokens.weight)


def test_shards(tmp_path: Path) -> None:
    model = model_of(config_of("llama-biases"))
    model.save_pretrained(tmp_path, max_shard_size="60KB")
    source = open_source(tmp_path)
    assert len(source.files) > 1
    for name, tensor in model.state_dict().items():
        assert torch.equal(source.read(name), tensor)
    source.files[0].unlink()
    error = _error(tmp_path)
    assert error.kind == "missing_weights"
    assert source.files[0].name in error.message


def test_pickles_hold_tensors_only(tmp_path: Path) -> None:
    model, folder = saved("llama-biases", tmp_path)
    state = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    (folder / WEIGHTS).unlink()
    torch.save(state, folder / "pytorch_model.bin")
    weights = load_weights(folder, quant="fp32", use_cache=False)
    assert torch.equal(weights.embed, model.model.embed_tokens.weight)

    class Harmful:
        def __reduce__(self) -> tuple[object, tuple[str]]:
            return os.mkdir, (str(tmp_path / "harm"),)

    torch.save(state | {"model.extra": Harmful()}, folder / "pytorch_model.bin")
    assert _error(folder).kind == "corrupt_weights"
    assert not (tmp_path / "harm").exists()
    (folder / "pytorch_model.bin").write_bytes(b"\x80\x02 nonsense")
    assert _error(folder).kind == "corrupt_weights"


@pytest.mark.parametrize("damage", ["missing", "short", "header", "empty", "tensor", "shape", "nan"])
def test_damage_is_named_with_what_to_do(tmp_path: Path, damage: str) -> None:
    _, folder = saved("llama", tmp_path)
    path = folder / WEIGHTS
    blob = path.read_bytes()
    if damage == "missing":
        path.unlink()
    elif damage == "short":
        path.write_bytes(blob[:-1000])
    elif damage == "header":
        path.write_bytes(b"\xff" * 64 + blob[64:])
    elif damage == "empty":
        path.write_bytes(b"")
    else:
        tensors = {name: tensor.clone() for name, tensor in load_file(path).items()}
        name = "model.layers.2.self_attn.k_proj.weight"
        if damage == "tensor":
            del tensors[name]
        elif damage == "shape":
            tensors[name] = tensors[name][:-1].contiguous()
        else:
            tensors[name][3, 5] = float("nan")
        save_file(tensors, path, metadata={"format": "pt"})
    error = _error(folder)
    assert error.kind == ("missing_weights" if damage in ("missing", "tensor") else "corrupt_weights")
    assert "specchat rm" in error.hint
    if damage in ("tensor", "shape", "nan"):
        assert "model.layers.2.self_attn.k_proj.weight" in error.message


def test_folders_that_are_no_model(tmp_path: Path) -> None:
    with pytest.raises(EngineError) as error:
        open_source(tmp_path / "nowhere")
    assert error.value.kind == "missing_weights"
    with pytest.raises(EngineError) as error:
        open_source(tmp_path)
    assert error.value.kind == "missing_weights"
    (tmp_path / "config.json").write_text("{ broken")
    with pytest.raises(EngineError) as error:
        open_source(tmp_path)
    assert error.value.kind == "config"
    (tmp_path / "config.json").write_text('{"model_type": "never_heard_of"}')
    with pytest.raises(EngineError) as error:
        open_source(tmp_path)
    assert error.value.kind == "architecture"
    (tmp_path / "notes.txt").write_text("hello")
    with pytest.raises(EngineError) as error:
        open_source(tmp_path / "notes.txt")
    assert error.value.kind == "config"


def test_weights_that_others_quantized_are_refused(tmp_path: Path) -> None:
    _, folder = saved("llama", tmp_path)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"quantization_config": {"quant_method": "gptq", "bits": 4}}))
    assert _error(folder).kind == "architecture"
