"""Any exception as an event that says what to do. Needs torch, to tell when memory has run out."""

from __future__ import annotations

import traceback

import torch

from engine.catalog import others
from engine.catalog.progress import human
from engine.errors import EngineError
from engine.logs import log_failure
from engine.machine import device_memory, free_memory, is_out_of_memory
from engine.protocol import Failed


def failure(error: BaseException, reply: int | None, lost: tuple[str, ...]) -> Failed:
    """The event for a failed command; an unforeseen exception goes to the log. `lost` names what is no longer loaded."""
    if isinstance(error, EngineError):
        return Failed(error.message, error.hint, error.kind, error.detail, error.numbers, reply, lost)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    used, total = device_memory(device)
    free_memory()
    if is_out_of_memory(error):
        return Failed(
            f"There is not enough memory for this: {human(used)} of {human(total)} are in use.",
            "Drop the drafter (-d none), choose a smaller context or fewer bits (--quant nf4), or close other programs.",
            "memory",
            others.sentence(str(device)) or str(error),
            {"used": used, "total": total},
            reply,
            lost,
        )
    where = log_failure(error)
    return Failed(
        f"Something went wrong inside the engine: {type(error).__name__}: {error}",
        f"The details are in {where}." if where else "The log could not be written.",
        "internal",
        "".join(traceback.format_exception(error)),
        {},
        reply,
        lost,
    )
