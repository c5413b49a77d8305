"""`specchat check TARGET HEADS`: a pair that goes together, one that does not, and the same in words; no weight is read."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from app.check import words
from engine.catalog.specs import ModelSpec
from engine.drafters.heads.check import check
from engine.errors import EngineError
from tests.engine.drafters.heads import writing
from tests.engine.drafters.heads.writing import HYDRA, KV, LLAMA, MEDUSA, NH, D, H, I, V


@pytest.fixture
def target(tmp_path: Path) -> ModelSpec:
    """Only a config: nothing else of a target is read."""
    folder = tmp_path / "target"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(LLAMA | {"num_hidden_layers": 8}))
    return ModelSpec("target", path=folder)


def heads(folder: Path) -> ModelSpec:
    return ModelSpec(folder.name, "drafter", "heads", path=folder)


def test_a_pair_that_goes_together(target: ModelSpec, tmp_path: Path) -> None:
    tensors = writing.gumiho()
    found = check(target, heads(writing.write(tmp_path / "gumiho", tensors, LLAMA)))
    assert found["refused"] is None
    assert found["method"] == "gumiho"
    assert found["sizes"]["target"] == {"hidden": H, "vocab": V, "layers": 8}
    sizes = found["sizes"]["heads"]
    assert (sizes["layers"], sizes["n_heads"], sizes["kv_heads"], sizes["head_dim"], sizes["intermediate"]) == (2, 5, KV, D, I)
    assert found["values"] == sum(t.numel() for t in tensors.values())
    assert 0 < found["memory"]["nf4"] <= found["memory"]["bf16"]
    assert json.loads(json.dumps(found))["reasons"] == found["reasons"]
    text = words("target", "gumiho", found)
    assert "Method: gumiho" in text
    assert f"{NH}" in text


def test_what_the_config_got_wrong_is_said(target: ModelSpec, tmp_path: Path) -> None:
    found = check(target, heads(writing.write(tmp_path / "medusa", writing.medusa(), MEDUSA, "medusa_lm_head.pt")))
    assert any("holds 5" in reason for reason in found["reasons"])
    assert found["made_for"] == ["org/base"]


def test_another_target_is_an_answer(target: ModelSpec, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    (other / "config.json").write_text(json.dumps(LLAMA | {"vocab_size": 99}))
    found = check(ModelSpec("other", path=other), heads(writing.write(tmp_path / "hydra", writing.hydra_plus(), HYDRA, "hydra_lm_head.pt")))
    assert "a vocabulary of 40 tokens" in found["refused"]
    assert found["method"] is None
    assert "Refused:" in words("other", "hydra", found)


def test_a_bound_pair_of_equal_sizes_is_refused_by_name(target: ModelSpec, tmp_path: Path) -> None:
    bound = replace(heads(writing.write(tmp_path / "eagle", writing.eagle(), LLAMA)), bound_to=("vicuna-7b-v1.3",))
    assert check(target, bound)["refused"] is None  # a folder of the person's own: sizes decide
    named = replace(target, path=None, repo="org/target")
    with pytest.raises(EngineError) as caught:
        check(named, bound)
    assert "specchat pull" in caught.value.hint


def test_code_in_a_file_is_refused(target: ModelSpec, tmp_path: Path) -> None:
    found = check(target, heads(writing.write(tmp_path / "bad", {"x": Path("/")}, LLAMA, "medusa_lm_head.pt")))
    assert "never runs code" in found["refused"]


def test_from_the_command_line(target: ModelSpec, tmp_path: Path) -> None:
    folder = writing.write(tmp_path / "eagle3", writing.eagle3(), LLAMA)
    command = [sys.executable, "-c", "from app.cli import main; main()", "check", str(target.path), str(folder), "--json"]
    run = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    found = json.loads(run.stdout)
    assert found["method"] == "eagle3"
    assert found["sizes"]["heads"]["tap_layers"] == [2, 4, 5]
    torch.save(writing.eagle3(), folder / "pytorch_model.bin")
    (folder / "pytorch_model.bin").write_bytes((folder / "pytorch_model.bin").read_bytes()[:-50])
    run = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    assert "damaged" in json.loads(run.stdout)["refused"]
