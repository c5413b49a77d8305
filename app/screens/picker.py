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
from app.picks import Pick, Picks
from app.screens.picker_text import drafter_cells, facts, headings, lines, target_cells
from app.screens.picker_trials import Attempt, Examine, PickerTrials
from app.surroundings import WITHOUT_FILES
from app.terminal import for_terminal
from app.widgets.rows import Rows
from engine.catalog.progress import human
from engine.catalog.specs import ModelSpec
from engine.errors import EngineError

MOST = 64  # tokens per draft


@dataclass(frozen=True, slots=True)
class Chosen:
    """What the person wants: to use a model, with so many drafted tokens (None = decided live), or to fetch it first."""

    spec: ModelSpec
    k: int | None = None
    fetch: bool = False


class PickerScreen(PickerTrials[Chosen | None]):
    """One table for targets and for drafters. `gather` brings the facts, in a thread; without `attempt` the list is one of targets."""

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
        examine: Examine | None = None,
        *,
        target: ModelSpec | None = None,
        k: int | None = None,
        busy: bool = False,
    ) -> None:
        super().__init__(title, attempt, examine, busy=busy)
        self.title_text = title
        self._gather = gather
        self.drafters = attempt is not None
        self.k = k
        self._target = target
        self._picks: tuple[Pick, ...] = ()
        self._memory = ""
        self._all = False  # blocked and rare ones, too
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
