"""TLI: token-level intersection, masked (Timor et al., ICML 2025, algorithm 4) or pushed forward.

`tli` lets the drafter say only tokens that both vocabularies have, and makes their law whole again. `pf` lets it say everything: a token
that the target lacks stands for its first target piece, whose law ψ is the sum over all drafter tokens that begin with it; the remaining
pieces follow as certain tokens, because the drafter's token is known by then. Laws are in target ids under the target's own filters, so
in the exact-seed rule the piece is drawn by the very noise that the target will use in its place.

The ratio rule tests these laws, so the pieces stand as they were drawn. The exact-seed rule asks for no law: there `pf` hands over what the
target's encoder makes of the drawn text (`_` and `name` are one token for many targets).
"""

from __future__ import annotations

from typing import Literal

import numpy as np
import torch
from torch import Tensor

from engine.bridge.align import DRAFT_BYTES, TRANSLATE_BYTES, WINDOW_BYTES
from engine.bridge.maps import VocabularyMap
from engine.drafters.companion import Companion
from engine.drafters.cross import Drafted
from engine.drafters.law import draw, filtered, fresh, joined, near, share
from engine.drafters.opening import reopen
from engine.drafters.slem import Slem, is_open
from engine.speculation import noise
from engine.speculation.draft import Context, Law

Drawn = tuple[
    int, int, float, Tensor | None
]  # a drafter id, its first target piece, how sure the model is of it and, where wanted, its law (V,)
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
        if self.name == "tli":
            return self._pieces(side, ctx, budget, [], None)
        tokens, ahead = reopen(side)
        return self._pieces(side, ctx, budget, tokens, ahead) if ctx.with_laws else self._spelled(side, ctx, budget, tokens, ahead)

    def _pieces(self, side: Companion, ctx: Context, budget: int, tokens: list[int], ahead: Tensor | None) -> Drafted:
        """Each drawn token by its pieces, with the law of the first. `tokens` stand already, `ahead` are the logits behind them."""
        laws: list[Law] = [None] * len(tokens)
        sure = 1.0
        while len(tokens) < budget and side.room() > 0 and side.pays(sure) and not ctx.cancelled():
            drawn, ahead = self._draw(side, ahead, ctx, tokens), None
            if drawn is None:
                break
            token, piece, chance, law = drawn
            sure *= chance
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

    def _spelled(self, side: Companion, ctx: Context, budget: int, tokens: list[int], ahead: Tensor | None) -> Drafted:
        """All drawn tokens by their text."""
        follower, before = side.follower, side.follower.encoded
        end: int | None = None
        extended, sure = False, 1.0
        while len(tokens) < budget + extended and end is None and side.room() > 0 and side.pays(sure) and not ctx.cancelled():
            drawn, ahead = self._draw(side, ahead, ctx, tokens), None
            if drawn is None:
                break
            token, piece, chance, _ = drawn
            sure *= chance
            data = side.drafter.table.tokens[token]
            if data is None:
                end = piece
            elif len(follower.drafted) + len(data) > DRAFT_BYTES:
                break
            else:
                joins = is_open(follower.drafted)
                side.put(token)
                tokens = [*tokens, piece, *self._rest.get(token, ())]
                if joins and follower.encoded - before + WINDOW_BYTES + len(follower.drafted) < TRANSLATE_BYTES // 2:
                    with side.translating():
                        tokens = follower.candidates(ended=True)  # the place of the next in the reply
                extended = len(tokens) >= budget and is_open(data)
        with side.translating():
            tokens = follower.candidates(end is not None)[:budget]
        if end is None or len(tokens) == budget:
            return Drafted(tokens)
        return Drafted([*tokens, end], end=len(tokens))

    def _draw(self, side: Companion, ahead: Tensor | None, ctx: Context, path: list[int]) -> Drawn | None:
        """One draw; None where little can be said."""
        logits = side.logits() if ahead is None else ahead
        ids, values = near(logits, ctx.picker.filters)
        filters, at = ctx.picker.filters, ctx.next_index + len(path)
        seed, stream = (fresh(ctx), noise.PROPOSE) if ctx.with_laws else (ctx.picker.seed, noise.PICK)
        temperature = 1.0 if filters.greedy else filters.temperature
        weights = np.exp((values - values.max()) / temperature)
        sayable = self._index[ids] >= 0
        if weights[sayable].sum() < LEAST_MASS * weights.sum():
            return None
        masses = np.exp(values - values.max())  # at temperature 1, before the filters: how sure the model is
        masses = masses[sayable] / masses.sum()
        ids, values, weights = ids[sayable], values[sayable], weights[sayable]
        with side.translating():
            pieces, group = np.unique(self._index[ids], return_inverse=True)
            mapped = joined(values, group, temperature)
        law = filtered(filters, pieces, mapped, ctx.picker.seen, path)
        one = draw(law, pieces, seed, at, stream)
        members = np.flatnonzero(group == one)
        if ctx.with_laws and len(members) > 1:  # its law given the piece; the number is none that the piece was drawn with
            token = ids[members[share(weights[members], noise.uniform(seed, at, stream, ctx.vocab_size))]]
        else:
            token = ids[members[values[members].argmax()]]
        wide = None
        if ctx.with_laws:
            with side.translating():
                wide = torch.zeros(ctx.vocab_size, dtype=torch.float64)
                wide[torch.from_numpy(pieces)] = torch.from_numpy(law)
        return int(token), int(pieces[one]), float(masses[members].sum()), wide
