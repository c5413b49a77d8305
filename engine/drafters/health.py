"""A drafter whose numbers are not finite loses the draft, and after some of them its place; the reply goes on without it."""

from __future__ import annotations

from dataclasses import dataclass

MOST_BROKEN = 3


@dataclass(slots=True)
class Health:
    """Counts broken drafts of one drafter."""

    name: str
    broken: int = 0

    @property
    def off(self) -> bool:
        """It rests for good."""
        return self.broken >= MOST_BROKEN

    def stumble(self) -> str | None:
        """One more broken draft; a sentence for the person where it was one too many."""
        self.broken += 1
        return f"{self.name} is off: its numbers are not finite (NaN or infinite), three times now." if self.off else None
