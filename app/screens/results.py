"""The kept results: open one, compare two, delete."""

from __future__ import annotations

from textual.app import ComposeResult
from textual.content import Content
from textual.widgets import OptionList, Static
from textual.widgets.option_list import Option

from app import results
from app.commands import bindings
from app.results import Entry
from app.screens.ask import AskScreen
from app.screens.place import PlaceScreen
from app.screens.report import ReportScreen
from app.terminal import for_terminal, one_line
from app.widgets.panel import Choice
from engine.errors import EngineError
from engine.words import counted


class ResultsScreen(PlaceScreen[None]):
    """A list, the newest first."""

    WHERE = "results"
    BINDINGS = bindings("results")
    DEFAULT_CSS = """
    ResultsScreen OptionList { border: none; height: 1fr; padding: 0; background: $background; }
    ResultsScreen #none { padding: 1 2; height: 1fr; display: none; }
    """

    def __init__(self) -> None:
        super().__init__("Results")
        self.list = OptionList(markup=False, compact=True)
        self._none = Static(id="none", markup=False)
        self.entries: list[Entry] = []
        self._marked: Entry | None = None

    def body(self) -> ComposeResult:
        yield self.list
        yield self._none

    def on_mount(self) -> None:
        super().on_mount()
        self._fill()
        self.list.focus()

    def on_resize(self) -> None:
        self._draw()

    def _fill(self) -> None:
        problem = ""
        try:
            self.entries = results.entries()
        except EngineError as error:
            self.entries, problem = [], f"{error.message}\n{error.hint}"
        self._none.update(for_terminal(problem) or "Nothing is kept yet. F5 compares drafters on one prompt, F6 measures them on many.")
        self._none.display = not self.entries
        self.list.display = bool(self.entries)
        self._draw()

    def _draw(self) -> None:
        at = self.list.highlighted or 0
        self.list.clear_options()
        for entry in self.entries:
            self.list.add_option(Option(self._row(entry)))
        if self.entries:
            self.list.highlighted = min(at, len(self.entries) - 1)

    def _row(self, entry: Entry) -> Content:
        report = entry.report
        rows = [row for row in report["rows"] if row["tok_per_s"] and not row["place"]]
        best = max(rows, key=lambda row: row["tok_per_s"], default=None)
        said = f"{best['drafter']} {best['tok_per_s']:.1f} tok/s {best['speedup'] or 0:.2f}x" if best else "no drafter was measured"
        prompts = len(report["settings"]["prompts"])
        what = "race" if report["kind"] == "compare" else counted(prompts, "prompt")
        mark = ">" if entry is self._marked else " "
        line = f"{report['made'].replace('T', ' ')[2:16]}  {what:<10} {one_line(report['settings']['target'], 24)}: {one_line(said)}"
        return Content(f"{mark} {for_terminal(line)}"[: max(30, self.size.width - 2)])

    @property
    def _here(self) -> Entry | None:
        return self.entries[self.list.highlighted] if self.entries and self.list.highlighted is not None else None

    def on_option_list_option_selected(self, event: OptionList.OptionSelected) -> None:
        entry = self.entries[event.option_index]
        self.app.push_screen(ReportScreen(entry.report, entry.folder))

    def do_results_mark(self, argument: str) -> None:
        """The first mark waits for the second."""
        entry = self._here
        if entry is None:
            return
        if self._marked is None or self._marked is entry:
            self._marked = None if self._marked is entry else entry
            self._draw()
            if self._marked is not None:
                self.toast("Marked. c on another result puts both side by side.")
            return
        older, newer = sorted((self._marked, entry), key=lambda found: found.report["made"])
        self._marked = None
        self._draw()
        self.app.push_screen(ReportScreen(newer.report, newer.folder, older.report))

    async def do_results_delete(self, argument: str) -> None:
        entry = self._here
        if entry is None:
            return
        yes, no = Choice("y", "Delete it", "yes"), Choice("escape", "Keep it", "no")
        if await self.app.push_screen_wait(AskScreen(f"Delete the result {entry.name}?", "This cannot be undone.", (yes, no))) == "yes":
            results.delete(entry)
            self._marked = None
            self._fill()

    def do_results_back(self, argument: str) -> None:
        self.dismiss(None)
