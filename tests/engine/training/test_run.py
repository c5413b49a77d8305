"""A whole training on a tiny target: what it writes, how it goes on, what it refuses."""

from __future__ import annotations

import json
from collections import namedtuple
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from engine.catalog import catalog, fit
from engine.catalog.specs import ModelSpec
from engine.drafters.heads import check
from engine.errors import EngineError
from engine.protocol import Failed, Load, LoadOptions, Ready
from engine.training import answers, files, loop, shards, work
from engine.training.client import TrainClient
from engine.training.protocol import Event, Judged, Kind, Learning, Plan, Remark, Stage, Stopped, Trained
from engine.training.serve import serve
from tests.engine.test_thread import Face
from tests.engine.training.worlds import few_seeds
from tests.tiny_disk import spec_of, tiny_model


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> ModelSpec:
    return spec_of(tiny_model(tmp_path_factory.mktemp("training") / "target", 1))


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    few_seeds(monkeypatch)
    monkeypatch.setattr(loop, "BATCH", 300)
    monkeypatch.setattr(answers, "POSITIONS", 200)
    monkeypatch.setenv("SPECCHAT_HOME", str(tmp_path / "home"))


def plan_of(target: ModelSpec, out: Path, **more: Any) -> Plan:
    options = LoadOptions(device="cpu", quant="fp32")
    known: dict[str, Any] = {
        "name": out.name, "options": options, "tokens": 400, "epochs": 2, "shortlist": 120, "precision": "fp32", "lanes": 6,
        "register": False,
    }  # fmt: skip
    return Plan(target, out, **(known | more))


def trained(plan: Plan, cancelled: Callable[[], bool] = lambda: False) -> tuple[Any, list[Event]]:
    events: list[Event] = []
    return serve(plan, events.append, cancelled), events


@pytest.mark.parametrize("kind", ["hydra++", "gumiho", "medusa"])
def test_heads_from_nothing(target: ModelSpec, tmp_path: Path, kind: Kind, monkeypatch: pytest.MonkeyPatch) -> None:
    """Trained, known by name, checked, loaded by the engine, and without any effect on the text."""
    monkeypatch.setattr(loop, "PATIENCE", loop.TRIALS + 1)  # from a model of noise little is learned: it shall not end early
    out = tmp_path / f"mine-{kind}"
    end, events = trained(plan_of(target, out, kind=kind, register=True))
    assert isinstance(end, Trained), end
    assert end.measured.same_text
    assert 1.0 <= end.measured.tau <= 4.0
    assert end.tokens >= 400
    assert any(isinstance(e, Learning) and e.step == e.steps == end.steps for e in events)
    assert any(isinstance(e, Judged) and e.best for e in events)
    assert (out / "README.md").read_text(encoding="utf-8").count(target.name) >= 2
    config = json.loads((out / "config.json").read_text(encoding="utf-8"))
    assert config["draft_vocab_size"] == 120
    assert config["specchat"]["tau"] == pytest.approx(end.measured.tau, abs=1e-3)
    spec = catalog.load().drafter(end.name)
    assert (spec.name, spec.kind, spec.path, spec.quant) == (out.name, "heads", out, "int8")
    facts = check.check(target, spec)
    assert (facts["method"], facts["refused"]) == (kind, None)
    assert "over 120 of 260 tokens" in facts["reasons"][0]
    face = Face()
    try:
        face.load(target)
        plain = face.ask(1, k=0).token_ids
        ready = face.load(target, spec)
        assert (ready.drafter, ready.method) == (out.name, kind)
        assert face.ask(2, k=3).token_ids == plain
    finally:
        face.client.close()


def test_the_whole_vocabulary(target: ModelSpec, tmp_path: Path) -> None:
    """The published layout without additions."""
    for kind in ("hydra++", "gumiho", "medusa"):
        out = tmp_path / kind
        end, _ = trained(plan_of(target, out, kind=kind, shortlist=0, tokens=200, epochs=1))
        assert isinstance(end, Trained), end
        assert "draft_vocab_size" not in json.loads((out / "config.json").read_text(encoding="utf-8"))
        facts = check.check(target, ModelSpec(kind, "drafter", "heads", path=out))
        assert facts["method"] == kind
        assert "over" not in facts["reasons"][0].replace("over the", "")


def test_stopped_and_resumed(target: ModelSpec, tmp_path: Path) -> None:
    out, asked = tmp_path / "heads", 0

    def after(n: int) -> Callable[[], bool]:
        nonlocal asked
        asked = 0

        def cancelled() -> bool:
            nonlocal asked
            asked += 1
            return asked > n

        return cancelled

    end, _ = trained(plan_of(target, out), after(60))
    assert end == Stopped(out)
    texts = (
        len(shards.Store(out / "work" / "judge")) + len(shards.Store(out / "work" / "report")) + len(shards.Store(out / "work" / "data"))
    )
    assert texts > 0
    end, _ = trained(plan_of(target, out))
    assert isinstance(end, Failed)
    assert end.kind == "exists"
    assert "--resume" in end.hint
    stopped_in_training = False

    def during_training() -> bool:
        return stopped_in_training

    def watch(event: Event) -> None:
        nonlocal stopped_in_training
        stopped_in_training |= isinstance(event, Judged)

    assert serve(plan_of(target, out, resume=True), watch, during_training) == Stopped(out)
    assert (out / "work" / "checkpoint.safetensors").exists()
    assert not (out / "config.json").exists()
    end, events = trained(plan_of(target, out, resume=True))
    assert isinstance(end, Trained)
    assert not any(isinstance(e, Stage) and "answers" in e.text for e in events)
    first = next(e for e in events if isinstance(e, Learning))
    assert first.step > 1
    end, events = trained(plan_of(target, out, resume=True))  # nothing is left to do but to measure
    assert isinstance(end, Trained)
    assert not any(isinstance(e, Learning) for e in events)


def test_again_with_another_kind(target: ModelSpec, tmp_path: Path) -> None:
    out = tmp_path / "heads"
    first, _ = trained(plan_of(target, out))
    assert isinstance(first, Trained)
    end, _ = trained(plan_of(target, out, resume=True, kind="medusa"))
    assert isinstance(end, Failed)
    assert "another kind ('hydra++')" in end.message
    end, events = trained(plan_of(target, out, resume=True, again=True, kind="medusa", tokens=None, hours=1.0, epochs=1))
    assert isinstance(end, Trained)
    assert end.tokens == first.tokens
    assert not any(isinstance(e, Stage) and "answers" in e.text for e in events)


def test_by_time(target: ModelSpec, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Data and steps by the clock: a moment of each."""
    monkeypatch.setattr(work, "END_S", 1.0)
    monkeypatch.setattr(answers, "FEWEST", 2)
    end, events = trained(plan_of(target, tmp_path / "heads", tokens=None, epochs=None, hours=20 / 3600))
    assert isinstance(end, Trained), end
    assert end.steps >= loop.TIMED
    assert any(isinstance(e, Remark) and "on disk" in e.text for e in events)


def test_nothing_to_go_on_with(target: ModelSpec, tmp_path: Path) -> None:
    end, _ = trained(plan_of(target, tmp_path / "heads", resume=True))
    assert isinstance(end, Failed)
    assert end.message.startswith("There is no training in")


def test_another_target_is_noticed(target: ModelSpec, tmp_path: Path) -> None:
    out = tmp_path / "heads"
    assert isinstance(trained(plan_of(target, out, tokens=220, epochs=1))[0], Trained)
    other = spec_of(tiny_model(tmp_path / "target", 2, num_hidden_layers=3))
    end, _ = trained(plan_of(other, out, resume=True))
    assert isinstance(end, Failed)
    assert end.kind == "wrong_target"


def test_one_at_a_time(target: ModelSpec, tmp_path: Path) -> None:
    with files.alone(tmp_path / "heads" / "work"):
        end, _ = trained(plan_of(target, tmp_path / "heads"))
    assert isinstance(end, Failed)
    assert end.kind == "busy"


def test_a_full_disk(target: ModelSpec, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before anything is asked, and in the middle of a shard; afterwards it goes on."""
    out = tmp_path / "heads"
    usage = namedtuple("usage", "total used free")
    with monkeypatch.context() as patch:
        patch.setattr(shards.shutil, "disk_usage", lambda _: usage(10**9, 0, 10**6))
        end, _ = trained(plan_of(target, out))
        assert isinstance(end, Failed)
        assert end.kind == "disk_full"
    real = shards.write

    def full(folder: Path, texts: Any, kind: str) -> Path:
        if folder.name == "data":
            raise files.cannot_write(folder / "x", OSError(28, "No space left on device"))
        return real(folder, texts, kind)

    with monkeypatch.context() as patch:
        patch.setattr(shards, "write", full)
        end, _ = trained(plan_of(target, out, resume=True))
        assert isinstance(end, Failed)
        assert end.kind == "disk_full"
        assert "--resume" in end.hint
    assert isinstance(trained(plan_of(target, out, resume=True))[0], Trained)


def test_too_little_memory(target: ModelSpec, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = tmp_path / "heads"
    with monkeypatch.context() as patch:
        patch.setattr(fit, "available", lambda device: (10**6, 10**9))  # not even for the target
        end, _ = trained(plan_of(target, out))
        assert isinstance(end, Failed)
        assert end.kind == "memory"
        assert end.message.startswith("Not enough memory: the target")
    with monkeypatch.context() as patch:
        first = iter([(10**12, 10**12)])
        patch.setattr(fit, "available", lambda device: next(first, (10**6, 10**9)))
        end, _ = trained(plan_of(target, out))
        assert isinstance(end, Failed)
        assert end.kind == "memory"
        assert end.message.startswith("Training needs about")

    def out_of_memory(self: loop.Loop, numbers: list[int]) -> float:
        raise RuntimeError("[enforce fail at alloc_cpu.cpp:121] DefaultCPUAllocator: can't allocate memory: you tried to allocate much")

    with monkeypatch.context() as patch:
        patch.setattr(loop.Loop, "_step", out_of_memory)
        end, _ = trained(plan_of(target, out, resume=True))
        assert isinstance(end, Failed)
        assert end.kind == "memory"
        assert "--resume" in end.hint
    assert isinstance(trained(plan_of(target, out, resume=True))[0], Trained)


def test_a_broken_models_toml_costs_only_the_entry(target: ModelSpec, tmp_path: Path) -> None:
    toml = tmp_path / "home" / "config" / "models.toml"
    toml.parent.mkdir(parents=True)
    toml.write_text("[drafter\n", encoding="utf-8")
    end, events = trained(plan_of(target, tmp_path / "heads", tokens=220, epochs=1, register=True))
    assert isinstance(end, Trained)
    assert end.name == ""
    assert any(isinstance(e, Remark) and "[drafter." in e.text for e in events)
    assert toml.read_text(encoding="utf-8") == "[drafter\n"


def test_on_a_thread_of_its_own(target: ModelSpec, tmp_path: Path) -> None:
    client = TrainClient(plan_of(target, tmp_path / "heads", tokens=220, epochs=1))
    client.start()
    events: list[Event] = []
    while not any(isinstance(e, (Trained, Failed)) for e in events):
        events += client.wait(1.0)
    assert isinstance(events[-1], Trained), events[-1]
    client.close(5.0)
    assert not client.alive


def test_heads_of_another_model_are_refused(target: ModelSpec, tmp_path: Path) -> None:
    """The same sizes, other norms: only the hash can tell. Another number format of the same model is a warning."""
    out = tmp_path / "heads"
    assert isinstance(trained(plan_of(target, out, tokens=220, epochs=1))[0], Trained)
    heads = ModelSpec("heads", "drafter", "heads", path=out)
    import torch
    from safetensors.torch import load_file, save_file

    folder = tiny_model(tmp_path / "other", 1)
    tensors = load_file(folder / "model.safetensors")
    tensors["model.norm.weight"] = tensors["model.norm.weight"] + torch.linspace(0, 1, 64)
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    face = Face()
    try:
        face.send(Load(spec_of(folder), heads, LoadOptions(device="cpu", quant="fp32"), "auto"))
        failed = face.until(lambda e: isinstance(e, Ready))[-2]
        assert isinstance(failed, Failed)
        assert failed.kind == "wrong_target"
        assert "hash" in failed.message
        ready = face.load(target, heads, LoadOptions(device="cpu", quant="bf16"))
        assert ready.drafter == "heads"
        assert any("another quantization" in note for note in ready.notes)
        ready = face.load(target, heads, LoadOptions(device="cpu", quant="fp32"))
        assert not any("drafts may be kept" in note for note in ready.notes)
    finally:
        face.client.close()


def test_the_plan_file_of_another_version(target: ModelSpec, tmp_path: Path) -> None:
    out = tmp_path / "heads"
    files.write_json(out / "work" / "plan.json", {"unknown": 1})
    with pytest.raises(EngineError, match="not one of this version"):
        work.Work(replace(plan_of(target, out), resume=True))
