"""What fits into memory, before anything is loaded: the drafter is left out before the target, a context nobody asked for is cut."""

from __future__ import annotations

import torch

from engine.catalog import fit, hub, others, stored
from engine.catalog.specs import NONE, ModelSpec
from engine.cuda import place
from engine.decoder.opened import DEFAULT_CONTEXT, wish
from engine.errors import EngineError
from engine.machine import resolve_device
from engine.protocol import Load, LoadOptions


def plan(command: Load, device: torch.device) -> tuple[int, ModelSpec, tuple[str, ...]]:
    """Context, drafter and notes for the person. Raises EngineError where even the target alone does not fit."""
    options, drafter = command.options, command.drafter
    path = stored.where(command.target)
    context = options.context or min(command.target.context or DEFAULT_CONTEXT, DEFAULT_CONTEXT)
    quant, head = wish(options.quant, command.target.quant), wish(options.head, command.target.head)
    notes: tuple[str, ...] = ()
    for _ in range(3):
        need = fit.expected(path, quant=quant, head=head, context=context, device=str(device))
        beside = _drafter_fit(drafter, options, context, device)
        free, _total = fit.available(str(device))
        try:
            fit.check(need, beside, free)
        except EngineError as error:
            if error.numbers.get("drop_drafter"):
                notes += (f"{drafter.name} was left out: {error.message}",)
                drafter = NONE
            elif options.context is None and error.numbers.get("context"):
                context = int(error.numbers["context"])
                notes += (f"The context is {context} tokens: more does not fit into memory.",)
            elif device.type == "cuda" and (laid := place.spread(need, free)) is not None:
                notes += (laid.note(command.target.name, need.total, free),)
                if drafter.kind not in ("none", "ngram"):
                    notes += (f"{drafter.name} was left out: the target takes all there is.",)
                    drafter = NONE
                break
            else:
                error.detail = others.sentence(str(device))
                raise
        else:
            break
    return context, drafter, notes


def _drafter_fit(drafter: ModelSpec, options: LoadOptions, context: int, device: torch.device) -> fit.Fit | None:
    path = hub.locate(drafter) if drafter.kind in ("model", "heads") else None
    if path is None:
        return None
    own = str(resolve_device(options.draft_device)) if options.draft_device != "auto" else str(device)
    if own != str(device):
        return None
    quant = options.draft_quant if options.draft_quant != "auto" else options.quant
    try:
        return fit.without_libraries(fit.estimate(path, quant=quant, context=context, device=own), own)
    except EngineError:  # loading it will say what is wrong; the target comes first
        return None
