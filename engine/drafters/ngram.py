"""A drafter without a model: what followed the last time these tokens stood here, in the prompt or the session.

The longest match wins, among equals the most recent (prompt look-up). Where a copy was left by another token, as when a text is rewritten
or a name changed, nothing matches for a while: the copy goes on behind the token that was replaced. The index grows with the text: a step
costs a few dictionary look-ups, whatever the length of the context.
"""

from __future__ import annotations

from engine.speculation.draft import Context, Draft, Needs, Verdict, chain

LONG = 4  # matches from here on are trusted apart from shorter ones
MOST_CHANGES = 3  # tokens in a row that may replace those of the copy before it is given up


class Ngram:
    """See the module. `min_match` and `max_match` in tokens."""

    method = "ngram"
    needs = Needs()

    def __init__(self, name: str = "ngram", min_match: int = 2, max_match: int = 8) -> None:
        assert 1 <= min_match <= max_match
        self.name = name
        self._lengths = range(max_match, min_match - 1, -1)
        self._followed: dict[tuple[int, ...], int] = {}  # n tokens -> index of what followed them last
        self._ids: list[int] = []
        self._copy: int | None = None  # index of what comes next of the text that is being copied
        self._changes = 0  # tokens since one was as in the copy

    def sync(self, ctx: Context) -> None:
        """Index the committed ids; another text than before starts anew."""
        if ctx.ids[: len(self._ids)] != self._ids:
            self._followed.clear()
            self._ids = []
        if len(ctx.ids) != len(self._ids):
            self._copy = None
        self._index(ctx.ids[len(self._ids) :])

    def _index(self, new: list[int]) -> None:
        ids = self._ids
        for token in new:
            at = len(ids)
            for n in self._lengths:
                if n <= at:
                    self._followed[tuple(ids[at - n :])] = at
            ids.append(token)

    def propose(self, ctx: Context) -> Draft:
        """Copy what followed the longest match, or go on with the last copy."""
        ids = self._ids
        for n in self._lengths:
            at = self._followed.get(tuple(ids[-n:])) if n <= len(ids) else None
            if at is not None:
                self._copy, self._changes = at, 0
                return self._draft(ctx, at, f"{self.name}, {'long' if n >= LONG else 'short'} matches", f"match of {n}")
        if self._copy is not None:
            return self._draft(ctx, self._copy, f"{self.name}, behind a change", "behind a change")
        return Draft()

    def _draft(self, ctx: Context, at: int, source: str, note: str) -> Draft:
        if ctx.yields(source, ctx.rival):
            return Draft()
        ids, tokens = self._ids, list[int]()
        for i in range(ctx.budget(source)):  # a match that reaches the end goes on into its own copy: a repetition
            tokens.append(ids[at + i] if at + i < len(ids) else tokens[at + i - len(ids)])
        return chain(tokens, source, note=note)

    def commit(self, ctx: Context, verdict: Verdict) -> None:
        """Index what was emitted, and follow the copy along it, whoever drafted."""
        self._index(list(verdict.tokens))
        if self._copy is None:
            return
        for token in verdict.tokens:
            self._changes = 0 if self._ids[self._copy] == token else self._changes + 1
            self._copy += 1
        if self._changes >= MOST_CHANGES or self._copy >= len(self._ids):
            self._copy = None

    def memory(self) -> int:
        """The index lives in ordinary memory and is small; it is not counted."""
        return 0

    def close(self) -> None:
        """Forget everything."""
        self._followed.clear()
        self._ids = []
        self._copy = None
