"""Which models on this machine can be measured beside a target: those made for it, and any other small one that `check` finds sound.

A check reads two tokenizers in a child process and takes seconds, so the screen does it in the background, never while it measures.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from threading import Event, Thread
from typing import TYPE_CHECKING, Any

from engine.catalog.catalog import SMALL_ENOUGH
from engine.catalog.specs import ModelSpec
from engine.errors import EngineError

if TYPE_CHECKING:
    from engine.catalog.catalog import Catalog

Check = Callable[[ModelSpec, Event], dict[str, Any]]  # of a drafter; ends early when the event is set


def others(catalog: Catalog, on_disk: Callable[[ModelSpec], bool], target: ModelSpec, known: Iterable[ModelSpec]) -> list[ModelSpec]:
    """Models that are here, small enough, and not among the `known`; the smallest first. Whether they are sound is another question."""
    names = {target.name, *(spec.name for spec in known)}
    found = [
        spec
        for spec in {spec.name: spec for spec in (*catalog.drafters.values(), *catalog.targets.values())}.values()
        if spec.kind == "model" and spec.name not in names and on_disk(spec)
    ]
    small = [spec for spec in found if not target.params or not spec.params or spec.params <= target.params * SMALL_ENOUGH]
    return [catalog.drafter(spec.name) for spec in sorted(small, key=lambda spec: spec.params)]


def reason(found: dict[str, Any]) -> str:
    """Why a pair is refused, "" when it is sound."""
    return str(found.get("refused") or "")


class Judge:
    """Checks models one after the other in a thread, and tells of each that is sound. `stop` ends it at once."""

    def __init__(self, check: Check, verdicts: dict[str, str]) -> None:
        self.verdicts = verdicts  # by name: "" = sound, else why not; kept for as long as the caller keeps it
        self._check = check
        self._stop = Event()
        self._thread: Thread | None = None

    def start(self, specs: list[ModelSpec], sound: Callable[[ModelSpec], None]) -> None:
        """Those that are known are told of at once. `sound` is called from the thread."""
        for spec in specs:
            if self.verdicts.get(spec.name) == "":
                sound(spec)
        waiting = [spec for spec in specs if spec.name not in self.verdicts]
        if waiting:
            self._thread = Thread(target=self._run, args=(waiting, sound), name="specchat-judge", daemon=True)
            self._thread.start()

    def stop(self) -> None:
        """The machine is needed for something else. Waits for the child process, which is killed."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join(2.0)

    def _run(self, specs: list[ModelSpec], sound: Callable[[ModelSpec], None]) -> None:
        for spec in specs:
            try:
                verdict = reason(self._check(spec, self._stop))
            except EngineError as error:
                if error.kind == "cancelled":
                    return
                verdict = error.message
            self.verdicts[spec.name] = verdict
            if not verdict and not self._stop.is_set():
                sound(spec)
