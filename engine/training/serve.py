"""One training with its end as an event: whatever happens, the person hears what it was and how to go on."""

from __future__ import annotations

from collections.abc import Callable

from engine.errors import EngineError
from engine.failures import failure
from engine.machine import free_memory, is_out_of_memory
from engine.protocol import Failed
from engine.training import files
from engine.training.protocol import Event, Plan, Stopped, Trained
from engine.training.run import Run


def serve(plan: Plan, emit: Callable[[Event], None], cancelled: Callable[[], bool]) -> Trained | Stopped | Failed:
    """Run a plan to its end."""
    try:
        return Run(plan, emit, cancelled).run()
    except EngineError as error:
        if error.kind == "cancelled":  # while the target was loaded
            return Stopped(plan.out)
        return failure(error, None, ())
    except BaseException as error:
        if is_out_of_memory(error):
            free_memory()
            return Failed(
                "There is not enough memory for this training.",
                "Close other programs and go on with --resume: everything up to the last checkpoint is kept. Fewer --lanes need less, too.",
                "memory",
                str(error),
            )
        if isinstance(error, OSError) and error.errno is not None:
            return failure(files.cannot_write(plan.out, error), None, ())
        return failure(error, None, ())
