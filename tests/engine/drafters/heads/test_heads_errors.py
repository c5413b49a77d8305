"""What a person reads when heads cannot be used: one sentence that names the cause, and a hint."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from engine.drafters.heads.load import load_head
from engine.drafters.heads.specs import TargetFacts
from engine.errors import EngineError
from tests.engine.drafters.heads import writing
from tests.engine.drafters.heads.writing import HYDRA, LLAMA, MEDUSA, TARGET, H, Tensors, V

FAMILIES: dict[str, tuple[Callable[[], Tensors], dict[str, Any], str]] = {
    "eagle2": (writing.eagle, LLAMA, "pytorch_model.bin"),
    "eagle3": (writing.eagle3, LLAMA, "model.safetensors"),
    "gumiho": (writing.gumiho, LLAMA, "pytorch_model.bin"),
    "hydra": (writing.hydra, HYDRA | {"hydra_num_layers": 1}, "hydra_lm_head.pt"),
    "hydra++": (writing.hydra_plus, HYDRA, "hydra_lm_head.pt"),
    "medusa": (writing.medusa, MEDUSA, "medusa_lm_head.pt"),
}


def refusal(folder: Path, target: TargetFacts = TARGET, method: str = "auto", name: str = "my-heads") -> EngineError:
    with pytest.raises(EngineError) as caught:
        load_head(folder, target, method, name)
    error = caught.value
    assert error.hint.strip()
    assert error.message.rstrip().endswith(".")
    return error


def written(family: str, folder: Path, change: Callable[[Tensors], object] = lambda t: None) -> Path:
    make, config, file = FAMILIES[family]
    tensors = make()
    change(tensors)
    return writing.write(folder, tensors, config, file)


@pytest.mark.parametrize("family", FAMILIES)
def test_another_hidden_size(family: str, tmp_path: Path) -> None:
    error = refusal(written(family, tmp_path / "h"), replace(TARGET, name="big-target", hidden=4096))
    assert error.kind == "wrong_target"
    assert "my-heads" in error.message
    assert "big-target" in error.message
    assert f"hidden size of {H}" in error.message
    assert "4096" in error.message


@pytest.mark.parametrize("family", FAMILIES)
def test_another_vocabulary(family: str, tmp_path: Path) -> None:
    error = refusal(written(family, tmp_path / "h"), replace(TARGET, vocab=V + 8))
    assert error.kind == "vocabulary"
    assert str(V) in error.message
    assert str(V + 8) in error.message
    assert error.hint.startswith("Heads work only with the model that they were trained for")


def test_too_few_layers(tmp_path: Path) -> None:
    error = refusal(written("eagle3", tmp_path / "h"), replace(TARGET, layers=6))
    assert error.kind == "wrong_target"
    assert "at least 7 layers" in error.message
    assert "6" in error.message
    folder = writing.write(tmp_path / "i", writing.eagle3(), LLAMA | {"eagle_aux_hidden_state_layer_ids": [2, 5, 30]})
    assert "at least 31 layers" in refusal(folder).message
    folder = writing.write(tmp_path / "j", writing.hydra(), HYDRA | {"hydra_num_layers": 1, "hidden_state_offset": 9}, "hydra_lm_head.pt")
    assert "at least 9 layers" in refusal(folder).message


def test_the_config_may_name_the_right_target(tmp_path: Path) -> None:
    assert "org/base" in refusal(written("medusa", tmp_path / "h"), replace(TARGET, hidden=7)).hint


@pytest.mark.parametrize("family", FAMILIES)
def test_every_missing_tensor_is_named(family: str, tmp_path: Path) -> None:
    """One after the other, all of them; a renamed one is missing and too many."""
    make, config, file = FAMILIES[family]
    whole = make()
    unused = ("t2d", "input_embed_fn.weight", "prefix_embeding_layer.embed_tokens.weight")
    spare = ("fc.bias",) if family in ("eagle2", "gumiho") else ()  # decided by whether it is there
    for number, name in enumerate(whole):
        if name in unused or name in spare or "inv_freq" in name:
            continue
        for renamed in (False, True):
            tensors = {n: t for n, t in whole.items() if n != name} | ({f"{name}x": whole[name]} if renamed else {})
            error = refusal(writing.write(tmp_path / f"{number}{renamed}", tensors, config, file))
            if (family, name) == ("eagle2", "fc.weight"):  # without it, nothing says that these are heads
                assert error.kind == "architecture"
                continue
            assert error.kind == "corrupt_weights"
            assert name in error.message, (name, error.message)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_tensor_too_many(family: str, tmp_path: Path) -> None:
    error = refusal(written(family, tmp_path / "h", lambda t: t.update({"odd.weight": torch.zeros(2, 2)})))
    assert error.kind == "corrupt_weights"
    assert "odd.weight" in error.message


@pytest.mark.parametrize("family", FAMILIES)
def test_every_wrong_shape_is_named(family: str, tmp_path: Path) -> None:
    make, config, file = FAMILIES[family]
    whole = make()
    unused = ("t2d", "input_embed_fn.weight", "prefix_embeding_layer.embed_tokens.weight")
    for number, (name, tensor) in enumerate(whole.items()):
        if name in unused or "inv_freq" in name:
            continue
        other = torch.zeros((tensor.shape[0] + 1, *tensor.shape[1:]), dtype=tensor.dtype)
        error = refusal(writing.write(tmp_path / str(number), whole | {name: other}, config, file))
        assert error.kind in ("corrupt_weights", "wrong_target", "vocabulary"), name


def test_code_in_a_pickle(tmp_path: Path) -> None:
    folder = writing.write(tmp_path / "h", writing.medusa() | {"x": Path("/")}, MEDUSA, "medusa_lm_head.pt")
    error = refusal(folder)
    assert error.kind == "unsafe_weights"
    assert "medusa_lm_head.pt" in error.message
    assert "never runs code" in error.message


@pytest.mark.parametrize("family", FAMILIES)
def test_a_truncated_file(family: str, tmp_path: Path) -> None:
    folder = written(family, tmp_path / "h")
    file = next(f for f in folder.iterdir() if f.name != "config.json")
    file.write_bytes(file.read_bytes()[:-200])
    error = refusal(folder)
    assert error.kind == "corrupt_weights"
    assert file.name in error.message


def test_unknown_architectures(tmp_path: Path) -> None:
    error = refusal(writing.write(tmp_path / "a", {"some.weight": torch.zeros(2, 2)}, LLAMA))
    assert error.kind == "architecture"
    assert "some.weight" in error.message
    assert "Gumiho" in error.hint
    error = refusal(writing.write(tmp_path / "b", writing.hydra(), HYDRA | {"hydra_head_arch": "cross-attn"}, "hydra_lm_head.pt"))
    assert error.kind == "architecture"
    assert "cross-attn" in error.message
    config = {"speculators_model_type": "peagle", "transformer_layer_config": LLAMA}
    error = refusal(writing.write(tmp_path / "c", writing.eagle3(), config))
    assert error.kind == "architecture"
    assert "peagle" in error.message


def test_whole_models_are_no_heads(tmp_path: Path) -> None:
    """Medusa-2 heads come inside a fine-tuned model."""
    model = {f"model.layers.{i}.self_attn.q_proj.weight": torch.zeros(2, 2) for i in range(8)}
    error = refusal(writing.write(tmp_path / "a", model, LLAMA, "model.safetensors"))
    assert error.kind == "architecture"
    assert "whole model" in error.message
    error = refusal(writing.write(tmp_path / "b", model | {f"medusa_head.{n}": t for n, t in writing.medusa().items()}, LLAMA))
    assert "Medusa-2" in error.message


@pytest.mark.parametrize("family", [name for name in FAMILIES if name != "gumiho"])
def test_no_config(family: str, tmp_path: Path) -> None:
    folder = written(family, tmp_path / "h")
    (folder / "config.json").unlink()
    error = refusal(folder)
    assert error.kind == "missing_weights"
    assert "config.json" in error.message


def test_gumiho_of_unknown_size_needs_a_config(tmp_path: Path) -> None:
    folder = written("gumiho", tmp_path / "h")
    (folder / "config.json").unlink()
    error = refusal(folder)
    assert error.kind == "config"
    assert "num_attention_heads" in error.hint


@pytest.mark.parametrize("key", ["num_attention_heads", "rms_norm_eps"])
def test_an_incomplete_config(key: str, tmp_path: Path) -> None:
    config = {name: value for name, value in LLAMA.items() if name != key}
    error = refusal(writing.write(tmp_path / "h", writing.eagle(), config))
    assert error.kind == "config"
    assert key in error.message


def test_settings_that_no_published_heads_have(tmp_path: Path) -> None:
    error = refusal(writing.write(tmp_path / "a", writing.eagle(), LLAMA | {"hidden_act": "gelu"}))
    assert "gelu" in error.message
    error = refusal(writing.write(tmp_path / "b", writing.eagle(), LLAMA | {"rope_scaling": {"type": "mrope"}}))
    assert "mrope" in error.message


def test_nothing_there(tmp_path: Path) -> None:
    assert refusal(tmp_path / "gone").kind == "missing_weights"
    (tmp_path / "empty").mkdir()
    error = refusal(tmp_path / "empty")
    assert error.kind == "missing_weights"
    assert "no head weights" in error.message


def test_methods(tmp_path: Path) -> None:
    assert "eagle1 or eagle2" in refusal(written("eagle2", tmp_path / "a"), method="gumiho").hint
    error = refusal(written("medusa", tmp_path / "b"), method="hydra")
    assert error.kind == "config"
    assert "medusa" in error.hint


@pytest.mark.parametrize("change", ["ids", "outside", "twice"])
def test_a_table_of_ids_instead_of_offsets(change: str, tmp_path: Path) -> None:
    """`d2t` is added to the draft id; a file that holds target ids there, or anything that is no such table, is refused."""
    tensors = writing.eagle3()
    ids = torch.arange(24) + tensors["d2t"]
    table = {"ids": ids, "outside": tensors["d2t"] - 30, "twice": tensors["d2t"].clone()}[change]
    if change == "twice":
        table[1] = table[0] - 1
    error = refusal(writing.write(tmp_path / "h", tensors | {"d2t": table}, LLAMA))
    assert error.kind == "corrupt_weights"
    assert "d2t" in error.message


def test_eagle3_without_what_it_needs(tmp_path: Path) -> None:
    tensors = writing.eagle3()
    del tensors["d2t"]
    assert "d2t" in refusal(writing.write(tmp_path / "a", tensors, LLAMA)).message
    tensors = writing.eagle3(target_hidden=2 * H)  # of another width, and without an embedding of its own
    error = refusal(writing.write(tmp_path / "b", tensors, LLAMA | {"target_hidden_size": 2 * H}), replace(TARGET, hidden=2 * H))
    assert "embed_tokens.weight" in error.message
