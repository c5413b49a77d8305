"""SLRS: string-level rejection sampling (Timor et al., ICML 2025, algorithm 3) with laws found on demand.

The drafter draws words until a stop; the target's encoder reads their text; the first target token is tested against its law
ψ(t) = Σ q(words) over all words whose text, encoded, begins with t: the push-forward, not "all spellings of t". What follows it in the same
text is certain by then. To make ψ computable the stop is laid down first: within a fixed number of passes the likeliest beginnings whose
text does not settle the first token are looked into, and a draw ends where it leaves this tree. So a budget that runs out changes the
proposal, never the test, and depends on nothing that was drawn; with no room at all the proposal is that of PF. Values of ψ are found when
they are asked for, heaviest words first, between bounds that close in: only encodings, no passes.

Each value takes many encodings, so this is for small vocabularies; it is correct for all. What is encoded in a step does not depend on the
length of the text, but it may be more than the 512 bytes of other methods: a leaf of the tree takes `WINDOW_BYTES` and twice its text at
most. While a draw is made, (reach - 1) / LEAST + HEAVY leaves at most are spelled, and as long as its law is asked for, each leaf once.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from torch import Tensor

from engine.bridge.align import DRAFT_BYTES, Line
from engine.bridge.maps import VocabularyMap
from engine.drafters.companion import Companion
from engine.drafters.cross import Drafted
from engine.drafters.law import draw, filtered, fresh, near
from engine.drafters.slem import Slem
from engine.drafters.tli import LEAST_MASS
from engine.speculation import noise
from engine.speculation.draft import Context, Law

REACH = 4  # drafter tokens in one draw, at most
ROWS = 12  # beginnings that are looked into, at most
LEAST = 0.05  # chance that one must have to be looked into
HEAVY = 64  # likeliest words that the exact-seed rule looks at


@dataclass(frozen=True, slots=True)
class Branch:
    """A beginning that was looked into: its drafter ids, chance and text, and the law of what follows it."""

    path: tuple[int, ...]
    mass: float
    text: bytes
    ids: np.ndarray  # (n,) drafter ids
    law: np.ndarray  # (n,)


class Slrs:
    """See the module."""

    name = "slrs"

    def __init__(self, maps: VocabularyMap, reach: int = REACH, rows: int = ROWS) -> None:
        self.maps = maps
        self._reach, self._rows = reach, rows
        self._text = Slem(maps.ends)  # without chance there is nothing to test; and see `tli`
        sayable = maps.first >= 0
        sayable[list(maps.ends)] = True
        self._sayable = sayable

    def draft(self, side: Companion, ctx: Context, budget: int) -> Drafted:
        """One draw after the other until `budget` target ids are there."""
        if ctx.picker.filters.greedy or not side.follower.plain:
            return self._text.draft(side, ctx, budget)
        tokens: list[int] = []
        laws: list[Law] = []
        drawn: list[int] = []  # drafter ids
        with side.translating():
            line = side.follower.line.tail()
        while len(tokens) < budget and side.room() > self._reach and not ctx.cancelled():
            words = self._words(side, ctx, line, drawn)
            if words is None:
                break
            at = ctx.next_index + len(tokens)
            if ctx.with_laws:
                leaf = draw(words.masses, np.arange(len(words.masses)), fresh(ctx), at, noise.PROPOSE)
            else:
                leaf = words.likely(ctx.picker.seed, at)
            pieces, whole = words.pieces(leaf), words.whole(leaf)
            tokens += pieces
            laws += [words, *[None] * (len(pieces) - 1)]
            path = words.path(leaf)
            if path[-1] in self.maps.ends:
                return _cut(tokens, laws, budget, len(tokens) - 1)
            for token in path:
                side.put(token)
            drawn += path
            if not whole or len(side.follower.drafted) > DRAFT_BYTES:
                break
            with side.translating():
                line.add(pieces)
                line = line.tail()
        return _cut(tokens, laws, budget, None)

    def _words(self, side: Companion, ctx: Context, line: Line, drawn: list[int]) -> Words | None:
        """The tree of what may be drawn next. None where the drafter wants nothing that can be said."""
        root = self._branch(side, ctx, drawn, (), 1.0, b"", side.logits())
        if root is None:
            return None
        branches = [root]
        words = Words(self.maps, side, line, branches)
        for depth in range(1, self._reach):
            opened = words.open(depth, self._rows - len(branches) + 1)
            if not opened:
                break
            inner = branches[1:]
            paths = [branch.path for branch in inner] + [path for path, _, _ in opened]
            new = side.fan(paths)[len(inner) :]
            for (path, mass, text), logits in zip(opened, new, strict=True):
                branch = self._branch(side, ctx, drawn, path, mass, text, logits)
                if branch is not None:
                    branches.append(branch)
            words = Words(self.maps, side, line, branches)
        return words

    def _branch(
        self, side: Companion, ctx: Context, drawn: list[int], path: tuple[int, ...], mass: float, text: bytes, logits: Tensor
    ) -> Branch | None:
        filters = ctx.picker.filters
        ids, values = near(logits, filters)
        weights = np.exp((values - values.max()) / filters.temperature)
        sayable = self._sayable[ids]
        if weights[sayable].sum() < LEAST_MASS * weights.sum():
            return None
        ids, values = ids[sayable], values[sayable]
        law = filtered(filters, ids, values, side.own.seen, (*drawn, *path))
        left = law > 0.0
        return Branch(path, mass, text, ids[left], law[left])


def _cut(tokens: list[int], laws: list[Law], budget: int, end: int | None) -> Drafted:
    return Drafted(tokens[:budget], laws[:budget], end if end is not None and end < budget else None)


class Words:
    """Everything that can be drawn, and the law of its first target token (a `LazyLaw`)."""

    def __init__(self, maps: VocabularyMap, side: Companion, line: Line, branches: list[Branch]) -> None:
        self._maps, self._side, self._line, self._branches = maps, side, line, branches
        inner = {branch.path for branch in branches}
        found = [
            (branch.mass * float(q), b, int(d))
            for b, branch in enumerate(branches)
            for d, q in zip(branch.ids, branch.law, strict=True)
            if (*branch.path, int(d)) not in inner
        ]
        found.sort(key=lambda leaf: -leaf[0])
        self._leaves = [(b, d) for _, b, d in found]
        self.masses = np.array([mass for mass, _, _ in found])
        self._pieces: dict[int, list[int]] = {}
        self._exact: dict[int, float] = {}

    def path(self, leaf: int) -> tuple[int, ...]:
        """Drafter ids of a leaf; the last may be an end of turn."""
        b, d = self._leaves[leaf]
        return (*self._branches[b].path, d)

    def text(self, leaf: int) -> bytes:
        """Its bytes."""
        b, d = self._leaves[leaf]
        return self._branches[b].text + (self._side.drafter.table.tokens[d] or b"")

    def pieces(self, leaf: int) -> list[int]:
        """Its target ids; at least one. A text that is only part of a character is spelled piece by piece."""
        if leaf not in self._pieces:
            with self._side.translating():
                path, text = self.path(leaf), self.text(leaf)
                ids = self._line.follow(text) if text else []
                if not ids:
                    ids = [i for d in path if d not in self._maps.ends for i in (int(self._maps.first[d]), *self._maps.rest.get(d, ()))]
                self._pieces[leaf] = ids + [self._maps.ends[d] for d in path[-1:] if d in self._maps.ends]
        return self._pieces[leaf]

    def whole(self, leaf: int) -> bool:
        """Whether its target ids spell all of its text."""
        table = self._side.target.table.tokens
        return sum(len(table[i] or b"") for i in self.pieces(leaf)) == len(self.text(leaf))

    def open(self, depth: int, most: int) -> list[tuple[tuple[int, ...], float, bytes]]:
        """The likeliest leaves of this depth whose text does not settle the first token: path, chance, text."""
        out: list[tuple[tuple[int, ...], float, bytes]] = []
        for leaf, mass in enumerate(self.masses.tolist()):
            if mass < LEAST or len(out) >= most:
                break
            path = self.path(leaf)
            if len(path) == depth and path[-1] not in self._maps.ends and len(self.pieces(leaf)) < 2:
                out.append((path, mass, self.text(leaf)))
        return out

    def likely(self, seed: int, index: int) -> int:
        """The leaf whose tokens the target would draw by its own noise, one after the other, if the heaviest leaves were its law."""
        left = np.arange(min(HEAVY, len(self.masses)))
        spelled = [self.pieces(leaf) for leaf in left.tolist()]
        for depth in range(max(map(len, spelled))):
            longer = np.array([leaf for leaf in left if len(spelled[leaf]) > depth], dtype=np.int64)
            if 2 * self.masses[longer].sum() < self.masses[left].sum():
                break
            ids, group = np.unique([spelled[leaf][depth] for leaf in longer], return_inverse=True)
            law = np.bincount(group, weights=self.masses[longer])
            left = longer[group == draw(law, ids, seed, index + depth, noise.PICK)]
        return int(left[0])

    def bounds(self, token: int) -> Iterator[tuple[float, float]]:
        """Ever closer bounds of ψ(token), the heaviest words first."""
        if token not in self._exact:
            start = self._side.target.table.tokens[token] if token < len(self._side.target.table.tokens) else None
            with self._side.translating():
                fit = [leaf for leaf in range(len(self._leaves)) if start is None or self.text(leaf).startswith(start)]
            low, left = 0.0, float(self.masses[fit].sum())
            for leaf in fit:
                yield low, low + left
                mass = float(self.masses[leaf])
                left = max(left - mass, 0.0)
                if self.pieces(leaf)[0] == token:
                    low += mass
            self._exact[token] = low
        yield self._exact[token], self._exact[token]
