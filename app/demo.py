"""`specchat --demo`: a recording of real models behind the same screens. Nothing is computed, downloaded or kept as a chat.

The recording (`demo.json.gz`, made by docs/record_demo.py) holds some questions, answered with several drafters, so that swapping, the
token view, the comparison and the benchmark work on a machine without models. Everything is labelled DEMO.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from importlib import resources
from pathlib import Path
from threading import Event
from typing import TYPE_CHECKING, Any

from app.bench import WARM_UP_PROMPT
from app.chat import ChatOptions
from app.surroundings import Surroundings
from engine.catalog.catalog import Catalog, Defaults, builtin
from engine.catalog.progress import Progress
from engine.catalog.specs import NGRAM, ModelSpec
from engine.errors import EngineError
from engine.protocol import LoadOptions, Ready, Step
from engine.replay import ReplayClient
from engine.trace import Trace, load_trace

if TYPE_CHECKING:
    from app.store import Store
    from engine.catalog.vocabulary import Relation

FILE = "demo.json.gz"
BRIDGED = ("slem", "pf", "tli", "slrs")


class DemoMachine(Surroundings):
    """A machine that has just the models of the recording."""

    demo = True
    sets = ("mixed",)

    def __init__(self, trace: Trace) -> None:
        ready = next(event for _, event in trace.load if isinstance(event, Ready))
        known = builtin()
        names = dict.fromkeys(take.drafter for take in trace.takes if take.drafter not in ("none", "ngram"))
        self.target = replace(known.target(ready.target), drafters=tuple(names))
        self.drafter = known.drafter(ready.drafter)
        self.suggestions = tuple(prompt for prompt in trace.prompts if prompt != WARM_UP_PROMPT)
        self._drafters = {name: known.drafter(name) for name in names} | {"ngram": NGRAM}
        readies = {take.drafter: event for take in trace.takes for _, event in take.timed if isinstance(event, Ready)}
        self._methods = {name: event.method for name, event in readies.items()}
        self._memory = {name: event.memory.drafter for name, event in readies.items()} | {ready.target: ready.memory.target}
        rates = {name: rate(trace, name) for name in readies}
        self._speedups = {name: value / rates["none"] for name, value in rates.items() if name != "none" and rates.get("none")}

    def catalog(self) -> Catalog:
        return Catalog({self.target.name: self.target}, dict(self._drafters), Defaults())

    def locate(self, spec: ModelSpec) -> Path | None:
        return Path("demo") if spec.name in (self.target.name, *self._drafters) else None

    def pull(self, spec: ModelSpec, progress: Callable[[Progress], None], cancelled: Callable[[], bool]) -> Path:
        raise EngineError("The demo downloads nothing.", "Leave it with ^Q and start specchat without --demo.", kind="config")

    def open_store(self) -> Store:
        from app.store import Store

        return Store(None)

    def disk_use(self, spec: ModelSpec) -> int:
        return spec.mirror.size if spec.mirror is not None else spec.size

    def remove(self, spec: ModelSpec) -> int:
        raise EngineError("The demo deletes nothing.", "Leave it with ^Q and start specchat without --demo.", kind="config")

    def check(self, target: ModelSpec, drafter: ModelSpec, stop: Event | None = None) -> dict[str, Any]:
        raise EngineError("The demo reads no tokenizers.", "Leave it with ^Q and start specchat without --demo.", kind="config")

    def need(self, spec: ModelSpec, options: LoadOptions, *, beside: bool) -> int:
        return self._memory.get(spec.name, 0)

    def recall(self, target: str, quant: str, device: str) -> dict[str, float]:
        return dict(self._speedups)

    def relation(self, one: ModelSpec, other: ModelSpec) -> tuple[Relation, str]:
        bridged = self._methods.get(other.name) in BRIDGED
        return ("other" if bridged else "same"), "as recorded"

    def remember(self, target: ModelSpec, drafter: ModelSpec | None) -> str | None:
        return None


def demo(speed: float | None = 1.0, trace: Trace | None = None) -> tuple[ChatOptions, ReplayClient, DemoMachine]:
    """What `run_chat` needs to show the demo."""
    trace = trace or recorded()
    machine = DemoMachine(trace)
    note = (
        "DEMO: real models, recorded on another machine; nothing is computed here, and chats are not kept. "
        "Enter in the empty box asks a question that was recorded. ^T shows the tokens, ^G the drafters, F5 races them."
    )
    options = ChatOptions(target=machine.target, drafter=machine.drafter, offline=True, notes=(note,))
    return options, ReplayClient(trace, speed), machine


def rate(trace: Trace, drafter: str) -> float:
    """Tokens/s over all recordings with this drafter."""
    emitted, decode_s = 0, 0.0
    for take in trace.takes:
        steps = [event for _, event in take.timed if isinstance(event, Step)] if take.drafter == drafter else []
        emitted += sum(step.emitted for step in steps)
        decode_s += steps[-1].at_s if steps else 0.0
    return emitted / decode_s if decode_s > 0 else 0.0


def recorded() -> Trace:
    """The recording that comes with the program."""
    with resources.as_file(resources.files("app").joinpath(FILE)) as path:
        return load_trace(path)
