"""TLI: token-level intersection, masked (Timor et al., ICML 2025, algorithm 4) or pushed forward.

`tli` lets the drafter say only tokens that both vocabularies have, and makes their law whole again. `pf` lets it say everything: a token
that the target lacks stands for its first target piece, whose law ψ is the sum over all drafter tokens that begin with it; the remaining
pieces follow as certain tokens, because the drafter's token is known by then. Laws are in target ids under the target's own filters, so
in the exact-seed rule the piece is drawn by the very noise that the target will use in its place.
"""

from __future__ import annotations

from typing import Literal

import numpy as np
import torch

from engine.bridge.align import DRAFT_BYTES
from engine.bridge.maps import VocabularyMap
from engine.drafters.companion import Companion
from engine.drafters.cross import Drafted
from engine.drafters.law import draw, filtered, joined, near, share
from engine.drafters.slem import Slem
from engine.speculation import noise
from engine.speculation.draft import Context, Law

LEAST_MASS = 0.05  # of the drafter's law that must be sayable, else it says nothing


class Tli:
    """See the module."""

    def __init__(self, name: Literal["tli", "pf"], maps: VocabularyMap) -> None:
        self.name: str = name
        index = (maps.same if name == "tli" else maps.first).astype(np.int64)
        for end, theirs in maps.ends.items():
            index[end] = theirs
        self._index = index  # (D,) target id, -1 = none
        self._rest = maps.rest if name == "pf" else {}
        self._ends = frozenset(maps.ends)
        self._text = Slem(maps.ends)  # where a token is not what it adds to the reply, only text can go on

    def draft(self, side: Companion, ctx: Context, budget: int) -> Drafted:
        """Draw token by token until `budget` target ids are there."""
        if not side.follower.plain:
            return self._text.draft(side, ctx, budget)
        tokens: list[int] = []
        laws: list[Law] = []
        while len(tokens) < budget and side.room() > 0 and not ctx.cancelled():
            logits = side.logits()
            with side.translating():
                drawn = self._draw(*near(logits, ctx.picker.filters), ctx, tokens)
            if drawn is None:
                break
            token, piece, law = drawn
            tokens.append(piece)
            laws.append(law)
            if token in self._ends:
                return Drafted(tokens, laws, len(tokens) - 1)
            rest = self._rest.get(token, ())
            tokens += rest
            laws += [None] * len(rest)
            if len(side.follower.drafted) + len(side.drafter.table.tokens[token] or b"") > DRAFT_BYTES:
                break
            side.put(token)
        return Drafted(tokens[:budget], laws[:budget])

    def _draw(self, ids: np.ndarray, values: np.ndarray, ctx: Context, path: list[int]) -> tuple[int, int, torch.Tensor | None] | None:
        """One drafter id, its first target piece and, where wanted, the piece's law (V,)."""
        filters, seed, at = ctx.picker.filters, ctx.picker.seed, ctx.next_index + len(path)
        temperature = 1.0 if filters.greedy else filters.temperature
        weights = np.exp((values - values.max()) / temperature)
        sayable = self._index[ids] >= 0
        if weights[sayable].sum() < LEAST_MASS * weights.sum():
            return None
        ids, values, weights = ids[sayable], values[sayable], weights[sayable]
        pieces, group = np.unique(self._index[ids], return_inverse=True)
        law = filtered(filters, pieces, joined(values, group, temperature), ctx.picker.seen, path)
        one = draw(law, pieces, seed, at, noise.PROPOSE if ctx.with_laws else noise.PICK)
        members = np.flatnonzero(group == one)
        if ctx.with_laws and len(members) > 1:  # its law given the piece; the number is none that the piece was drawn with
            token = ids[members[share(weights[members], noise.uniform(seed, at, noise.PROPOSE, ctx.vocab_size))]]
        else:
            token = ids[members[values[members].argmax()]]
        wide = None
        if ctx.with_laws:
            wide = torch.zeros(ctx.vocab_size, dtype=torch.float64)
            wide[torch.from_numpy(pieces)] = torch.from_numpy(law)
        return int(token), int(pieces[one]), wide
