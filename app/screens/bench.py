"""The benchmark: choose sets, drafters and repeats, run, read the report. While it measures, only numbers are drawn, twice a second."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from textual.app import ComposeResult
from textual.containers import Horizontal, Vertical, VerticalScroll
from textual.content import Content
from textual.widgets import Static
from textual.widgets.selection_list import Selection

from app import results
from app.bench_command import progress_line
from app.commands import bindings
from app.ground import Ground
from app.prompts import ABOUT, SETS, TASKS, read
from app.report import Report, steps_csv
from app.report_text import as_markdown
from app.runner import Runner
from app.screens.place import PlaceScreen
from app.screens.results import ResultsScreen
from app.terminal import for_terminal, one_line
from app.widgets.choices import Choices
from app.widgets.lanes import scores
from app.widgets.report_view import report_content
from engine.catalog.specs import ModelSpec
from engine.errors import EngineError
from engine.words import counted

LOOK_S = 0.5
TOKENS, LEAST, LONGEST = 128, 16, 2048
MOST_REPEATS = 20


class BenchScreen(PlaceScreen[None]):
    """Setup, progress and report are one after the other in the same place."""

    WHERE = "bench"
    BINDINGS = bindings("bench")
    DEFAULT_CSS = """
    BenchScreen #setup { height: 1fr; }
    BenchScreen Horizontal { height: 1fr; }
    BenchScreen .column { width: 1fr; height: 1fr; padding: 0 1; }
    BenchScreen .column Static { height: 1; text-style: bold; }
    BenchScreen Choices, BenchScreen Choices:focus { border: none; padding: 0; height: 1fr; background: $background; }
    BenchScreen #effort { height: auto; padding: 0 2; border-top: solid $panel-lighten-2; }
    BenchScreen #progress { height: 1fr; padding: 1 1; display: none; }
    BenchScreen #report { height: 1fr; padding: 1 1 0 1; display: none; }
    BenchScreen #report Static { height: auto; }
    """

    def __init__(self, ground: Ground, drafters: Sequence[ModelSpec] = (), sets: Sequence[str] = ()) -> None:
        super().__init__("Benchmark", f"{ground.ready.target} {ground.ready.quant}")
        self.ground = ground
        self.tokens, self.repeat = TOKENS, 1
        self.runner: Runner | None = None
        self.touched = False  # the engine has another drafter than the chat's
        self.folder: Path | None = None
        offered = [name for name in SETS if name != "all" and (not ground.sets or name in ground.sets)]
        chosen = [name for name in sets if name in offered] or (list(TASKS) if "all" in sets else []) or offered[:1]
        self.sets = Choices(*(Selection(Content.assemble(f"{name:<13}", (ABOUT[name], "dim")), name, name in chosen) for name in offered))
        self._specs = {spec.name: spec for spec in (*drafters, *ground.drafters)}
        wanted = [spec.name for spec in drafters] or list(self._specs)
        self.drafters = Choices(*(Selection(Content(one_line(name)), name, name in wanted) for name in self._specs))
        self._effort, self._progress, self._text = Static(id="effort", markup=False), Static(id="progress"), Static()

    def body(self) -> ComposeResult:
        with Vertical(id="setup"):
            with Horizontal():
                with Vertical(classes="column"):
                    yield Static("Prompts", markup=False)
                    yield self.sets
                with Vertical(classes="column"):
                    yield Static("Drafters, beside plain decoding", markup=False)
                    yield self.drafters
            yield self._effort
        yield self._progress
        with VerticalScroll(id="report"):
            yield self._text

    def on_mount(self) -> None:
        super().on_mount()
        self.sets.focus()
        self._timer = self.set_interval(LOOK_S, self._look, pause=True)
        self._judge = self.ground.judge()
        self._judge.start([spec for spec in self.ground.others if spec.name not in self._specs], self._sound)
        self._draw()

    def _sound(self, spec: ModelSpec) -> None:
        """One more drafter that could be measured; called from the judge's thread."""
        self.call_later(self._offer, spec)

    def _offer(self, spec: ModelSpec) -> None:
        if spec.name not in self._specs:
            self._specs[spec.name] = spec
            self.drafters.add_option(Selection(Content(one_line(spec.name)), spec.name, False))

    def on_unmount(self) -> None:
        self._judge.stop()
        if self.running and self.runner is not None:
            self.runner.stop()

    @property
    def running(self) -> bool:
        """The engine is at work for this screen."""
        return self.runner is not None and self.runner.running

    @property
    def report(self) -> Report | None:
        """What was measured, once it is complete."""
        return self.runner.report if self.runner is not None and not self.running else None

    def on_selection_list_selected_changed(self) -> None:
        self._draw()

    def on_resize(self) -> None:
        self._draw()

    # --- drawing -----------------------------------------------------------------------------------------------------

    def _look(self) -> None:
        if not self.running:
            self._timer.pause()
            self._ended()
        self._draw()

    def _draw(self) -> None:
        if not self.is_mounted:
            return
        report = self.report
        for name, shown in (("setup", not self.running and report is None), ("progress", self.running), ("report", report is not None)):
            self.query_one(f"#{name}").display = shown
        if self.running:
            self.show_keys(("bench_run", "bench_more", "bench_longer", "bench_copy", "bench_results", "bench_back"), [("Esc", "stop")])
        else:
            self.show_keys(("bench_copy",) if report is None else ("bench_more", "bench_longer"))
        if self.running:
            self._progress.update(self._how_far())
        elif report is not None:
            kept = f"\n\n  Kept in {self.folder}" if self.folder is not None else ""
            self._text.update(Content.assemble(report_content(report, max(20, self.size.width - 5)), kept))
        else:
            self._effort.update(self._what())

    def _what(self) -> Content:
        """What r would measure."""
        prompts, lanes = len(self._prompts()), len(self.drafters.selected) + 2
        replies = prompts * lanes * self.repeat
        times = [counted(self.repeat, "repeat")] if self.repeat > 1 else []
        work = " x ".join((counted(prompts, "prompt"), counted(lanes, "lane"), *times))
        text = f"{work} = {counted(replies, 'reply')} of up to {counted(self.tokens, 'token')}, greedy."
        how = "Plain decoding runs first and last. + and - change the repeats, Left and Right the tokens."
        error = self.runner.error if self.runner is not None else None
        lines = [Content(text), Content.styled(how, "dim")]
        return Content("\n").join([Content(for_terminal(f"! {error.message} {error.hint}")), *lines] if error else lines)

    def _how_far(self) -> Content:
        runner = self.runner
        assert runner is not None
        line = "Stopping…" if runner.stopping else progress_line(runner.now, self.repeat) if runner.now is not None else "Beginning…"
        done = sum(lane.rounds for lane in runner.lanes)
        whole = len(runner.lanes) * len(runner.plan.prompts) * self.repeat
        cells = max(10, min(60, self.size.width - 24))
        bar = "█" * round(cells * done / whole) + "░" * (cells - round(cells * done / whole))
        table = scores(runner.lanes, -1, self.size.width - 2, 0, "timed")
        note = "Only this is drawn meanwhile, so that the screen does not slow what it measures. Esc stops and keeps what there is."
        return Content.assemble(for_terminal(line), f"\n{bar} {done}/{whole} replies\n\n", table, "\n\n", (note, "dim"))

    def _prompts(self) -> tuple[object, ...]:
        return read(",".join(self.sets.selected)) if self.sets.selected else ()

    def _ended(self) -> None:
        """Keep the report."""
        runner = self.runner
        assert runner is not None
        if runner.report is None or runner.result is None:
            return
        if not any(lane.runs for lane in runner.result.lanes):
            self.runner = None  # stopped before anything was measured
            return
        try:
            self.folder = results.save(runner.report, steps_csv(runner.result))
        except EngineError as error:
            self.folder = None
            self.toast(f"The result is not kept. {error.message} {error.hint}", "warning")
        self.call_after_refresh(self.query_one("#report").focus)

    # --- commands ----------------------------------------------------------------------------------------------------

    def do_bench_run(self, argument: str) -> None:
        if self.running:
            return
        if self.report is not None:  # again: back to the choice
            self.runner = None
            self._draw()
            self.sets.focus()
            return
        if not self.sets.selected or not self.drafters.selected:
            self.toast("Choose a set of prompts and a drafter: Space takes one.", "warning")
            return
        self._judge.stop()  # nothing else may run beside a measurement
        prompts = read(",".join(self.sets.selected))
        drafters = tuple(self._specs[name] for name in self.drafters.selected)
        self.runner = Runner(
            self.ground.client, self.ground.plan(prompts, drafters, self.tokens, self.repeat, bench=True), "bench", demo=self.ground.demo
        )
        self.folder = None
        self.touched = True
        self.runner.start()
        self._timer.resume()
        self._draw()

    def _change(self, repeat: int, tokens: float) -> None:
        if not self.running and self.report is None:
            self.repeat = max(1, min(MOST_REPEATS, self.repeat + repeat))
            self.tokens = max(LEAST, min(LONGEST, round(self.tokens * tokens)))
            self._draw()

    def do_bench_more(self, argument: str) -> None:
        self._change(1, 1)

    def do_bench_fewer(self, argument: str) -> None:
        self._change(-1, 1)

    def do_bench_longer(self, argument: str) -> None:
        self._change(0, 2)

    def do_bench_shorter(self, argument: str) -> None:
        self._change(0, 0.5)

    def do_bench_copy(self, argument: str) -> None:
        if self.report is None:
            self.toast("There is no report yet.")
            return
        self.app.copy_to_clipboard(as_markdown(self.report))
        self.toast("The report as Markdown was sent to the terminal's clipboard.")

    def do_bench_results(self, argument: str) -> None:
        if not self.running:
            self.app.push_screen(ResultsScreen())

    def do_bench_back(self, argument: str) -> None:
        if self.running and self.runner is not None:
            self.runner.stop()
            self._draw()
        else:
            self.dismiss(None)
