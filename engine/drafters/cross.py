"""A drafter with another tokenizer: a companion that follows the reply, and the method that turns its laws into the target's tokens.

It may hold two methods, one for replies at temperature 0 and one for the others: the temperature is known only when a reply begins.
Whatever a method proposes, the target decides.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from time import perf_counter
from typing import Protocol

from engine.drafters.companion import Companion, NotFinite
from engine.drafters.health import Health
from engine.errors import EngineError
from engine.speculation.draft import Context, Draft, Law, Needs, Verdict, chain
from engine.speculation.sampling import Filters

MOST_REFUSED = 2  # ends of turn in a row that the target refused; then the drafter may not end this reply any more


@dataclass(frozen=True, slots=True)
class Drafted:
    """A chain of target ids. `laws` of each id, none = all are certain; `end`: place of the end of turn among them."""

    tokens: list[int]
    laws: Sequence[Law] = field(default=())
    end: int | None = None


class Method(Protocol):
    """How a drafter's words become target ids."""

    name: str

    def draft(self, side: Companion, ctx: Context, budget: int) -> Drafted:
        """At most `budget` target ids behind the committed reply; `side` is aligned. Raises NotFinite."""


class Cross:
    """See the module. `greedy` drafts at temperature 0, `sampled` above; `usual` are the settings that replies are expected to have."""

    needs = Needs()

    def __init__(self, name: str, side: Companion, greedy: Method, sampled: Method, usual: Filters) -> None:
        self.name = name
        self.side = side
        self._greedy, self._sampled = greedy, sampled
        self._now = self._for(usual)
        self._known = 0  # ids of the context that were looked at
        self._resting: str | None = "it has not read a prompt yet"
        self._health = Health(name)
        self._last = Drafted([])
        self._refused = 0

    @property
    def method(self) -> str:
        """Of the reply under way, or the last one."""
        return self._now.name

    @property
    def source(self) -> str:
        """What the controller calls it: each method has its own chances."""
        return f"{self.name} ({self._now.name})"

    def _for(self, filters: Filters) -> Method:
        return self._greedy if filters.greedy else self._sampled

    def sync(self, ctx: Context) -> None:
        """Render the prompt with the drafter's own template and read it, and the reply so far."""
        self._now = self._for(ctx.picker.filters)
        self._known, self._refused, self._last = len(ctx.ids), 0, Drafted([])
        if self._health.off:
            return
        self._resting = None
        try:
            self.side.begin(ctx)
        except EngineError as error:
            self._rest(ctx, f"{self.name} does not draft for this reply. {error.message}")
        self.side.take_bridge_s()  # this is no part of a step

    def _rest(self, ctx: Context, why: str) -> None:
        self._resting = why
        ctx.tell(why)

    def propose(self, ctx: Context) -> Draft:
        """Draw up to the budget of target ids."""
        self._last = Drafted([])
        side, asked = self.side, 0
        budget = ctx.budget(self.source) if self._resting is None else 0
        if budget <= 0:
            return Draft(source=self.source)
        try:
            if self.side.align(ctx):
                asked, side.worth = budget, ctx.worth(self.source)
                before, begun = side.passes, perf_counter() - side.bridge_s
                self._last = self._now.draft(side, ctx, budget)
                side.measured(side.passes - before, perf_counter() - side.bridge_s - begun)
            elif self.side.room() <= 0:
                self._rest(ctx, f"{self.name} rests: the conversation fills its context of {self.side.runner.context:,} tokens.")
        except NotFinite:
            self.side.reset()
            if (why := self._health.stumble()) is not None:
                self._rest(ctx, why)
        drafted = self._last
        laws = drafted.laws if ctx.with_laws and any(law is not None for law in drafted.laws) else None
        ctx.bridge_s += side.take_bridge_s()
        return replace(chain(drafted.tokens, self.source, laws), asked=asked)

    def commit(self, ctx: Context, verdict: Verdict) -> None:
        """Follow what was committed; what was drafted and not kept is dropped with the next proposal."""
        self.side.extend(ctx.ids[self._known :])
        self._known = len(ctx.ids)
        end = self._last.end
        if end is None:
            self._refused = 0 if self._last.tokens else self._refused
        elif len(verdict.path) == end + 1:
            self._refused += 1
            self.side.silenced = self._refused >= MOST_REFUSED
        self._last = Drafted([])
        ctx.bridge_s += self.side.take_bridge_s()  # with what a law took while the draft was judged

    def memory(self) -> int:
        """Weights and cache."""
        return sum(self.side.runner.memory())

    def close(self) -> None:
        """Free the model."""
        self.side.runner.close()
