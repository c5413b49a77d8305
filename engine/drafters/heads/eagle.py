"""EAGLE-1, -2 and -3 (Li et al., arXiv 2401.15077, 2406.16858, 2503.01840): one transformer layer that goes on in the target's features.

Position i of the confirmed text is the pair (embedding of token i + 1, hidden state i). A drafted token is paired with the output for
its parent, sits at the position one behind its parent's, and sees the confirmed pairs and its own ancestors. Keys and values of
drafted tokens are forgotten: once tokens are confirmed, their pairs are read anew with the target's own hidden states.

EAGLE-1/2: x = fc([embedding, hidden]), no norm in front of attention, the output goes into the target's LM head as it is. EAGLE-3: three
taps of the target through fc, attention over [norm(embedding), norm(hidden)], its own norm and LM head over a smaller vocabulary.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch
from torch import Tensor

from engine.drafters.heads import grow
from engine.drafters.heads.base import Shared, shortlist
from engine.drafters.heads.grow import Choose, Path, Tree
from engine.drafters.heads.layers import DraftCache, Layer, Maker, Rotary, causal, masked
from engine.drafters.heads.specs import HeadSpec


class Features(ABC):
    """A transformer over pairs of token and hidden state, with a tree of drafted rows behind the confirmed ones."""

    def __init__(self, spec: HeadSpec, made: Maker, shared: Shared, context: int) -> None:
        self.spec, self.shared = spec, shared
        self._device, self._dtype = made.device, made.dtype
        self.rotary = Rotary(spec, context, made.device, made.dtype)
        self.cache = DraftCache(spec, made.device, made.dtype)
        self.last: Tensor | None = None  # (1, H) output for the last confirmed pair
        self._out = torch.empty(0)  # (rows, H) outputs of the last call
        self._sees = torch.empty(0, dtype=torch.bool)  # (rows, tree rows so far)

    @property
    def length(self) -> int:
        """Confirmed pairs."""
        return self.cache.length

    @torch.inference_mode()
    def extend(self, tokens: Tensor, taps: Tensor) -> None:
        """Read confirmed pairs."""
        self.last = self.confirmed(tokens, self.shared.take(taps))[-1:]

    def confirmed(self, tokens: Tensor, taps: Tensor) -> Tensor:
        """Outputs (n, H) for the next n pairs, which stay in the cache."""
        start, n = self.cache.length, len(tokens)
        positions = torch.arange(start, start + n, device=self._device)
        out = self.run(tokens, self.incoming(taps), positions, start, causal(start, n, self._device, self._dtype))
        self.cache.length += n
        return out

    def truncate(self, length: int) -> None:
        """Go back to so many pairs."""
        self.cache.length, self.last = length, None

    def begin(self) -> Tensor:
        """A new tree; the output for the root."""
        assert self.last is not None
        self._out = self.last
        self._sees = torch.zeros((1, 0), dtype=torch.bool, device=self._device)
        return self.last

    def level(self, depth: int, parents: list[int], tokens: list[int], siblings: bool = False) -> Tensor:
        """Outputs (rows, H) for drafted tokens of one depth, below rows `parents` of the last call. `siblings`: each of them also sees
        those before it."""
        above, rows = self.shared.ids(parents), len(tokens)
        hidden, before = self._out[above], self._sees.shape[1]
        own = torch.eye(rows, dtype=torch.bool, device=self._device)
        self._sees = torch.cat((self._sees[above], torch.ones_like(own).tril_() if siblings else own), 1)
        positions = torch.full((rows,), self.cache.length + depth - 1, device=self._device)
        mask = masked(self.cache.length, self._sees, self._dtype)
        self._out = self.run(self.shared.ids(tokens), hidden, positions, self.cache.length + before, mask)
        return self._out

    def incoming(self, taps: Tensor) -> Tensor:
        """Hidden states as they stand in pairs."""
        return taps

    @abstractmethod
    def run(self, tokens: Tensor, hidden: Tensor, positions: Tensor, at: int, mask: Tensor) -> Tensor:
        """The layers on rows of pairs, written to the cache from `at` on."""


class Fused(Features):
    """x = fc([embedding, hidden]), then layers of which the first has no norm in front: EAGLE-1/2 and Gumiho's serial part."""

    def __init__(self, spec: HeadSpec, made: Maker, shared: Shared, context: int) -> None:
        super().__init__(spec, made, shared, context)
        self.fc = made.linear("fc")
        self._layers = [Layer(made, f"layers.{i}", spec) for i in range(spec.layers)]
        self._norms = [None if i == 0 else made.norm(f"layers.{i}.input_layernorm", spec.rms_eps) for i in range(spec.layers)]

    def run(self, tokens: Tensor, hidden: Tensor, positions: Tensor, at: int, mask: Tensor) -> Tensor:
        self.cache.reserve(at + len(tokens))
        turn = self.rotary.at(positions)
        x = self.fc(torch.cat((self.shared.embed(tokens), hidden), dim=-1))
        for i, (layer, norm) in enumerate(zip(self._layers, self._norms, strict=True)):
            x = layer(x if norm is None else norm(x), x, turn, self.cache.layer(i), at, mask)
        return x


class Tapped(Features):
    """EAGLE-3: attention reads the normed embedding beside the normed hidden state."""

    def __init__(self, spec: HeadSpec, made: Maker, shared: Shared, context: int) -> None:
        super().__init__(spec, made, shared, context)
        self._fc = made.linear("fc")
        self._layer = Layer(made, "midlayer", spec)
        self._of_embedding = made.norm("midlayer.input_layernorm", spec.rms_eps)
        self._of_hidden = made.norm("midlayer.hidden_norm", spec.rms_eps)

    def incoming(self, taps: Tensor) -> Tensor:
        return self._fc(taps)

    def run(self, tokens: Tensor, hidden: Tensor, positions: Tensor, at: int, mask: Tensor) -> Tensor:
        self.cache.reserve(at + len(tokens))
        normed = self._of_hidden(hidden)
        x = torch.cat((self._of_embedding(self.shared.embed(tokens)), normed), dim=-1)
        residual = normed if self.spec.norm_before_residual else hidden
        return self._layer(x, residual, self.rotary.at(positions), self.cache.layer(0), at, mask)


class OverFeatures:
    """What heads over `Features` have in common: their place in the text is that of the features."""

    def __init__(self, features: Features, weights: int) -> None:
        self.features, self._weights = features, weights
        self.extend, self.truncate = features.extend, features.truncate

    @property
    def length(self) -> int:
        return self.features.length

    @property
    def nbytes(self) -> int:
        return self._weights + self.features.cache.nbytes


class Eagle(OverFeatures):
    """See `base.Head`. EAGLE-1 fills a fixed tree, EAGLE-2 and -3 grow one."""

    def __init__(self, spec: HeadSpec, made: Maker, shared: Shared, choices: tuple[Path, ...], context: int) -> None:
        self._spec, self._shared = spec, shared
        self.names = shortlist(spec, made)
        if spec.family == "eagle3":
            features: Features = Tapped(spec, made, shared, context)
            self._norm, self._head = made.norm("norm", spec.rms_eps), made.linear("lm_head")
        else:
            features = Fused(spec, made, shared, context)
        super().__init__(features, made.nbytes)
        self._choices = grow.checked(choices, max(map(len, choices))) if choices else ()
        self.fixed = bool(choices)

    @torch.inference_mode()
    def grow(self, root: int, budget: int, choose: Choose) -> Tree:
        """A tree by the head's own scores, or the fixed one."""
        if self._choices:
            return grow.static(self._choices, root, budget, self.expand, choose)
        return grow.dynamic(self._spec.depth, self._spec.top_k, root, min(budget, self._spec.total - 1), self.expand, choose)

    def expand(self, depth: int, parents: list[int], tokens: list[int]) -> Tensor:
        """Logits behind drafted tokens; depth 0 is the root, whose pair is confirmed."""
        return self.logits(self.features.begin() if depth == 0 else self.features.level(depth, parents, tokens))

    def logits(self, hidden: Tensor) -> Tensor:
        """(M, H) -> (M, draft vocabulary)."""
        return self._head(self._norm(hidden)).float() if self._spec.family == "eagle3" else self._shared.logits(hidden)
