"""The lanes of a comparison: the table of scores, the texts side by side or one at a time, and where the time went."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from textual.app import ComposeResult
from textual.containers import VerticalScroll
from textual.content import Content
from textual.widgets import Static

from app.bench import Lane
from app.runner import LaneView
from app.terminal import column, for_terminal, one_line
from app.widgets.stats_panel import sparkline
from app.widgets.token_view import coloured
from engine.protocol import Segment

NAME = 26
# heading, width, and the window's least width; a window of 60 columns shows the first four
COLUMNS = (("TOK/S", 7, 0), ("SPEED-UP", 9, 0), ("TTFT s", 7, 72), ("τ", 6, 66), ("KEPT", 6, 60), ("", 12, 0))


def scores(lanes: Sequence[LaneView], chosen: int, width: int, most: int, grade: str) -> Content:
    """One row per lane under a heading. `most`: the limit of tokens; `grade`: how the times were taken."""
    columns = [column for column in COLUMNS if width >= column[2]]
    name = max(12, min(NAME, width - 2 - sum(column[1] for column in columns)))
    bar = max(0, min(40, width - 3 - name - sum(column[1] for column in columns)))
    heading = f"  {'DRAFTER':<{name}}" + "".join(f"{title:>{cells}}" for title, cells, _ in columns)
    plain = lanes[0].tally.tok_per_s if lanes else 0.0
    best = max((lane.tally.tok_per_s for lane in lanes if lane.state == "done"), default=0.0)
    rows = [Content.styled(heading, "dim")]
    for n, lane in enumerate(lanes):
        values = _values(lane, plain, grade)
        text = "".join(f"{values[title]:>{cells}}" for title, cells, _ in columns)
        star = "*" if lane.state == "done" and lane.tally.tok_per_s == best and len(lanes) > 1 else " "
        head = f"{'▸' if n == chosen else ' '}{star}{column(lane.title, name)}"
        done = min(1.0, lane.tokens / most) if most and lane.state != "done" else 1.0 if lane.state == "done" else 0.0
        filled = f" {'█' * round(done * bar)}" if bar >= 8 else ""
        rows.append(Content.assemble((head, "bold" if n == chosen else ""), text, (filled, "$primary")))
    return Content("\n").join(rows)


def _values(lane: LaneView, plain: float, grade: str) -> dict[str, str]:
    tally = lane.tally
    state = {"waiting": "", "loading": "loading", "failed": "failed"}.get(lane.state) or f"{lane.tokens} tok"
    if lane.state == "done":
        state = f"{lane.rounds} x timed" if grade == "timed" else grade
    known = bool(tally.steps and tally.tok_per_s)
    return {
        "TOK/S": f"{tally.tok_per_s:.1f}" if known else "",
        "SPEED-UP": f"{tally.tok_per_s / plain:.2f}x" if known and plain else "",
        "TTFT s": f"{tally.ttft_s:.2f}" if tally.ttft_s else "",
        "τ": f"{tally.tau:.2f}" if known else "",
        "KEPT": f"{tally.kept:.0%}" if tally.drafted else "",
        "": f" {state}" if lane.state != "waiting" else "",
    }


class LaneText(VerticalScroll):
    """The text of one lane under its name."""

    DEFAULT_CSS = """
    LaneText { width: 1fr; height: 1fr; scrollbar-size-vertical: 1; }
    LaneText .lane-title { height: 1; text-style: bold; padding: 0 1; text-wrap: nowrap; text-overflow: ellipsis; }
    LaneText .lane-text { height: auto; padding: 0 1; }
    """

    def __init__(self) -> None:
        super().__init__(can_focus=False)
        self._title = Static(classes="lane-title", markup=False)
        self._text = Static(classes="lane-text", markup=False)
        self._drawn: tuple[object, ...] = ()

    def compose(self) -> ComposeResult:
        yield self._title
        yield self._text

    def show(self, title: str, segments: Sequence[Segment], *, colours: bool, last: bool) -> None:
        """Draw, if something has changed; `last`: only the end, as much as the lane can hold."""
        drawn = (title, len(segments), segments[-1] if segments else None, colours, last, self.size)
        if drawn == self._drawn:
            return
        self._drawn = drawn
        self._title.update(Content(one_line(title)))
        shown = segments[-max(8, self.size.height * max(4, self.size.width // 3)) :] if last else segments
        content = coloured(shown)[0] if colours else Content(for_terminal("".join(s.text for s in shown)))
        self._text.update(content)
        if last:
            self.scroll_end(animate=False)
        else:
            self.scroll_home(animate=False)


def details(lanes: Sequence[Lane], width: int) -> Content:
    """Tokens/s along the reply, and the time of a step, for each lane that has run."""
    ran = [lane for lane in lanes if lane.runs]
    name, numbers = 24, 32
    cells = max(10, width - name - numbers - 6)
    rows = [Content.styled(f"  {'TOK/S ALONG THE REPLY':<{name + cells}}  {'MS PER STEP':>12}  draft verify  other", "dim")]
    tops = [rates(lane, cells) for lane in ran]
    top = max((max(row, default=0.0) for row in tops), default=0.0)
    for lane, row in zip(ran, tops, strict=True):
        tally = lane.tally
        per_step = [1000 * part / max(1, tally.steps) for part in (tally.draft_s + tally.bridge_s, tally.verify_s, tally.other_s)]
        times = "".join(f"{value:7.1f}" for value in per_step)
        line = sparkline((*row, top), cells + 1)[:-1] if row else ""
        rows.append(Content(f"  {column(lane.title, name)}{line:<{cells}}  {sum(per_step):>12.1f}{times}"))
    return Content("\n").join(rows)


def rates(lane: Lane, cells: int) -> list[float]:
    """Tokens/s in so many equal parts of the first reply's steps."""
    steps = lane.runs[0].steps
    if not steps:
        return []
    edges = [round(n * len(steps) / min(cells, len(steps))) for n in range(min(cells, len(steps)) + 1)]
    found = []
    for a, b in pairwise(edges):
        seconds = steps[b - 1].at_s - (steps[a - 1].at_s if a else 0.0)
        found.append(sum(step.emitted for step in steps[a:b]) / seconds if seconds > 0 else 0.0)
    return found
