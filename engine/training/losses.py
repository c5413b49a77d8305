"""What heads are taught: the target's own law, and to come near to its hidden states.

Per drafted token: cross-entropy to the target's likeliest tokens with the target's chances (the teacher loss of Hydra++), plus a smooth L1
distance to the hidden state from which the target wrote its token (EAGLE, Gumiho), in units of the usual size of hidden states. Later
tokens count less, since they matter only where all before them are kept.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
import torch.nn.functional as F
from torch import Tensor

from engine.training.batches import Batch
from engine.training.network import Embed, Network

LOGITS = 1 << 24  # numbers of logits that are in memory at once
FALL = 0.8  # weight of a drafted token relative to that of the one before
NEAR = 0.5  # weight of the distance to hidden states


@dataclass(frozen=True)
class Taught:
    """What the heads learn against: the LM head (S, H) float32 and the usual size of a hidden state."""

    rows: Tensor
    scale: float
    embed: Embed  # vectors of about that size as well: embeddings are often a hundred times smaller, and would be learned from too slowly
    half: bool = False  # matrix products in bf16

    @cached_property
    def product(self) -> Tensor:
        """The LM head as it is multiplied with."""
        return self.rows.to(torch.bfloat16) if self.half else self.rows


def backward(network: Network, batch: Batch, taught: Taught) -> float:
    """Add the gradients of the mean loss of a batch; returns the loss. Logits are worked out in blocks of rows and never all held."""
    with torch.autocast(batch.hidden.device.type, torch.bfloat16, enabled=taught.half):
        vectors = network(batch, taught.embed)
    total = 0.0
    gradients: list[Tensor] = []
    for k, vector in enumerate(vectors):
        leaf = vector.detach().float().requires_grad_()
        weight = FALL**k
        count = max(int((batch.labels[:, k] >= 0).sum()), 1)
        step = max(LOGITS // taught.rows.shape[0], 1)
        told = torch.empty_like(leaf)
        for first in range(0, len(leaf), step):
            rows = slice(first, first + step)
            loss, told[rows] = _teacher(leaf[rows], batch.soft_ids[rows, k], batch.soft_chances[rows, k], taught)
            total += weight / count * loss
        told *= weight / count
        if k < network.near:
            which, goal = batch.goal(k)
            if len(which):
                distance = weight * NEAR * F.smooth_l1_loss(leaf[which] / taught.scale, goal / taught.scale)
                distance.backward()
                total += distance.item()
                assert leaf.grad is not None
                told += leaf.grad
        gradients.append(told.to(vector.dtype))
    torch.autograd.backward(vectors, gradients)
    return total


@torch.no_grad()
def _teacher(vectors: Tensor, ids: Tensor, chances: Tensor, taught: Taught) -> tuple[float, Tensor]:
    """Sum over rows of the cross-entropy to the chances of `ids` (m, TEACHER), and its gradient (m, H); ids of -1, with chance 0, do not
    count. In closed form, law · Σ chances − chances, so that no tape holds (m, S) logits."""
    law = torch.log_softmax(F.linear(vectors.to(taught.product.dtype), taught.product).float(), dim=-1)  # (m, S)
    ids = ids.clamp(min=0)
    loss = -(law.gather(1, ids) * chances).sum().item()
    law.exp_().mul_(chances.sum(1, keepdim=True)).scatter_add_(1, ids, -chances)
    return loss, (law.to(taught.product.dtype) @ taught.product).float()


@torch.no_grad()
def guesses(network: Network, batch: Batch, taught: Taught) -> Tensor:
    """(M, K) columns of the LM head that the heads hold likeliest."""
    with torch.autocast(batch.hidden.device.type, torch.bfloat16, enabled=taught.half):
        vectors = network(batch, taught.embed)
    step = max(LOGITS // taught.rows.shape[0], 1)
    out = []
    for vector in vectors:
        out.append(torch.cat([F.linear(part, taught.rows).argmax(-1) for part in vector.float().split(step)]))
    return torch.stack(out, dim=1)
