"""Gumiho (Li et al., arXiv 2503.10135): two transformer steps for the first two tokens, then five MLP heads at once for the rest.

As the weights were trained and are run by their authors, two quirks are kept: the candidates of depth 1 see one another (plain causal
mask), and the MLP input pairs a token of depth 2 with the depth-1 token of the same *rank*, not with its parent. `corrected` does both
the other way. They concern the draft's quality only. Full Tree Attention is not built: it emits text that the target did not confirm.
"""

from __future__ import annotations

import torch
from torch import Tensor

from engine.drafters.heads.base import Shared, shortlist
from engine.drafters.heads.eagle import Fused, OverFeatures
from engine.drafters.heads.grow import Choose, Tree, among_best, candidates, spread
from engine.drafters.heads.layers import Maker
from engine.drafters.heads.specs import HeadSpec


class Gumiho(OverFeatures):
    """See `base.Head`."""

    fixed = False

    def __init__(self, spec: HeadSpec, made: Maker, shared: Shared, context: int, corrected: bool = False) -> None:
        assert spec.serial == 2, "the published heads draft two tokens serially"
        assert min(spec.n_heads, spec.pruning, spec.mlp_top_k, spec.top_k) > 0
        self._spec, self._shared, self._corrected = spec, shared, corrected
        self.names = shortlist(spec, made)
        features = Fused(spec, made, shared, context)
        self._blocks = [made.blocks([f"mlp.{m}.{j}" for j in range(spec.head_layers)]) for m in range(spec.n_heads)]
        super().__init__(features, made.nbytes)
        self.fc = features.fc

    @torch.inference_mode()
    def grow(self, root: int, budget: int, choose: Choose) -> Tree:
        """Serial levels, then one level per MLP head; only survivors of each level are candidates for the tree."""
        spec, shared = self._spec, self._shared
        budget = min(budget, spec.total - 1)
        pool = Tree()
        h1 = self.features.begin()
        first = spread(pool, [0], *candidates(pool, [0], shared.logits(h1), choose, spec.top_k), spec.top_k)
        live = among_best(pool, first, budget)
        if not live:
            return pool
        t1 = [pool.tokens[row - 1] for row in first]
        h2 = self.features.level(1, [0] * len(live), [pool.tokens[row - 1] for row in live], siblings=not self._corrected)
        second = spread(pool, live, *candidates(pool, live, shared.logits(h2), choose, spec.top_k), spec.top_k)
        live = among_best(pool, second, budget)
        if not live:
            return pool.best(budget)
        above = [pool.parents[row - 1] - 1 for row in live]  # place of the parent in `first`
        partner = above if self._corrected else [min(second.index(row), len(t1) - 1) for row in live]
        x = self.pairs([t1[i] for i in partner], h1, [pool.tokens[row - 1] for row in live], h2[shared.ids(above)])
        source = {row: i for i, row in enumerate(live)}  # node -> row of x, which all its descendants share
        for m in range(spec.n_heads):
            used = sorted({source[row] for row in live})
            sharers = [next(row for row in live if source[row] == i) for i in used]
            logits = shared.logits(self.mlp(m, x[shared.ids(used)]))
            ids, chances = candidates(pool, sharers, logits, choose, spec.mlp_top_k)
            at = [used.index(source[row]) for row in live]
            children = spread(pool, live, ids[at], chances[at], spec.pruning)
            source = {child: source[pool.parents[child - 1]] for child in children}
            live = among_best(pool, children, budget)
            if not live:
                break
        return pool.best(budget)

    def pairs(self, t1: list[int], h1: Tensor, t2: list[int], h2: Tensor) -> Tensor:
        """MLP inputs (rows, 2H): [fc(t1, h1), fc(t2, h2)]."""
        fc, embed, ids = self.fc, self._shared.embed, self._shared.ids
        one = fc(torch.cat((embed(ids(t1)), h1.expand(len(t1), -1)), dim=-1))
        return torch.cat((one, fc(torch.cat((embed(ids(t2)), h2), dim=-1))), dim=-1)

    def mlp(self, m: int, x: Tensor) -> Tensor:
        """MLP head m on (rows, 2H) -> (rows, H)."""
        x = self._blocks[m][0].inner(x)
        for block in self._blocks[m][1:]:
            x = block(x)
        return x
