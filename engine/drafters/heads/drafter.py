"""Draft heads as a drafter: reads the target's hidden states, keeps the heads in step with the confirmed text, turns trees into drafts.

Hidden states come from the target's own passes: chunk by chunk while a prompt is read (`absorb`), row by row behind each verify
(`commit`). They wait until the next draft needs them, or a stretch of them is full, and are then read in one pass. Nodes stand in order
of trust, so that the first n of a draft are its best tree of n nodes: the controller counts on that.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from engine.drafters.heads.base import Head
from engine.drafters.heads.grow import Path, Tree
from engine.drafters.model import common
from engine.errors import EngineError
from engine.speculation.draft import Context, Draft, Needs, Verdict
from engine.speculation.sampling import Row

STRETCH = 512  # positions that are read at once; so many may wait


class HeadsDrafter:
    """See the module. `taps` and `final` are what the heads read of the target, `most` the nodes of their largest tree."""

    def __init__(self, name: str, method: str, head: Head, most: int, taps: tuple[int, ...] = (), final: bool = True) -> None:
        self.name, self.method, self.head = name, method, head
        self.needs = Needs(taps, final, most, reader=self)
        self._ids: list[int] = []  # of the read and waiting positions, and the token behind them
        self._waiting: list[Tensor] = []
        self._held = 0  # positions read or waiting

    # --- the target's hidden states ------------------------------------------------------------------------------------

    def rewind(self, ids: list[int]) -> int:
        """Keep what belongs to the beginning of this text. A position counts with the token behind it."""
        same = common(self._ids, ids, 0, len(ids))
        keep = min(self._held, max(same - 1, 0))
        if keep < self._held:
            self._read(min(keep, self._held))
            if keep < self.head.length:  # the heads' last output is gone with what stood behind: read that position again
                keep = max(keep - 1, 0)
                self.head.truncate(keep)
            self._waiting.clear()
            self._held = keep = self.head.length
            del self._ids[keep + 1 :]
        return keep

    def absorb(self, ids: list[int], start: int, taps: Tensor) -> None:
        """Hidden states of positions start, start + 1, …; those whose next token is not known yet are left out."""
        n = min(start + len(taps), len(ids) - 1) - self._held
        if start > self._held or n <= 0:
            return
        self._waiting.append(taps[self._held - start : self._held - start + n])
        self._held += n
        self._ids += ids[len(self._ids) : self._held + 1]
        if self._held - self.head.length >= STRETCH:
            self._read(self._held)

    def _read(self, end: int) -> None:
        """Let the heads read the waiting positions before `end`."""
        first = self.head.length
        if end <= first:
            return
        taps = self._waiting[0] if len(self._waiting) == 1 else torch.cat(self._waiting)
        for start in range(first, end, STRETCH):
            stop = min(start + STRETCH, end)
            self.head.extend(torch.tensor(self._ids[start + 1 : stop + 1]), taps[start - first : stop - first])
        self._waiting = [taps[end - first :]] if end < self._held else []

    # --- the drafter ---------------------------------------------------------------------------------------------------

    def sync(self, ctx: Context) -> None:
        """Nothing: the session has seen to it that the hidden states are here."""

    def propose(self, ctx: Context) -> Draft:
        """A tree of as many nodes as pay. Nothing where hidden states are missing, or where the heads' numbers are not finite."""
        budget = min(ctx.budget(self.name), self.needs.max_nodes)
        if budget <= 0 or self._held != len(ctx.ids) - 1 or self._held == 0:
            return Draft(source=self.name)
        self._read(self._held)
        try:
            tree = self.draft(ctx, budget)
        except EngineError as error:
            if error.kind != "not_finite":
                raise
            return Draft(source=self.name, note="the heads' numbers are not finite")
        return Draft(tuple(tree.tokens), tuple(tree.parents), source=self.name)

    def draft(self, ctx: Context, budget: int) -> Tree:
        """The tree, the most trusted nodes first."""

        def choose(logits: Tensor, paths: list[Path], k: int) -> tuple[np.ndarray, np.ndarray]:
            rows = [Row(ctx.next_index + len(path), path) for path in paths]
            return ctx.picker.top(logits, rows, k, self.head.names, not ctx.with_laws)

        tree = self.head.grow(ctx.ids[-1], budget, choose)
        return tree if self.head.fixed else tree.ranked()

    def commit(self, ctx: Context, verdict: Verdict) -> None:
        """Take the hidden states of the rows that were kept."""
        if verdict.taps is not None:
            self.absorb(ctx.ids, len(ctx.ids) - len(verdict.tokens) - 1, verdict.taps)

    def memory(self) -> int:
        """Weights, own cache and waiting hidden states; what is the target's is not counted."""
        return self.head.nbytes + sum(taps.nbytes for taps in self._waiting)

    def close(self) -> None:
        """Drop the tensors."""
        self._waiting.clear()
        del self.head
