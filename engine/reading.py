"""Texts into a target, and the target's hidden states into a drafter that reads them.

They come out of the pass that reads the prompt. A text that was read before the drafter came, or without it, is run once more for them:
its keys and values stay as they are.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from engine.protocol import Event, Loading
from engine.speculation.draft import Context, Drafter

if TYPE_CHECKING:
    from torch import Tensor

    from engine.decoder.target import Target

Emit = Callable[[Event], None]


def read_prompt(
    target: Target,
    drafter: Drafter | None,
    prompt: list[int],
    reused: int,
    progress: Callable[[int, int], None],
    emit: Emit,
    cancelled: Callable[[], bool],
) -> bool:
    """Read the prompt but its last token; the cache holds `reused` tokens of it. False when cancelled."""
    reader = drafter.needs.reader if drafter is not None else None
    if drafter is None or reader is None:
        return target.prefill(prompt[reused:-1], progress, cancelled)
    target.needs = drafter.needs
    held = reader.rewind(prompt)

    def sink(start: int, taps: Tensor) -> None:
        reader.absorb(prompt, start, taps)

    if held < reused and not target.reread(prompt[:reused], held, sink, _told(drafter, emit), cancelled):
        return False
    return target.prefill(prompt[reused:-1], progress, cancelled, sink)


def catch_up(target: Target, drafter: Drafter, ctx: Context, emit: Emit) -> None:
    """A drafter comes into a text: let it read what it has missed."""
    reader = drafter.needs.reader
    if reader is None:
        return
    target.needs = drafter.needs
    held = reader.rewind(ctx.ids)

    def sink(start: int, taps: Tensor) -> None:
        reader.absorb(ctx.ids, start, taps)

    if held < len(ctx.ids) - 1:
        target.reread(ctx.ids[:-1], held, sink, _told(drafter, emit), ctx.cancelled)


def _told(drafter: Drafter, emit: Emit) -> Callable[[int, int], None]:
    return lambda done, total: emit(Loading(f"{drafter.name} reads the text", done, total, "tokens"))
