"""Matrix products whose rows have the same bits at any number of rows, on kernels that switch by that number.

A card's libraries choose a kernel by the shape, so a row's last bits depend on how many rows share the call: bitsandbytes takes one kernel
for up to three rows, perhaps another for more, and unpacks the whole weight for many; cuBLAS has heuristics of its own. `survey` tries,
for one shape of weights, which numbers of rows give each row the bits that it has alone, and what each number costs. `plan` makes of it a
table: so many rows are taken as calls of these sizes, by either of two ways:

- *pieces*: only numbers of rows whose results are those of one row;
- *padded*: always the same number of rows, the rest filled with zeros, where a row's bits do not depend on its place. One kernel then does
  all; taken where it does not slow one row by more than a tenth.

Where neither is to be had at a bearable price the product stays as it is, and is not row-invariant.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from engine.cuda.recorder import Outputs, Recorder
from engine.decoder.front import Front
from engine.decoder.linear import Linear

MOST = 16  # rows up to which bits are promised piece by piece; more rows go in several such parts
SIZES = (1, 2, 3, 4, 5, 6, 7, 8, 12, 16)
PADDED = (8, 16)
SLOWER = 1.1  # what one row may cost more for the sake of padding
UNBEARABLE = 2.0  # times the free price of four rows: then near-ties are the lesser evil
SAMPLES = 3  # matrices of a shape whose bits are compared
TIMES = 5


@dataclass(frozen=True, slots=True)
class Survey:
    """What was found for one shape. Keys are numbers of rows."""

    seconds: dict[int, float]
    alone: tuple[int, ...]  # each row has the bits that it has alone
    placeless: tuple[int, ...]  # a row's bits depend neither on its place nor on the other rows


@dataclass(frozen=True, slots=True)
class Table:
    """calls[m]: sizes of the calls for m rows, their sum at least m; () for 0. Empty: one call for all, not invariant."""

    calls: tuple[tuple[int, ...], ...] = ()

    def sizes(self, rows: int) -> tuple[int, ...]:
        """Calls for any number of rows."""
        most = len(self.calls) - 1
        return self.calls[most] * (rows // most) + self.calls[rows % most]


def survey(linears: Sequence[Linear], recorder: Recorder, dtype: torch.dtype) -> Survey:
    """Try products of one shape. They are timed in turn, so that none stays in the card's cache as it would not in a step."""
    first = linears[0]
    made = torch.Generator().manual_seed(0)
    x = torch.randn(MOST, first.in_features, generator=made)
    x[:, :: max(1, first.in_features // 7)] *= 30.0  # a few large ones, as in real hidden states
    x = x.to(recorder.device, dtype)
    seconds = {m: _seconds(linears, x[:m].contiguous(), recorder) for m in SIZES}
    with torch.inference_mode():
        samples = linears[:SAMPLES]
        alone = tuple(m for m in SIZES if all(_alone(linear, x, m) for linear in samples))
        placeless = tuple(m for m in PADDED if all(_placeless(linear, x, m) for linear in samples))
    return Survey(seconds, alone, placeless)


def _seconds(linears: Sequence[Linear], x: Tensor, recorder: Recorder) -> float:
    def run() -> Outputs:
        out = None
        for linear in linears:
            out = linear(x)
        return (out,)

    recorded = recorder.record(run)
    recorder.seconds(recorded, 1)
    return recorder.seconds(recorded, TIMES) / len(linears)


def _alone(linear: Linear, x: Tensor, rows: int) -> bool:
    singly = torch.cat([linear(x[i : i + 1]) for i in range(rows)])
    return torch.equal(linear(x[:rows]), singly)


def _placeless(linear: Linear, x: Tensor, rows: int) -> bool:
    whole = linear(x[:rows])
    for shift in (1, rows // 2, rows - 1):
        if not torch.equal(linear(x[:rows].roll(shift, 0)), whole.roll(shift, 0)):
            return False
    return all(torch.equal(linear(_filled(x[i : i + 1], rows))[:1], whole[i : i + 1]) for i in range(rows))


def _filled(x: Tensor, rows: int) -> Tensor:
    return F.pad(x, (0, 0, 0, rows - x.shape[0]))


def plan(found: Survey) -> Table:
    """The cheapest table that keeps the bits; an empty one where that costs too much."""
    seconds, pieces = found.seconds, _pieces(found)
    price = [sum(seconds[size] for size in calls) for calls in pieces]
    padded = [size for size in found.placeless if seconds[size] <= SLOWER * seconds[1]]
    if padded:
        size = min(padded, key=lambda p: (seconds[p] * -(-MOST // p), p))
        return Table(tuple((size,) * -(-rows // size) for rows in range(MOST + 1)))
    if price[4] > UNBEARABLE * seconds[4]:
        spare = [size for size in found.placeless if seconds[size] <= UNBEARABLE * seconds[1]]
        if not spare:
            return Table()
        return Table(tuple((spare[0],) * -(-rows // spare[0]) for rows in range(MOST + 1)))
    return Table(tuple(pieces))


def _pieces(found: Survey) -> list[tuple[int, ...]]:
    """For each number of rows the cheapest calls of sizes that keep the bits; a call may have rows to spare."""
    allowed = sorted({1, *found.alone})
    best: list[tuple[float, tuple[int, ...]]] = [(0.0, ())]
    for rows in range(1, MOST + 1):
        options = [(found.seconds[size] + best[max(0, rows - size)][0], (size, *best[max(0, rows - size)][1])) for size in allowed]
        best.append(min(options, key=lambda option: (option[0], len(option[1]))))
    return [calls for _, calls in best]


class Planned:
    """A product that takes its rows by a table. See the module. More rows than a verify can have go in one call: they are a prompt's."""

    def __init__(self, inner: Linear, table: Table, most: int) -> None:
        self.inner, self.table, self._most = inner, table, most
        self.in_features, self.out_features = inner.in_features, inner.out_features
        self.row_invariant = bool(table.calls)

    def __call__(self, x: Tensor, front: Front | None = None, add: Tensor | None = None) -> Tensor:
        rows = x.shape[0]
        if not self.table.calls or rows > self._most:
            return self.inner(x, front, add)
        out = self._product(x if front is None else front(x), rows)
        return out if add is None else add + out

    def _product(self, x: Tensor, rows: int) -> Tensor:
        sizes = self.table.sizes(rows)
        if sizes == (rows,):
            return self.inner(x)
        done, parts = 0, []
        for size in sizes:
            part = x[done : done + size]
            parts.append(self.inner(part if len(part) == size else _filled(part, size))[: len(part)])
            done += len(part)
        return parts[0] if len(parts) == 1 else torch.cat(parts)

    @property
    def nbytes(self) -> int:
        return self.inner.nbytes
