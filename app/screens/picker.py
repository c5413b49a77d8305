"""The lists of targets and drafters: what suits, what fits, what was measured here; and why something cannot be used.

The facts are gathered in a thread, since they read files and ask the graphics driver. Nothing is loaded or fetched before a key says so.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from threading import Thread

from rich.text import Text
from textual.app import ComposeResult
from textual.content import Content
from textual.widgets import Input, Static

from app.commands import bindings
from app.console import Interrupt
from app.picks import Pick, Picks
from app.screens.picker_text import drafter_cells, facts, headings, lines, target_cells
from app.screens.place import PlaceScreen
from app.surroundings import WITHOUT_FILES
from app.terminal import for_terminal, one_line
from app.trial import Trial
from app.widgets.rows import Rows
from engine.catalog.progress import human
from engine.catalog.specs import ModelSpec
from engine.errors import EngineError

Attempt = Callable[[ModelSpec, Interrupt, Callable[[str], None]], Trial]
MOST = 64  # tokens per draft


@dataclass(frozen=True, slots=True)
class Chosen:
    """What the person wants: to use a model, with so many drafted tokens (None = decided live), or to fetch it first."""

    spec: ModelSpec
    k: int | None = None
    fetch: bool = False


class PickerScreen(PlaceScreen[Chosen | None]):
    """One table for targets and for drafters. `gather` brings the facts; `attempt` runs a trial and is told when it shall stop.

    Both run in threads; a trial gets a function for what it is doing, and an event that is set when the person wants it to end.
    """

    WHERE = "picker"
    BINDINGS = bindings("picker")
    DEFAULT_CSS = """
    PickerScreen DataTable { height: 1fr; scrollbar-size-vertical: 1; }
    PickerScreen Input { height: 1; border: none; padding: 0 1; background: $surface; display: none; }
    PickerScreen Input.-open { display: block; }
    PickerScreen #pick-k { height: 1; padding: 0 1; }
    PickerScreen #pick { height: auto; max-height: 7; padding: 0 1; border-top: solid $panel-lighten-2; }
    PickerScreen.-short #pick { max-height: 4; }
    """

    def __init__(
        self,
        title: str,
        gather: Callable[[], Picks],
        attempt: Attempt | None = None,
        examine: Callable[[ModelSpec], list[str]] | None = None,
        *,
        target: ModelSpec | None = None,
        k: int | None = None,
        busy: bool = False,
    ) -> None:
        super().__init__(title)
        drafters = attempt is not None
        self.title_text = title
        self._gather, self._attempt, self._examine = gather, attempt, examine
        self._checked: dict[str, list[str]] = {}
        self._interrupt = Interrupt()
        self.drafters = drafters
        self.k = k
        self._target = target
        self._busy = busy  # a reply is being written: no trial now
        self._picks: tuple[Pick, ...] = ()
        self._memory = ""
        self._all = False  # blocked and rare ones, too
        self._trying = ""
        self._problem = ("", "")  # the row that a failed trial was about, and why it failed
        self.trials: dict[str, Trial] = {}
        self._table = Rows()
        self._filter = Input(placeholder="filter by name", id="pick-filter")
        self._k = Static(id="pick-k")
        self._about = Static(Content("Looking at the models and the memory…"), id="pick")

    def body(self) -> ComposeResult:
        yield self._filter
        yield self._table
        if self.drafters:
            yield self._k
        yield self._about

    def on_mount(self) -> None:
        super().on_mount()
        self.show_keys()
        self._table.focus()
        self._show_k()
        Thread(target=self._look, name="specchat-picker", daemon=True).start()

    def _look(self) -> None:
        try:
            picks = self._gather()
        except EngineError as error:
            self.call_later(self.failed, error)
        else:
            self.call_later(self.fill, picks)

    def show_keys(self, without: tuple[str, ...] = (), first: Iterable[tuple[str, str]] = ()) -> None:
        """The keys that make sense now."""
        left_out = () if self.drafters else ("pick_try", "pick_check")
        super().show_keys((*without, *left_out, *(("pick_try",) if self._busy else ())), first)

    def fill(self, picks: Picks) -> None:
        """The facts have come."""
        self._picks = picks.picks
        self._memory = f"{human(picks.free)} of {human(picks.total)} memory free" if picks.total else ""
        self._draw()

    def failed(self, error: EngineError) -> None:
        """The facts could not be gathered."""
        self._about.update(Content(f"! {for_terminal(str(error))}"))

    def on_resize(self) -> None:
        self._draw()

    @property
    def shown(self) -> list[Pick]:
        """The rows of the table."""
        wanted = self._filter.value.strip().lower()
        picks = [pick for pick in self._picks if wanted in pick.spec.name.lower()]
        return picks if self._whole else [pick for pick in picks if not pick.blocked and not pick.rare]

    @property
    def _whole(self) -> bool:
        """Blocked and rare ones are shown, too."""
        return self._all or bool(self._filter.value.strip())

    @property
    def pick(self) -> Pick | None:
        """The row under the cursor."""
        shown = self.shown
        return shown[self._table.cursor_row] if 0 <= self._table.cursor_row < len(shown) else None

    def _draw(self) -> None:
        if not self._picks:
            return
        before = self.pick.spec.name if self._table.row_count and self.pick else ""
        width = self.size.width
        self._table.clear(columns=True)
        for heading in headings(width, drafters=self.drafters):
            self._table.add_column(heading)
        shown = self.shown
        hidden = 0 if self._whole else sum(bool(pick.blocked) for pick in self._picks)
        self.title_bar.show(self.title_text, facts(hidden, self._memory, width))
        for pick in shown:
            cells = drafter_cells(pick, width, self.trials.get(pick.spec.name)) if self.drafters else target_cells(pick, width)
            self._table.add_row(*(Text(cell, style="dim" if pick.blocked else "", no_wrap=True) for cell in cells))
        names = [pick.spec.name for pick in shown]
        current = next((n for n, pick in enumerate(shown) if pick.in_use), 0)
        self._table.move_cursor(row=names.index(before) if before in names else current, animate=False)
        self._explain()

    def on_data_table_row_highlighted(self) -> None:
        """The cursor has moved."""
        self._explain()

    def _explain(self) -> None:
        pick = self.pick
        if self._trying or pick is None:
            self._about.update(Content(self._trying or "Nothing has this name."))
            return
        if pick.spec.name == self._problem[0]:
            self._about.update(Content(f"! {for_terminal(self._problem[1])}"))
            return
        self._problem = ("", "")
        name = pick.spec.name
        found = lines(pick, self._target, self.trials.get(name), self._checked.get(name, []), drafters=self.drafters)
        self._about.update(Content("\n").join(Content(for_terminal(line)) for line in found if line))

    def _show_k(self) -> None:
        self._k.update(Content.assemble("tokens per draft  ", ("◂ ", "bold"), "auto" if self.k is None else str(self.k), (" ▸", "bold")))

    # --- keys --------------------------------------------------------------------------------------------------------

    def on_data_table_row_selected(self) -> None:
        """Enter or a click on the chosen row."""
        pick = self.pick
        if pick is None or self._trying:
            return
        if pick.blocked:
            self.toast(f"{pick.spec.name} is {pick.blocked}.", "warning")
        else:
            self.dismiss(Chosen(pick.spec, self.k))

    def on_input_submitted(self) -> None:
        self._table.focus()

    def on_input_changed(self) -> None:
        self._draw()

    def do_pick_try(self, argument: str) -> None:
        pick = self.pick
        if not self.drafters or pick is None or self._trying:
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

    def do_pick_fetch(self, argument: str) -> None:
        pick = self.pick
        if pick is None or self._trying:
            return
        if pick.on_disk:
            self.toast(
                f"{pick.spec.name} is on this machine already."
                if pick.spec.kind not in WITHOUT_FILES
                else f"{pick.spec.name} needs no files."
            )
        else:
            self.dismiss(Chosen(pick.spec, self.k, fetch=True))

    def do_pick_fewer(self, argument: str) -> None:
        self._step_k(-1)

    def do_pick_more(self, argument: str) -> None:
        self._step_k(1)

    def _step_k(self, step: int) -> None:
        if self.drafters:
            now = 0 if self.k is None else self.k
            self.k = min(MOST, max(0, now + step)) or None
            self._show_k()

    def do_pick_blocked(self, argument: str) -> None:
        self._all = not self._all
        self._draw()

    def do_pick_filter(self, argument: str) -> None:
        self._filter.add_class("-open")
        self._filter.focus()

    def do_pick_back(self, argument: str) -> None:
        if self._trying:
            self._interrupt.stop()
        elif self._filter.has_class("-open"):
            self._filter.value = ""
            self._filter.remove_class("-open")
            self._table.focus()
        else:
            self.dismiss(None)
