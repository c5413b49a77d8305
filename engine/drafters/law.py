"""Small laws: the few tokens that a drafter may say next, the target's filters on them, and draws by the shared noise.

A drafter's logits are cut to the tokens within e^-12 of the best at once; everything behind it works on those few. The cut is part of the
law that is drawn from, so nothing is lost by it.
"""

from __future__ import annotations

from collections.abc import Container

import numpy as np
import torch
from torch import Tensor

from engine.speculation import noise
from engine.speculation.draft import Context
from engine.speculation.sampling import Filters, Picker, Row

NEAR = 12.0  # in units of the temperature: what is further below the best is left out
MOST = 2048  # of them


def near(logits: Tensor, filters: Filters) -> tuple[np.ndarray, np.ndarray]:
    """logits (D,) -> ids (n,) and values (n,) float64 of the tokens that count, ids ascending."""
    values = (logits if logits.dtype == torch.float64 else logits.float()).cpu().numpy()
    best = float(values.max())
    width = NEAR * (1.0 if filters.greedy else filters.temperature) + abs(best) * abs(filters.repeat_penalty - 1.0)
    at = np.flatnonzero(values >= best - width)
    if len(at) > MOST:
        at = np.sort(at[np.argpartition(values[at], -MOST)[-MOST:]])
    return at, values[at].astype(np.float64)


def filtered(filters: Filters, ids: np.ndarray, values: np.ndarray, seen: Container[int], path: Container[int]) -> np.ndarray:
    """The law (n,) of ids (n,), ascending, with logits `values` (n,), by the one code that all filters have. The repetition penalty
    knows the ids `seen` and those of the draft's own `path`."""
    columns = [c for c, i in enumerate(ids.tolist()) if i in seen or i in path] if filters.repeat_penalty != 1.0 else []
    return Picker(filters, 0, columns).laws(torch.from_numpy(values)[None], [Row(0)])[0].numpy()


def joined(values: np.ndarray, group: np.ndarray, temperature: float) -> np.ndarray:
    """Logits of groups: those whose mass at this temperature is the sum of their members' masses."""
    best = values.max()
    return best + temperature * np.log(np.bincount(group, weights=np.exp((values - best) / temperature)))


def draw(law: np.ndarray, ids: np.ndarray, seed: int, index: int, stream: int) -> int:
    """Place of one draw from a law (n,) of ids (n,)."""
    with np.errstate(divide="ignore"):
        return int(np.argmax(np.log(law) + noise.gumbel(seed, index, ids, stream)))


def fresh(ctx: Context) -> int:
    """Seed of one step's draws under the ratio rule. What an earlier step drew and nobody tested is not drawn from again: an end of turn
    among it has made that draft shorter, and what follows from that must not know the next draws."""
    return noise.key(ctx.picker.seed, ctx.next_index, noise.PROPOSE)


def share(law: np.ndarray, u: float) -> int:
    """Place of one draw from masses (n,) by a uniform number."""
    total = np.cumsum(law)
    return min(int(np.searchsorted(total, u * total[-1], side="right")), len(law) - 1)
