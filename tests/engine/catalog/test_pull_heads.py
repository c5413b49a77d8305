"""Downloads of draft heads, and of older models in PyTorch files, from a fake hub: which files, and what is checked about them."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest
import torch

from engine.catalog import needed
from engine.catalog.catalog import builtin
from engine.catalog.hub import locate, pull
from engine.catalog.specs import ModelSpec
from engine.catalog.stored import settled
from engine.errors import EngineError
from tests.engine.catalog.fakes import FakeHub, safetensors_bytes

TINY = ModelSpec("tiny", repo="org/tiny")


def checkpoint(**content: object) -> bytes:
    file = io.BytesIO()
    torch.save(content, file)
    return file.getvalue()


def test_heads(hub: FakeHub) -> None:
    """Config and one copy of the weights, whatever else the repository holds; the name of the published code goes first."""
    hub.files["medusa_lm_head.pt"] = checkpoint(a=torch.zeros(4, 4))
    path = pull(ModelSpec("heads", kind="heads", repo="org/tiny"))
    assert {f.name for f in path.iterdir()} == {"config.json", "medusa_lm_head.pt"}


def test_heads_by_a_mere_hub_id(hub: FakeHub) -> None:
    """Nobody said that they are heads: weights without a tokenizer say so."""
    hub.files = {"config.json": b"{}", "README.md": b"", "pytorch_model.bin": checkpoint(**{"fc.weight": torch.zeros(4, 8)})}
    spec = ModelSpec("org/tiny", "drafter", repo="org/tiny")
    assert settled(spec).kind == "model"
    path = pull(spec)
    assert {f.name for f in path.iterdir()} == {"config.json", "pytorch_model.bin"}
    assert settled(spec).kind == "heads"
    assert builtin().drafter("org/tiny").kind == "heads"
    assert settled(ModelSpec("org/tiny", repo="org/tiny")).kind == "model"  # a target is none


def test_a_model_without_a_tokenizer_is_not_taken_for_heads(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "model.safetensors").write_bytes(safetensors_bytes({"model.layers.0.self_attn.q_proj.weight": (4, 4)}))
    assert not needed.is_heads(tmp_path)
    assert needed.lacking(tmp_path) == ["tokenizer.json"]
    for name in ("fc.weight", "module.midlayer.mlp.up_proj.weight", "hydra_mlp.0.1.linear.weight", "0.0.linear.weight"):
        (tmp_path / "model.safetensors").write_bytes(safetensors_bytes({name: (4, 4)}))
        assert needed.is_heads(tmp_path)
        assert needed.lacking(tmp_path) == []


def test_damaged_heads_are_fetched_again_and_unsafe_ones_are_not(hub: FakeHub) -> None:
    spec = ModelSpec("heads", kind="heads", repo="org/tiny")
    hub.files = {"config.json": b"{}", "pytorch_model.bin": checkpoint(a=torch.zeros(4, 4))}
    file = pull(spec) / "pytorch_model.bin"
    whole = file.read_bytes()
    file.resolve().write_bytes(whole[:-100])
    assert (pull(spec) / "pytorch_model.bin").read_bytes() == whole
    assert (file.parent / "config.json").exists()
    file.resolve().write_bytes(checkpoint(a=Path("x")))
    hub.requests.clear()
    with pytest.raises(EngineError) as caught:
        pull(spec)
    assert caught.value.kind == "unsafe_weights"
    assert not hub.requests


def test_an_older_model_of_checkpoint_files(hub: FakeHub) -> None:
    """Some repositories never got safetensors."""
    del hub.files["model.safetensors"], hub.files["pytorch_model.bin"]
    hub.files[needed.BIN_INDEX] = json.dumps({"weight_map": {"a": "pytorch_model-1.bin", "b": "pytorch_model-2.bin"}}).encode()
    hub.files |= {f"pytorch_model-{i}.bin": checkpoint(a=torch.zeros(4, i)) for i in (1, 2)}
    path = pull(TINY)
    assert {"config.json", "tokenizer.json", needed.BIN_INDEX, "pytorch_model-1.bin", "pytorch_model-2.bin"} == {
        f.name for f in path.iterdir()
    }
    (path / "pytorch_model-2.bin").unlink()
    assert locate(TINY) is None
