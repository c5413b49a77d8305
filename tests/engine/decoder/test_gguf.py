"""GGUF files: header, names, the converter's changes undone, configuration; small files written here, real ones by marker."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import pytest
import torch

from engine.decoder.gguf import hf_name, read_header
from engine.decoder.load import load_weights
from engine.decoder.source import open_source
from engine.decoder.target import LeanTarget
from engine.errors import EngineError
from tests.oracle import CASES, VOCAB, as_gguf, config_of, model_of

# case of the oracle -> (architecture in the file, what the file says beside the sizes)
FILES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("llama", {"rope.dimension_count": 16}),
    "llama-biases": ("llama", {"rope.dimension_count": 16}),
    "qwen2": ("qwen2", {}),
    "qwen2-yarn": (
        "qwen2",
        {"rope.scaling.type": "yarn", "rope.scaling.factor": 4.0, "rope.scaling.original_context_length": 64},
    ),
    "qwen3": ("qwen3", {}),
    "gemma2": ("gemma2", {"attention.sliding_window": 12, "attn_logit_softcapping": 50.0, "final_logit_softcapping": 30.0}),
    "phi3-partial": ("phi3", {"rope.dimension_count": 8, "attention.sliding_window": 1 << 20}),
    "smollm3": ("smollm3", {"rope.dimension_count": 16}),
}


def _ids() -> list[int]:
    return torch.randint(3, VOCAB, (30,), generator=torch.Generator().manual_seed(2)).tolist()


def _lean(path: Path, ids: list[int]) -> torch.Tensor:
    target = LeanTarget(load_weights(path, quant="fp32", use_cache=False), context=64)
    target.prefill(ids[:-3])
    return target.verify(torch.tensor(ids[-3:]), (0, 1))


def _reference(model: Any, ids: list[int]) -> torch.Tensor:
    with torch.inference_mode():
        return model(torch.tensor([ids])).logits[0, -3:]


@pytest.mark.parametrize("case", FILES)
def test_a_file_gives_the_models_tensors_and_logits(case: str, tmp_path: Path) -> None:
    arch, extra = FILES[case]
    config = config_of(case)
    if case == "gemma2":
        config.query_pre_attn_scalar = config.head_dim  # a file does not say it
    model = model_of(config)
    path = as_gguf(model, tmp_path / "m.gguf", arch, extra=extra)
    source = open_source(path)
    for name, tensor in model.state_dict().items():
        if name == "lm_head.weight" and config.tie_word_embeddings:
            continue
        assert source.shape(name) == tuple(tensor.shape)
        exact = torch.allclose(source.read(name), tensor, atol=1e-6) if arch == "gemma2" else torch.equal(source.read(name), tensor)
        assert exact, name
    ids = _ids()
    assert (_lean(path, ids) - _reference(model, ids)).abs().max() < 1e-4


def test_gemma3_scaling_is_for_the_full_layers_only(tmp_path: Path) -> None:
    config = config_of("gemma3")
    config.query_pre_attn_scalar = config.head_dim
    config.layer_types = ["sliding_attention"] * 5 + ["full_attention"]
    config.num_hidden_layers = 6
    config.rope_parameters["sliding_attention"]["rope_theta"] = 10000.0
    model = model_of(config)
    extra = {"attention.sliding_window": 12, "rope.scaling.type": "linear", "rope.scaling.factor": 8.0}
    path = as_gguf(model, tmp_path / "m.gguf", "gemma3", extra=extra)
    ids = _ids()
    assert (_lean(path, ids) - _reference(model, ids)).abs().max() < 1e-4


def _llama3_factors(config: Any) -> torch.Tensor:
    """The table that llama.cpp writes: how much slower each pair of dimensions turns."""
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    scaled, _ = ROPE_INIT_FUNCTIONS["llama3"](config, torch.device("cpu"))
    plain = 1.0 / config.rope_parameters["rope_theta"] ** (torch.arange(0, 16, 2) / 16)
    return plain / scaled


def test_llama3_scaling_is_read_back_from_its_table(tmp_path: Path) -> None:
    config = config_of("llama3-scaling")
    config.rope_parameters["original_max_position_embeddings"] = 8192
    config.rope_parameters["rope_theta"] = 500000.0
    model = model_of(config)
    extra = {"rope.dimension_count": 16, "rope_freqs.weight": _llama3_factors(config)}
    path = as_gguf(model, tmp_path / "m.gguf", "llama", extra=extra)
    found = open_source(path).config.rope_parameters
    assert {k: found[k] for k in ("rope_type", "factor")} == {"rope_type": "llama3", "factor": 8.0}
    ids = _ids()
    assert (_lean(path, ids) - _reference(model, ids)).abs().max() < 1e-4


def test_an_unknown_scaling_table_is_refused(tmp_path: Path) -> None:
    model = model_of(config_of("llama"))
    extra = {"rope.dimension_count": 16, "rope_freqs.weight": torch.linspace(1, 5, 8)}
    path = as_gguf(model, tmp_path / "m.gguf", "llama", extra=extra)
    with pytest.raises(EngineError) as error:
        open_source(path)
    assert error.value.kind == "architecture"


def test_longrope_factors_are_read_back(tmp_path: Path) -> None:
    config = config_of("phi3-longrope-long")
    rope = config.rope_parameters
    model = model_of(config)
    extra = {
        "rope.dimension_count": 16,
        "rope.scaling.original_context_length": 16,
        "attention.sliding_window": 12,
        "rope_factors_long.weight": torch.tensor(rope["long_factor"]),
        "rope_factors_short.weight": torch.tensor(rope["short_factor"]),
    }
    path = as_gguf(model, tmp_path / "m.gguf", "phi3", extra=extra)
    ids = _ids()
    assert (_lean(path, ids) - _reference(model, ids)).abs().max() < 1e-4


def test_rows_of_quantized_tensors(tmp_path: Path) -> None:
    model = model_of(config_of("llama"))
    path = as_gguf(model, tmp_path / "m.gguf", "llama", ("attn_q", "ffn_down", "token_embd"), {"rope.dimension_count": 16})
    source = open_source(path)
    for name in ("model.layers.1.self_attn.q_proj.weight", "model.layers.0.mlp.down_proj.weight", "model.embed_tokens.weight"):
        whole = source.read(name)
        wanted = model.state_dict()[name]
        assert 0 < (whole - wanted).abs().max() < 0.02 * wanted.abs().max()  # Q8_0 rounds
        assert torch.equal(source.read_rows(name, 5, 23), whole[5:23])
    assert source.mapped(name) is None
    assert source.dtype(name) == torch.float32


def test_split_files_are_one_model(tmp_path: Path) -> None:
    model = model_of(config_of("llama"))
    whole = as_gguf(model, tmp_path / "whole.gguf", "llama", extra={"rope.dimension_count": 16})
    first, second = (tmp_path / f"m-0000{i}-of-00002.gguf" for i in (1, 2))
    _rewrite(whole, first, lambda name: "blk.2" not in name)
    _rewrite(whole, second, lambda name: "blk.2" in name)
    source = open_source(first)
    assert source.files == (first, second)
    for name in source.names():
        assert torch.equal(source.read(name), model.state_dict()[name])
    second.unlink()
    with pytest.raises(EngineError) as error:
        open_source(first)
    assert error.value.kind == "missing_weights"


def _rewrite(whole: Path, path: Path, wanted: Any) -> None:
    """A file with the same metadata and some of the tensors."""
    from gguf import GGUFReader, GGUFWriter

    reader = GGUFReader(whole)
    writer = GGUFWriter(path, "llama")
    for key, value in read_header(whole).metadata.items():
        if key.startswith("llama."):
            (writer.add_float32 if isinstance(value, float) else writer.add_uint32)(key, value)
    for tensor in reader.tensors:
        if wanted(tensor.name):
            writer.add_tensor(tensor.name, tensor.data)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


@pytest.mark.parametrize("damage", ["empty", "letters", "version", "header", "data"])
def test_damaged_files_are_said_to_be(tmp_path: Path, damage: str) -> None:
    path = as_gguf(model_of(config_of("llama")), tmp_path / "m.gguf", "llama", extra={"rope.dimension_count": 16})
    blob = path.read_bytes()
    damaged = {
        "empty": b"",
        "letters": b"ABCD" + blob[4:],
        "version": blob[:4] + struct.pack("<I", 9) + blob[8:],
        "header": blob[:700],
        "data": blob[:-5000],
    }[damage]
    path.write_bytes(damaged)
    with pytest.raises(EngineError) as error:
        open_source(path)
    assert error.value.kind == "corrupt_weights"
    assert "specchat rm" in error.value.hint


def test_an_unknown_architecture_is_refused(tmp_path: Path) -> None:
    path = as_gguf(model_of(config_of("llama")), tmp_path / "m.gguf", "grok")
    with pytest.raises(EngineError) as error:
        open_source(path)
    assert error.value.kind == "architecture"


def test_names() -> None:
    assert hf_name("blk.11.attn_q.bias", "qwen2") == "model.layers.11.self_attn.q_proj.bias"
    assert hf_name("blk.0.ffn_norm.weight", "llama") == "model.layers.0.post_attention_layernorm.weight"
    assert hf_name("blk.0.ffn_norm.weight", "gemma3") == "model.layers.0.pre_feedforward_layernorm.weight"
    assert hf_name("blk.0.ffn_up.weight", "phi3") == "model.layers.0.mlp.gate_up_proj.weight"
    assert hf_name("output.weight", "llama") == "lm_head.weight"
    assert hf_name("rope_freqs.weight", "llama") is None
    assert set(FILES) <= set(CASES)


@pytest.mark.real
@pytest.mark.parametrize("name", ["smollm2-135m", "qwen2.5-coder-0.5b", "gemma-3-270m"])
def test_real_files_against_transformers_reader(name: str) -> None:
    from transformers import AutoModelForCausalLM

    from engine.catalog import catalog, hub

    path = hub.locate(catalog.load().target(name))
    if path is None or path.suffix != ".gguf":
        pytest.skip(f"specchat pull {name} first, from the mirror")
    source = open_source(path)
    model = AutoModelForCausalLM.from_pretrained(str(path.parent), gguf_file=path.name, dtype=torch.float32)
    state = model.state_dict()
    assert source.names() == set(state) - ({"lm_head.weight"} if model.config.tie_word_embeddings else set())
    mine, theirs = source.config.to_dict(), model.config.to_dict()
    for key in (
        "hidden_size",
        "num_hidden_layers",
        "num_key_value_heads",
        "rope_parameters",
        "rms_norm_eps",
        "vocab_size",
        "tie_word_embeddings",
    ):
        assert mine[key] == theirs[key]
    for tensor in ("model.embed_tokens.weight", *(n for n in source.names() if ".layers.0." in n or ".layers.7." in n)):
        rows = min(4096, source.shape(tensor)[0])
        assert torch.equal(source.read_rows(tensor, 0, rows), state[tensor][:rows]), tensor
