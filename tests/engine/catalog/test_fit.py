"""The memory estimate against numbers worked out by hand, and what is said when there is not enough."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from engine.catalog import fit, hardware, measured
from engine.catalog.fit import Fit, check, estimate, verdict
from engine.errors import EngineError
from tests.engine.catalog.fakes import CONFIG, gguf_bytes, safetensors_bytes

VOCAB, HIDDEN, INNER, LAYERS, KV = 1000, 64, 128, 2, 2
HEAD_DIM = 16
LAYER = {"q": (64, 64), "k": (32, 64), "v": (32, 64), "o": (64, 64), "up": (128, 64), "gate": (128, 64), "down": (64, 128)}
BODY = LAYERS * (64 * 64 * 2 + 32 * 64 * 2 + 128 * 64 * 3)
TABLE = VOCAB * HIDDEN
WORK = 2 * 512 * (4 * HIDDEN + 3 * INNER) + 4 * 3 * 16 * VOCAB
PER_TOKEN = 2 * LAYERS * KV * HEAD_DIM * 2


def folder(tmp_path: Path, config: dict[str, Any] | None = None, extra: dict[str, tuple[int, ...]] | None = None) -> Path:
    tensors: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (VOCAB, HIDDEN)}
    for i in range(LAYERS):
        tensors |= {f"model.layers.{i}.{name}.weight": shape for name, shape in LAYER.items()}
    (tmp_path / "model.safetensors").write_bytes(safetensors_bytes(tensors | (extra or {})))
    (tmp_path / "config.json").write_text(json.dumps(CONFIG | (config or {})))
    return tmp_path


def test_by_hand_on_the_cpu(tmp_path: Path) -> None:
    found = estimate(folder(tmp_path), quant="nf4", head="int8", context=1000, device="cpu")
    assert found.weights == round(BODY * 4.5 / 8 + TABLE)  # the embedding is mapped from disk
    assert found.kv == 1000 * PER_TOKEN
    assert found.work == WORK + fit.LIBRARIES["cpu"]
    assert found.total == found.weights + found.kv + found.work


def test_by_hand_on_cuda(tmp_path: Path) -> None:
    path = folder(tmp_path)
    assert estimate(path, quant="nf4", device="cuda").weights == round(BODY * 4.5 / 8 + TABLE * 2)  # head and embedding are one
    assert estimate(path, quant="nf4", head="nf4", device="cuda:0").weights == round(BODY * 4.5 / 8 + TABLE * 4.5 / 8 + TABLE * 2)


def test_no_more_hopeful_than_the_last_load(tmp_path: Path) -> None:
    path = folder(tmp_path)
    hopeful = estimate(path, quant="nf4", head="int8", context=1000, device="cpu")
    assert fit.expected(path, quant="nf4", head="int8", context=1000, device="cpu") == hopeful
    taken = hopeful.weights + hopeful.work + 50_000_000 - fit.LIBRARIES["cpu"]
    measured.remember_bytes(path, "nf4", "int8", "cpu", taken)
    for context in (1000, 2000):  # the cache comes on top, as long as it is asked for
        found = fit.expected(path, quant="nf4", head="int8", context=context, device="cpu")
        assert found.total == hopeful.weights + hopeful.work + 50_000_000 + context * PER_TOKEN
    other = {"quant": "int8", "head": "int8", "context": 1000, "device": "cpu"}
    assert fit.expected(path, **other) == estimate(path, **other)  # type: ignore[arg-type]
    measured.remember_bytes(path, "nf4", "int8", "cpu", taken - 50_100_000)  # less than was thought: the estimate stands
    assert fit.expected(path, quant="nf4", head="int8", context=1000, device="cpu") == hopeful


def test_a_head_of_its_own(tmp_path: Path) -> None:
    path = folder(tmp_path, {"tie_word_embeddings": False}, {"lm_head.weight": (VOCAB, HIDDEN)})
    assert estimate(path, quant="bf16", device="cuda").weights == (BODY + 2 * TABLE) * 2
    assert estimate(path, quant="bf16", device="cpu").weights == (BODY + TABLE) * 2


def test_more_bits_cost_more(tmp_path: Path) -> None:
    path = folder(tmp_path)
    sizes = [estimate(path, quant=quant, device="cpu").total for quant in ("nf4", "int8", "bf16", "fp32")]
    assert sizes == sorted(sizes)
    assert len(set(sizes)) == 4
    assert estimate(path, quant="fp32", context=10, device="cpu").kv == 2 * 10 * PER_TOKEN


def test_other_parts_of_a_model_do_not_count(tmp_path: Path) -> None:
    plain = estimate(folder(tmp_path), quant="bf16", device="cpu")
    nested = {"text_config": CONFIG, "model_type": "gemma3"}
    both = estimate(folder(tmp_path, nested, {"vision_tower.embed.weight": (5000, 64)}), quant="bf16", device="cpu")
    assert both == plain


@pytest.mark.parametrize(
    ("config", "full", "windowed"),
    [
        ({"layer_types": ["sliding_attention", "full_attention"], "sliding_window": 100}, 1, 1),
        ({"layer_types": ["linear_attention", "full_attention"]}, 1, 0),
        ({"sliding_window": 100, "use_sliding_window": False}, 2, 0),
        ({"sliding_window": 100}, 0, 2),
        ({"sliding_window": 100, "model_type": "gemma2"}, 1, 1),
        ({"sliding_window": 100, "model_type": "gemma3_text"}, 0, 2),
        ({"sliding_window": 100, "model_type": "gemma3_text", "sliding_window_pattern": 2}, 1, 1),
        ({"sliding_window": None}, 2, 0),
    ],
)
def test_windows(tmp_path: Path, config: dict[str, Any], full: int, windowed: int) -> None:
    per_layer = PER_TOKEN // LAYERS
    found = estimate(folder(tmp_path, config), quant="nf4", context=1000, device="cpu")
    assert found.kv == per_layer * (full * 1000 + windowed * 100)
    assert found.kv_full == per_layer * full


def test_gguf_says_the_same(tmp_path: Path) -> None:
    tensors: dict[str, tuple[int, ...]] = {"token_embd.weight": (VOCAB, HIDDEN)}
    for i in range(LAYERS):
        tensors |= {f"blk.{i}.{name}.weight": shape for name, shape in LAYER.items()}
    metadata = {
        "general.architecture": "llama",
        "llama.block_count": LAYERS,
        "llama.embedding_length": HIDDEN,
        "llama.feed_forward_length": INNER,
        "llama.attention.head_count": 4,
        "llama.attention.head_count_kv": KV,
    }
    path = tmp_path / "m.gguf"
    path.write_bytes(gguf_bytes(metadata, tensors))
    for device in ("cpu", "cuda"):
        assert estimate(path, quant="nf4", device=device) == estimate(folder(tmp_path), quant="nf4", device=device)


def test_broken_models(tmp_path: Path) -> None:
    path = folder(tmp_path)
    (path / "config.json").write_text("{")
    with pytest.raises(EngineError, match="damaged"):
        estimate(path)
    (path / "config.json").unlink()
    with pytest.raises(EngineError, match="missing"):
        estimate(path)


def test_verdict() -> None:
    assert verdict(2_000_000_000, 3_500_000_001) == "fits"
    assert verdict(2_000_000_000, 3_500_000_000) == "tight"
    assert verdict(2_000_000_000, 2_500_000_000) == "tight"
    assert verdict(2_000_000_000, 2_499_999_999) == "no"


GB = 10**9
TARGET = Fit(weights=4 * GB, kv=GB, work=GB // 2, context=8192, kv_full=GB // 8192, quant="bf16")
DRAFTER = Fit(weights=GB, kv=GB // 4, work=GB // 4, context=8192, kv_full=GB // 4 // 8192, quant="bf16")


def test_enough_memory_says_nothing() -> None:
    check(TARGET, DRAFTER, 8 * GB)
    check(TARGET, None, 6 * GB)


def test_the_drafter_goes_first() -> None:
    with pytest.raises(EngineError) as caught:
        check(TARGET, DRAFTER, 7 * GB)
    error = caught.value
    assert error.kind == "memory"
    assert error.numbers["drop_drafter"] == 1
    assert error.numbers["need"] == 7 * GB
    assert "-d none" in error.hint
    assert "5.5 GB" in error.message
    assert "1.5 GB" in error.message


def test_a_smaller_context_that_really_fits() -> None:
    with pytest.raises(EngineError) as caught:
        check(TARGET, DRAFTER, 7 * GB)
    context = int(caught.value.numbers["context"])
    assert 1024 <= context < 8192
    assert f"--context {context}" in caught.value.hint
    saved = (8192 - context) * (TARGET.kv_full + DRAFTER.kv_full)
    assert verdict(TARGET.total + DRAFTER.total - saved, 7 * GB) != "no"


def test_no_false_promises() -> None:
    small = Fit(4 * GB, GB, GB // 2, 8192, GB // 8192, "nf4")
    with pytest.raises(EngineError) as caught:
        check(small, DRAFTER, 3 * GB)
    assert caught.value.numbers["drop_drafter"] == 0
    assert caught.value.numbers["context"] == 0
    assert "-d none" not in caught.value.hint
    assert "--context" not in caught.value.hint
    assert "--quant" not in caught.value.hint
    assert "smaller model" in caught.value.hint


def test_available(monkeypatch: pytest.MonkeyPatch) -> None:
    free, total = fit.available("cpu")
    assert 0 < free <= total
    cards = (hardware.Gpu("a", 8, 3), hardware.Gpu("b", 16, 9))
    monkeypatch.setattr(hardware, "nvidia", lambda: cards)
    assert fit.available("cuda:0") == (3, 8)
    assert fit.available("cuda") == (9, 16)
    assert fit.available("cuda:7") == (0, 0)
    monkeypatch.setattr(hardware, "nvidia", lambda: ())
    assert fit.available("cuda") == (0, 0)


def test_without_libraries(tmp_path: Path) -> None:
    found = estimate(folder(tmp_path), quant="nf4", device="cpu")
    assert fit.without_libraries(found, "cpu").work == WORK


# --- draft heads


def heads_folder(tmp_path: Path, tensors: dict[str, tuple[int, ...]]) -> Path:
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "model.safetensors").write_bytes(safetensors_bytes(tensors))
    return tmp_path


EAGLE = {
    "embed_tokens.weight": (VOCAB, HIDDEN),
    "fc.weight": (HIDDEN, 2 * HIDDEN),
    "fc.bias": (HIDDEN,),
    **{f"layers.0.self_attn.{name}_proj.weight": LAYER[name] for name in "qkvo"},
    **{f"layers.0.mlp.{name}_proj.weight": LAYER[name] for name in ("gate", "up", "down")},
    "layers.0.post_attention_layernorm.weight": (HIDDEN,),
}


def test_heads_by_hand(tmp_path: Path) -> None:
    path = heads_folder(tmp_path, EAGLE)
    body = BODY // LAYERS + HIDDEN * 2 * HIDDEN
    found = estimate(path, quant="nf4", context=1000, device="cpu")
    assert found.weights == round(body * 4.5 / 8)  # its embedding is mapped from disk
    assert found.kv == 1000 * PER_TOKEN // LAYERS
    assert found.kv_full == PER_TOKEN // LAYERS
    assert fit.without_libraries(found, "cpu").work == fit.PACKING
    assert estimate(path, quant="nf4", context=1000, device="cuda").weights == round(body * 4.5 / 8) + 2 * TABLE
    sizes = [estimate(path, quant=quant, device="cpu").weights for quant in ("nf4", "int8", "bf16", "fp32")]
    assert sizes == [round(body * bits / 8) for bits in (4.5, 8, 16, 32)]


def test_heads_without_attention_keep_nothing(tmp_path: Path) -> None:
    tensors: dict[str, tuple[int, ...]] = {}
    for i in range(5):
        tensors |= {f"{i}.0.linear.weight": (HIDDEN, HIDDEN), f"{i}.0.linear.bias": (HIDDEN,), f"{i}.1.weight": (VOCAB, HIDDEN)}
    found = estimate(heads_folder(tmp_path, tensors), quant="int8", context=1000, device="cpu")
    assert found.weights == 5 * (HIDDEN * HIDDEN + TABLE)
    assert found.kv == 0
    assert fit.without_libraries(found, "cpu").work == fit.PACKING


def test_beside_heads_a_block_that_is_packed_or_a_pass_needs_memory(tmp_path: Path) -> None:
    for vocab in (VOCAB, 200_000):
        found = estimate(heads_folder(tmp_path, {"fc.weight": (HIDDEN, 2 * HIDDEN), "lm_head.weight": (vocab, HIDDEN)}), device="cpu")
        passing = 2 * 512 * 4 * HIDDEN + 4 * 3 * 16 * vocab
        assert fit.without_libraries(found, "cpu").work == max(fit.PACKING, passing)
    assert passing > fit.PACKING


def test_a_repeated_block_and_unused_tensors_cost_nothing(tmp_path: Path) -> None:
    """As PyTorch saves them: one storage under several names."""
    block, table = torch.zeros(HIDDEN, HIDDEN), torch.zeros(VOCAB, HIDDEN)
    tensors = {f"hydra_mlp.0.{j}.linear.weight": block for j in (3, 5, 7)} | {"hydra_lm_head.0.1.weight": table}
    unused = {"input_embed_fn.weight": table.clone(), "prefix_embeding_layer.embed_tokens.weight": table.clone()}
    torch.save(tensors | unused, tmp_path / "hydra_lm_head.pt")
    assert estimate(tmp_path, quant="int8", device="cpu").weights == HIDDEN * HIDDEN + TABLE


def test_damaged_heads(tmp_path: Path) -> None:
    path = heads_folder(tmp_path, EAGLE)
    whole = (path / "model.safetensors").read_bytes()
    (path / "model.safetensors").write_bytes(whole[:-10])
    with pytest.raises(EngineError, match="damaged"):
        estimate(path)
