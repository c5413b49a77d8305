"""One download on its own daemon thread, watched by looking: a hanging connection can hold neither the screen nor the exit."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING

from app.surroundings import Surroundings
from engine.catalog.specs import ModelSpec
from engine.errors import EngineError

if TYPE_CHECKING:
    from engine.catalog.progress import Progress


class Download:
    """Fetches models one after the other, from its creation on."""

    def __init__(self, surroundings: Surroundings, specs: Sequence[ModelSpec]) -> None:
        self.current = specs[0]
        self.progress: Progress | None = None
        self.error: EngineError | None = None
        self._surroundings = surroundings
        self._specs = specs
        self._cancel = threading.Event()
        self._thread = threading.Thread(target=self._run, name="specchat-download", daemon=True)
        self._thread.start()

    def cancel(self) -> None:
        """Stop soon; what was fetched is kept."""
        self._cancel.set()

    @property
    def running(self) -> bool:
        """False once it has ended, well or with `error`; a cancelled one counts as ended at once."""
        return self._thread.is_alive() and not self._cancel.is_set()

    def _run(self) -> None:
        try:
            for spec in self._specs:
                self.current, self.progress = spec, None
                self._surroundings.pull(spec, self._look, self._cancel.is_set)
        except EngineError as error:
            self.error = error
        except Exception as error:  # a bug must not look like success
            hint = "Try again; `specchat pull` in a shell shows more."
            self.error = EngineError(f"The download of {self.current.name} failed: {type(error).__name__}: {error}.", hint, kind="internal")

    def _look(self, progress: Progress) -> None:
        self.progress = progress
