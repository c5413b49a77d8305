"""The route of a token (DESIGN 4): propose -> verify -> commit -> emit. Read this first.

One step is one verifying pass of the target. What is emitted is always the target's own pick, so the drafter can only change how many
tokens a step gives, never which. The loop knows drafters only through `speculation.draft`, and text not at all.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from time import perf_counter
from typing import TYPE_CHECKING

import torch

from engine.protocol import FinishReason, Origin, Verify
from engine.speculation import verify
from engine.speculation.control import Controller
from engine.speculation.draft import Context, Draft, Drafter, Verdict
from engine.speculation.sampling import Row

if TYPE_CHECKING:
    from engine.decoder.target import Target


@dataclass(frozen=True, slots=True)
class Emitted:
    """One token that became part of the reply."""

    token: int
    origin: Origin
    position: int  # in its draft, from 1; 0 for the target's own


@dataclass(frozen=True, slots=True)
class StepResult:
    """What one step did. Times in seconds; `emitted` tokens are counted without a stop id."""

    emitted: int
    stop_id: int | None
    drafted: int
    accepted: int
    nodes: int
    draft_s: float
    verify_s: float
    bridge_s: float
    other_s: float
    at_s: float
    note: str


@dataclass(frozen=True, slots=True)
class Limits:
    """When to end."""

    max_tokens: int
    context: int  # tokens of prompt and reply together
    stop_ids: frozenset[int]


Push = Callable[[Emitted], bool]  # hears every token in order; False ends the reply behind it (a stop string was found)
Emit = Callable[[StepResult], None]
Interrupt = Callable[[], Drafter | None]  # called between steps; returns the drafter to go on with


def generate(
    target: Target,
    ctx: Context,
    limits: Limits,
    control: Controller,
    push: Push,
    emit: Emit,
    cancelled: Callable[[], bool],
    between: Interrupt,
    rule: Verify = "match",
) -> FinishReason:
    """Write tokens behind `ctx.ids`, whose last one is the root and not in the target's cache (all others are).

    Afterwards the cache holds all ids but the last, however they came (DESIGN 5).
    """
    assert target.length == len(ctx.ids) - 1
    written = 0
    start = perf_counter()
    control.begin()
    ctx.worth, ctx.yields = control.worth, control.yields
    drafter = between()
    reason: FinishReason | None = None
    while reason is None:
        begun = perf_counter()
        if cancelled():
            reason = "cancelled"
            break
        room = min(limits.max_tokens - written, limits.context - len(ctx.ids))
        if room <= 0:
            reason = "length" if written >= limits.max_tokens else "context"
            break
        most = min(target.max_nodes, room - 1)
        ctx.budget = lambda source, most=most: min(control.budget(source), most)  # type: ignore[misc]
        ctx.bridge_s = ctx.read_s = 0.0
        draft = drafter.propose(ctx) if drafter is not None and most > 0 else Draft()
        assert len(draft.tokens) <= most
        proposed, drafting_bridge_s = perf_counter(), ctx.bridge_s
        rows = _rows(ctx, draft)
        logits = target.verify(torch.tensor([ctx.ids[-1], *draft.tokens]), draft.parents)
        judged = perf_counter()
        if rule == "ratio" and not ctx.picker.filters.greedy:
            path, emitted = verify.ratio(draft, ctx.picker.laws(logits, rows), rows, ctx.picker.seed)
        else:
            path, emitted = verify.match(draft, ctx.picker.pick(logits, rows))
        stop_id, kept = _cut(emitted, limits.stop_ids)
        depth = draft.depth
        for i, token in enumerate(_origins(kept, len(path) - 1, _own(draft, path))):
            if not push(token):
                stop_id, kept, reason = None, kept[: i + 1], "stop"
                break
        stays = path[: max(1, len(kept))]
        verdict = Verdict(stays, kept, target.taps[list(stays)] if target.taps is not None else None)
        # the row that picked a stop id stays until the end, as without a draft: what sliding layers forget follows from that
        target.keep(stays if stop_id is None else path[: len(kept) + 1])
        ctx.ids.extend(kept)
        ctx.picker.see(kept)
        written += len(kept)
        if drafter is not None:
            drafter.commit(ctx, verdict)
        if stop_id is not None:
            reason = "stop"
        ended = perf_counter()
        accepted = min(len(path) - 1, len(kept) + (stop_id is not None))
        other_s = ended - judged
        draft_s, verify_s, nodes = proposed - begun, judged - proposed, len(draft.tokens)
        kept_rows = path[1 : accepted + 1]
        control.learn(draft.source, nodes, depth, accepted, draft_s, verify_s, other_s, kept_rows, draft.asked, ctx.read_s)
        emit(
            StepResult(
                emitted=len(kept),
                stop_id=stop_id,
                drafted=depth,
                accepted=accepted,
                nodes=nodes,
                draft_s=draft_s - drafting_bridge_s,
                verify_s=verify_s,
                bridge_s=ctx.bridge_s,
                other_s=other_s - (ctx.bridge_s - drafting_bridge_s),  # judging asks for laws, and drafters read what was committed
                at_s=ended - start,
                note=draft.note,
            )
        )
        if reason is None:
            drafter = between()
    target.truncate(min(target.length, len(ctx.ids) - 1))
    return reason


def _rows(ctx: Context, draft: Draft) -> list[Row]:
    """Place of every row: its index in the reply and the drafted tokens on its path."""
    rows = [Row(ctx.next_index)]
    for token, parent in zip(draft.tokens, draft.parents, strict=True):
        above = rows[parent]
        rows.append(Row(above.index + 1, (*above.path, token)))
    return rows


def _cut(emitted: tuple[int, ...], stop_ids: frozenset[int]) -> tuple[int | None, tuple[int, ...]]:
    """The stop id among the emitted tokens, and what stands before it."""
    for i, token in enumerate(emitted):
        if token in stop_ids:
            return token, emitted[:i]
    return None, emitted


def _own(draft: Draft, path: tuple[int, ...]) -> Origin:
    """Class of the target's own token: plain without a draft, bonus behind a path that was kept to its leaf, else correction."""
    return "plain" if not draft.tokens else "correction" if path[-1] in draft.parents else "bonus"


def _origins(kept: tuple[int, ...], from_draft: int, own: Origin) -> tuple[Emitted, ...]:
    """Class of each token: drafted and kept, or the target's own."""
    return tuple(Emitted(token, "kept", i + 1) if i < from_draft else Emitted(token, own, 0) for i, token in enumerate(kept))
