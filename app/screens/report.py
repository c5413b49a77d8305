"""A saved report, or two of them side by side."""

from __future__ import annotations

from pathlib import Path

from textual.app import ComposeResult
from textual.containers import VerticalScroll
from textual.widgets import Static

from app.commands import bindings
from app.report import Report
from app.report_text import as_markdown
from app.screens.place import PlaceScreen
from app.widgets.report_view import beside, report_content


class ReportScreen(PlaceScreen[None]):
    """A page to scroll."""

    WHERE = "report"
    BINDINGS = bindings("report")
    DEFAULT_CSS = """
    ReportScreen VerticalScroll { padding: 1 1 0 1; }
    ReportScreen Static { width: 100%; height: auto; }
    """

    def __init__(self, report: Report, folder: Path | None, older: Report | None = None) -> None:
        kind = "Two results" if older is not None else "Comparison" if report["kind"] == "compare" else "Benchmark"
        super().__init__(f"{kind}  {report['made'].replace('T', ' ')[:19]}", report["settings"]["target"])
        self._report, self._older, self._folder = report, older, folder
        self._text = Static()

    def body(self) -> ComposeResult:
        with VerticalScroll():
            yield self._text

    def on_mount(self) -> None:
        super().on_mount()
        self.query_one(VerticalScroll).focus()
        self._draw()

    def on_resize(self) -> None:
        self._draw()

    def _draw(self) -> None:
        width = max(20, self.size.width - 5)
        self._text.update(report_content(self._report, width) if self._older is None else beside(self._older, self._report, width))

    def do_report_copy(self, argument: str) -> None:
        self.app.copy_to_clipboard(as_markdown(self._report))
        self.toast("The report as Markdown was sent to the terminal's clipboard.")

    def do_report_where(self, argument: str) -> None:
        self.toast(f"The files are in {self._folder}" if self._folder is not None else "This report is not kept.")

    def do_report_back(self, argument: str) -> None:
        self.dismiss(None)
