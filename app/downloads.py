"""Downloads that go on while the person does something else: a queue, one at a time, watched by looking. No widgets."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING

from app.download import Download
from app.surroundings import Surroundings
from engine.catalog.progress import human
from engine.catalog.specs import ModelSpec
from engine.errors import EngineError

if TYPE_CHECKING:
    from engine.catalog.progress import Progress


@dataclass(frozen=True, slots=True)
class Ended:
    """A download that has ended: well, or with an error."""

    spec: ModelSpec
    error: EngineError | None


class Downloads:
    """The queue. `look` moves it on; whoever shows it calls that a few times a second."""

    def __init__(self, surroundings: Surroundings) -> None:
        self._surroundings = surroundings
        self._waiting: deque[ModelSpec] = deque()
        self._now: Download | None = None
        self.errors: dict[str, EngineError] = {}  # by name, until it is tried again
        self.stopped: set[str] = set()

    @property
    def current(self) -> ModelSpec | None:
        """What is being fetched."""
        return self._now.current if self._now is not None else None

    @property
    def progress(self) -> Progress | None:
        """How far that is."""
        return self._now.progress if self._now is not None else None

    @property
    def busy(self) -> bool:
        """Something runs or waits."""
        return self._now is not None or bool(self._waiting)

    def waits(self, name: str) -> bool:
        """True for one that will be fetched later."""
        return any(spec.name == name for spec in self._waiting)

    def add(self, spec: ModelSpec) -> None:
        """Fetch this, after those before it."""
        self.errors.pop(spec.name, None)
        self.stopped.discard(spec.name)
        if not self.waits(spec.name) and (self.current is None or self.current.name != spec.name):
            self._waiting.append(spec)
        self.look()

    def stop(self, name: str) -> None:
        """Stop it, or take it out of the queue."""
        if self._now is not None and self._now.current.name == name:
            self._now.cancel()
            self._now = None
            self.stopped.add(name)
        elif self.waits(name):
            self._waiting = deque(spec for spec in self._waiting if spec.name != name)
            self.stopped.add(name)
        self.look()

    def close(self) -> None:
        """The program ends."""
        self._waiting.clear()
        if self._now is not None:
            self._now.cancel()

    def look(self) -> Ended | None:
        """Begin the next one when the last has ended; tells of one that has ended since the last look."""
        ended: Ended | None = None
        if self._now is not None and not self._now.running:
            ended = Ended(self._now.current, self._now.error)
            if ended.error is not None:
                self.errors[ended.spec.name] = ended.error
            self._now = None
        if self._now is None and self._waiting:
            self._now = Download(self._surroundings, [self._waiting.popleft()])
        return ended

    def state(self, spec: ModelSpec, *, on_disk: bool) -> str:
        """A few words for a table."""
        if self.current is not None and self.current.name == spec.name:
            return share(self.progress)
        if self.waits(spec.name):
            return "waiting"
        if spec.name in self.errors:
            return "failed"
        if spec.name in self.stopped and not on_disk:
            return "stopped"
        return "here" if on_disk else "not here"

    @property
    def badge(self) -> str:
        """What the header says while something is fetched."""
        if not self.busy:
            return ""
        more = f" +{len(self._waiting)}" if self._waiting else ""
        return f"↓ {share(self.progress)}{more}"


def share(progress: Progress | None) -> str:
    """42% 12 MB/s, 42% stalled, or the bytes where the whole is not known."""
    if progress is None:
        return "connecting"
    how_far = f"{progress.done / progress.total:.0%}" if progress.total else human(progress.done)
    if progress.state:
        return f"{how_far} {progress.state}"
    return f"{how_far} {human(progress.rate)}/s" if progress.rate > 0 else how_far
