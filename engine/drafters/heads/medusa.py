"""Medusa-1 (Cai et al., arXiv 2401.10774): independent heads on the last hidden state; head i guesses i + 2 tokens ahead.

y = h + silu(W h + b), as often as there are blocks; logits by an own LM head, or by the target's in the older layout. The heads do not
see one another, so all nodes of one depth have the same children.
"""

from __future__ import annotations

import torch
from torch import Tensor

from engine.drafters.heads import grow
from engine.drafters.heads.base import Shared, shortlist
from engine.drafters.heads.grow import Choose, Path, Tree
from engine.drafters.heads.layers import Maker
from engine.drafters.heads.specs import HeadSpec


class Medusa:
    """See `base.Head`."""

    fixed = True

    def __init__(self, spec: HeadSpec, made: Maker, shared: Shared, choices: tuple[Path, ...]) -> None:
        self._shared = shared
        self.names = shortlist(spec, made)
        self._choices = grow.checked(choices, spec.n_heads)
        self._blocks = [made.blocks([f"{k}.{j}" for j in range(spec.head_layers)]) for k in range(spec.n_heads)]
        self._heads = [made.linear(f"{k}.{spec.head_layers}") for k in range(spec.n_heads)] if spec.own_lm_head else []
        self.nbytes = made.nbytes
        self.length = 0
        self._last: Tensor | None = None  # (1, H)

    def extend(self, tokens: Tensor, taps: Tensor) -> None:
        """Only the last position counts."""
        self._last = self._shared.take(taps[-1:])
        self.length += len(tokens)

    def truncate(self, length: int) -> None:
        """The last hidden state is gone."""
        self.length, self._last = length, None

    @torch.inference_mode()
    def grow(self, root: int, budget: int, choose: Choose) -> Tree:
        """The fixed tree; the root does not matter to the heads."""
        return grow.static(self._choices, root, budget, lambda depth, parents, tokens: self.logits(depth), choose)

    def logits(self, head: int) -> Tensor:
        """(1, V) of one head."""
        assert self._last is not None
        x = self._last
        for block in self._blocks[head]:
            x = block(x)
        return self._heads[head](x).float() if self._heads else self._shared.logits(x)
