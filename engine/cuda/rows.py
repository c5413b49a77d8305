"""The rows of a verify as static passes: recorded once per number of rows and slots, then run without the host.

What changes from step to step (tokens, positions, where the rows are written, whom a row of a tree sees) is one small array that is
copied in before the run; no number of the host is read inside. A row attends in the order of its text: rows of a chain lie in their
slots as they are, those of a tree are gathered so, each behind its own ancestors. What a row sums is then the same at any number of
rows and in any tree, over slots that are masked at the end (`engine.decoder.attention` says why that keeps the bits).

Rows that fill a pass up to its width go on where the text ends. Their keys and values lie behind it and are overwritten or cleared.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from engine.cuda import attend as own
from engine.cuda import buckets
from engine.cuda.recorder import Outputs, Recorder, Run
from engine.decoder.attention import depths
from engine.decoder.kv import LayerSlots, SlotCache
from engine.decoder.model import NOTHING, Attend, Model
from engine.speculation.draft import Needs

Slots = Callable[[int, int], int]  # slots that are needed, capacity -> slots that attention reads
log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Key:
    """What a recorded pass is for."""

    width: int
    slots: tuple[int, ...]  # read in each group of layers; () where attention finds the length itself
    tree: bool
    last: bool  # logits of one row only
    taps: tuple[int, ...]
    final: bool


@dataclass(frozen=True, slots=True)
class Recorded:
    """A pass with its inputs: `source` on the host, `numbers` on the device."""

    source: Tensor
    numbers: Tensor
    run: Run


class StaticRows:
    """See the module. `run` gives None where a pass must go the ordinary way: too many rows, or the device refused to record."""

    def __init__(
        self,
        model: Model,
        cache: SlotCache,
        recorder: Recorder,
        width: Callable[[int], int] = buckets.width,
        slots: Slots | None = buckets.slots,
    ) -> None:
        """`slots` None: attention by our own kernels (`engine.cuda.attend`), which find the length of the text themselves."""
        self.model, self.cache, self.recorder = model, cache, recorder
        self.trouble = ""  # why nothing is recorded any more
        self._width, self._slots = width, slots
        self._passes: dict[Key, Recorded] = {}
        self._nbytes = 0  # of the recorder's memory, ours
        self._stores: tuple[Tensor, ...] = ()

    def run(self, tokens: Tensor, parents: tuple[int, ...], last: bool, needs: Needs = NOTHING) -> tuple[Tensor, Tensor | None] | None:
        """Root and nodes (n+1,) behind what the cache holds -> logits (n+1, V), or (1, V) of the last row, and hidden states (n+1, F)."""
        rows, cache = len(tokens), self.cache
        width = self._width(rows)
        if self.trouble or width > buckets.WIDTHS[-1]:
            return None
        cache.reserve(width)
        stores = tuple(group.store for group in cache.groups)
        if len(stores) != len(self._stores) or any(a is not b for a, b in zip(stores, self._stores, strict=True)):
            self.clear()  # recorded passes know the old addresses
            self._stores = stores
        measure = self._slots
        read = () if measure is None else tuple(measure(cache.length - g.base + width, g.capacity) for g in cache.groups)
        tree = parents != tuple(range(rows - 1))
        key = Key(width, read, tree, last, needs.taps, needs.final)
        numbers = self._numbers(tokens, parents, width, tree)
        recorded = self._passes.get(key) or self._record(key, numbers)
        if recorded is None:
            return None if self.trouble else self.run(tokens, parents, last, needs)
        self.recorder.upload(numbers, recorded.source, recorded.numbers)
        logits, taps = recorded.run()
        assert logits is not None
        # results are valid until the next run of this pass; whoever asked may hold them for longer
        return logits[: 1 if last else rows].clone(), None if taps is None else taps[:rows].clone()

    def move(self, made: Callable[[], SlotCache]) -> SlotCache:
        """Let go of the cache, then take the one that `made` makes."""
        self.clear()
        del self.cache
        self.cache = made()
        return self.cache

    def clear(self) -> None:
        """Forget all recorded passes."""
        self._passes.clear()
        self._stores = ()
        self.recorder.nbytes -= self._nbytes
        self._nbytes = 0

    def __len__(self) -> int:
        """Recorded passes."""
        return len(self._passes)

    # --- inputs --------------------------------------------------------------------------------------------------------

    def _numbers(self, tokens: Tensor, parents: tuple[int, ...], width: int, tree: bool) -> np.ndarray:
        """tokens (W,) | positions (W,) | last row | committed slots of each group | of a tree: ancestors by depth (W, W)."""
        cache, rows = self.cache, len(tokens)
        numbers = np.zeros(2 * width + 1 + len(cache.groups) + (width * width if tree else 0), dtype=np.int64)
        numbers[:rows] = tokens.numpy()
        padded = (*parents, *((0,) * (width - rows) if tree else range(rows - 1, width - 1)))
        depth = depths(padded)
        numbers[width : 2 * width] = cache.length + np.array(depth)
        numbers[2 * width] = rows - 1
        at = 2 * width + 1
        numbers[at : at + len(cache.groups)] = [cache.length - group.base for group in cache.groups]
        if tree:
            paths = numbers[at + len(cache.groups) :].reshape(width, width)
            for row, parent in enumerate(padded, start=1):
                paths[row, : depth[row]] = paths[parent, : depth[row]]
                paths[row, depth[row]] = row
        return numbers

    # --- recording -----------------------------------------------------------------------------------------------------

    def _record(self, key: Key, numbers: np.ndarray) -> Recorded | None:
        recorder, n = self.recorder, len(numbers)
        source = recorder.host(n)
        held = torch.zeros(n, dtype=torch.int64, device=recorder.device)
        recorder.upload(numbers, source, held)
        before = recorder.nbytes
        try:
            recorded = Recorded(source, held, recorder.record(self.one_pass(key, held)))
        except Exception as error:  # no memory for it, a compiler that fails: there is always another way
            log.warning("passes of %s rows cannot be recorded: %s", key.width, error)
            self.clear()
            if self._slots is None:
                self._slots = buckets.slots
            else:
                self.trouble = str(error).partition("\n")[0][:200] or type(error).__name__
            return None
        self._passes[key] = recorded
        self._nbytes += recorder.nbytes - before
        return recorded

    def one_pass(self, key: Key, numbers: Tensor) -> Run:
        """The function behind a recorded pass. `numbers` are as `_numbers` lays them out, on the device."""
        model, cache, width = self.model, self.cache, key.width
        config, groups = model.config, cache.groups
        tokens, positions = numbers[:width], numbers[width : 2 * width]
        last = numbers[2 * width : 2 * width + 1]
        ats = numbers[2 * width + 1 : 2 * width + 1 + len(groups)]
        paths = numbers[2 * width + 1 + len(groups) :].view(width, width) if key.tree else None
        needs = Needs(key.taps, key.final)
        steps = torch.arange(width, device=numbers.device)
        where = {group: i for i, group in enumerate(groups)}
        places = [torch.arange(read, device=numbers.device) for read in key.slots]
        scale, softcap = config.attention_scale, config.attention_softcap

        def run() -> Outputs:
            spots = [at + steps for at in ats.unbind()]  # of the rows of this pass, in each group

            def write(slots: Tensor, kv: Tensor, group: LayerSlots) -> None:
                slots.index_copy_(1, spots[where[group]], kv.transpose(0, 1))

            return model.forward(tokens, positions, cache, attention(), last if key.last else slice(None), needs, write)

        def attention() -> Attend:
            depth = positions - positions[:1]
            if not key.slots:
                return lambda q, slots, group: own.attend(
                    q, slots, ats[where[group] : where[group] + 1], depth, paths, group.window, scale, softcap
                )
            seen = [_Seen(place, at, positions, paths, g.window) for place, at, g in zip(places, ats.unbind(), groups, strict=True)]
            masks, orders = [s.mask(model.weights.dtype) for s in seen], [s.order() for s in seen]
            return lambda q, slots, group: _attend(q, slots, masks[where[group]], orders[where[group]], scale, softcap)

        return run


class _Seen:
    """For layers of one window: which of their slots each row sees, as tensors on the device."""

    def __init__(self, place: Tensor, at: Tensor, positions: Tensor, paths: Tensor | None, window: int | None) -> None:
        self._place, self._at, self._positions, self._paths, self._window = place, at, positions, paths, window

    def mask(self, dtype: torch.dtype) -> Tensor:
        """Additive (W, 1, 1, S), by the order of each row's text."""
        positions = self._positions
        here = self._place + (positions[0] - self._at)  # (S,) position of each slot; of a tree, once gathered
        visible = here <= positions[:, None]
        if self._window is not None:
            visible = visible & (here > positions[:, None] - self._window)
        mask = torch.zeros(visible.shape, dtype=dtype, device=visible.device).masked_fill_(~visible, float("-inf"))
        return mask[:, None, None, :]

    def order(self) -> Tensor | None:
        """(W, S) slots in the order of each row's text; None where they lie so."""
        if self._paths is None:
            return None
        width = self._paths.shape[0]
        behind = (self._place - self._at).clamp(0, width - 1)  # (S,) depth below the root
        return torch.where(self._place < self._at, self._place, self._at + self._paths[:, behind])


def _attend(q: Tensor, slots: Tensor, mask: Tensor, order: Tensor | None, scale: float, softcap: float | None) -> Tensor:
    """q (W, Hq, D) over slots (2·Hkv, S', D), of which the first S (mask) or those of `order` (W, S) count -> (W, Hq·D)."""
    rows, heads, dim = q.shape
    kv_heads, read = slots.shape[0] // 2, mask.shape[-1]
    q = q.view(rows, kv_heads, heads // kv_heads, dim)
    if order is None:
        k, v = (part[:, :read].expand(rows, -1, -1, -1) for part in (slots[:kv_heads], slots[kv_heads:]))
    else:
        k, v = slots[:, order].transpose(0, 1).split(kv_heads, dim=1)  # (W, Hkv, S, D) each
    mask = mask.expand(-1, kv_heads, q.shape[2], -1)
    if softcap is None:
        out = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=scale)
    else:
        scores = softcap * torch.tanh((q @ k.transpose(-1, -2)) * (scale / softcap)) + mask
        out = torch.softmax(scores.float(), dim=-1).to(q.dtype) @ v
    return out.reshape(rows, heads * dim)
