"""The comparison: one prompt, plain decoding and up to three drafters, one lane after the other, and whether all texts are the same.

A live run shows the text while it is written; a timed run draws only numbers, so that drawing does not slow what it measures.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Literal

from app import results
from app.commands import bindings
from app.compare import MOST, timeline
from app.ground import Ground
from app.prompts import Prompt as Question
from app.report import steps_csv
from app.runner import LaneView, Runner
from app.screens.compare_view import CompareView, Winner
from app.screens.pick import PickScreen
from engine.catalog.specs import NONE, ModelSpec
from engine.errors import EngineError

LIVE_S, TIMED_S, PLAY_S = 0.25, 0.5, 0.1  # between two drawings
LEAST, LONGEST = 16, 2048  # tokens
REPEAT = 3


class CompareScreen(CompareView):
    """What its keys do."""

    BINDINGS = bindings("compare")

    def __init__(self, ground: Ground, drafters: Sequence[ModelSpec]) -> None:
        super().__init__(ground, drafters)
        self._told = True  # the end of the race has been drawn

    def on_mount(self) -> None:
        super().on_mount()
        self.prompt.put(self.ground.prompt)
        self._timer = self.set_interval(LIVE_S, self._look, pause=True)
        self._fresh()

    def on_unmount(self) -> None:
        if self.running and self.runner is not None:
            self.runner.stop()

    def _fresh(self) -> None:
        """Lanes without numbers."""
        self.runner = None
        self.lanes = [LaneView("none"), *(LaneView(spec.name) for spec in self.drafters)]
        self.chosen = min(self.chosen, len(self.lanes) - 1)
        self.draw()

    # --- running -----------------------------------------------------------------------------------------------------

    def _start(self, grade: Literal["live", "timed"]) -> None:
        text = self.prompt.text.strip()
        if self.running:
            self.toast("The race is under way: Esc stops it.")
            return
        if not text:
            self.toast("There is no prompt: p goes to it.", "warning")
            return
        if not self.drafters:
            self.toast("There is no drafter to compare with: d chooses some.", "warning")
            return
        self.grade, self.asked, self.played_s = grade, text, None
        plan = self.ground.plan((Question(text),), self.drafters, self.tokens, REPEAT if grade == "timed" else 1, bench=False)
        self.runner = Runner(self.ground.client, plan, "compare", demo=self.ground.demo)
        self.lanes = self.runner.lanes
        self._told, self.follows = False, True
        self.set_focus(None)
        self.touched = True
        self.runner.start()
        self._tick(LIVE_S if grade == "live" else TIMED_S)
        self.draw()

    def _tick(self, every_s: float) -> None:
        """Draw from now on at this pace."""
        self._timer.stop()
        self._timer = self.set_interval(every_s, self._look)

    def _look(self) -> None:
        """Draw how far the race is; rest when nothing goes on any more."""
        if not self.running and self.played_s is None:
            self._timer.pause()
            if not self._told:
                self._told = True
                self._ended()
        self.draw()

    def _ended(self) -> None:
        runner = self.runner
        if runner is None:
            return
        if runner.error is not None:
            self.toast(f"{runner.error.message} {runner.error.hint}".strip(), "warning")
        elif runner.report is not None:
            ran = [lane for lane in self.lanes if lane.state == "done"]
            self.chosen = self.lanes.index(max(ran, key=lambda lane: lane.tally.tok_per_s)) if ran else 0

    # --- commands ----------------------------------------------------------------------------------------------------

    def do_race_run(self, argument: str) -> None:
        self._start("live")

    def do_race_timed(self, argument: str) -> None:
        self._start("timed")

    def do_send(self, argument: str) -> None:
        """Enter in the prompt."""
        self._start("live")

    def do_newline(self, argument: str) -> None:
        self.prompt.insert("\n")

    def do_race_prompt(self, argument: str) -> None:
        self.prompt.focus()

    async def do_race_drafters(self, argument: str) -> None:
        if self.running:
            return
        offered = {spec.name: spec for spec in (*self.drafters, *self.ground.drafters)}
        screen = PickScreen(
            f"Drafters beside plain decoding, up to {MOST}", [(name, "") for name in offered], [s.name for s in self.drafters], MOST
        )

        def sound(spec: ModelSpec) -> None:
            offered[spec.name] = spec
            screen.call_later(screen.add, spec.name, "checked: it goes with this target")

        judge = self.ground.judge()
        screen.opened = lambda: judge.start(list(self.ground.others), sound)
        try:
            names = await self.app.push_screen_wait(screen)
        finally:
            judge.stop()
        if names is not None:
            self.drafters = tuple(offered[name] for name in names)
            self._fresh()

    def _longer(self, times: float) -> None:
        if not self.running:
            self.tokens = max(LEAST, min(LONGEST, round(self.tokens * times)))
            self.draw()

    def do_race_longer(self, argument: str) -> None:
        self._longer(2)

    def do_race_shorter(self, argument: str) -> None:
        self._longer(0.5)

    def do_race_play(self, argument: str) -> None:
        """All lanes side by side, at the times that were recorded."""
        if self.running or self.runner is None or self.runner.result is None:
            return
        self.played_s = time.monotonic()
        longest_s = max(
            (moment[-1][0] for lane in self.runner.result.lanes if lane.runs and (moment := timeline(lane.runs[0]))), default=0.0
        )
        self._tick(PLAY_S)
        self.set_timer(longest_s + 0.5, self._stop_playing)

    def _stop_playing(self) -> None:
        if self.played_s is not None:
            self.played_s = None
            self._timer.pause()
            self.draw()

    def do_race_use(self, argument: str) -> None:
        runner = self.runner
        if self.running or runner is None or runner.result is None or not runner.result.lanes[self.chosen].runs:
            self.toast("There is no reply in this lane yet.")
            return
        lane = runner.result.lanes[self.chosen]
        plain = runner.result.lanes[0].tally.tok_per_s
        self.dismiss(Winner(NONE if lane.place else lane.drafter, self.asked, lane.runs[0], plain))

    def do_race_save(self, argument: str) -> None:
        runner = self.runner
        if self.running or runner is None or runner.report is None or runner.result is None:
            self.toast("There is nothing to keep yet.")
            return
        try:
            self.toast(f"Kept in {results.save(runner.report, steps_csv(runner.result))}")
        except EngineError as error:
            self.toast(f"{error.message} {error.hint}", "warning")

    def do_race_colours(self, argument: str) -> None:
        self.colours = not self.colours
        self.draw()

    def _move(self, step: int) -> None:
        self.chosen, self.follows = (self.chosen + step) % len(self.lanes), False
        self.draw()

    def do_race_up(self, argument: str) -> None:
        self._move(-1)

    def do_race_down(self, argument: str) -> None:
        self._move(1)

    def do_race_bench(self, argument: str) -> None:
        if self.running:
            self.toast("Not during a race: Esc stops it.")
            return
        self.dismiss(Winner(self.ground.drafter, "", None, measure=self.drafters))

    def do_race_back(self, argument: str) -> None:
        if self.played_s is not None:
            self._stop_playing()
        elif self.focused is self.prompt:
            self.set_focus(None)
        elif self.running and self.runner is not None:
            self.runner.stop()
            self.draw()
        else:
            self.dismiss(None)
