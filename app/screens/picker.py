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
from app.picks import ABOUT, WORDS, Pick, Picks, expect, fit_about, fit_word
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
NARROW = 78  # columns below which kind and size are left out


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
    PickerScreen DataTable { height: 1fr; }
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
        *,
        target: ModelSpec | None = None,
        k: int | None = None,
        busy: bool = False,
    ) -> None:
        super().__init__(title)
        drafters = attempt is not None
        self.title_text = title
        self._gather, self._attempt = gather, attempt
        self._interrupt = Interrupt()
        self.drafters = drafters
        self.k = k
        self._target = target
        self._busy = busy  # a reply is being written: no trial now
        self._picks: tuple[Pick, ...] = ()
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
        left_out = ("pick_try",) if self._busy or not self.drafters else ()
        super().show_keys((*without, *left_out), first)

    def fill(self, picks: Picks) -> None:
        """The facts have come."""
        self._picks = picks.picks
        memory = f"{human(picks.free)} of {human(picks.total)} memory free" if picks.total else ""
        self.title_bar.show(self.title_text, memory)
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
        return picks if self._all or wanted else [pick for pick in picks if not pick.blocked and not pick.rare]

    @property
    def pick(self) -> Pick | None:
        """The row under the cursor."""
        shown = self.shown
        return shown[self._table.cursor_row] if 0 <= self._table.cursor_row < len(shown) else None

    def _draw(self) -> None:
        if not self._picks:
            return
        before = self.pick.spec.name if self._table.row_count and self.pick else ""
        wide = self.size.width >= NARROW
        self._table.clear(columns=True)
        for heading in self._headings(wide):
            self._table.add_column(heading)
        shown = self.shown
        for pick in shown:
            cells = self._cells(pick, wide)
            self._table.add_row(*(Text(cell, style="dim" if pick.blocked else "", no_wrap=True) for cell in cells))
        names = [pick.spec.name for pick in shown]
        current = next((n for n, pick in enumerate(shown) if pick.in_use), 0)
        self._table.move_cursor(row=names.index(before) if before in names else current, animate=False)
        self._explain()

    def _headings(self, wide: bool) -> list[str]:
        if self.drafters:
            return ["NAME", *(["KIND", "SIZE"] if wide else []), "TOKENIZER", "MEMORY", "SEEN HERE"]
        return ["NAME", *(["LICENCE"] if self.size.width >= 100 else []), "SIZE", "MEMORY", "CONTEXT", "HERE"]

    def _cells(self, pick: Pick, wide: bool) -> list[str]:
        spec = pick.spec
        sign = "> " if pick.in_use else "x " if pick.blocked else "  "
        name = sign + one_line(spec.name, 26 if wide else 20)
        size = human(pick.size) if pick.size else "-"
        here = "here" if pick.on_disk else "to download"
        if not self.drafters:
            licence = [one_line(spec.licence, 20)] if self.size.width >= 100 else []
            return [name, *licence, size, fit_word(pick), f"{spec.context:,}" if spec.context else "-", here]
        seen = self.trials[spec.name].words if spec.name in self.trials else f"{pick.speedup:.2f}x" if pick.speedup else ""
        seen = "blocked" if pick.blocked else seen or ("1.00x" if spec.kind == "none" else "not tried" if pick.on_disk else "to download")
        return [name, *([WORDS[spec.kind], size] if wide else []), pick.tokenizer, fit_word(pick), seen]

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
        self._about.update(Content("\n").join(Content(for_terminal(line)) for line in self._lines(pick) if line))

    def _lines(self, pick: Pick) -> list[str]:
        spec = pick.spec
        trial = self.trials.get(spec.name)
        tried = [f"Trial      {trial.words}, kept {trial.kept:.0%}, {trial.tokens} tokens: too few to be sure"] if trial else []
        if spec.kind in WITHOUT_FILES:
            return [ABOUT[spec.kind], *tried]
        where = f"takes {human(pick.size)} on disk" if pick.on_disk else f"{human(pick.size)} to download" if pick.size else "to download"
        parts = [spec.name, f"{spec.params:g} B" if spec.params else "", where, spec.licence, "must be agreed to" if spec.gated else ""]
        lines = [" · ".join(part for part in parts if part)]
        lines += [f"Cannot be used: {pick.blocked}."] if pick.blocked else []
        lines += [f"Tokenizer  {pick.tokenizer_about}"] if self.drafters and pick.tokenizer_about else []
        lines += [f"Memory     {fit_about(pick)}"]
        lines += [f"Expect     {expect(spec, self._target)}"] if self.drafters and expect(spec, self._target) else []
        return [*lines, *tried, spec.note]

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

    def do_pick_fetch(self, argument: str) -> None:
        pick = self.pick
        if pick is None or self._trying:
            return
        if pick.on_disk:
            self.toast(f"{pick.spec.name} is on this machine already." if pick.size else f"{pick.spec.name} needs no files.")
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
