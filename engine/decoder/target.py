"""What the decoding loop asks of a model, and the lean decoder behind it.

A target holds `length` committed tokens in its cache. `verify` runs the root and the drafted rows behind them without committing;
`keep` commits some of those rows; `truncate` goes back. The last committed token of the text, the root, is never in the cache.
Hidden states that a drafter needs come out of the passes that are made anyway; only for text that was read without them `reread` runs it
again, and leaves the cache as it is.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

import torch
from torch import Tensor

from engine.decoder.attention import Stretch, attend_branches, attend_chunk, attend_rows, branches, depths, plan, plan_chunk
from engine.decoder.kv import LayerSlots, SlotCache
from engine.decoder.model import NOTHING, Model
from engine.decoder.weights import Weights
from engine.errors import EngineError
from engine.speculation.draft import Needs

if TYPE_CHECKING:
    from engine.cuda.rows import StaticRows

CHUNK = 512  # tokens of a prompt per pass; chunks end at absolute multiples, so that the cache depends on the text alone

Progress = Callable[[int, int], None]
Cancelled = Callable[[], bool]
Sink = Callable[[int, Tensor], None]  # position of the first row, hidden states (n, F)


class Target(Protocol):
    """See the module."""

    vocab_size: int
    context: int
    exact: bool  # a row's logits are the same bits at any number of rows, and in any tree
    max_nodes: int  # most drafted rows that a verify can take; 0 = this model cannot roll back
    needs: Needs  # hidden states to export; whoever sets a drafter beside the target sets this
    taps: Tensor | None  # (n+1, F) what the last verify exported; None when nothing is asked for

    @property
    def length(self) -> int: ...

    def prefill(
        self, ids: list[int], progress: Progress | None = None, cancelled: Cancelled | None = None, sink: Sink | None = None
    ) -> bool: ...
    def reread(self, ids: list[int], start: int, sink: Sink, progress: Progress | None, cancelled: Cancelled | None) -> bool: ...
    def verify(self, tokens: Tensor, parents: tuple[int, ...]) -> Tensor: ...
    def keep(self, rows: tuple[int, ...]) -> None: ...
    def truncate(self, length: int) -> int: ...
    def memory(self) -> tuple[int, int]: ...
    def close(self) -> None: ...


class LeanTarget:
    """The lean decoder with its cache."""

    max_nodes = 64

    def __init__(self, weights: Weights, context: int) -> None:
        self.context = context
        self.vocab_size = weights.config.vocab_size
        self.model = Model(weights, context, context + self.max_nodes + 1)
        self.cache = SlotCache(weights.config, context, weights.device, weights.dtype)
        self.device = weights.device
        linears = [weights.head] + [linear for w in weights.layers for linear in (w.qkv, w.o, w.gate_up, w.down)]
        self.exact = (
            self.device.type == "cpu"
            and weights.config.attention_softcap is None
            and weights.config.final_softcap is None
            and all(linear.row_invariant for linear in linears)
        )
        self._windows = sorted(set(weights.config.windows), key=lambda w: (w is not None, w))
        self.static: StaticRows | None = None  # passes recorded beforehand, on a card (`engine.cuda.tune`)
        self.needs = NOTHING
        self.taps: Tensor | None = None

    @property
    def length(self) -> int:
        """Committed tokens in the cache."""
        return self.cache.length

    def prefill(
        self, ids: list[int], progress: Progress | None = None, cancelled: Cancelled | None = None, sink: Sink | None = None
    ) -> bool:
        """Append `ids` to the cache, without logits. False when cancelled between chunks; what was read stays. `sink` takes the hidden
        states that `needs` asks for, chunk by chunk."""
        return self._read(self.cache, ids, True, progress, cancelled, sink)

    def reread(self, ids: list[int], start: int, sink: Sink, progress: Progress | None, cancelled: Cancelled | None) -> bool:
        """Hidden states of the committed positions from `start` on; `ids` are the committed ids. Writes no keys and values: the rows
        see those that are there. Only where a sliding layer has forgotten some, a second cache takes their place for the time."""
        assert len(ids) == self.length
        whole = all(group.base == 0 or (group.window is not None and start - group.window >= group.base) for group in self.cache.groups)
        if whole:
            return self._read(self.cache, ids[start:], False, progress, cancelled, sink, start)
        config = self.model.config
        scratch = SlotCache(config, self.context, self.device, self.model.weights.dtype)
        return self._read(scratch, ids, True, progress, cancelled, lambda at, taps: sink(at, taps) if at + len(taps) > start else None)

    def _read(
        self,
        cache: SlotCache,
        ids: list[int],
        write: bool,
        progress: Progress | None,
        cancelled: Cancelled | None,
        sink: Sink | None,
        start: int | None = None,
    ) -> bool:
        done, start = 0, cache.length if start is None else start
        while done < len(ids):
            if cancelled is not None and cancelled():
                return False
            n = min(CHUNK - (start + done) % CHUNK, len(ids) - done)
            taps = self._chunk(cache, ids[done : done + n], start + done, write, self.needs if sink is not None else NOTHING)
            if sink is not None and taps is not None:
                sink(start + done, taps)
            done += n
            if progress is not None:
                progress(done, len(ids))
        return True

    def _chunk(self, cache: SlotCache, ids: list[int], start: int, write: bool, needs: Needs) -> Tensor | None:
        config = self.model.config
        tokens = torch.tensor(ids)
        positions = torch.arange(start, start + len(ids), device=self.device)
        kv_heads, dtype = config.n_kv_heads, self.model.weights.dtype
        seen = {window: plan_chunk(len(ids), start, window, self.device, dtype) for window in self._windows}

        def attend(q: Tensor, slots: Tensor, group: LayerSlots) -> Tensor:
            keys, values = slots[:kv_heads], slots[kv_heads:]
            return attend_chunk(q, keys, values, group.base, seen[group.window], config.attention_scale, config.attention_softcap)

        if write:
            cache.reserve(len(ids))
        _, taps = self.model.forward(tokens, positions, cache, attend, None, needs, write)
        if write:
            cache.keep(tuple(range(len(ids))))
        return taps

    def verify(self, tokens: Tensor, parents: tuple[int, ...]) -> Tensor:
        """Root and nodes `tokens` (n+1,), `parents` (n,) -> float32 logits (n+1, V). Nothing is committed yet; `taps` holds what `needs`
        asks for."""
        logits, self.taps = self._rows(tokens, parents, slice(None), self.needs)
        return logits

    def next(self, ids: list[int]) -> Tensor:
        """Commit `ids` as a chain and return the logits (1, V) behind the last: a drafter's step."""
        logits, _ = self._rows(torch.tensor(ids), tuple(range(len(ids) - 1)), slice(len(ids) - 1, None), NOTHING)
        self.cache.keep(tuple(range(len(ids))))
        return logits

    def _rows(self, tokens: Tensor, parents: tuple[int, ...], head_rows: slice, needs: Needs) -> tuple[Tensor, Tensor | None]:
        if self.length + len(tokens) > self.context + self.max_nodes + 1:
            raise EngineError("The text has reached the end of the context.", kind="context")
        if self.static is not None and (made := self.static.run(tokens, parents, bool(head_rows.start), needs)) is not None:
            return made
        config, dtype, length = self.model.config, self.model.weights.dtype, self.length
        self.cache.reserve(len(tokens))
        if self.model.fused is not None:
            begun = self.model.fused.begin(self.cache, parents)
            logits, taps = self.model.forward(tokens, None, self.cache, begun, head_rows, needs)
            assert logits is not None
            return logits, taps
        depth = depths(parents)
        positions = torch.tensor([length + d for d in depth], device=self.device)
        paths = branches(parents, self.device) if self.exact else ()
        shape = tuple(range(max(depth))) if paths else parents
        stretches: dict[int | None, list[Stretch]] = {window: plan(length, shape, window, self.device, dtype) for window in self._windows}
        kv_heads, scale, softcap = config.n_kv_heads, config.attention_scale, config.attention_softcap

        def attend(q: Tensor, slots: Tensor, group: LayerSlots) -> Tensor:
            seen = stretches[group.window]
            if paths:
                return attend_branches(q, slots, group, length, paths, seen, scale, softcap)
            return attend_rows(q, slots[:kv_heads], slots[kv_heads:], group, seen, scale, softcap)

        logits, taps = self.model.forward(tokens, positions, self.cache, attend, head_rows, needs)
        assert logits is not None
        return logits, taps

    def keep(self, rows: tuple[int, ...]) -> None:
        """Commit rows of the last verify, the root (0) first."""
        self.cache.keep(rows)

    def truncate(self, length: int) -> int:
        """Go back to `length` committed tokens; returns what is left, 0 when a sliding layer would miss some."""
        return self.cache.truncate(length)

    def shrink(self, context: int) -> None:
        """Hold no more than so many tokens from now on, and forget what was read."""
        assert context < self.context
        self.context = context

        def made() -> SlotCache:
            cache = SlotCache(self.model.config, context, self.device, self.model.weights.dtype)
            if self.static is not None:
                cache.fill(CHUNK)
            return cache

        del self.cache  # the old one first: there is no room for both
        self.cache = made() if self.static is None else self.static.move(made)

    def memory(self) -> tuple[int, int]:
        """Bytes of the model and of keys and values."""
        return self.model.nbytes, self.cache.nbytes

    def close(self) -> None:
        """Drop the tensors."""
        if self.static is not None:
            self.static.clear()
        del self.model, self.cache, self.taps, self.static
