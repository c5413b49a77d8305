"""Parts of a recorded reply: its first tokens, or what follows behind some tokens that another drafter wrote.

All recordings of one prompt have the same text in the same pieces, since the text does not depend on the drafter; only the steps differ.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from engine.protocol import Done, Segment, Step
from engine.trace import Timed


def text_of(segments: Sequence[Segment]) -> str:
    """The text of some pieces."""
    return "".join(segment.text for segment in segments)


def ids_of(segments: Sequence[Segment]) -> tuple[int, ...]:
    """Their tokens."""
    return tuple(token for segment in segments for token in segment.token_ids)


def first(timed: Sequence[Timed], tokens: int) -> tuple[Timed, ...]:
    """The reply as it would have been with this limit of tokens."""
    if sum(event.emitted for _, event in timed if isinstance(event, Step)) <= tokens:
        return tuple(timed)
    done = next(event for _, event in timed if isinstance(event, Done))
    kept: list[Timed] = []
    segments: list[Segment] = []
    left = tokens
    for at_s, event in timed:
        if isinstance(event, Step):
            event = _begin(event, left)
            left -= event.emitted
            segments += event.segments
        kept.append((at_s, event))
        if left <= 0:
            break
    text, ids = text_of(segments), ids_of(segments)
    return (*kept, (kept[-1][0], replace(done, finish_reason="length", text=text, token_ids=ids, stop_id=None, tail=())))


def behind(timed: Sequence[Timed], tokens: int, shown: Sequence[Segment], last: Step) -> tuple[Timed, ...]:
    """What comes behind the first `tokens` tokens, of which `shown` are on the screen; `last` is the step before. Times from 0."""
    rest: list[Timed] = []
    begun_s = next((at_s - event.at_s for at_s, event in timed if isinstance(event, Step)), 0.0)  # the prompt is read
    clock_s = 0.0
    pieces = len(ids_of(shown))
    for at_s, event in timed:
        if isinstance(event, Step):
            new: list[Segment] = []
            for segment in event.segments:
                if pieces <= 0:
                    new.append(segment)
                pieces -= len(segment.token_ids)
            passed = min(tokens, event.emitted)
            tokens -= passed
            if passed == event.emitted:
                begun_s, clock_s = at_s, event.at_s
                continue
            index = last.index + 1 + sum(isinstance(item, Step) for _, item in rest)
            event = replace(_end(event, passed, new, index), at_s=last.at_s + event.at_s - clock_s)
        if isinstance(event, (Step, Done)):
            rest.append((max(0.0, at_s - begun_s), event))
    return tuple(rest)


def _begin(step: Step, tokens: int) -> Step:
    """The step with at most so many tokens, as a shorter draft would have made it."""
    if step.emitted <= tokens:
        return step
    segments, left = [], tokens
    for segment in step.segments:
        left -= len(segment.token_ids)
        if left < 0:
            break
        segments.append(segment)
    depth = min(step.drafted, tokens - 1)
    return replace(step, segments=tuple(segments), emitted=tokens, drafted=depth, accepted=min(step.accepted, depth), nodes=depth)


def _end(step: Step, passed: int, segments: Sequence[Segment], index: int) -> Step:
    """The step without its first tokens: they count as not drafted."""
    moved = tuple(replace(s, step=index, position=max(0, s.position - passed)) for s in segments)
    drafted, accepted, nodes = (max(0, n - passed) for n in (step.drafted, step.accepted, step.nodes))
    return replace(step, segments=moved, index=index, emitted=step.emitted - passed, drafted=drafted, accepted=accepted, nodes=nodes)
