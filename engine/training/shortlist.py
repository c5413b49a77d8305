"""Which tokens heads may draft, and the target's LM head for them.

The most frequent tokens of the replies come first; places that are left go to the lowest ids, which byte-pair tokenizers give to what they
met most often. What is not on the list is never drafted, and the target writes it all the same.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from engine.decoder.model import Model
from engine.training.shards import Store

PROBED = 64  # rows of the identity that go through the LM head at once
FIRST_TEXTS = 64  # texts from which the usual size of a hidden state is taken


def choose(store: Store, numbers: list[int], size: int, vocab: int) -> Tensor:
    """(size,) ascending token ids."""
    if size >= vocab:
        return torch.arange(vocab)
    counts = torch.zeros(vocab, dtype=torch.int64)
    for number in numbers:
        text = store.read(number)
        counts += torch.bincount(text.ids[text.start :], minlength=vocab)
    lowest = torch.arange(vocab, 0, -1)  # among tokens that were seen equally often
    return (counts * (vocab + 1) + lowest).topk(size).indices.sort().values


def columns(ids: Tensor, vocab: int) -> Tensor:
    """(vocab,) column of each token, -1 where it is not on the list."""
    out = torch.full((vocab,), -1, dtype=torch.int64)
    out[ids] = torch.arange(len(ids))
    return out


def coverage(store: Store, numbers: list[int], ids: Tensor, vocab: int) -> float:
    """Share of the replies' tokens that are on the list."""
    listed = columns(ids, vocab) >= 0
    inside = total = 0
    for number in numbers:
        text = store.read(number)
        reply = text.ids[text.start :]
        inside, total = inside + int(listed[reply].sum()), total + len(reply)
    return inside / max(total, 1)


@torch.no_grad()  # not inference mode: these rows take part in training
def head_rows(model: Model, ids: Tensor) -> Tensor:
    """The LM head for these tokens, (len(ids), H) float32, as it really runs: read off by giving it one direction after the other."""
    weights = model.weights
    hidden = weights.config.hidden_size
    out = torch.empty((len(ids), hidden))
    where = ids.to(weights.device)
    for first in range(0, hidden, PROBED):
        probe = torch.zeros((min(PROBED, hidden - first), hidden), dtype=weights.dtype, device=weights.device)
        probe[:, first : first + PROBED].fill_diagonal_(1.0)
        out[:, first : first + PROBED] = weights.head(probe)[:, where].float().cpu().T
    return out


def embedding_gain(model: Model, ids: Tensor, scale: float) -> float:
    """How many times smaller than hidden states the embeddings of these tokens are, as a power of two: multiplying by it rounds nothing."""
    own = model.embed(ids).float().pow(2).mean().item() ** 0.5
    return 2.0 ** round(math.log2(scale / own)) if own > 0 else 1.0


def usual_size(store: Store, numbers: list[int]) -> float:
    """Root mean square of the hidden states of some texts."""
    squares = [store.read(number).hidden.pow(2).mean().item() for number in numbers[:FIRST_TEXTS]]
    return (sum(squares) / max(len(squares), 1)) ** 0.5 or 1.0
