"""Which drafted tokens stand, and what the target says instead.

`match`, the default: the target picks at every row, and the walk goes on while a child equals the pick. What is emitted is always the
target's own pick, so it is lossless for any draft. `ratio`, for the papers' algorithms: accept with u·ψ < p, else draw from the
residual (p − ψ)+ over the whole vocabulary (Leviathan et al., arXiv 2211.17192; a certain token has ψ = 1).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

from engine.speculation import noise
from engine.speculation.draft import Draft, Law, LazyLaw
from engine.speculation.sampling import Row

MOST_DRAWS = 100_000  # from a residual; reached only where next to nothing can be rejected
Walk = tuple[tuple[int, ...], tuple[int, ...]]  # rows kept, the root first; tokens emitted, the target's own last


def match(draft: Draft, picks: Sequence[int]) -> Walk:
    """Walk from the root while a child equals the pick of its parent. `picks` has one id per row."""
    path, emitted, row = [0], [], 0
    while True:
        emitted.append(picks[row])
        child = next((i + 1 for i, p in enumerate(draft.parents) if p == row and draft.tokens[i] == picks[row]), None)
        if child is None:
            return tuple(path), tuple(emitted)
        path.append(child)
        row = child


def ratio(draft: Draft, laws: Tensor, rows: Sequence[Row], seed: int) -> Walk:
    """Speculative sampling. `laws` (n+1, V) are the target's filtered laws; siblings must be certain tokens, tried in order."""
    path, emitted, row = [0], [], 0
    while True:
        index = rows[row].index
        p = laws[row]
        accepted = None
        children = [i for i, parent in enumerate(draft.parents) if parent == row]
        for which, node in enumerate(children):
            token = draft.tokens[node]
            psi = draft.laws[node] if draft.laws is not None else None
            assert psi is None or len(children) == 1, "siblings drawn from a law need sampling without replacement"
            if _below(noise.uniform(seed, index, noise.ACCEPT, which), _bounds(psi, token), float(p[token])):
                accepted = node
                break
            if psi is not None and not isinstance(psi, Tensor):
                emitted.append(_lazy_residual(p, psi, seed, index))
                return tuple(path), tuple(emitted)
            p = p.clone()
            if psi is None:
                p[token] = 0.0
            else:
                p = (p - psi.to(p)).clamp_min_(0.0)
            left = p.sum()
            p = p / left if left > 0 else laws[row]  # rounding alone can leave nothing: then the two laws are one
        if accepted is None:
            g = noise.gumbel_all(seed, index, p.shape[0], p.device, noise.RESIDUAL)
            emitted.append(int(torch.argmax(p.log() + g)))
            return tuple(path), tuple(emitted)
        emitted.append(draft.tokens[accepted])
        path.append(accepted + 1)
        row = accepted + 1


def _bounds(psi: Law, token: int) -> Iterable[tuple[float, float]]:
    if psi is None:
        return ((1.0, 1.0),)
    if isinstance(psi, Tensor):
        return ((float(psi[token]),) * 2,)
    return psi.bounds(token)


def _below(u: float, bounds: Iterable[tuple[float, float]], p: float) -> bool:
    """u·ψ < p, with no more of ψ than the answer needs."""
    for low, high in bounds:
        if u * high < p:
            return True
        if low == high or not u * low < p:
            return False
    raise AssertionError("a law must end with its exact value")


def _lazy_residual(p: Tensor, psi: LazyLaw, seed: int, index: int) -> int:
    """A draw from the residual (p − ψ)+ without ψ as a whole: draw t from p and take it with chance 1 − ψ(t)/p(t), else draw again.

    A draw is taken as often as a draft is rejected, so that the expected number of values of ψ per step is two.
    """
    token = 0
    for draw in range(MOST_DRAWS):
        key = noise.key(seed, draw, noise.RESIDUAL)
        token = int(torch.argmax(p.log() + noise.gumbel_all(key, index, p.shape[0], p.device, noise.RESIDUAL)))
        mass = float(p[token])
        w = noise.uniform(key, index, noise.ACCEPT)
        for low, high in psi.bounds(token):
            if not w * mass < high:
                return token
            if low == high or w * mass < low:
                break
    return token  # rounding alone can leave nothing: then the two laws are one
