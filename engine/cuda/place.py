"""A target that is larger than one card: whether it fits on all of them, with the host's memory last, and how much each may take.

Decided with numbers before anything is loaded. Such a target runs through transformers, whose layers accelerate lays out by these
numbers: slower than our own decoder, but it runs.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch

from engine import spare
from engine.catalog import fit
from engine.catalog.progress import human

HOST_RESERVE = 2_000_000_000  # bytes of the host's memory that stay free


@dataclass(frozen=True, slots=True)
class Spread:
    """Bytes that each card may take for weights, by its number, and the host; 0 where it is not needed."""

    cards: dict[int, int]
    host: int

    def max_memory(self) -> dict[int | str, int]:
        """As accelerate takes it."""
        shares: dict[int | str, int] = dict(self.cards.items())
        return shares | {"cpu": self.host} if self.host else shares

    def note(self, name: str, need: int, free: int) -> str:
        """One sentence for the person."""
        where = " and ".join(f"{human(size)} of card {number}" for number, size in self.cards.items())
        where += f" and {human(self.host)} of the computer's own memory, which is much slower" if self.host else ""
        return (
            f"{name} needs {human(need)}, and its card has {human(free)} free: its layers are spread over up to {where}, by transformers."
        )


def spread(need: fit.Fit, free: int) -> Spread | None:
    """Where a target goes that does not fit into `free` bytes of its card. None where it fits, or does not fit anywhere."""
    if need.total + fit.RESERVE <= free:
        return None
    work = need.kv + need.work + fit.RESERVE  # on every card: nobody can say beforehand where which part of it will be
    cards = {number: size - work for number, size in enumerate(free_of_cards()) if size > work}
    if not cards:
        return None
    missing = need.weights - sum(cards.values())
    if missing <= 0:
        return Spread(cards, 0) if len(cards) > 1 else None
    host = spare.available() - HOST_RESERVE
    return Spread(cards, host) if missing <= host else None


def free_of_cards() -> list[int]:
    """Free bytes of each card, in the order in which torch numbers them."""
    return [torch.cuda.mem_get_info(number)[0] for number in range(torch.cuda.device_count())]


def needed(path: Path, quant: str, head: str, context: int, device: torch.device) -> Spread | None:
    """The spread of the model at `path`, where it needs one."""
    if device.type != "cuda":
        return None
    need = fit.estimate(path, quant=quant, head=head, context=context, device=str(device))
    return spread(need, torch.cuda.mem_get_info(device)[0])
