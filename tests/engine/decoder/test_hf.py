"""The fallback through transformers, on tiny random models of architectures that the lean decoder lacks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from engine import costs
from engine.decoder.hf import HfTarget, open_hf
from engine.drafters.ngram import Ngram
from engine.errors import EngineError
from engine.speculation.control import Controller
from tests.oracle import VOCAB, model_of

_SIZES: dict[str, Any] = {
    "vocab_size": VOCAB,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
_LINEAR = {
    "layer_types": ["linear_attention", "full_attention"],
    "head_dim": 16,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 16,
}
CROPPABLE: dict[str, dict[str, Any]] = {
    "gpt_neox": {},
    "stablelm": {},
    "lfm2": {"layer_types": ["conv", "full_attention"]},
    "gpt_oss": {
        "num_local_experts": 2,
        "num_experts_per_tok": 1,
        "head_dim": 16,
        "sliding_window": 8,
        "layer_types": ["sliding_attention", "full_attention"],
    },
}
FIXED: dict[str, dict[str, Any]] = {"qwen3_5_text": _LINEAR, "mamba": {"state_size": 8}}


def _config(kind: str) -> Any:
    from transformers import AutoConfig

    return AutoConfig.for_model(kind, **(_SIZES | (CROPPABLE | FIXED)[kind]))


def _made(kind: str) -> tuple[Any, HfTarget]:
    model = model_of(_config(kind))
    return model, HfTarget(model, 128, torch.device("cpu"))


def _ids(n: int) -> list[int]:
    return torch.randint(3, VOCAB, (n,), generator=torch.Generator().manual_seed(5)).tolist()


def _reference(model: Any, ids: list[int]) -> torch.Tensor:
    with torch.inference_mode():
        return model(torch.tensor([ids]), use_cache=False).logits[0]


@pytest.mark.parametrize("kind", CROPPABLE)
def test_chains_are_verified_and_taken_back(kind: str) -> None:
    model, target = _made(kind)
    assert target.max_nodes > 0
    assert target.vocab_size == VOCAB
    ids = _ids(30)
    reference = _reference(model, ids)
    assert target.prefill(ids[:20])
    wrong = [(ids[22] + 1) % VOCAB, 7]
    logits = target.verify(torch.tensor([*ids[20:22], *wrong]), (0, 1, 2))
    assert (logits[:2] - reference[20:22]).abs().max() < 1e-4
    target.keep((0, 1))  # root and one node; two rows are taken back
    assert target.length == 22
    logits = target.verify(torch.tensor(ids[22:25]), (0, 1))
    assert (logits - reference[22:25]).abs().max() < 1e-4
    target.keep((0,))
    assert (target.next(ids[23:26]) - reference[25:26]).abs().max() < 1e-4
    assert target.length == 26


@pytest.mark.parametrize("kind", CROPPABLE)
def test_truncating_far_is_right_or_starts_anew(kind: str) -> None:
    model, target = _made(kind)
    ids = _ids(30)
    reference = _reference(model, ids)
    target.prefill(ids[:26])
    left = target.truncate(11)
    assert left == (11 if kind in ("gpt_neox", "stablelm") else 0)  # layers of fixed size have forgotten too much
    target.prefill(ids[left:24])
    assert (target.verify(torch.tensor(ids[24:26]), (0,)) - reference[24:26]).abs().max() < 1e-4
    assert target.truncate(24) == 24  # drops the rows that were never kept
    assert (target.verify(torch.tensor(ids[24:25]), ()) - reference[24:25]).abs().max() < 1e-4


@pytest.mark.parametrize("kind", FIXED)
def test_what_cannot_roll_back_drafts_nothing(kind: str) -> None:
    model, target = _made(kind)
    assert target.max_nodes == 0
    ids = _ids(24)
    reference = _reference(model, ids)
    target.prefill(ids[:12])
    target.prefill(ids[12:17])
    for i in range(17, 20):
        assert (target.verify(torch.tensor(ids[i : i + 1]), ())[0] - reference[i]).abs().max() < 1e-3
        target.keep((0,))
    assert (target.next(ids[20:23])[0] - reference[22]).abs().max() < 1e-3
    assert target.length == 23
    assert target.truncate(23) == 23
    assert target.truncate(10) == 0
    assert target.length == 0
    target.prefill(ids[:5])
    assert (target.verify(torch.tensor(ids[5:6]), ())[0] - reference[5]).abs().max() < 1e-3


@pytest.mark.parametrize("kind", [*CROPPABLE, *FIXED])
def test_what_passes_cost_is_measured_at_load(kind: str) -> None:
    """With a drafter beside it. The text that was read stays, or is read again where the cache cannot go back."""
    model, target = _made(kind)
    ids = _ids(15)
    target.prefill(ids[:12])
    control = Controller()
    costs.measure(target, Ngram(), control, lambda: None)
    assert control.verify.known == (kind in CROPPABLE)  # one row alone is no curve, and nothing is drafted there
    assert target.length == (12 if kind in CROPPABLE else 0)
    target.prefill(ids[target.length : 14])
    assert (target.verify(torch.tensor(ids[14:]), ()) - _reference(model, ids)[14:]).abs().max() < 1e-3


def test_a_wider_pass_costs_what_its_experts_cost_52(monkeypatch: pytest.MonkeyPatch) -> None:
    """Edge case 52 of the cross-tokenizer notes: rows are not free where each may wake other experts. The clock counts the experts that
    are read in a pass."""
    config = _config("gpt_oss")
    config.num_local_experts, config.num_experts_per_tok = 16, 2
    model = model_of(config)
    target, control, read = HfTarget(model, 128, torch.device("cpu")), Controller(), [0]
    for name, part in model.named_modules():
        if name.endswith("router"):
            part.register_forward_hook(lambda router, given, out: read.append(read[-1] + len(out[-1].unique())))
    monkeypatch.setattr(costs, "perf_counter", lambda: float(read[-1]))
    costs.measure(target, Ngram(), control, lambda: None)
    found = [control.verify.at(width) for width in costs.WIDTHS]
    assert found[0] == 2 * 2  # two experts in each layer
    assert found == sorted(found)
    assert found[-1] > 4 * found[0]


def test_open_from_a_folder(tmp_path: Path) -> None:
    model = model_of(_config("stablelm"))
    model.save_pretrained(tmp_path)
    target, scheme, head, notes = open_hf(tmp_path, torch.device("cpu"), "fp32", 4096)
    assert (scheme, head) == ("fp32", "fp32")
    assert target.context == 128  # the model's own limit
    assert any("transformers" in note for note in notes)
    ids = _ids(9)
    target.prefill(ids[:8])
    assert (target.verify(torch.tensor(ids[8:]), ()) - _reference(model, ids)[8:]).abs().max() < 1e-5
    weights, kv = target.memory()
    assert weights >= sum(p.nbytes for p in model.parameters())
    assert kv == 2 * 2 * 9 * 2 * 16 * 4  # layers, keys and values, tokens, heads, width, bytes


def test_prefill_reports_and_stops() -> None:
    _, target = _made("gpt_neox")
    seen: list[tuple[int, int]] = []
    assert target.prefill(_ids(20), lambda done, total: seen.append((done, total)))
    assert seen == [(20, 20)]
    assert not target.prefill(_ids(5), cancelled=lambda: True)
    assert target.length == 20


def test_a_model_without_a_usual_cache_is_refused() -> None:
    from transformers import AutoConfig

    model = model_of(AutoConfig.for_model("rwkv", vocab_size=VOCAB, hidden_size=64, num_hidden_layers=2, attention_hidden_size=64))
    with pytest.raises(EngineError) as error:
        HfTarget(model, 64, torch.device("cpu"))
    assert error.value.kind == "architecture"


@pytest.mark.parametrize("quant", ["nf4", "int8"])
def test_quantized(tmp_path: Path, quant: str) -> None:
    config = _config("stablelm")
    config.intermediate_size = 128  # whole blocks of 64
    model = model_of(config)
    model.save_pretrained(tmp_path)
    target, scheme, head, _ = open_hf(tmp_path, torch.device("cpu"), quant, 64)
    assert (scheme, head) == (quant, "bf16")
    ids = _ids(12)
    target.prefill(ids[:10])
    logits, reference = target.verify(torch.tensor(ids[10:]), (0,)), _reference(model, ids)[10:]
    assert 1e-4 < (logits - reference).norm() / reference.norm() < 0.5  # rounded, but the same model
    target.keep((0,))
    assert target.length == 11
    assert target.memory()[0] < sum(p.nbytes for p in model.parameters())


def test_what_transformers_cannot_open(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "stablelm"}')
    with pytest.raises(EngineError) as error:
        open_hf(tmp_path, torch.device("cpu"), "fp32", 64)
    assert error.value.kind == "architecture"
