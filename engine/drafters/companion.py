"""A small model that reads the same conversation in its own tokens: the model, its cache, and its place in the reply.

Methods that draft through the bridge between tokenizers are built on it. It renders the prompt with its own template, follows the reply by
bytes, and gives logits for what comes next. Its cache always holds a beginning of prompt and followed ids.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import cached_property
from time import perf_counter

import torch
from torch import Tensor

from engine.bridge.align import Follower
from engine.bridge.beginnings import Beginnings
from engine.bridge.codec import Codec
from engine.decoder.target import LeanTarget
from engine.drafters.model import CATCH_UP, common, known
from engine.speculation.draft import Context, Question
from engine.speculation.sampling import Filters, Picker

Render = Callable[[Question], list[int]]  # the prompt in the drafter's own ids; EngineError where its template cannot
NEXT_KEPT = 0.7  # chance that one more token is kept when all before it were
LAZY_BYTES = 96  # so much of the reply may be left unread while nothing is drafted


class NotFinite(Exception):
    """The model's numbers are no numbers."""


class Companion:
    """See the module. One reply after the other: `begin`, then `extend` and `align` at each step."""

    def __init__(self, runner: LeanTarget, render: Render, target: Codec, drafter: Codec) -> None:
        self.runner = runner
        self.target, self.drafter = target, drafter
        self.render = render
        self.follower = Follower(target, drafter)
        self.own = Picker(Filters(), 0)  # its choice of the likeliest token, with the reply's penalty, in its own ids
        self.bridge_s = 0.0  # time spent in translation since it was last taken
        self.silenced = False  # its ends of turn are masked
        self.passes = 0
        self.pass_s = 0.0  # seconds of one pass of a draft, as measured
        self.worth = (0.0, 0.0)  # `Context.worth` of this step
        self._prompt: list[int] = []
        self._held: list[int] = []  # what the cache holds
        self._counted = 0  # followed ids that `own` has seen
        self._ends = torch.tensor(sorted(drafter.table.ends), dtype=torch.int64)

    @cached_property
    def beginnings(self) -> Beginnings:
        """The drafter's tokens by how they begin."""
        return Beginnings(self.drafter.table)

    def begin(self, ctx: Context) -> None:
        """Another reply, or the same from the middle: read the prompt and what was said so far. Raises EngineError from the template."""
        question = ctx.question
        self._prompt = self.render(question)
        self.follower = Follower(self.target, self.drafter, at_start=question.raw is None and not question.carry_on)
        self.silenced = False
        self.extend(ctx.ids[ctx.reply_start :])
        with self.translating():
            self.follower.sync()
        wanted = self._prompt + self.follower.ids
        seen = wanted if ctx.picker.filters.repeat_penalty != 1.0 else ()
        self.own = Picker(replace(ctx.picker.filters, temperature=0.0), ctx.picker.seed, seen)
        self._back_to(common(self._held, wanted, 0, len(wanted) - 1))
        self.follower.changed = self._counted = len(self.follower.ids)
        if self.room() > 0:
            self._read(ctx, wanted[len(self._held) : -1])

    def extend(self, ids: list[int]) -> None:
        """Committed target ids."""
        with self.translating():
            self.follower.extend(ids)
            if self.follower.behind > LAZY_BYTES:
                self.follower.sync()

    def pays(self, sure: float) -> bool:
        """Whether one more token is worth its pass, when everything drafted so far is kept with this chance."""
        saved_s, row_s = self.worth
        return saved_s <= 0.0 or sure * NEXT_KEPT * saved_s > self.pass_s + row_s

    def chance(self, logits: Tensor, token: int) -> float:
        """Probability of an id under logits (D,), where it is of use for `pays`."""
        return float(1.0 / (logits - logits[token]).exp().sum()) if self.worth[0] > 0.0 else 1.0

    def measured(self, passes: int, seconds: float) -> None:
        """A draft took so many passes and seconds."""
        if passes:
            self.pass_s += (seconds / passes - self.pass_s) * (0.1 if self.pass_s else 1.0)

    def room(self) -> int:
        """Tokens that the model's context still has behind prompt and reply."""
        return self.runner.context - len(self._prompt) - len(self.follower.ids)

    def align(self, ctx: Context) -> bool:
        """Be ready to draft behind the committed reply. False: the context is full, or there is nothing to go on from."""
        follower = self.follower
        with self.translating():
            follower.sync()
        total = len(self._prompt) + len(follower.ids)
        if total == 0 or self.room() <= 0:
            return False
        self.own.see(follower.ids[min(self._counted, follower.changed) :])
        self._counted = len(follower.ids)
        unread = 2 if follower.ids else 1  # the last token is asked about, see `around`
        self._back_to(min(len(self._held), len(self._prompt) + follower.changed, total - unread))
        follower.changed = len(follower.ids)
        missing = self._missing()
        if len(missing) > CATCH_UP:
            begun = perf_counter()
            self._read(ctx, missing[:-unread])
            ctx.read_s += perf_counter() - begun
        return not ctx.cancelled()

    def logits(self) -> Tensor:
        """Logits (D,) of the token behind everything that is followed and drafted. Raises NotFinite."""
        missing = self._missing()
        self.passes += 1
        logits = self.runner.next(known(missing, self.runner))
        self._held += missing
        return self._checked(logits)[0]

    def around(self) -> tuple[Tensor | None, Tensor]:
        """Logits (D,) before and behind the last id of the reply, right after `align`; before the first id there are none. One pass."""
        if not self.follower.ids:
            return None, self.logits()
        missing = self._missing()
        self.passes += 1
        logits = self.runner.verify(torch.tensor(known(missing, self.runner)), tuple(range(len(missing) - 1)))[-2:]
        self.runner.keep(tuple(range(len(missing))))
        self._held += missing
        before, behind = self._checked(logits)
        return before, behind

    def _checked(self, logits: Tensor) -> Tensor:
        """logits (n, D) without the ends of turn that are masked."""
        if self.silenced:
            logits = logits.index_fill(1, self._ends.to(logits.device), -torch.inf)
        if not torch.isfinite(logits.max(dim=-1).values).all():
            raise NotFinite
        return logits

    def swap(self, token: int) -> None:
        """The last id of the reply, read by `around`, gives way to a longer one, which is drafted."""
        self._back_to(len(self._held) - 1)
        self.follower.swap(token)

    def fan(self, paths: list[tuple[int, ...]]) -> list[Tensor]:
        """Logits (D,) behind each of some paths of ids that could come next; every path's beginning is among them, shorter ones first.
        One pass; the cache stays as it is."""
        rows = {(): 0} | {path: i + 1 for i, path in enumerate(paths)}
        root = self._held[-1]
        self.passes += 1
        self.runner.truncate(len(self._held) - 1)
        tokens = torch.tensor(known([root, *(path[-1] for path in paths)], self.runner))
        logits = self.runner.verify(tokens, tuple(rows[path[:-1]] for path in paths))[1:]
        self.runner.keep((0,))
        return list(self._checked(logits))

    def put(self, token: int) -> None:
        """Draft an id; the next call of `logits` reads it."""
        self.follower.put(token)

    def reset(self) -> None:
        """Forget what was read: it is not to be trusted."""
        self._back_to(0)

    @contextmanager
    def translating(self) -> Iterator[None]:
        """What happens in here is translation. One within another would count twice."""
        begun = perf_counter()
        yield
        self.bridge_s += perf_counter() - begun

    def take_bridge_s(self) -> float:
        """Seconds of translation since the last call."""
        taken, self.bridge_s = self.bridge_s, 0.0
        return taken

    def _missing(self) -> list[int]:
        """Followed and drafted ids that the cache lacks; at least one."""
        held = len(self._held) - len(self._prompt)
        return self.follower.ids[held:] if held >= 0 else self._prompt[held:] + self.follower.ids

    def _back_to(self, length: int) -> None:
        length = self.runner.truncate(max(length, 0))
        del self._held[length:]

    def _read(self, ctx: Context, ids: list[int]) -> None:
        self.runner.prefill(known(ids, self.runner), None, ctx.cancelled)
        self._held += ids[: self.runner.length - len(self._held)]
