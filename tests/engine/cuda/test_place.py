"""Targets larger than one card: decided with numbers. No card is needed for the deciding."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import transformers

from engine import room
from engine.catalog import fit
from engine.catalog.specs import NGRAM, ModelSpec
from engine.cuda import place
from engine.cuda.place import Spread
from engine.decoder import hf
from engine.errors import EngineError
from engine.protocol import Load, LoadOptions

GB = 1_000_000_000
NEED = fit.Fit(weights=40 * GB, kv=2 * GB, work=GB, context=4096, quant="nf4")  # and 0.5 GB of reserve


@pytest.mark.parametrize(
    ("cards", "host", "expected"),
    [
        ([24, 24], 64, Spread({0: 20_500_000_000, 1: 20_500_000_000}, 0)),
        ([24, 16], 64, Spread({0: 20_500_000_000, 1: 12_500_000_000}, 62 * GB)),
        ([24], 64, Spread({0: 20_500_000_000}, 62 * GB)),
        ([24, 3], 64, Spread({0: 20_500_000_000}, 62 * GB)),  # too small a card to be of use
        ([24, 16], 8, None),  # not even with the host
        ([3], 640, None),
        ([], 640, None),
        ([48], 64, None),  # fits one: nothing to spread
    ],
)
def test_where_it_goes(cards: list[int], host: int, expected: Spread | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(place, "free_of_cards", lambda: [card * GB for card in cards])
    monkeypatch.setattr(place.spare, "available", lambda: host * GB)
    assert place.spread(NEED, cards[0] * GB if cards else 0) == expected


def test_what_the_person_and_accelerate_are_told() -> None:
    both = Spread({0: 20 * GB, 1: 12 * GB}, 30 * GB)
    assert both.max_memory() == {0: 20 * GB, 1: 12 * GB, "cpu": 30 * GB}
    assert Spread({0: 1, 1: 2}, 0).max_memory() == {0: 1, 1: 2}
    note = both.note("big", 43 * GB, 24 * GB)
    assert "big needs 43.0 GB, and its card has 24.0 GB free" in note
    assert "20.0 GB of card 0 and 12.0 GB of card 1 and 30.0 GB of the computer's own memory" in note


def test_elsewhere_nothing_is_spread(tmp_path: Path) -> None:
    assert place.needed(tmp_path, "auto", "auto", 4096, torch.device("cpu")) is None


def test_the_plan_of_a_load(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    card = torch.device("cuda:0")
    monkeypatch.setattr(room.stored, "where", lambda spec: tmp_path)
    monkeypatch.setattr(room.fit, "estimate", lambda path, **options: NEED)
    monkeypatch.setattr(room.fit, "available", lambda device: (24 * GB, 24 * GB))
    monkeypatch.setattr(place, "free_of_cards", lambda: [24 * GB, 24 * GB])
    small = ModelSpec("small", role="drafter")
    for drafter, kept in ((NGRAM, "ngram"), (small, "none")):
        _, planned, notes = room.plan(Load(ModelSpec("big"), drafter, LoadOptions(context=4096)), card)
        assert planned.name == kept
        assert "spread over up to 20.5 GB of card 0 and 20.5 GB of card 1" in notes[0]
    monkeypatch.setattr(place, "free_of_cards", lambda: [24 * GB])
    monkeypatch.setattr(place.spare, "available", lambda: 8 * GB)
    with pytest.raises(EngineError, match="Not enough memory"):
        room.plan(Load(ModelSpec("big"), NGRAM, LoadOptions(context=4096)), card)


@pytest.mark.parametrize(("scheme", "offload"), [("nf4", True), ("nf4", False), ("int8", True), ("bf16", True)])
def test_transformers_gets_the_numbers(scheme: str, offload: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    given: dict[str, object] = {}

    class Made:
        def eval(self) -> Made:
            return self

    def load(folder: str, **options: object) -> Made:
        given.update(options)
        return Made()

    monkeypatch.setattr(transformers.AutoModelForCausalLM, "from_pretrained", load)
    laid = Spread({0: 7, 1: 8}, 9 if offload else 0)
    hf._load(tmp_path, torch.device("cuda:0"), scheme, torch.bfloat16, laid)
    assert given["device_map"] == "auto"
    assert given["max_memory"] == laid.max_memory()
    quantization = given.get("quantization_config")
    assert (quantization is None) == (scheme == "bf16")
    if quantization is not None:
        assert quantization.llm_int8_enable_fp32_cpu_offload == offload  # type: ignore[attr-defined]
    given.clear()
    hf._load(tmp_path, torch.device("cuda:0"), "nf4", torch.bfloat16)
    assert given["device_map"] == {"": "cuda:0"}
