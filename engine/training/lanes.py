"""Many texts decoded at once over the layers of one lean target: each step runs one new token of every text in one pass.

Keys and values of all texts lie mixed in one cache; each text knows its own slots in order. On the CPU the rows go through the very
kernels that serve a chat, whose sums do not depend on what shares the pass: logits and hidden states have the bits of plain decoding.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from engine.decoder.attention import attend_texts
from engine.decoder.kv import LayerSlots, SlotCache
from engine.decoder.target import LeanTarget
from engine.speculation.draft import Needs

FINAL = Needs(final=True)


class Lanes:
    """Room for `count` texts of at most `longest` tokens each. A lane is a number from 0; it is free until `begin`."""

    def __init__(self, target: LeanTarget, count: int, longest: int) -> None:
        config = target.model.config
        self._target, self._model, self._device = target, target.model, target.device
        self._limit = count * longest
        flat = replace(config, windows=(None,) * config.n_layers)  # nothing is forgotten: what a window hides is left out when attending
        self._cache = SlotCache(flat, self._limit, target.device, target.model.weights.dtype)
        self._slots = np.zeros((count, longest), dtype=np.int64)
        self._lengths = np.zeros(count, dtype=np.int64)

    @torch.inference_mode()
    def begin(self, lane: int) -> None:
        """Put what the target's own cache holds into a lane."""
        source, n = self._target.cache, self._target.length
        assert n < self._slots.shape[1]
        assert all(group.base == 0 for group in source.groups), "a prompt is shorter than what a window forgets"
        self._room(n)
        at = self._cache.length
        for i in range(self._model.config.n_layers):
            self._cache.layer(i)[1][:, at : at + n] = source.layer(i)[1][:, :n]
        self._slots[lane, :n] = np.arange(at, at + n)
        self._lengths[lane] = n
        self._cache.length += n

    def end(self, lane: int) -> None:
        """The lane is free again."""
        self._lengths[lane] = 0

    def length(self, lane: int) -> int:
        """Tokens of a text that are in the cache."""
        return int(self._lengths[lane])

    @torch.inference_mode()
    def step(self, lanes: Sequence[int], tokens: Sequence[int]) -> tuple[Tensor, Tensor]:
        """Append one token to each of these lanes -> logits (M, V) float32 behind it, hidden states (M, H) behind the final norm."""
        rows, where = len(lanes), np.asarray(lanes)
        self._room(rows)
        self._slots[where, self._lengths[where]] = self._cache.length + np.arange(rows)
        self._lengths[where] += 1
        lengths = self._lengths[where]
        slots = self._slots[where, : int(lengths.max())]
        ids = torch.tensor(tokens)
        if self._model.fused is not None:
            begun = self._model.fused.begin_texts(self._cache, slots, lengths)
            logits, hidden = self._model.forward(ids, None, self._cache, begun, slice(None), FINAL)
        else:
            logits, hidden = self._plainly(ids, torch.from_numpy(slots).to(self._device), torch.from_numpy(lengths).to(self._device))
        self._cache.length += rows
        assert logits is not None
        assert hidden is not None
        return logits, hidden

    def _plainly(self, ids: Tensor, slots: Tensor, lengths: Tensor) -> tuple[Tensor | None, Tensor | None]:
        config = self._model.config
        windows = iter(config.windows)  # of the layers, in the order in which they attend

        def attend(q: Tensor, store: Tensor, _: LayerSlots) -> Tensor:
            keys, values = store[: config.n_kv_heads], store[config.n_kv_heads :]
            return attend_texts(q, keys, values, slots, lengths, next(windows), config.attention_scale, config.attention_softcap)

        return self._model.forward(ids, lengths - 1, self._cache, attend, slice(None), FINAL)

    def _room(self, rows: int) -> None:
        """Slots for so many new tokens; those of ended texts are used again once the cache is full."""
        cache = self._cache
        if cache.length + rows > self._limit:
            live = [lane for lane in range(len(self._lengths)) if self._lengths[lane]]
            held = [slot for lane in live for slot in self._slots[lane, : self._lengths[lane]].tolist()]
            for group in cache.groups:
                group.move(held, 0)
            at = 0
            for lane in live:
                n = int(self._lengths[lane])
                self._slots[lane, :n] = np.arange(at, at + n)
                at += n
            cache.length = at
        cache.reserve(rows)

    @property
    def nbytes(self) -> int:
        return self._cache.nbytes
