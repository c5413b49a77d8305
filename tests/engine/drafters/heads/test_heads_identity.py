"""Home-made heads remember their target: another one is refused, another quantization or file is a warning."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from engine.decoder.load import load_weights
from engine.decoder.weights import Weights
from engine.drafters.heads import identity
from engine.errors import EngineError
from tests.tiny_disk import tiny_model


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_model(tmp_path_factory.mktemp("identity") / "target", 1)


def loaded(folder: Path, quant: str) -> Weights:
    return load_weights(folder, device="cpu", quant=quant, use_cache=False)


def test_number_formats_have_one_hash(folder: Path) -> None:
    hashes = {quant: identity.fingerprint(loaded(folder, quant)) for quant in ("fp32", "bf16", "int8", "nf4")}
    assert len(set(hashes.values())) == 1


def test_what_is_compared(folder: Path) -> None:
    config = {identity.KEY: identity.describe(loaded(folder, "fp32"), "mine")}
    assert identity.compared(config, loaded(folder, "fp32"), "heads", "t") == []
    (note,) = identity.compared(config, loaded(folder, "int8"), "heads", "t")
    assert "another quantization" in note
    assert "mine" in note
    assert identity.compared(None, loaded(folder, "fp32"), "heads", "t") == []
    assert identity.compared({"hydra_num_heads": 3}, loaded(folder, "fp32"), "heads", "t") == []


def test_another_model(folder: Path) -> None:
    weights = loaded(folder, "fp32")
    config = {identity.KEY: identity.describe(weights, "mine")}
    norms = replace(weights, norm=weights.norm * 1.01)
    with pytest.raises(EngineError, match="trained with mine, and other is another model") as failed:
        identity.compared(config, norms, "heads", "other")
    assert failed.value.kind == "wrong_target"
    assert "specchat train -t other" in failed.value.hint


def test_tuned_weights_with_the_same_norms(folder: Path) -> None:
    """A low-rank fine-tune leaves the norms alone: the probe notices it."""
    weights = loaded(folder, "fp32")
    config = {identity.KEY: identity.describe(weights, "mine")}
    first = weights.layers[0]

    class Tuned:
        in_features = first.o.in_features

        def __call__(self, x: torch.Tensor) -> torch.Tensor:
            return first.o(x) * 1.05

    tuned = replace(weights, layers=(replace(first, o=Tuned()), *weights.layers[1:]))  # type: ignore[arg-type]
    (note,) = identity.compared(config, tuned, "heads", "t")
    assert "another file" in note
