"""Hydra and Hydra++ (Ankner et al., arXiv 2402.05109): heads that see the drafted tokens before them.

Head k reads [h, Emb(root), Emb(d1), …, Emb(dk)]: the last hidden state of the target, then the embeddings (the target's) of the whole
path. Hydra++ puts h through one transformer layer over all confirmed hidden states and that layer's own norm first; drafted tokens
never enter it. Ungrounded heads read h alone.
"""

from __future__ import annotations

import torch
from torch import Tensor

from engine.drafters.heads import grow
from engine.drafters.heads.base import Shared, shortlist
from engine.drafters.heads.grow import Choose, Path, Tree
from engine.drafters.heads.layers import DraftCache, Layer, Maker, Rotary, causal
from engine.drafters.heads.specs import HeadSpec

AT = "prefix_embeding_layer"


class Prefix:
    """Hydra++'s layer over the confirmed hidden states, with its own cache."""

    def __init__(self, spec: HeadSpec, made: Maker, context: int) -> None:
        self._device, self._dtype = made.device, made.dtype
        self._layer = Layer(made, f"{AT}.layers.0", spec)
        self._before = made.norm(f"{AT}.layers.0.input_layernorm", spec.rms_eps)
        self._after = made.norm(f"{AT}.norm", spec.rms_eps)
        self._rotary = Rotary(spec, context, made.device, made.dtype)
        self.cache = DraftCache(spec, made.device, made.dtype)

    def __call__(self, x: Tensor) -> Tensor:
        """New hidden states (n, H) -> (n, H)."""
        cache, n = self.cache, len(x)
        cache.reserve(cache.length + n)
        turn = self._rotary.at(torch.arange(cache.length, cache.length + n, device=self._device))
        mask = causal(cache.length, n, self._device, self._dtype)
        x = self._layer(self._before(x), x, turn, cache.layer(0), cache.length, mask)
        cache.length += n
        return self._after(x)


class Hydra:
    """See `base.Head`."""

    fixed = True

    def __init__(self, spec: HeadSpec, made: Maker, shared: Shared, choices: tuple[Path, ...], context: int) -> None:
        self._shared, self._grounded = shared, spec.grounded
        self.names = shortlist(spec, made)
        self._choices = grow.checked(choices, spec.n_heads)
        plus = spec.family == "hydra++"  # there every other index is a dropout
        self.prefix = Prefix(spec, made, context) if plus else None
        inner = [2 * j + 1 if plus else j for j in range(spec.head_layers)]
        self._blocks = [made.blocks([f"hydra_mlp.{k}.{j}" for j in inner]) for k in range(spec.n_heads)]
        self._heads = [made.linear(f"hydra_lm_head.{k}" + (".1" if plus else "")) for k in range(spec.n_heads)]
        self._weights = made.nbytes
        self.length = 0
        self._last: Tensor | None = None  # (1, H)
        self._inputs = torch.empty(0)  # of the last call (paths, (k + 2) H)

    @property
    def nbytes(self) -> int:
        return self._weights + (self.prefix.cache.nbytes if self.prefix is not None else 0)

    @torch.inference_mode()
    def extend(self, tokens: Tensor, taps: Tensor) -> None:
        """All positions go through the prefix layer, if there is one; the last counts."""
        x = self._shared.take(taps if self.prefix is not None else taps[-1:])
        self._last = (self.prefix(x) if self.prefix is not None else x)[-1:]
        self.length += len(tokens)

    def truncate(self, length: int) -> None:
        """The last hidden state is gone."""
        self.length, self._last = length, None
        if self.prefix is not None:
            self.prefix.cache.length = length

    @torch.inference_mode()
    def grow(self, root: int, budget: int, choose: Choose) -> Tree:
        """The fixed tree."""
        return grow.static(self._choices, root, budget, self.expand, choose)

    def expand(self, depth: int, parents: list[int], tokens: list[int]) -> Tensor:
        """Logits (paths, V) of head `depth`: each path is that of row `parents[i]` of the last call, with one more token."""
        assert self._last is not None
        if not self._grounded:
            return self.head(depth, self._last)[1]
        x = self._last if depth == 0 else self._inputs[self._shared.ids(parents)]
        self._inputs = torch.cat((x, self._shared.embed(self._shared.ids(tokens))), dim=-1)
        return self.head(depth, self._inputs)[1]

    def head(self, k: int, x: Tensor) -> tuple[Tensor, Tensor]:
        """Head k on its inputs -> its hidden states (paths, H), logits (paths, V)."""
        for block in self._blocks[k]:
            x = block(x)
        return x, self._heads[k](x).float()
