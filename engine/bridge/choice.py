"""Which method suits a pair, or why it is refused (DESIGN 7)."""

from __future__ import annotations

from dataclasses import dataclass

from engine.bridge.codec import Codec


@dataclass(frozen=True, slots=True)
class Choice:
    """What `auto` takes for a drafter with another tokenizer."""

    refused: str | None  # a sentence; None = sound
    greedy: str = "slem"  # at temperature 0
    sampled: str = "pf"  # above


def choose(target: Codec, drafter: Codec) -> Choice:
    """Text that does not survive a tokenizer cannot be handed over: such pairs are refused."""
    for codec, role in ((target, "target"), (drafter, "drafter")):
        if codec.table.trouble is not None:
            return Choice(f"{codec.name} cannot be {role} beside another tokenizer: {codec.table.trouble}.")
        if not codec.ids:
            return Choice(f"{codec.name} cannot be {role} beside another tokenizer: it has no token that is text.")
    return Choice(None)
