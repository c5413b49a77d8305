"""Several drafters in line: the first that has something to say drafts this step, where the one behind it does not promise more."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from engine.speculation.draft import Context, Draft, Drafter, Needs, Verdict


class Stacked:
    """The parts see every commit; one that was passed over catches up when its turn comes."""

    def __init__(self, parts: Sequence[Drafter]) -> None:
        assert parts
        self.parts = tuple(parts)
        self._sources = [""] * len(self.parts)  # by what name each part drafted last
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
        for i, part in enumerate(self.parts):
            ctx.rival = next((source for source in self._sources[i + 1 :] if source), "")
            draft = part.propose(ctx)
            if draft.tokens:
                self._sources[i] = draft.source
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
