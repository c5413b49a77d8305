"""Heads through the whole engine: every family beside a tiny target gives the target's own text; what cannot work says why."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from engine.catalog import fit, measured
from engine.catalog.specs import ModelSpec
from engine.protocol import Failed, Load, Ready
from tests.engine.drafters.heads import writing
from tests.engine.drafters.heads.writing import HYDRA, LLAMA, MEDUSA
from tests.engine.test_thread import CPU, Face
from tests.tiny_disk import spec_of, tiny_model


@pytest.fixture
def face() -> Iterator[Face]:
    face = Face()
    yield face
    face.client.close()


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> ModelSpec:
    return spec_of(tiny_model(tmp_path_factory.mktemp("heads") / "target", 1, num_hidden_layers=8), params=1.0)


@pytest.fixture(scope="module")
def heads(tmp_path_factory: pytest.TempPathFactory) -> dict[str, ModelSpec]:
    """One folder a family, in the tiny target's sizes."""
    at = tmp_path_factory.mktemp("families")
    sizes = {"H": 64, "I": 128, "V": 260, "NH": 4, "KV": 2, "D": 16}
    config = LLAMA | {"num_attention_heads": 4, "vocab_size": 260}
    with pytest.MonkeyPatch.context() as patch:
        for name, value in sizes.items():
            patch.setattr(writing, name, value)
        folders = {
            "eagle2": writing.write(at / "eagle2", writing.eagle(), config),
            "eagle3": writing.write(at / "eagle3", writing.eagle3(draft=200), config),
            "gumiho": writing.write(at / "gumiho", writing.gumiho(), config),
            "hydra": writing.write(at / "hydra", writing.hydra(), HYDRA | {"hydra_num_layers": 1}, "hydra_lm_head.pt"),
            "hydra++": writing.write(at / "hydra++", writing.hydra_plus(), HYDRA, "hydra_lm_head.pt"),
            "medusa": writing.write(at / "medusa", writing.medusa(), MEDUSA, "medusa_lm_head.pt"),
        }
    folders["small"] = writing.write(at / "small", writing.medusa(), MEDUSA, "medusa_lm_head.pt")  # in sizes of its own
    return {family: ModelSpec(folder.name, "drafter", "heads", path=folder) for family, folder in folders.items()}


def test_every_family_beside_a_target(face: Face, target: ModelSpec, heads: dict[str, ModelSpec]) -> None:
    ready = face.load(target)
    assert ready.drafter == "none"
    plain = face.ask(1, k=0).token_ids
    for number, family in enumerate(["medusa", "hydra", "hydra++", "eagle2", "eagle3", "gumiho"], 2):
        ready = face.load(target, replace(heads[family], kind="model"))  # as from a folder of which nobody said what it is
        assert (ready.drafter, ready.method) == (heads[family].name, family)
        assert ready.memory.drafter > 0
        done = face.ask(number, k=8)
        assert (done.token_ids, done.method) == (plain, family)
        assert any("holds 5" in note for note in ready.notes) == (family == "medusa")
    ready = face.load(target, heads["eagle2"], method="eagle1")
    assert ready.method == "eagle1"
    assert face.ask(9, k=8).token_ids == plain


def test_heads_of_another_target_leave_the_target(face: Face, target: ModelSpec, heads: dict[str, ModelSpec]) -> None:
    face.send(Load(target, heads["small"], CPU, "auto"))
    failed, ready = face.until(lambda e: isinstance(e, Ready))[-2:]
    assert isinstance(failed, Failed)
    assert isinstance(ready, Ready)
    assert failed.kind == "wrong_target"
    assert failed.message == "The heads in small are for another model than target: they need a hidden size of 32, and it has 64."
    assert ready.drafter == "none"


def test_bound_heads_are_refused_by_name(
    face: Face, target: ModelSpec, heads: dict[str, ModelSpec], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Beside another model of the hub, although the sizes would do; beside a folder of the person's own sizes decide."""
    assert target.path is not None
    snapshots = tmp_path / "models--org--target" / "snapshots"
    snapshots.mkdir(parents=True)
    (snapshots / "abc").symlink_to(target.path, target_is_directory=True)
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    bound = replace(heads["medusa"], bound_to=("vicuna-7b-v1.3",))
    face.send(Load(ModelSpec("org/target", repo="org/target"), bound, CPU, "auto"))
    failed, ready = face.until(lambda e: isinstance(e, Ready))[-2:]
    assert isinstance(failed, Failed)
    assert failed.kind == "wrong_target"
    assert "vicuna-7b-v1.3" in failed.message
    assert "vicuna-7b-v1.3" in failed.hint
    assert isinstance(ready, Ready)
    assert ready.drafter == "none"
    assert face.load(target, bound).drafter == bound.name


def test_too_little_memory_drops_the_heads(
    face: Face, target: ModelSpec, heads: dict[str, ModelSpec], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert isinstance(target.path, Path)
    monkeypatch.setattr(measured, "recall_bytes", lambda *_: 0)  # beside so small a model, what the process itself grew by is much
    need = fit.estimate(target.path, quant="fp32", context=2048, device="cpu").total
    folder = heads["gumiho"].path
    assert folder is not None
    beside = fit.without_libraries(fit.estimate(folder, quant="fp32", context=2048, device="cpu"), "cpu").total
    monkeypatch.setattr(fit, "available", lambda device: (need + fit.RESERVE + beside // 2, 8 * need))
    ready = face.load(target, heads["gumiho"], replace(CPU, context=2048))
    assert ready.drafter == "none"
    assert any("gumiho was left out" in note for note in ready.notes)
    monkeypatch.setattr(fit, "available", lambda device: (need + fit.RESERVE + 2 * beside, 8 * need))
    assert face.load(target, heads["gumiho"], replace(CPU, context=2048)).drafter == "gumiho"


def test_memory_as_predicted(face: Face, target: ModelSpec, heads: dict[str, ModelSpec]) -> None:
    """What the engine reports is the estimate, where so little memory says anything: `tests/benchmarks/full_size_heads.py` is the proof."""
    quant = "bf16"
    for family in ("hydra++", "medusa", "gumiho"):
        folder = heads[family].path
        assert folder is not None
        ready = face.load(target, heads[family], replace(CPU, draft_quant=quant))
        assert ready.draft_quant == quant
        predicted = fit.estimate(folder, quant=quant, context=512, device="cpu")
        own = 260 * 64 * 2 if family == "gumiho" else 0  # mapped, but counted by the heads
        assert ready.memory.drafter - own == pytest.approx(predicted.weights + predicted.kv, rel=0.12), family
