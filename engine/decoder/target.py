"""What the decoding loop asks of a model, and the lean decoder behind it.

A target holds `length` committed tokens in its cache. `verify` runs the root and the drafted rows behind them without committing;
`keep` commits some of those rows; `truncate` goes back. The last committed token of the text, the root, is never in the cache.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import torch
from torch import Tensor

from engine.decoder.attention import Stretch, attend_chunk, attend_rows, depths, plan
from engine.decoder.kv import LayerSlots, SlotCache
from engine.decoder.model import Model
from engine.decoder.weights import Weights
from engine.errors import EngineError

CHUNK = 512  # tokens of a prompt per pass; chunks end at absolute multiples, so that the cache depends on the text alone

Progress = Callable[[int, int], None]
Cancelled = Callable[[], bool]


class Target(Protocol):
    """See the module."""

    vocab_size: int
    context: int
    exact: bool  # a row's logits are the same bits at any number of rows
    max_nodes: int  # most drafted rows that a verify can take; 0 = this model cannot roll back
    chains_only: bool  # a draft must not branch

    @property
    def length(self) -> int: ...

    def prefill(self, ids: list[int], progress: Progress | None = None, cancelled: Cancelled | None = None) -> bool: ...
    def verify(self, tokens: Tensor, parents: tuple[int, ...]) -> Tensor: ...
    def keep(self, rows: tuple[int, ...]) -> None: ...
    def truncate(self, length: int) -> int: ...
    def memory(self) -> tuple[int, int]: ...
    def close(self) -> None: ...


class LeanTarget:
    """The lean decoder with its cache."""

    max_nodes = 64
    chains_only = False

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

    @property
    def length(self) -> int:
        """Committed tokens in the cache."""
        return self.cache.length

    def prefill(self, ids: list[int], progress: Progress | None = None, cancelled: Cancelled | None = None) -> bool:
        """Append `ids` to the cache, without logits. False when cancelled between chunks; what was read stays."""
        done = 0
        while done < len(ids):
            if cancelled is not None and cancelled():
                return False
            start = self.cache.length
            n = min(CHUNK - start % CHUNK, len(ids) - done)
            self._chunk(ids[done : done + n], start)
            done += n
            if progress is not None:
                progress(done, len(ids))
        return True

    def _chunk(self, ids: list[int], start: int) -> None:
        config = self.model.config
        tokens = torch.tensor(ids)
        positions = torch.arange(start, start + len(ids), device=self.device)

        def attend(q: Tensor, keys: Tensor, values: Tensor, group: LayerSlots) -> Tensor:
            return attend_chunk(q, keys, values, group, start, config.attention_scale, config.attention_softcap)

        self.cache.reserve(len(ids))
        self.model.forward(tokens, positions, self.cache, attend, None)
        self.cache.keep(tuple(range(len(ids))))

    def verify(self, tokens: Tensor, parents: tuple[int, ...]) -> Tensor:
        """Root and nodes `tokens` (n+1,), `parents` (n,) -> float32 logits (n+1, V). Nothing is committed yet."""
        return self._rows(tokens, parents, slice(None))

    def next(self, ids: list[int]) -> Tensor:
        """Commit `ids` as a chain and return the logits (1, V) behind the last: a drafter's step."""
        logits = self._rows(torch.tensor(ids), tuple(range(len(ids) - 1)), slice(len(ids) - 1, None))
        self.cache.keep(tuple(range(len(ids))))
        return logits

    def _rows(self, tokens: Tensor, parents: tuple[int, ...], head_rows: slice) -> Tensor:
        if self.length + len(tokens) > self.context + self.max_nodes + 1:
            raise EngineError("The text has reached the end of the context.", kind="context")
        config, weights = self.model.config, self.model.weights
        self.cache.reserve(len(tokens))
        length = self.length
        stretches: dict[int | None, list[Stretch]] = {
            window: plan(length, parents, window, self.device, weights.dtype) for window in self._windows
        }
        positions = torch.tensor([length + d for d in depths(parents)], device=self.device)

        def attend(q: Tensor, keys: Tensor, values: Tensor, group: LayerSlots) -> Tensor:
            return attend_rows(q, keys, values, group, stretches[group.window], config.attention_scale, config.attention_softcap)

        logits = self.model.forward(tokens, positions, self.cache, attend, head_rows)
        assert logits is not None
        return logits

    def keep(self, rows: tuple[int, ...]) -> None:
        """Commit rows of the last verify, the root (0) first."""
        self.cache.keep(rows)

    def truncate(self, length: int) -> int:
        """Go back to `length` committed tokens; returns what is left, 0 when a sliding layer would miss some."""
        return self.cache.truncate(length)

    def memory(self) -> tuple[int, int]:
        """Bytes of weights and of keys and values."""
        return self.model.weights.nbytes, self.cache.nbytes

    def close(self) -> None:
        """Drop the tensors."""
        del self.model, self.cache
