"""What to do when memory has run out after all: open a target with less context; give something up of what is loaded (`relief`)."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import torch

from engine.catalog import others
from engine.catalog.progress import human
from engine.catalog.specs import ModelSpec
from engine.decoder import opened
from engine.decoder.opened import Opened
from engine.machine import device_memory, free_memory, is_out_of_memory
from engine.protocol import LoadOptions, Memory
from engine.relief import choose, smaller_context
from engine.session import Session


def open_target(
    spec: ModelSpec,
    path: Path,
    device: torch.device,
    options: LoadOptions,
    context: int,
    progress: Callable[[str, int, int], None],
    cancelled: Callable[[], bool],
) -> Opened:
    """`opened.open_target`; where memory runs out over a context that nobody asked for, again with half of it. Raises what that raises."""
    notes: tuple[str, ...] = ()
    while True:
        try:
            made = opened.open_target(spec, path, device, options, context, progress, cancelled)
        except BaseException as error:
            smaller = smaller_context(context)
            if not is_out_of_memory(error) or options.context is not None or not smaller:
                raise
            traceback.clear_frames(error.__traceback__)  # they hold what was loaded so far
            used, total = device_memory(device)
            said = f"Memory ran out while loading ({human(used)} of {human(total)} in use)"
            notes, context = (*notes, f"{said}: the context is {smaller:,} tokens, not {context:,}."), smaller
        else:
            return replace(made, notes=(*made.notes, *notes))
        free_memory()


def relieve(
    error: BaseException, session: Session | None, memory: Callable[[Session], Memory], drop: Callable[[], None], unload: Callable[[], None]
) -> tuple[BaseException, tuple[str, ...]]:
    """Where a card's memory ran out: give something up by `drop` (the drafter), less context, or `unload`. Returns what to tell the person,
    and what is lost; another error as it is."""
    if session is None or not is_out_of_memory(error) or not on_card(session):
        return error, ()
    held = memory(session)
    traceback.clear_frames(error.__traceback__)
    target, drafter = session.target, session.loaded.drafter
    relief = choose(
        held, drafter.name if drafter is not None and held.drafter else "", target.context, "the target", hasattr(target, "shrink")
    )
    if relief.what == "drafter":
        drop()
    elif relief.what == "context":
        target.shrink(relief.context)  # type: ignore[attr-defined]
    else:
        unload()
    free_memory()
    relief.error.detail = others.sentence("cuda")
    return relief.error, () if relief.what == "context" else (relief.what,)


def on_card(session: Session) -> bool:
    """Whether the target's memory is a card's own: on the host other programs give some back, and nothing is held for a whole context."""
    return torch.device(getattr(session.target, "device", "cpu")).type == "cuda"
