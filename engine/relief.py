"""What is given up when memory runs out: first the drafter, then half of the context, the target last. Each is said with its numbers. No
torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from engine.catalog.progress import human
from engine.errors import EngineError
from engine.protocol import Memory

LEAST_CONTEXT = 1024  # tokens below which a chat is not worth having


@dataclass(frozen=True, slots=True)
class Relief:
    """One thing to give up, and how the person hears of it."""

    what: Literal["drafter", "context", "target"]
    error: EngineError
    context: int = 0  # tokens from now on, where that is what shrinks


def choose(memory: Memory, drafter: str, context: int, target: str, shrinks: bool = True) -> Relief:
    """What to give up now. `memory` is what is held, `drafter` a name or "", `context` in tokens; `shrinks`: the target can do it."""
    used = f"The device ran out of memory ({human(memory.device_used)} of {human(memory.device_total)} are in use)"
    numbers = {
        "used": memory.device_used,
        "total": memory.device_total,
        "drafter": memory.drafter,
        "kv": memory.kv,
        "target": memory.target,
    }
    if drafter:
        text = f"{used}: the drafter {drafter} was dropped, which held {human(memory.drafter)}."
        return Relief(
            "drafter", EngineError(text, "Send the message again; it is answered without a drafter.", kind="memory", numbers=numbers)
        )
    half = context // 2 // 256 * 256
    if shrinks and half >= LEAST_CONTEXT:
        freed = memory.kv * (context - half) // context
        text = f"{used}: the context is {half:,} tokens from now on instead of {context:,}, which frees up to {human(freed)}."
        hint = "Send the message again; a long conversation may have to drop its oldest messages."
        return Relief("context", EngineError(text, hint, kind="memory", numbers={**numbers, "context": half}), half)
    text = f"{used}: {target} was unloaded, which held {human(memory.target + memory.kv)}."
    hint = "Load it with fewer bits (--quant nf4) or a smaller --context, choose a smaller model, or close other programs."
    return Relief("target", EngineError(text, hint, kind="memory", numbers=numbers))


def smaller_context(context: int) -> int:
    """The context to try next when a target with this one did not fit; 0 when there is none."""
    half = context // 2 // 256 * 256
    return half if half >= LEAST_CONTEXT else 0
