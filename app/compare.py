"""A comparison: one prompt, plain decoding and up to three drafters, one after the other. Measured by `app.bench`, so in the same way."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from app.agreement import agreement, as_object
from app.bench import Plan, Progress, Result, Run, measure
from app.driver import Driver
from app.report import Report, as_report
from engine.protocol import Segment, Step

MOST = 3  # drafters beside plain decoding


@dataclass(frozen=True, slots=True)
class Compared:
    """The result and its report, with `agreement` and the text in it."""

    result: Result
    report: Report


def compare(plan: Plan, driver: Driver, progress: Callable[[Progress], None] = lambda now: None) -> Compared:
    """Run all lanes, then compare their texts."""
    assert len(plan.prompts) == 1
    result = measure(plan, driver, progress)
    lanes = agreement(result, None if result.stopped else driver.weigh)
    text = next((lane.runs[0].answer.done.text for lane in result.lanes if lane.runs), "")
    return Compared(result, as_report(result, "compare") | {"agreement": as_object(result, lanes), "text": text})


def whole_steps(run: Run) -> tuple[Step, ...]:
    """The steps of a reply with their pieces."""
    return tuple(replace(step, segments=segments) for step, (_, segments) in zip(run.steps, timeline(run), strict=True))


def timeline(run: Run) -> list[tuple[float, tuple[Segment, ...]]]:
    """The pieces of a reply with the seconds after Enter at which they came, for a race to be looked at again."""
    segments = run.answer.segments
    begun_s = run.answer.stats.ttft_s - next((step.at_s for step in run.steps if step.emitted), 0.0)
    moments = []
    at = 0
    for step in run.steps:
        end = at
        while end < len(segments) and segments[end].step <= step.index:
            end += 1
        moments.append((max(0.0, begun_s) + step.at_s, segments[at:end]))
        at = end
    return moments
