"""A small model with the target's own vocabulary, run on the lean decoder with its own cache.

It draws with the target's filters and, by the shared noise, the very token that the target would draw if the two agreed: acceptance
comes close to 1 − TV (DESIGN 6). After a verify its cache is behind or ahead by a few tokens; it simply catches up with the committed
ids at the next proposal.
"""

from __future__ import annotations

from time import perf_counter

import torch
from torch import Tensor

from engine.decoder.target import LeanTarget
from engine.drafters.health import Health
from engine.errors import EngineError
from engine.speculation import noise
from engine.speculation.draft import Context, Draft, Needs, Verdict, chain
from engine.speculation.sampling import Row

CATCH_UP = 16  # up to here missing tokens go through one pass with the next proposal


def common(a: list[int], b: list[int], start: int, end: int) -> int:
    """Length of the common beginning, at most `end`; the first `start` are known to be equal."""
    end = min(len(a), len(b), end)
    if a[start:end] == b[start:end]:
        return end
    while start < end and a[start] == b[start]:
        start += 1
    return start


def known(ids: list[int], runner: LeanTarget) -> list[int]:
    """Ids behind the model's table stand as another token: that can make a draft worse, never the text."""
    most = runner.vocab_size
    return ids if max(ids, default=0) < most else [i if i < most else 0 for i in ids]


class ModelDrafter:
    """See the module. `vocab_size` is the target's: ids behind it are never drafted."""

    method = "model"
    needs = Needs()

    def __init__(self, name: str, runner: LeanTarget, vocab_size: int) -> None:
        self.name = name
        self._runner = runner
        self._width = min(vocab_size, runner.vocab_size)
        self._ids: list[int] = []  # what the own cache holds
        self._agreed = 0  # as many of them are known to be committed
        self._health = Health(name)

    def sync(self, ctx: Context) -> None:
        """Read all committed ids but the root. A text that fills the own context is left alone: nothing will be drafted for it."""
        self._back_to(common(self._ids, ctx.ids, 0, len(ctx.ids) - 1))
        if len(ctx.ids) < self._runner.context and not self._health.off:
            self._read(ctx, ctx.ids[len(self._ids) : -1])

    def _back_to(self, length: int) -> None:
        length = self._runner.truncate(length)
        del self._ids[length:]
        self._agreed = length

    def _read(self, ctx: Context, ids: list[int]) -> None:
        self._runner.prefill(known(ids, self._runner), None, ctx.cancelled)
        self._ids += ids[: self._runner.length - len(self._ids)]
        self._agreed = len(self._ids)

    def propose(self, ctx: Context) -> Draft:
        """Draw up to the budget, one pass a token."""
        budget = min(ctx.budget(self.name), self._runner.context - len(ctx.ids))
        if budget <= 0 or self._health.off:
            return Draft(source=self.name)
        missing = ctx.ids[len(self._ids) :]
        if len(missing) > CATCH_UP:
            begun = perf_counter()
            self._read(ctx, missing[:-1])
            ctx.read_s += perf_counter() - begun
            missing = ctx.ids[len(self._ids) :]
        tokens: list[int] = []
        laws: list[Tensor] = []
        stream = noise.PROPOSE if ctx.with_laws else noise.PICK
        while len(tokens) < budget and not ctx.cancelled():
            logits = self._runner.next(known(missing, self._runner))[:, : self._width]
            self._ids += missing
            row = [Row(ctx.next_index + len(tokens), tuple(tokens))]
            try:
                law = _widen(ctx.picker.laws(logits, row), ctx.vocab_size) if ctx.with_laws else None
                missing = ctx.picker.pick(logits, row, stream)
            except EngineError as error:
                if error.kind != "not_finite":
                    raise
                self._stumble(ctx)
                break
            laws += [] if law is None else [law]
            tokens += missing
        return chain(tokens, self.name, torch.cat(laws) if laws else None)

    def _stumble(self, ctx: Context) -> None:
        """Numbers that are none: the target goes on by itself, and what was read is not to be trusted."""
        self._back_to(0)
        if (why := self._health.stumble()) is not None:
            ctx.tell(why)

    def commit(self, ctx: Context, verdict: Verdict) -> None:
        """Forget what was drafted and not kept."""
        self._back_to(common(self._ids, ctx.ids, self._agreed, len(ctx.ids) - 1))

    def memory(self) -> int:
        """Weights and cache."""
        return sum(self._runner.memory())

    def close(self) -> None:
        """Free the model."""
        self._runner.close()


def _widen(laws: Tensor, vocab_size: int) -> Tensor:
    return torch.nn.functional.pad(laws, (0, vocab_size - laws.shape[-1]))
