"""The live screen of a training, drawn with Rich below the prompt: what is done, how good the heads are, when it ends."""

from __future__ import annotations

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.padding import Padding
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from app import train
from app.pull import clock
from app.terminal import for_terminal, one_line
from engine.training.protocol import Event

PER_S = 4  # drawing must not slow what it shows
REMARKS = 3


class Screen:
    """Shows a state until it is closed. Rich draws it on its own timer, so an event costs nothing."""

    def __init__(self, state: train.State, console: Console | None = None) -> None:
        self._state = state
        self.console = console or Console(stderr=True)
        self._live = Live(get_renderable=self.draw, console=self.console, refresh_per_second=PER_S, transient=True)
        self._live.start()

    def show(self, event: Event) -> None:
        """Take an event."""
        self._state.take(event)

    def close(self) -> None:
        """Take the screen away."""
        self._live.stop()

    def draw(self) -> RenderableType:
        """The whole screen."""
        state = self._state
        plan = state.plan
        rows = Table.grid(padding=(0, 2))
        rows.add_column(style="dim", no_wrap=True)
        rows.add_column(ratio=1)
        if state.answering is not None:
            rows.add_row("data", train.answering(state.answering))
        if state.learning is not None:
            rows.add_row("training", train.learning(state.learning))
            rows.add_row("loss", Text(train.curve(state.losses), style="cyan"))
        if state.judged is not None:
            rows.add_row("tau", Text.assemble((train.curve(state.taus), "green"), f"  {state.judged.tau:.2f} now", self._best()))
            right = "   ".join(f"{k}: {share:.0%}" for k, share in enumerate(state.judged.agreement, start=1))
            rows.add_row("right", f"{right}   (drafted token, those before it given)")
        for remark in state.remarks[-REMARKS:]:
            rows.add_row("note", Text(for_terminal(remark)))
        left = state.left_s
        ending = f"{clock(left)} left in this part" if left else ""
        foot = Text(f"{ending}   Ctrl+C stops; --resume goes on.".strip(), style="dim")
        bar = Padding(ProgressBar(total=1.0, completed=state.share), 0)  # a bar alone ends no line
        body = Group(Text(one_line(state.stage), style="bold"), bar, rows, foot)
        return Panel(body, title=Text(one_line(f"{plan.kind} heads for {plan.target.name}")), border_style="dim")

    def _best(self) -> str:
        best = self._state.best
        if best is None:
            return ""
        gain = f", expected {best.speedup:.2f}x" if best.speedup else ""
        return f"   best {best.tau:.2f}{gain}"
