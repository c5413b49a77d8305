"""What all draft heads have in common, and what they borrow from their target."""

from __future__ import annotations

from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from engine.decoder.model import Model
from engine.drafters.heads.grow import Choose, Tree
from engine.drafters.heads.layers import Maker
from engine.drafters.heads.specs import HeadSpec


class Head(Protocol):
    """A set of draft heads with its state: what it has read of the confirmed text. `length` positions are read."""

    names: Tensor | None  # (draft vocabulary,) target id of each of its columns; None = they are target ids
    fixed: bool  # it fills a fixed tree, whose list is in order of trust; else nodes come shallow first

    @property
    def length(self) -> int: ...

    @property
    def nbytes(self) -> int: ...

    def extend(self, tokens: Tensor, taps: Tensor) -> None:
        """Read positions length, length + 1, …: hidden states (n, F) of the target, each with the token that follows it (n,)."""

    def truncate(self, length: int) -> None:
        """Go back. The last position must be read again before `grow`."""

    def grow(self, root: int, budget: int, choose: Choose) -> Tree:
        """A tree of at most `budget` nodes behind the confirmed text and its root. Leaves the state as it was."""


class Shared:
    """The target's embedding and LM head, used where they are: never copied. An own embedding that equals the target's is dropped."""

    def __init__(self, model: Model, spec: HeadSpec, made: Maker) -> None:
        self._model, self._device, self._dtype, self._gain = model, made.device, made.dtype, spec.embedding_gain
        own = made.tensors.get("embed_tokens.weight") if spec.own_embedding else None
        if own is not None and same(own, model.weights.embed):
            own = None
        self._own = None if own is None else own.to(made.device)
        made.nbytes += 0 if self._own is None else self._own.nbytes
        # of home-made Gumiho heads; the other families' own LM heads belong to single heads
        self._lm_head = made.linear("lm_head") if spec.family == "gumiho" and spec.own_lm_head else None

    def embed(self, tokens: Tensor) -> Tensor:
        """(M,) -> (M, H) in the head's type."""
        if self._own is None:
            found = self._model.embed(tokens).to(self._dtype)
        else:
            found = F.embedding(tokens.to(self._own.device), self._own).to(self._dtype)
        return found if self._gain == 1.0 else found * self._gain

    def logits(self, hidden: Tensor) -> Tensor:
        """The target's LM head on (M, H) -> (M, V), or the shortlist's."""
        if self._lm_head is not None:
            return self._lm_head(hidden.to(self._dtype)).float()
        return self._model.head(hidden.to(self._model.weights.dtype))

    def take(self, taps: Tensor) -> Tensor:
        """The target's hidden states in the head's type."""
        return taps.to(self._device, self._dtype)

    def ids(self, tokens: list[int]) -> Tensor:
        """Token ids as a tensor."""
        return torch.tensor(tokens, device=self._device)


def shortlist(spec: HeadSpec, made: Maker) -> Tensor | None:
    """Target ids (draft vocabulary,) of the columns of a smaller LM head; None where they are the target's own. d2t holds offsets."""
    if "d2t" not in made.tensors:
        return None
    return torch.arange(spec.draft_vocab) + made.tensors["d2t"].to(torch.int64)


def same(a: Tensor, b: Tensor, rows: int = 4096) -> bool:
    """Whether two tables hold the same numbers, once in the second one's type. Read in blocks."""
    if a.shape != b.shape:
        return False
    return all(torch.equal(x.to(y.device, y.dtype), y) for x, y in zip(a.split(rows), b.split(rows), strict=True))
