"""The whole engine through its face, on tiny models on disk: loads, replies, swaps, stops, failures."""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import engine.thread as thread
from engine.catalog import fit, measured, others
from engine.catalog.specs import AUTO, NGRAM, NONE, ModelSpec
from engine.client import EngineClient
from engine.decoder.kv import LayerSlots
from engine.decoder.linear import own_kernels
from engine.decoder.target import LeanTarget
from engine.drafters import registry
from engine.experience import Experience
from engine.protocol import (
    Done,
    Event,
    Failed,
    Generate,
    Load,
    Loading,
    LoadOptions,
    Message,
    Notice,
    Prefill,
    Ready,
    Sampling,
    Step,
    SwapDrafter,
    Unload,
    Unloaded,
)
from tests.patience import PATIENCE_S, Patience
from tests.tiny_disk import TEMPLATE, spec_of, tiny_model

CPU = LoadOptions(device="cpu", quant="fp32")


@pytest.fixture(scope="module")
def disk(tmp_path_factory: pytest.TempPathFactory) -> dict[str, ModelSpec]:
    """A target, a smaller model of the same family, one that is the target itself, and one with another vocabulary."""
    at = tmp_path_factory.mktemp("models")
    return {
        "target": spec_of(tiny_model(at / "target", 1), params=1.0),
        "small": spec_of(tiny_model(at / "small", 2, num_hidden_layers=1), "drafter", params=0.1),
        "same": spec_of(tiny_model(at / "same", 1), "drafter", params=1.0),
        "stranger": spec_of(tiny_model(at / "stranger", 3, shift=7), "drafter", params=0.1),
    }


@pytest.fixture(scope="module", autouse=True)
def quick_collections() -> Iterator[None]:
    """The engine collects garbage at each load; what pytest holds need not be looked at each time."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


class Gate:
    """Holds the engine behind each step of one reply until it may go on, or shall stop: the test is in time, whatever the machine does."""

    def __init__(self, client: EngineClient) -> None:
        self.reply: int | None = None  # None: nothing is held
        self._client, self._put = client, client._outbox.put
        self._going = threading.Semaphore(0)
        client._outbox.put = self._hold  # type: ignore[method-assign]

    def _hold(self, event: Event) -> None:
        stopped = self._client._stopper._stopped
        self._put(event)
        while isinstance(event, Step) and event.reply == self.reply and not self._going.acquire(timeout=0.01):
            if self._client._stopper._stopped > stopped:
                break

    def go(self) -> None:
        """One step more."""
        self._going.release()

    def open(self) -> None:
        """Hold nothing any more."""
        self.reply = None
        self.go()


class Face:
    """A client with some patience."""

    def __init__(self) -> None:
        self.client = EngineClient()
        self.gate = Gate(self.client)
        self.send, self.stop = self.client.send, self.client.stop

    def until(self, wanted: Callable[[Event], bool]) -> list[Event]:
        """All events up to the first wanted one."""
        seen: list[Event] = []
        patience = Patience()
        while patience.left():
            seen += self.client.wait(0.05)
            if any(wanted(e) for e in seen):
                return seen
        raise AssertionError(f"not answered: {seen[-3:]}")

    def load(self, target: ModelSpec, drafter: ModelSpec = NONE, options: LoadOptions = CPU, method: str = "auto") -> Ready:
        self.send(Load(target, drafter, options, method))
        return self.ready()

    def ready(self) -> Ready:
        seen = self.until(lambda e: isinstance(e, (Ready, Failed)))
        assert isinstance(seen[-1], Ready), seen[-1]
        return seen[-1]

    def failed(self) -> Failed:
        return next(e for e in self.until(lambda e: isinstance(e, Failed)) if isinstance(e, Failed))

    def ask(self, reply: int = 1, text: str = "hello", **more: Any) -> Done:
        self.send(generate(reply, text, **more))
        return self.done(reply)

    def done(self, reply: int) -> Done:
        seen = self.until(lambda e: isinstance(e, (Done, Failed)) and e.reply == reply)
        last = next(e for e in seen if isinstance(e, (Done, Failed)) and e.reply == reply)
        assert isinstance(last, Done), last
        return last


def generate(reply: int, text: str = "hello", **more: Any) -> Generate:
    return Generate(reply, (Message("user", text),), **({"seed": 5, "max_tokens": 40} | more))


@pytest.fixture
def face(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Face]:
    monkeypatch.setenv("SPECCHAT_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(thread, "use_physical_cores", lambda: torch.set_num_threads(1))
    it = Face()
    yield it
    it.client.close(20.0)
    assert not it.client.alive


def schemes() -> list[Any]:
    have = {"nf4": own_kernels(), "int8": own_kernels()}
    return [pytest.param(q, marks=pytest.mark.skipif(not have.get(q, True), reason="no kernel")) for q in ("nf4", "int8", "bf16", "fp32")]


# --- a life -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("quant", schemes())
def test_load_ready_generate_done(face: Face, disk: dict[str, ModelSpec], quant: str) -> None:
    face.send(Load(disk["target"], disk["small"], LoadOptions(device="cpu", quant=quant, context=700)))
    seen = face.until(lambda e: isinstance(e, (Ready, Failed)))
    ready = seen[-1]
    assert isinstance(ready, Ready), ready
    assert isinstance(seen[0], Loading)
    assert (ready.target, ready.drafter, ready.method, ready.device, ready.quant) == ("target", "small", "model", "cpu", quant)
    assert ready.context == 700
    assert ready.exact == (quant in ("nf4", "int8"))
    assert ready.sampling == Sampling(0.9, 0.95, 0, 0.0, 1.0)
    assert ready.memory.target > 0
    assert ready.memory.drafter > 0
    assert ready.load_s > 0
    face.send(generate(4, max_tokens=50))
    seen = face.until(lambda e: isinstance(e, Done))
    done = seen[-1]
    assert isinstance(done, Done)
    assert [type(e) for e in seen[:1]] == [Prefill]
    steps = [e for e in seen if isinstance(e, Step)]
    assert "".join(s.text for e in steps for s in e.segments) + "".join(s.text for s in done.tail) == done.text
    assert (done.reply, len(done.token_ids), done.finish_reason, done.drafter) == (4, 50, "length", "small")
    if ready.exact:
        for drafter in (NONE, NGRAM, disk["same"]):
            face.send(SwapDrafter(drafter))
            assert face.ready().drafter == drafter.name
            assert face.ask(5, max_tokens=50).token_ids == done.token_ids
        assert face.ask(6, max_tokens=50, k=4).token_ids == done.token_ids


def test_a_copy_of_the_target_is_kept_whole(face: Face, disk: dict[str, ModelSpec]) -> None:
    face.load(disk["target"], disk["same"])
    face.send(generate(1, k=5, sampling=Sampling(temperature=1.0)))
    steps = [e for e in face.until(lambda e: isinstance(e, Done)) if isinstance(e, Step)]
    assert sum(e.accepted for e in steps) / sum(e.drafted for e in steps) > 0.9


def test_a_second_load_replaces_the_first_and_unload_frees_it(face: Face, disk: dict[str, ModelSpec]) -> None:
    face.load(disk["target"], NGRAM)
    first = face.ask(1)
    assert face.load(disk["small"]).target == "small"
    assert face.ask(2).token_ids != first.token_ids
    face.send(Unload())
    face.until(lambda e: isinstance(e, Unloaded))
    face.send(generate(3))
    assert face.failed().kind == "not_loaded"
    face.load(disk["target"], NGRAM)
    assert face.ask(4).token_ids == first.token_ids


def test_a_reply_with_a_drafter_is_remembered_for_auto(face: Face, disk: dict[str, ModelSpec]) -> None:
    face.load(disk["target"], NGRAM)
    face.ask(1, max_tokens=60)
    assert list(measured.recall("target", "fp32", "cpu")) == ["ngram"]
    face.send(SwapDrafter(NONE))
    face.ready()
    face.ask(2, max_tokens=60)
    assert list(measured.recall("target", "fp32", "cpu")) == ["ngram"]
    assert face.load(disk["target"], AUTO).drafter == "ngram"  # nothing else is on this disk


def test_the_next_load_knows_what_this_one_took(face: Face, disk: dict[str, ModelSpec], monkeypatch: pytest.MonkeyPatch) -> None:
    """More than the estimate, in this process: where that much is not free, the next load says so beforehand."""
    path = disk["target"].path
    assert path is not None
    held = iter((0, *[7_000_000_000] * 99))
    monkeypatch.setattr(Experience, "_held", lambda self: next(held))
    face.load(disk["target"])
    taken = measured.recall_bytes(path, "fp32", "fp32", "cpu")
    assert 6_900_000_000 < taken <= 7_000_000_000  # without the cache
    monkeypatch.setattr(fit, "available", lambda device: (6_000_000_000, 8_000_000_000))
    monkeypatch.setattr(others, "others", lambda device: [("browser", 3_000_000_000)])
    face.send(Load(disk["target"], NONE, replace(CPU, context=512)))
    failed = face.failed()
    assert failed.kind == "memory"
    assert "7.4 GB" in failed.message
    assert failed.detail == "Other programs hold memory: browser 3.0 GB."


def test_a_stop_string_of_the_entry_ends_a_reply(face: Face, disk: dict[str, ModelSpec]) -> None:
    face.load(disk["target"])
    plain = face.ask(1)
    letter = next(c for c in plain.text[5:] if c.isprintable() and c != "\ufffd")
    face.load(ModelSpec("target", path=disk["target"].path, stop=(letter,)))
    done = face.ask(2)
    assert done.text == plain.text[: plain.text.index(letter)]
    assert done.finish_reason == "stop"


def test_thoughts_that_the_template_opens_are_told_with_ready(face: Face, disk: dict[str, ModelSpec], tmp_path: Path) -> None:
    """Also after another drafter, and not where the template leaves the first tag to the model."""
    from transformers import PreTrainedTokenizerFast

    folder = tiny_model(tmp_path / "thinker", 4, vocab_size=320)
    tokenizer = PreTrainedTokenizerFast.from_pretrained(folder)
    tokenizer.add_tokens(["<think>", "</think>"])
    tokenizer.chat_template = TEMPLATE.replace("<|assistant|>{%", "<|assistant|><think>{%")
    tokenizer.save_pretrained(folder)
    assert face.load(spec_of(folder)).opens_thoughts
    face.send(SwapDrafter(NGRAM))
    assert face.ready().opens_thoughts
    assert not face.load(disk["target"]).opens_thoughts


def test_the_machine_is_measured_for_a_drafter_also_when_it_comes_later(face: Face, disk: dict[str, ModelSpec]) -> None:
    """A plain reply tells what one row costs; what several cost must still be measured when a drafter comes."""
    face.load(disk["target"])
    face.ask(1, max_tokens=5)
    face.send(SwapDrafter(NGRAM))
    seen = face.until(lambda e: isinstance(e, Ready))
    assert any(isinstance(e, Loading) and "Measuring" in e.stage for e in seen)
    face.send(SwapDrafter(disk["small"]))
    seen = face.until(lambda e: isinstance(e, Ready))
    assert not any(isinstance(e, Loading) and "Measuring" in e.stage for e in seen)


# --- bad loads ----------------------------------------------------------------------------------------------------------


def test_a_bad_target_is_a_failure_and_a_good_one_works_afterwards(face: Face, disk: dict[str, ModelSpec], tmp_path: Path) -> None:
    good = disk["target"].path
    assert good is not None
    cut = tmp_path / "cut"
    cut.mkdir()
    for file in good.iterdir():
        (cut / file.name).write_bytes(file.read_bytes()[: 20_000 if file.suffix == ".safetensors" else None])
    rubbish = tmp_path / "rubbish"
    rubbish.mkdir()
    for file in good.iterdir():
        (rubbish / file.name).write_bytes(b"\xff" * 4000 if file.suffix == ".safetensors" else file.read_bytes())
    bare = tmp_path / "bare"
    bare.mkdir()
    for file in good.iterdir():
        if not file.name.startswith(("tokenizer", "special")):
            (bare / file.name).write_bytes(file.read_bytes())
    cases = [
        (disk["target"], LoadOptions(device="tpu"), "device"),
        (disk["target"], LoadOptions(device="no such thing"), "device"),
        (disk["target"], LoadOptions(device="cpu", quant="nf5"), "config"),
        (disk["target"], LoadOptions(device="cpu", draft_quant="nf5"), "config"),
        (disk["target"], LoadOptions(device="cpu", head="nf5"), "config"),
        (spec_of(tmp_path / "nowhere"), CPU, "missing_weights"),
        (spec_of(cut), CPU, "corrupt_weights"),
        (spec_of(rubbish), CPU, "corrupt_weights"),
        (spec_of(bare), CPU, "missing_weights"),
    ]
    if not torch.cuda.is_available():
        cases.append((disk["target"], LoadOptions(device="cuda"), "device"))
    for spec, options, kind in cases:
        face.send(Load(spec, NGRAM, options))
        failed = face.failed()
        assert failed.kind == kind, failed
        assert failed.hint
        assert failed.lost == ("target",)
        assert failed.message.endswith(".")
    face.load(disk["target"], NGRAM)
    assert len(face.ask(1).token_ids) == 40


def test_a_mistake_in_a_command_costs_nothing(face: Face, disk: dict[str, ModelSpec], tmp_path: Path) -> None:
    """What can be seen before anything is freed leaves the loaded model alone."""
    face.load(disk["target"], NGRAM)
    plain = face.ask(1)
    for spec, options in (
        (disk["small"], LoadOptions(device="tpu")),
        (disk["small"], LoadOptions(device="cpu", quant="nf5")),
        (spec_of(tmp_path / "nowhere"), CPU),
    ):
        face.send(Load(spec, NONE, options))
        assert face.failed().lost == ()
        done = face.ask(2)
        assert (done.token_ids, done.drafter) == (plain.token_ids, "ngram")


def test_a_machine_that_cannot_be_measured_runs_without_a_drafter(
    face: Face, disk: dict[str, ModelSpec], monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(LeanTarget, "verify", failing(LeanTarget.verify, 4, MemoryError()))
        face.send(Load(disk["target"], disk["small"], CPU))
        failed, ready = face.until(lambda e: isinstance(e, Ready))[-2:]
    assert isinstance(failed, Failed)
    assert (failed.kind, failed.lost) == ("memory", ("drafter",))
    assert isinstance(ready, Ready)
    assert (ready.drafter, ready.memory.drafter) == ("none", 0)
    assert len(face.ask(1).token_ids) == 40


def test_a_bad_drafter_leaves_the_target(face: Face, disk: dict[str, ModelSpec], tmp_path: Path) -> None:
    small = disk["small"].path
    assert small is not None
    for name, suffix, size in (("cut", ".safetensors", 9000), ("rubbish", ".json", 5)):
        (tmp_path / name).mkdir()
        for file in small.iterdir():
            (tmp_path / name / file.name).write_bytes(file.read_bytes()[: size if file.suffix == suffix else None])
    cases = [
        (spec_of(tmp_path / "cut", "drafter"), "auto", "corrupt_weights"),
        (spec_of(tmp_path / "rubbish", "drafter"), "auto", None),
        (disk["stranger"], "model", "vocabulary"),
        (spec_of(tmp_path / "nowhere", "drafter"), "auto", "missing_weights"),
        (ModelSpec("some-heads", role="drafter", kind="heads"), "auto", None),
        (disk["small"], "hydra", None),
        (NGRAM, "model", "config"),
    ]
    for drafter, method, kind in cases:
        face.send(Load(disk["target"], drafter, CPU, method))
        seen = face.until(lambda e: isinstance(e, Ready))
        failed, ready = seen[-2:]
        assert isinstance(failed, Failed)
        assert isinstance(ready, Ready)
        assert kind is None or failed.kind == kind
        assert failed.lost == ("drafter",)
        assert (ready.target, ready.drafter, ready.method) == ("target", "none", "none")
    plain = face.ask(1)
    face.send(SwapDrafter(NGRAM))
    face.ready()
    for drafter, method, kind in cases:
        face.send(SwapDrafter(drafter, method))
        failed = face.failed()
        assert kind is None or failed.kind == kind
        assert failed.lost == ()  # the one before stays
    done = face.ask(2)
    assert (done.token_ids, done.drafter) == (plain.token_ids, "ngram")


def test_another_vocabulary_is_named(face: Face, disk: dict[str, ModelSpec]) -> None:
    face.send(Load(disk["target"], disk["stranger"], CPU, "model"))
    failed = face.failed()
    assert "stranger" in failed.message
    assert "id " in failed.message  # the first that differs
    assert "--method" in failed.hint


def test_a_drafter_with_another_vocabulary_is_named_with_its_method(face: Face, disk: dict[str, ModelSpec]) -> None:
    """The method of `auto` follows the temperature of the reply; Ready tells that of the model's own settings."""
    face.load(disk["target"])
    plain = {t: face.ask(1, sampling=Sampling(temperature=t)) for t in (0.0, 0.7)}
    face.send(Load(disk["target"], disk["stranger"], CPU))
    assert face.ready().method == "pf"
    for temperature, method in ((0.0, "slem"), (0.7, "pf"), (0.0, "slem")):
        done = face.ask(2, sampling=Sampling(temperature=temperature))
        assert (done.drafter, done.method) == ("stranger", method)
        assert done.token_ids == plain[temperature].token_ids
    for method in ("slem", "tli", "pf", "slrs"):
        face.send(SwapDrafter(disk["stranger"], method))
        assert face.ready().method == method
        assert face.ask(3, sampling=Sampling(temperature=0.7)).token_ids == plain[0.7].token_ids


def test_a_swap_without_a_target_is_refused(face: Face) -> None:
    face.send(SwapDrafter(NGRAM))
    assert face.failed().kind == "not_loaded"


# --- swaps and stops --------------------------------------------------------------------------------------------------------


def test_swaps_in_the_middle_of_a_reply_keep_the_text(face: Face, disk: dict[str, ModelSpec]) -> None:
    face.load(disk["target"])
    plain = face.ask(1, max_tokens=900)
    face.gate.reply = 2
    face.send(generate(2, max_tokens=900))
    answers: list[Event] = []
    for drafter in (NGRAM, disk["small"], ModelSpec("gone", role="drafter", repo="somebody/gone"), disk["stranger"], disk["same"]):
        answers += face.until(lambda e: isinstance(e, Step))
        face.send(SwapDrafter(drafter))
        face.gate.go()
    face.gate.open()
    answers += face.until(lambda e: isinstance(e, Done))
    done = next(e for e in answers if isinstance(e, Done))
    assert done.token_ids == plain.token_ids
    assert done.text == plain.text
    at = answers.index(done)
    answers += [] if sum(isinstance(e, (Ready, Failed)) for e in answers) == 5 else face.until(lambda e: isinstance(e, Ready))
    kinds = [(type(e).__name__, getattr(e, "kind", "")) for e in answers if isinstance(e, (Ready, Failed))]
    assert kinds == [("Ready", ""), ("Ready", ""), ("Failed", "missing_weights"), ("Ready", ""), ("Ready", "")]
    assert any(isinstance(e, Ready) for e in answers[:at])  # it really was in the middle
    assert all(e.reply is None for e in answers if isinstance(e, Failed))


def test_a_stop_ends_the_running_reply_and_what_waits_but_not_the_next(face: Face, disk: dict[str, ModelSpec]) -> None:
    face.load(disk["target"], NGRAM)
    plain = face.ask(1, max_tokens=1500)
    face.stop()  # nothing runs: nothing happens
    face.gate.reply = 2
    face.send(generate(2, max_tokens=1500))
    face.send(generate(3, max_tokens=1500))
    face.until(lambda e: isinstance(e, Step))
    face.stop()
    face.send(generate(4))
    seen = face.until(lambda e: isinstance(e, Done) and e.reply == 4)
    dones = {e.reply: e for e in seen if isinstance(e, Done)}
    assert [dones[n].finish_reason for n in (2, 3, 4)] == ["cancelled", "cancelled", "length"]
    assert 0 < len(dones[2].token_ids) < 1500
    assert dones[2].token_ids == plain.token_ids[: len(dones[2].token_ids)]
    assert dones[3].token_ids == ()
    assert dones[4].token_ids == plain.token_ids[:40]


def test_a_stop_ends_a_load(face: Face, disk: dict[str, ModelSpec], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(thread, "open_target", _slowly(thread.open_target, face))
    face.send(Load(disk["target"], NGRAM, CPU))
    failed = face.failed()
    assert (failed.kind, failed.lost) == ("cancelled", ("target",))
    monkeypatch.undo()
    face.load(disk["target"], NGRAM)


def _slowly(real: Any, face: Face) -> Any:
    """A person presses Esc just before the weights are read."""

    def open_target(*args: Any) -> Any:
        face.stop()
        return real(*args)

    return open_target


@pytest.mark.parametrize("when", ["reply", "idle", "load"])
def test_closing_ends_the_thread(face: Face, disk: dict[str, ModelSpec], when: str) -> None:
    if when == "load":
        face.send(Load(disk["target"], disk["small"], CPU))
    else:
        face.load(disk["target"], disk["small"])
    if when == "reply":
        face.gate.reply = 1
        face.send(generate(1, max_tokens=1500))
        face.until(lambda e: isinstance(e, Step))
    face.client.close(PATIENCE_S)
    assert not face.client.alive
    if when == "reply":
        done = [e for e in face.client.drain() if isinstance(e, Done)]
        assert done[0].finish_reason == "cancelled"


# --- failures in the middle -------------------------------------------------------------------------------------------------


def failing(real: Any, after: int, error: BaseException) -> Any:
    """The method, failing at one call."""
    calls = 0

    def method(*args: Any, **more: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == after:
            raise error
        return real(*args, **more)

    return method


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (MemoryError(), "memory"),
        (RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 bytes"), "memory"),
        (torch.OutOfMemoryError("CUDA out of memory"), "memory"),
        (RuntimeError("mat1 and mat2 shapes"), "internal"),
        (AssertionError(), "internal"),
    ],
    ids=str,
)
def test_a_failing_reply_is_told_and_the_next_one_works(
    face: Face, disk: dict[str, ModelSpec], monkeypatch: pytest.MonkeyPatch, error: BaseException, kind: str
) -> None:
    face.load(disk["target"], NGRAM)
    plain = face.ask(1)
    with monkeypatch.context() as patch:
        patch.setattr(LeanTarget, "verify", failing(LeanTarget.verify, 6, error))
        face.send(generate(2))
        seen = face.until(lambda e: isinstance(e, Failed))
    failed = next(e for e in seen if isinstance(e, Failed))
    assert (failed.kind, failed.reply, failed.lost) == (kind, 2, ())
    assert failed.hint
    if kind == "internal":
        log = Path(failed.hint.split("are in ")[1].rstrip("."))
        assert type(error).__name__ in log.read_text()
    steps = [e for e in seen if isinstance(e, Step)]
    written = tuple(t for e in steps for s in e.segments for t in s.token_ids)
    assert len(steps) == 5
    assert written == plain.token_ids[: len(written)]  # what was written before is on the screen
    assert face.ask(3).token_ids == plain.token_ids


def test_no_memory_for_the_drafter_leaves_the_target(face: Face, disk: dict[str, ModelSpec], monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(registry, "_model", failing(registry._model, 1, MemoryError()))
        face.send(Load(disk["target"], disk["small"], CPU))
        seen = face.until(lambda e: isinstance(e, Ready))
    failed, ready = seen[-2:]
    assert isinstance(failed, Failed)
    assert (failed.kind, failed.lost) == ("memory", ("drafter",))
    assert isinstance(ready, Ready)
    assert ready.drafter == "none"
    assert len(face.ask(1).token_ids) == 40


@pytest.mark.parametrize("error", [MemoryError(), RuntimeError("boom")], ids=str)
def test_a_swap_that_fails_in_the_middle_of_a_reply_does_not_end_it(
    face: Face, disk: dict[str, ModelSpec], monkeypatch: pytest.MonkeyPatch, error: BaseException
) -> None:
    """A failed command leaves everything as it was; the reply is another command."""
    face.load(disk["target"], NGRAM)
    plain = face.ask(1, max_tokens=900)
    with monkeypatch.context() as patch:
        patch.setattr(registry, "_model", failing(registry._model, 1, error))
        face.send(generate(2, max_tokens=900))
        face.until(lambda e: isinstance(e, Step))
        face.send(SwapDrafter(disk["small"]))
        seen = face.until(lambda e: isinstance(e, (Done, Failed)))
        failed = next(e for e in seen if isinstance(e, Failed))
        assert (failed.reply, failed.lost) == (None, ())
        done = next((e for e in seen if isinstance(e, Done)), None) or face.done(2)
    assert done.token_ids == plain.token_ids
    assert done.drafter == "ngram"


def test_no_memory_while_the_cache_grows(face: Face, disk: dict[str, ModelSpec], monkeypatch: pytest.MonkeyPatch) -> None:
    face.load(disk["target"], NGRAM)
    plain = face.ask(1, "x" * 495)
    assert plain.prompt_tokens < 512 < plain.prompt_tokens + len(plain.token_ids)
    face.load(disk["target"], NGRAM)
    with monkeypatch.context() as patch:
        patch.setattr(LayerSlots, "_allocate", failing(LayerSlots._allocate, 1, MemoryError()))
        face.send(generate(2, "x" * 495))
        failed = face.failed()
    assert (failed.kind, failed.reply) == ("memory", 2)
    assert face.ask(3, "x" * 495).token_ids == plain.token_ids


def test_a_too_long_prompt_and_a_trimmed_one(face: Face, disk: dict[str, ModelSpec]) -> None:
    face.load(disk["target"], NGRAM, LoadOptions(device="cpu", quant="fp32", context=100))
    face.send(generate(1, "x" * 150))
    failed = face.failed()
    assert (failed.kind, failed.reply) == ("too_long", 1)
    assert failed.numbers["needed"] == 153
    assert failed.numbers["limit"] == 99
    messages = (Message("user", "a" * 60), Message("assistant", "b" * 20), Message("user", "c" * 30))
    face.send(Generate(2, messages, trim=True, max_tokens=5))
    assert face.done(2).trimmed == 2


def test_strict_says_why_it_drafts_nothing(face: Face, disk: dict[str, ModelSpec]) -> None:
    """Also in the first reply after a load."""
    face.load(disk["target"], NGRAM)
    face.send(generate(1, strict=True))
    seen = face.until(lambda e: isinstance(e, Done))
    assert [e for e in seen if isinstance(e, Notice) and "--strict" in e.text]
    assert not [e for e in seen if isinstance(e, Step) and e.nodes]
