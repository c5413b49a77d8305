"""What the comparison shows: the prompt, the scores, the texts, whether they are the same, and who was fastest."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from textual.app import ComposeResult
from textual.containers import Horizontal
from textual.content import Content
from textual.widgets import Static

from app.bench import Run
from app.commands import bindings
from app.compare import MOST, timeline
from app.ground import Ground
from app.runner import LaneView, Runner
from app.screens.place import PlaceScreen
from app.terminal import for_terminal, one_line
from app.widgets.lanes import LaneText, details, scores
from app.widgets.prompt import Prompt
from engine.catalog.specs import ModelSpec
from engine.protocol import Segment
from engine.words import counted

TOKENS = 128


@dataclass(frozen=True, slots=True)
class Winner:
    """What the person takes along into the chat."""

    drafter: ModelSpec
    prompt: str
    run: Run | None
    plain_rate: float = 0.0  # tok/s of plain decoding in the same race
    measure: tuple[ModelSpec, ...] = ()  # go on to the benchmark with these


class CompareView(PlaceScreen[Winner | None]):
    """State and drawing; `app.screens.compare` has what the keys do."""

    WHERE = "compare"
    BINDINGS = bindings("compare")
    AUTO_FOCUS = ""
    DEFAULT_CSS = """
    CompareView Prompt { max-height: 3; background: $boost; }
    CompareView #scores { height: auto; padding: 0 0; text-wrap: nowrap; border-bottom: solid $panel-lighten-2; }
    CompareView #texts { height: 1fr; min-height: 3; }
    CompareView LaneText { display: none; }
    CompareView LaneText.-chosen { display: block; }
    CompareView.-wide LaneText.-used { display: block; border-left: solid $panel-lighten-2; }
    CompareView #details { height: auto; display: none; border-top: solid $panel-lighten-2; }
    CompareView.-wide #details.-known { display: block; }
    CompareView.-short #details, CompareView.-flat #details { display: none; }
    CompareView.-short #scores { border: none; }
    CompareView #agreement { height: auto; max-height: 4; padding: 0 1; border-top: solid $panel-lighten-2; }
    """

    def __init__(self, ground: Ground, drafters: Sequence[ModelSpec]) -> None:
        super().__init__("Compare", "")
        self.ground = ground
        self.drafters = tuple(drafters)[:MOST]
        self.tokens = TOKENS
        self.colours = False
        self.chosen = 0
        self.follows = True  # the chosen lane is the running one, until the person chooses
        self.grade: Literal["live", "timed"] = "live"
        self.runner: Runner | None = None
        self.touched = False  # the engine has another drafter than the chat's
        self.prompt = Prompt()
        self.asked = ground.prompt
        self.lanes: list[LaneView] = []
        self._scores, self._agreement, self._details = Static(id="scores"), Static(id="agreement"), Static(id="details")
        self._texts = [LaneText() for _ in range(MOST + 1)]
        self.played_s: float | None = None  # when the replay began

    def body(self) -> ComposeResult:
        yield self.prompt
        yield self._scores
        with Horizontal(id="texts"):
            yield from self._texts
        yield self._details
        yield self._agreement

    @property
    def running(self) -> bool:
        """The engine is at work for this screen."""
        return self.runner is not None and self.runner.running

    def on_resize(self) -> None:
        self.draw()

    def draw(self) -> None:
        """Bring everything up to date."""
        if not self.is_mounted:
            return
        ready = self.ground.ready
        self.title_bar.show(
            f"Compare   {one_line(ready.target, 30)} {ready.quant}", f"greedy · {counted(self.tokens, 'token')} · one lane at a time"
        )
        if self.running and self.follows and self.runner is not None and self.runner.now is not None:
            self.chosen = self.runner.now.row
        self._scores.update(scores(self.lanes, self.chosen, self.size.width, self.tokens, self.grade))
        hidden = self.running and self.grade == "timed"
        for n, text in enumerate(self._texts):
            text.set_class(n < len(self.lanes), "-used")
            text.set_class(n == self.chosen, "-chosen")
            if n < len(self.lanes) and not hidden:
                lane = self.lanes[n]
                text.show(
                    f"{n + 1} {lane.title}",
                    self._pieces(n),
                    colours=self.colours and bool(lane.tally.drafted),
                    last=self.running or self.played_s is not None,
                )
        result = self.runner.result if self.runner is not None and not self.running else None
        self._details.set_class(result is not None, "-known")
        if result is not None:
            self._details.update(details(result.lanes, self.size.width))
        self._agreement.update(Content("\n").join(Content(for_terminal(line)) for line in self._lines()))
        playable = result is not None and any(lane.runs for lane in result.lanes)
        self._show_keys(playable)

    def _show_keys(self, playable: bool) -> None:
        """What can be done now."""
        before, after = ("race_run", "race_timed", "race_drafters", "race_prompt"), ("race_play", "race_use", "race_save")
        if self.running or self.played_s is not None:
            self.show_keys((*before, *after, "race_bench", "race_back"), [("Esc", "stop")])
        else:
            self.show_keys(() if playable else after)

    def _pieces(self, n: int) -> list[Segment]:
        """What of a lane's text is shown now."""
        if self.played_s is None or self.runner is None or self.runner.result is None:
            return list(self.lanes[n].segments)
        lane = self.runner.result.lanes[n]
        if not lane.runs:
            return []
        now_s = time.monotonic() - self.played_s
        moments = timeline(lane.runs[0])
        return [segment for at_s, segments in moments if at_s <= now_s for segment in segments]

    def _lines(self) -> list[str]:
        """Below the texts: are they the same, and who was fastest."""
        runner = self.runner
        if runner is None:
            return ["Enter runs the lanes one after the other: same prompt, same settings, so all texts must be the same."]
        replaced = [f"DEMO: {text}" for text in runner.notes if "recording" in text][:1] if self.ground.demo else []
        if self.running:
            if runner.stopping:
                return ["Stopping…"]
            same = self._same_so_far()
            what = (
                "only numbers are drawn" if self.grade == "timed" else "numbers marked live: drawing the text costs some speed, b measures"
            )
            return [*replaced, *([same] if same else []), f"Lanes run one after the other; {what}."]
        if self.played_s is not None:
            return [f"Replay, {time.monotonic() - self.played_s:.1f} s: the lanes ran one after the other, here they start together."]
        if runner.error is not None:
            return [f"! {runner.error.message}", runner.error.hint]
        assert runner.report is not None
        failed = [f"! {lane.title}: {lane.error}" for lane in self.lanes if lane.error]
        return [*replaced, runner.report["agreement"]["text"], *failed, self._verdict()]

    def _same_so_far(self) -> str:
        plain = [token for segment in self.lanes[0].segments for token in segment.token_ids]
        parts = []
        for n, lane in enumerate(self.lanes[1:], start=2):
            ours = [token for segment in lane.segments for token in segment.token_ids]
            if ours and self.lanes[0].state == "done":
                equal = all(a == b for a, b in zip(ours, plain, strict=False))
                parts.append(f"1{'=' if equal else '≠'}{n} {'identical so far' if equal else 'differ'} ({counted(len(ours), 'token')})")
        return "   ".join(parts)

    def _verdict(self) -> str:
        ran = sorted((lane for lane in self.lanes if lane.state == "done"), key=lambda lane: -lane.tally.tok_per_s)
        if len(ran) < 2:
            return "Stopped before there was anything to compare." if self.runner is not None and self.runner.stopping else ""
        ahead = ran[0].tally.tok_per_s - ran[1].tally.tok_per_s
        return f"This prompt: {ran[0].title} wins by {ahead:.1f} tok/s ({self.grade}). One prompt is no benchmark: F6 measures many."
