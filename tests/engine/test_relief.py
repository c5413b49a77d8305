"""After memory has run out: the drafter goes first, then half of the context, the target last; each said with numbers."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from engine import fitting
from engine.catalog.specs import ModelSpec
from engine.cuda.recorder import EagerRecorder
from engine.cuda.rows import StaticRows
from engine.decoder import opened
from engine.errors import EngineError
from engine.protocol import LoadOptions, Memory
from engine.relief import choose, smaller_context
from tests.tiny import tiny_target

HELD = Memory(5_000_000_000, 600_000_000, 2_000_000_000, 11_800_000_000, 12_000_000_000)


def test_the_order_and_the_numbers() -> None:
    first = choose(HELD, "qwen-small", 16384, "the target")
    assert first.what == "drafter"
    assert "11.8 GB of 12.0 GB" in first.error.message
    assert "qwen-small was dropped, which held 600 MB" in first.error.message
    second = choose(HELD, "", 16384, "the target")
    assert (second.what, second.context) == ("context", 8192)
    assert "8,192 tokens from now on instead of 16,384, which frees up to 1.0 GB" in second.error.message
    third = choose(HELD, "", 1500, "the target")
    assert third.what == "target"
    assert "the target was unloaded, which held 7.0 GB" in third.error.message
    assert choose(HELD, "", 16384, "x", shrinks=False).what == "target"
    for relief in (first, second, third):
        assert relief.error.kind == "memory"
        assert relief.error.hint
        assert relief.error.numbers["used"] == HELD.device_used
    assert (smaller_context(4096), smaller_context(2048), smaller_context(2000)) == (2048, 1024, 0)


class Session:
    """As much of one as `relieve` looks at."""

    class Loaded:
        def __init__(self, drafter: object) -> None:
            self.drafter = drafter

    class Drafter:
        name = "small"

    def __init__(self, target: object) -> None:
        self.target, self.loaded = target, self.Loaded(self.Drafter())


def test_one_thing_after_the_other(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fitting, "on_card", lambda session: True)
    target = tiny_target(1, context=2600)
    target.static = StaticRows(target.model, target.cache, EagerRecorder(torch.device("cpu")))
    target.prefill([1, 2, 3])
    before = target.verify(torch.tensor([4, 5]), (0,))
    session = Session(target)
    lost: list[str] = []

    def memory(_: object) -> Memory:
        return Memory(100, 50 if session.loaded.drafter else 0, target.memory()[1], 9, 10)

    def drop() -> None:
        lost.append("drafter")
        session.loaded.drafter = None

    def relieve(error: BaseException) -> tuple[BaseException, tuple[str, ...]]:
        return fitting.relieve(error, session, memory, drop, lambda: lost.append("target"))  # type: ignore[arg-type]

    gone = torch.OutOfMemoryError("CUDA out of memory")
    told, given_up = relieve(gone)
    assert isinstance(told, EngineError)
    assert (given_up, lost) == (("drafter",), ["drafter"])
    told, given_up = relieve(gone)
    assert isinstance(told, EngineError)
    assert (given_up, target.context, target.length) == ((), 1280, 0)
    target.prefill([1, 2, 3])
    assert torch.equal(target.verify(torch.tensor([4, 5]), (0,)), before)
    assert target.static is not None
    assert target.static.cache is target.cache
    told, given_up = relieve(gone)
    assert (given_up, lost) == (("target",), ["drafter", "target"])


def test_other_errors_and_the_hosts_memory_change_nothing() -> None:
    session = Session(tiny_target(1))
    for error in (RuntimeError("boom"), EngineError("no"), MemoryError()):
        told, lost = fitting.relieve(error, session, lambda s: HELD, pytest.fail, pytest.fail)  # type: ignore[arg-type]
        assert (told, lost) == (error, ())
    assert fitting.relieve(MemoryError(), None, lambda s: HELD, pytest.fail, pytest.fail)[1] == ()


def test_a_target_that_does_not_fit_is_tried_with_half_of_its_context(monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[int] = []
    made = opened.Opened(tiny_target(1), None, None, torch.device("cpu"), "nf4", "bf16", ("a note",))  # type: ignore[arg-type]

    def open_target(spec: ModelSpec, path: Path, device: torch.device, options: LoadOptions, context: int, *more: object) -> opened.Opened:
        tried.append(context)
        if context > 2048:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return made

    monkeypatch.setattr(opened, "open_target", open_target)

    def load(context: int, asked: int | None = None) -> opened.Opened:
        options = LoadOptions(context=asked)
        return fitting.open_target(ModelSpec("x"), Path("x"), torch.device("cpu"), options, context, lambda *a: None, lambda: False)

    notes = load(8192).notes
    assert tried == [8192, 4096, 2048]
    assert notes[0] == "a note"
    assert "the context is 4,096 tokens, not 8,192." in notes[1]
    assert "the context is 2,048 tokens, not 4,096." in notes[2]
    with pytest.raises(torch.OutOfMemoryError):  # the person asked for it
        load(8192, asked=8192)
    assert tried[3:] == [8192]
