"""Several drafters in line: the first that has something to say drafts this step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from engine.speculation.draft import Context, Draft, Drafter, Needs, Verdict


class Stacked:
    """The parts see every commit; one that was passed over catches up when its turn comes."""

    def __init__(self, parts: Sequence[Drafter]) -> None:
        assert parts
        self.parts = tuple(parts)
        self.name = "+".join(part.name for part in parts)
        reading = [part.needs for part in parts if part.needs.reader is not None]
        assert len(reading) <= 1, "hidden states go to one part"
        most = max(part.needs.max_nodes for part in parts)
        self.needs = replace(reading[0], max_nodes=most) if reading else Needs(max_nodes=most)

    @property
    def method(self) -> str:
        """That of the last part, which may change from reply to reply."""
        return self.parts[-1].method

    def sync(self, ctx: Context) -> None:
        """Every part catches up."""
        for part in self.parts:
            part.sync(ctx)

    def propose(self, ctx: Context) -> Draft:
        """The first draft that is not empty."""
        draft = Draft()
        for part in self.parts:
            draft = part.propose(ctx)
            if draft.tokens:
                break
        return draft

    def commit(self, ctx: Context, verdict: Verdict) -> None:
        """Every part hears what was kept."""
        for part in self.parts:
            part.commit(ctx, verdict)

    def memory(self) -> int:
        """Bytes of all parts."""
        return sum(part.memory() for part in self.parts)

    def close(self) -> None:
        """Close all parts."""
        for part in self.parts:
            part.close()
