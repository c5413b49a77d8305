"""Are all texts of a comparison the same? Compared token by token with plain decoding; the first difference is named.

Where they differ, the target is asked how near the two tokens were: a gap of almost nothing is floating-point noise between two
numbers of rows on a device where they are not equal bit for bit; a large gap would be a fault.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from app.bench import Plan, Result, command_for
from app.terminal import one_line
from engine.errors import EngineError
from engine.protocol import Done, Segment, Weigh
from engine.words import counted

Weighing = Callable[[Weigh], tuple[float, ...]]
END = "the end of the text"


@dataclass(frozen=True, slots=True)
class Difference:
    """Where a text first differs from plain decoding's."""

    token: int  # from 1
    ours: str  # what this lane has there
    plain: str
    gap: float | None = None  # logit of plain's token minus logit of ours; None = not known


@dataclass(frozen=True, slots=True)
class LaneAgreement:
    """One lane against plain decoding."""

    drafter: str
    identical: bool | None  # None = there is nothing to compare
    tokens: int  # that were compared and are equal
    difference: Difference | None = None


def same(ours: Sequence[int], plain: Sequence[int]) -> int:
    """How many tokens at the beginning are equal."""
    return next((n for n, (a, b) in enumerate(zip(ours, plain, strict=False)) if a != b), min(len(ours), len(plain)))


def agreement(result: Result, weigh: Weighing | None = None) -> list[LaneAgreement]:
    """Each lane but plain decoding; `weigh` asks the engine for logits."""
    reference = result.lanes[0].runs[0].answer if result.lanes[0].runs else None
    found = []
    for lane in (lane for lane in result.lanes if not lane.place):
        if reference is None or not lane.runs:
            found.append(LaneAgreement(lane.drafter.name, None, 0))
            continue
        answer = lane.runs[0].answer
        equal = same(answer.done.token_ids, reference.done.token_ids)
        pair = [_token(done, equal) for done in (answer.done, reference.done)]
        if pair[0] == pair[1]:
            found.append(LaneAgreement(lane.drafter.name, True, equal))
            continue
        gap = _gap(result.plan, reference.done.token_ids[:equal], pair, weigh)
        texts = [_piece(segments, equal) for segments in (answer.segments, reference.segments)]
        found.append(LaneAgreement(lane.drafter.name, False, equal, Difference(equal + 1, texts[0], texts[1], gap)))
    return found


def _token(done: Done, place: int) -> int | None:
    """The token at this place, the stop id behind the last, None where the reply was cut off."""
    return done.token_ids[place] if place < len(done.token_ids) else done.stop_id


def _gap(plan: Plan, before: tuple[int, ...], pair: list[int | None], weigh: Weighing | None) -> float | None:
    ours, plain = pair
    if weigh is None or ours is None or plain is None:
        return None
    try:
        logits = weigh(Weigh(command_for(plan, plan.prompts[0].text, 0, 0), before, (plain, ours)))
    except EngineError:
        return None  # the comparison itself is whole
    return logits[0] - logits[1] if len(logits) == 2 else None


def _piece(segments: Sequence[Segment], place: int) -> str:
    """The piece of text that the token at this place belongs to."""
    for segment in segments:
        place -= len(segment.token_ids)
        if place < 0:
            return segment.text
    return END


def as_object(result: Result, lanes: list[LaneAgreement]) -> dict[str, Any]:
    """For `--json` and the report."""
    known = [lane.identical for lane in lanes if lane.identical is not None]
    return {"identical": all(known) if known else None, "lanes": [asdict(lane) for lane in lanes], "text": sentence(result, lanes)}


def sentence(result: Result, lanes: list[LaneAgreement]) -> str:
    """The line below the lanes."""
    compared = [lane for lane in lanes if lane.identical is not None]
    if not compared:
        return "There are no two texts to compare."
    template = result.plan.template
    by_design = template.verify == "ratio" and template.sampling.temperature != 0
    parts = [_difference(lane, by_design) for lane in compared if lane.difference is not None]
    equal = [lane for lane in compared if lane.identical]
    if equal and len(equal) == len(compared):
        how_many = {1: "Both", 2: "All three", 3: "All four"}.get(len(equal), f"All {len(equal) + 1}")
        parts.append(f"{how_many} texts are identical ({counted(equal[0].tokens, 'token')}).")
    else:
        parts += [f"{lane.drafter}: identical ({counted(lane.tokens, 'token')})." for lane in equal]
    return " ".join(parts)


def _difference(lane: LaneAgreement, by_design: bool) -> str:
    where = lane.difference
    assert where is not None
    ours, plain = (one_line(repr(text) if text != END else text, 24) for text in (where.ours, where.plain))
    text = f"{lane.drafter} differs from plain at token {where.token}: {ours} instead of {plain}"
    if by_design:
        return f"{text}; sampled by the ratio rule, texts differ by design."
    return text + (f" (logit gap {where.gap:.4f})." if where.gap is not None else ".")
