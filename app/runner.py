"""Runs a bench or a comparison beside the screen, on a thread of its own, exactly as the command line does. No widgets.

The screen looks at `lanes` on a timer; nothing is sent to it. While it runs, the thread alone reads the engine's events.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from typing import Literal

from app.bench import Plan, Progress, Result, measure
from app.compare import compare
from app.console import Interrupt
from app.driver import Driver
from app.report import Report, as_report
from engine.client import Client
from engine.errors import EngineError
from engine.logs import log_failure
from engine.protocol import Prefill, Segment, Step
from engine.stats import Tally

DEMO_NOTE = "DEMO: recorded numbers of another machine."
State = Literal["waiting", "loading", "running", "done", "failed"]


@dataclass(slots=True, eq=False)
class LaneView:
    """What can be seen of a lane now; written by the measuring thread, read by the screen."""

    title: str
    state: State = "waiting"
    segments: list[Segment] = field(default_factory=list)  # of the reply under way, or the last one
    tally: Tally = field(default_factory=Tally)  # likewise
    rounds: int = 0  # finished replies
    error: str = ""

    @property
    def tokens(self) -> int:
        """Tokens of the reply under way, or the last one."""
        return self.tally.emitted


class Runner:
    """One measurement."""

    def __init__(self, client: Client, plan: Plan, kind: Literal["bench", "compare"], *, demo: bool = False) -> None:
        names = [*(spec.name for spec in plan.drafters), *(["none, last"] if plan.plain_again else [])]
        self.plan = plan
        self.lanes = [LaneView(name) for name in ("none, first" if plan.plain_again else "none", *names)]
        self.now: Progress | None = None
        self.result: Result | None = None
        self.report: Report | None = None
        self.error: EngineError | None = None
        self._kind, self._demo = kind, demo
        self._interrupt = Interrupt()
        self.notes: dict[str, None] = {}  # what the engine has said meanwhile, each once, in order
        self._driver = Driver(client, self._interrupt, lambda text: self.notes.setdefault(text))
        self._thread = threading.Thread(target=self._run, name=f"specchat-{kind}", daemon=True)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def stop(self) -> None:
        """End with what was measured until now."""
        self._interrupt.stop()

    @property
    def running(self) -> bool:
        """Until everything, the report included, is there."""
        return self._thread.is_alive()

    @property
    def stopping(self) -> bool:
        """A person wants it to end."""
        return self._interrupt.stopped.is_set()

    def wait(self, timeout_s: float) -> None:
        """Let it end; for the screen that goes away."""
        self._thread.join(timeout_s)

    def _run(self) -> None:
        try:
            if self._kind == "compare":
                found = compare(self.plan, self._driver, self._watch)
                self.result, self.report = found.result, found.report
            else:
                self.result = measure(self.plan, self._driver, self._watch)
                self.report = as_report(self.result)
            if self._demo:
                self.report |= {"demo": True, "machine": {}, "versions": {}, "notes": [DEMO_NOTE, *self.report["notes"]]}
            self._end(self.result)
        except EngineError as error:
            self.error = error
        except Exception as error:  # a fault of ours: a sentence on the screen, the details in the log
            log_failure(error)
            self.error = EngineError(f"The measurement broke off: {type(error).__name__}: {error}", "The log says more.", kind="internal")

    def _watch(self, now: Progress) -> None:
        before = self.now
        self.now = now
        lane = self.lanes[now.row]
        if before is not None and before.row != now.row:
            left = self.lanes[before.row]
            left.state = "done" if left.rounds else "failed"
        if not now.prompt:
            lane.state = "loading"
        elif isinstance(now.event, (Prefill, Step)) and lane.state != "running":
            lane.state = "running"
        if isinstance(now.event, Prefill) and lane.tally.steps:
            lane.segments, lane.tally = [], Tally()  # the next reply has begun
        elif isinstance(now.event, Step):
            lane.segments += now.event.segments
            lane.tally.add(now.event)
        if now.answer is not None:
            lane.segments = list(now.answer.segments)
            lane.tally.ttft_s = now.answer.stats.ttft_s
            if now.answer.done.stop_id is not None:
                lane.tally.stopped()
            lane.rounds += 1

    def _end(self, result: Result) -> None:
        for view, lane in zip(self.lanes, result.lanes, strict=True):
            view.state = "failed" if lane.error else "done" if lane.runs else "waiting"
            view.error = lane.error.message if lane.error else ""
            if lane.runs:
                view.segments, view.tally = list(lane.runs[0].answer.segments), lane.tally
                view.tally.ttft_s = lane.ttft_s
