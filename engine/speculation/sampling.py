"""From logits to picks: the filters, in one fixed order, and exact-seed choice. Target and drafters run this same code.

Order: repetition penalty -> temperature -> top-k -> top-p -> min-p (DESIGN 6). T = 0 is plain argmax, ties to the lowest id. Otherwise
a row picks argmax(log p̃ + Gumbel noise), the noise keyed by (seed, index), so a pick depends on the row's logits and its place alone.
A vocabulary is never sorted: filters work on a growing top-n, which is never a silent cap. Everything behind it happens on the host in
float64, row by row, so that a pick cannot depend on how many rows share the call.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from engine.errors import EngineError
from engine.speculation import noise

FIRST_TOP = 256
FIRST_MORE = 64  # behind the k of top-k: whether equal values go on there


@dataclass(frozen=True, slots=True)
class Filters:
    """Sampling settings with every field set. `top_k = 0`, `top_p = 1`, `min_p = 0`, `repeat_penalty = 1` mean none."""

    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    repeat_penalty: float = 1.0

    @property
    def greedy(self) -> bool:
        return self.temperature < 1e-6  # below, dividing by it leaves the range of float32

    @property
    def narrow(self) -> bool:
        """Whether some filter leaves fewer than all ids."""
        return self.top_k > 0 or self.top_p < 1.0 or self.min_p > 0.0


@dataclass(frozen=True, slots=True)
class Row:
    """Where a row of logits stands: index of its pick in the reply, and the drafted tokens on its path (for penalties)."""

    index: int
    path: tuple[int, ...] = ()


class Picker:
    """The sampler of one reply."""

    def __init__(self, filters: Filters, seed: int, seen: Sequence[int] = ()) -> None:
        self.filters = filters
        self.seed = seed
        self.seen: set[int] = set()  # ids of prompt and reply, for the repetition penalty
        self._columns: dict[tuple[int, torch.device], Columns] = {}  # … as columns of logits, by their number and place
        self._new: list[int] = []  # each of them once, in the order they came
        self.see(seen)

    def see(self, tokens: Sequence[int]) -> None:
        """Committed tokens: they count for the repetition penalty from now on."""
        if self.filters.repeat_penalty != 1.0:
            fresh = [token for token in dict.fromkeys(tokens) if token not in self.seen]
            self.seen.update(fresh)
            self._new += fresh

    def pick(self, logits: Tensor, rows: Sequence[Row], stream: int = noise.PICK) -> list[int]:
        """logits (M, V), one `Row` each -> M token ids."""
        assert logits.shape[0] == len(rows)
        logits = self._penalised(_wide(logits), rows)
        if self.filters.greedy:
            best, ids = logits.max(dim=-1)
            if not torch.isfinite(best).all():
                raise _not_finite()
            return [int(i) for i in ids.tolist()]
        scaled = logits / self.filters.temperature
        if not self.filters.narrow:
            return [self._pick_all(scaled[r], row, stream) for r, row in enumerate(rows)]
        return [
            int(ids[np.argmax(values + noise.gumbel(self.seed, row.index, ids, stream))])
            for row, (values, ids) in zip(rows, self._survivors(scaled), strict=True)
        ]

    def laws(self, logits: Tensor, rows: Sequence[Row]) -> Tensor:
        """The filtered laws (M, V) in float64, for the ratio rule."""
        logits = self._penalised(_wide(logits), rows)
        if not torch.isfinite(logits.max(dim=-1).values).all():
            raise _not_finite()
        if self.filters.greedy:
            return torch.nn.functional.one_hot(logits.argmax(-1), logits.shape[-1]).double()
        scaled = logits / self.filters.temperature
        if not self.filters.narrow:
            return torch.softmax(scaled.double(), dim=-1)
        laws = torch.zeros_like(scaled, dtype=torch.float64)
        for r, (values, ids) in enumerate(self._survivors(scaled)):
            p = np.exp(values - values.max())
            laws[r, torch.from_numpy(ids).to(laws.device)] = torch.from_numpy(p / p.sum()).to(laws.device)
        return laws

    def top(
        self, logits: Tensor, rows: Sequence[Row], k: int, names: Tensor | None = None, noisy: bool = True
    ) -> tuple[np.ndarray, np.ndarray]:
        """The best k candidates of each row, for a drafter that branches: target ids (M, k), log chances (M, k) in float32, best first,
        ties to the lowest id. Where the filters leave fewer, ids are -1.

        At T = 0 the chances are the law of the logits. Else the candidates are shaken by the noise that the target will pick with: the
        law of the logits + T · noise, over what the filters leave, is how far the target's pick can be told. Without `noisy` they are
        those of the logits / T. `names` (V,) are the target ids of the columns, where the drafter has a smaller vocabulary.
        """
        assert logits.shape[0] == len(rows)
        logits = _wide(logits)
        if names is not None and self.filters.repeat_penalty != 1.0:  # the penalty goes by target ids
            logits = torch.full((len(rows), int(names.max()) + 1), -math.inf).to(logits).index_copy(1, names.to(logits.device), logits)
            names = None
        logits = self._penalised(logits, rows)
        if self.filters.greedy or not noisy:
            law = torch.log_softmax(logits if self.filters.greedy else logits / self.filters.temperature, dim=-1).float()
            values, ids = _best(law, k)
            return _named(ids, names), values
        scaled = logits / self.filters.temperature
        kept = self._survivors(scaled) if self.filters.narrow else _tops(scaled, FIRST_TOP)
        out, chances = np.full((len(rows), k), -1, np.int64), np.full((len(rows), k), -np.inf, np.float32)
        for r, (row, (values, columns)) in enumerate(zip(rows, kept, strict=True)):
            ids = _named(columns, names)
            shaken = self.filters.temperature * (values + noise.gumbel(self.seed, row.index, ids))
            order = np.lexsort((ids, -shaken))[:k]
            shaken = shaken - shaken.max()
            out[r, : len(order)] = ids[order]
            chances[r, : len(order)] = (shaken - np.log(np.exp(shaken).sum()))[order]
        return out, chances

    def _pick_all(self, scaled: Tensor, row: Row, stream: int) -> int:
        noisy = scaled.double() + noise.gumbel_all(self.seed, row.index, scaled.shape[0], scaled.device, stream)
        best, at = noisy.max(dim=-1)
        if not math.isfinite(best.item()):
            raise _not_finite()
        return int(at)

    def _survivors(self, scaled: Tensor) -> list[tuple[np.ndarray, np.ndarray]]:
        """Per row: scaled logits (float64) and ids of the tokens that the filters leave, best first."""
        vocab_size = scaled.shape[-1]
        f = self.filters
        law = torch.softmax(scaled, dim=-1) if f.top_p < 1.0 and f.top_k == 0 else None  # top-p over all ids needs their normaliser
        n = min(f.top_k + FIRST_MORE if f.top_k else FIRST_TOP, vocab_size)
        while True:
            top, at = scaled.topk(n, dim=-1)
            mass = law.gather(-1, at).cpu().double().numpy() if law is not None else None
            values, ids = top.cpu().double().numpy(), at.cpu().numpy()
            if not np.isfinite(values[:, 0]).all():
                raise _not_finite()
            counts = [self._count(values[r], mass[r] if mass is not None else None, n == vocab_size) for r in range(len(values))]
            if all(count is not None for count in counts):
                return [(values[r, :count], _lowest(values[r], ids[r], count)) for r, count in enumerate(counts) if count is not None]
            n = min(8 * n, vocab_size)

    def _count(self, values: np.ndarray, mass: np.ndarray | None, complete: bool) -> int | None:
        """How many of a row's best ids survive; None when the row needs more of its ids to tell."""
        f = self.filters
        count, decided = len(values), complete
        if f.top_k > 0:
            count, decided = min(f.top_k, count), True
        if f.top_p < 1.0:
            if mass is None:
                mass = np.exp(values[:count] - values[0])
                mass = mass / mass.sum()
            reached = int(np.searchsorted(np.cumsum(mass), f.top_p, side="left")) + 1
            if reached <= count:
                count, decided = reached, True
        if f.min_p > 0.0:
            enough = int((values >= values[0] + math.log(f.min_p)).sum())
            if enough < len(values):
                count, decided = min(count, enough), True
        count = max(count, 1)
        # a cut through equal values keeps the lowest ids, so all of them must be here: else the choice would depend on n, and so on
        # the other rows of the call
        whole = complete or values[count - 1] > values[-1]
        return count if decided and whole else None

    def _penalised(self, logits: Tensor, rows: Sequence[Row]) -> Tensor:
        penalty = self.filters.repeat_penalty
        if penalty == 1.0:
            return logits
        logits = logits.clone()
        vocab_size = logits.shape[-1]  # a drafter's may be smaller than the target's, whose ids these are
        key = vocab_size, logits.device
        if key not in self._columns:
            self._columns[key] = Columns(*key)
        common = self._columns[key].of(self._new)
        values = logits[:, common]
        logits[:, common] = torch.where(values > 0, values / penalty, values * penalty)
        for r, row in enumerate(rows):
            extra = torch.tensor(sorted(set(row.path) - self.seen), device=logits.device, dtype=torch.int64)
            values = logits[r, extra]
            logits[r, extra] = torch.where(values > 0, values / penalty, values * penalty)
        return logits


class Columns:
    """Ids below a limit as a tensor on a device that grows with them: no step does again what an earlier one did."""

    def __init__(self, limit: int, device: torch.device) -> None:
        self._limit, self._taken, self._count = limit, 0, 0
        self._store = self._room(256, device)

    def of(self, ids: list[int]) -> Tensor:
        """(n,) of `ids`, which only ever grow at their end."""
        fresh = [i for i in ids[self._taken :] if i < self._limit]
        self._taken = len(ids)
        if fresh:
            end = self._count + len(fresh)
            if end > len(self._store):
                larger = self._room(2 * end, self._store.device)
                larger[: self._count] = self._store[: self._count]
                self._store = larger
            self._store[self._count : end] = torch.tensor(fresh, dtype=torch.int64)
            self._count = end
        return self._store[: self._count]

    @staticmethod
    def _room(size: int, device: torch.device) -> Tensor:
        """An ordinary tensor, wherever this is called: one made in inference mode could not be written to outside of it."""
        with torch.inference_mode(False):
            return torch.empty(size, dtype=torch.int64, device=device)


def _lowest(values: np.ndarray, ids: np.ndarray, count: int) -> np.ndarray:
    """The first `count` ids; where the cut goes through equal values, the lowest ids of them."""
    first, behind = np.searchsorted(-values, -values[count - 1], side="left"), np.searchsorted(-values, -values[count - 1], side="right")
    return np.concatenate((ids[:first], np.sort(ids[first:behind])[: count - first]))


def _tops(scaled: Tensor, n: int) -> list[tuple[np.ndarray, np.ndarray]]:
    """Per row: the n largest values and their columns."""
    values, columns = scaled.topk(min(n, scaled.shape[-1]), dim=-1)
    if not torch.isfinite(values[:, 0]).all():
        raise _not_finite()
    return list(zip(values.double().cpu().numpy(), columns.cpu().numpy(), strict=True))


def _best(values: Tensor, k: int) -> tuple[np.ndarray, np.ndarray]:
    """The k largest of each row and their columns, ties to the lowest column."""
    k, n = min(k, values.shape[-1]), k + 8
    while True:
        n = min(n, values.shape[-1])
        top, at = (t.cpu().numpy() for t in values.topk(n, dim=-1))
        if not np.isfinite(top[:, 0]).all():
            raise _not_finite()
        if n == values.shape[-1] or (top[:, k - 1] > top[:, -1]).all():
            order = np.lexsort((at, -top), axis=-1)[:, :k]
            return np.take_along_axis(top, order, -1), np.take_along_axis(at, order, -1)
        n *= 8


def _named(columns: np.ndarray, names: Tensor | None) -> np.ndarray:
    return columns if names is None else names.numpy()[columns]


def _wide(logits: Tensor) -> Tensor:
    """Where float64 can be had: MPS has none."""
    return logits.cpu() if logits.device.type == "mps" else logits


def _not_finite() -> EngineError:
    return EngineError(
        "The model's numbers are not finite (NaN or infinite), so no token can be chosen.",
        "Try another quantization with --quant, or pull the model again.",
        kind="not_finite",
    )
