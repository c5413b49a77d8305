"""What can be tried of a drafter before it is chosen: a short trial, and a check of its tokenizer beside the target's.

Both run in threads, one at a time, and end in what the lines below the list say. `app.screens.picker` has the list.
"""

from __future__ import annotations

from collections.abc import Callable
from threading import Thread

from app.console import Interrupt
from app.picks import Pick
from app.screens.place import PlaceScreen, Result
from app.surroundings import WITHOUT_FILES
from app.terminal import one_line
from app.trial import Trial
from engine.catalog.specs import ModelSpec
from engine.errors import EngineError

Attempt = Callable[[ModelSpec, Interrupt, Callable[[str], None]], Trial]
Examine = Callable[[ModelSpec], list[str]]


class PickerTrials(PlaceScreen[Result]):
    """`attempt` runs a trial: it gets what is set when the person wants it to end, and a function for what it is doing.

    `examine` checks a pair and returns lines.
    """

    def __init__(self, title: str, attempt: Attempt | None, examine: Examine | None, *, busy: bool) -> None:
        super().__init__(title)
        self._attempt, self._examine = attempt, examine
        self._busy = busy  # a reply is being written: no trial now
        self._interrupt = Interrupt()
        self._trying = ""  # what is being done
        self._problem = ("", "")  # the row that something failed for, and why
        self._checked: dict[str, list[str]] = {}
        self.trials: dict[str, Trial] = {}

    @property
    def pick(self) -> Pick | None:
        """The row under the cursor."""
        raise NotImplementedError

    def _draw(self) -> None:
        """Bring the list up to date, and the lines below it."""
        raise NotImplementedError

    def _explain(self) -> None:
        """Bring the lines below the list up to date."""
        raise NotImplementedError

    def do_pick_try(self, argument: str) -> None:
        pick = self.pick
        if self._attempt is None or pick is None or self._trying:
            return
        if self._busy:
            self.toast("A reply is being written: a trial would disturb it.")
        elif pick.blocked or not pick.on_disk:
            self.toast(f"{pick.spec.name} {'cannot be used' if pick.blocked else 'must be downloaded first: d'}.", "warning")
        else:
            self._trying, self._problem = "Beginning…", ("", "")
            self._interrupt = Interrupt()
            Thread(target=self._run_trial, args=(pick.spec,), name="specchat-trial", daemon=True).start()

    def _run_trial(self, spec: ModelSpec) -> None:
        assert self._attempt is not None
        try:
            trial = self._attempt(spec, self._interrupt, self._from_thread)
        except EngineError as error:
            self.call_later(self._tried, spec.name, None, error)
        else:
            self.call_later(self._tried, spec.name, trial, None)

    def _from_thread(self, text: str) -> None:
        self.call_later(self._say, text)

    def _say(self, text: str) -> None:
        self._trying = f"{one_line(text)} Esc stops."
        self._explain()

    def _tried(self, name: str, trial: Trial | None, error: EngineError | None) -> None:
        self._trying = ""
        if trial is not None:
            self.trials[name] = trial
        self._problem = (name, str(error)) if error is not None else ("", "")
        self._draw()

    def do_pick_check(self, argument: str) -> None:
        pick = self.pick
        if self._examine is None or pick is None or self._trying:
            return
        if pick.spec.kind in WITHOUT_FILES:
            self.toast(f"{pick.spec.name} goes with every target.")
        elif not pick.on_disk:
            self.toast(f"{pick.spec.name} must be downloaded first: d.", "warning")
        else:
            self._trying, self._problem = f"Reading the tokenizers of {pick.spec.name} and the target…", ("", "")
            self._explain()
            Thread(target=self._run_check, args=(pick.spec,), name="specchat-check", daemon=True).start()

    def _run_check(self, spec: ModelSpec) -> None:
        assert self._examine is not None
        try:
            lines = self._examine(spec)
        except EngineError as error:
            self.call_later(self._tried, spec.name, None, error)
        else:
            self._checked[spec.name] = lines
            self.call_later(self._tried, spec.name, None, None)
