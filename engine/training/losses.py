"""What heads are taught: the target's own law, and to come near to its hidden states.

Per drafted token: cross-entropy to the target's likeliest tokens with the target's chances (the teacher loss of Hydra++), plus a smooth L1
distance to the hidden state from which the target wrote its token (EAGLE, Gumiho), in units of the usual size of hidden states. Later
tokens count less, since they matter only where all before them are kept.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from engine.training.batches import Batch
from engine.training.network import Embed, Network

LOGITS = 1 << 24  # numbers of logits that are in memory at once
FALL = 0.8  # weight of a drafted token relative to that of the one before
NEAR = 0.5  # weight of the distance to hidden states


@dataclass(frozen=True, slots=True)
class Taught:
    """What the heads learn against: the LM head (S, H) float32 and the usual size of a hidden state."""

    rows: Tensor
    scale: float
    embed: Embed  # vectors of about that size as well: embeddings are often a hundred times smaller, and would be learned from too slowly
    half: bool = False  # matrix products in bf16


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
        for first in range(0, len(leaf), step):
            rows = slice(first, first + step)
            loss = weight / count * _teacher(leaf[rows], batch.soft_ids[rows, k], batch.soft_chances[rows, k], taught)
            loss.backward()
            total += loss.item()
        if k < network.near:
            which, goal = batch.goal(k)
            loss = weight * NEAR * F.smooth_l1_loss(leaf[which] / taught.scale, goal / taught.scale) if len(which) else leaf.sum() * 0.0
            loss.backward()
            total += loss.item()
        assert leaf.grad is not None
        gradients.append(leaf.grad.to(vector.dtype))
    torch.autograd.backward(vectors, gradients)
    return total


def _teacher(vectors: Tensor, ids: Tensor, chances: Tensor, taught: Taught) -> Tensor:
    """Sum over rows of the cross-entropy to the chances of `ids` (m, TEACHER); ids of -1 do not count."""
    with torch.autocast(vectors.device.type, torch.bfloat16, enabled=taught.half):
        logits = F.linear(vectors, taught.rows)
    law = torch.log_softmax(logits.float(), dim=-1)
    return -(law.gather(1, ids.clamp(min=0)) * chances).sum()


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
