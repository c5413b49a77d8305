"""How good heads are on stored greedy replies: for every place of a text the drafted tokens are compared with what the target wrote.

Every place is judged at once, with the true tokens before each drafted one; walking through a text by what is kept then gives the very
steps of a greedy chat with a chain of that many nodes.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from engine.speculation.cost import Cost
from engine.training import batches
from engine.training.losses import Taught, guesses
from engine.training.network import Network
from engine.training.shards import Store

TOKENS = 2048  # of one batch


@dataclass(frozen=True, slots=True)
class Score:
    """What was found. `agreement[k]`: share of all places where drafted token k + 1 is right, those before it given."""

    tau: float  # tokens / steps
    agreement: tuple[float, ...]
    kept: tuple[float, ...]  # of the steps that kept k tokens, the share that kept one more
    steps: int


def judge(network: Network, store: Store, numbers: list[int], ids: torch.Tensor, columns: torch.Tensor, taught: Taught) -> Score:
    """Try heads on texts. `ids` (S,) are the tokens of the LM head's columns."""
    was = network.training
    network.eval()
    drafted, device = network.drafted, taught.rows.device
    right, places = torch.zeros(drafted), torch.zeros(drafted)
    kept, reached = [0] * drafted, [0] * drafted
    steps = tokens = 0
    for numbers_of in batches.order(numbers, store.length, TOKENS, 0, 0):
        batch = batches.build([store.read(number) for number in numbers_of], drafted, columns).to(device)
        found = ids.to(device)[guesses(network, batch, taught)]
        hits = ((found == batch.labels) & (batch.labels >= 0)).cpu()
        right += hits.sum(0)
        places += (batch.labels >= 0).cpu().sum(0)
        text = batch.text.cpu()
        for row, number in enumerate(numbers_of):
            mine = hits[text == row].tolist()
            tokens += store.replied(number)
            steps += store.replied(number) - len(mine)  # a token that has no hidden state two before it
            at = 0
            while at < len(mine):
                taken = 0
                while taken < drafted and mine[at][taken]:
                    taken += 1
                for k in range(min(taken + 1, drafted, len(mine) - at)):
                    reached[k] += 1
                    kept[k] += k < taken
                at, steps = at + taken + 1, steps + 1
    network.train(was)
    agreement = tuple((right / places.clamp(min=1)).tolist())
    return Score(tokens / max(steps, 1), agreement, tuple(k / max(n, 1) for k, n in zip(kept, reached, strict=True)), steps)


def speedup(kept: tuple[float, ...], verify: Cost, draft: Cost) -> float:
    """Expected tokens/s relative to plain with the best number of drafted nodes; 1 where none pays, 0 when costs are not known."""
    if not verify.known:
        return 0.0
    best, tokens, chance = 1.0, 1.0, 1.0
    for n, share in enumerate(kept, start=1):
        chance *= share
        tokens += chance
        best = max(best, tokens * verify.at(1) / (verify.at(n + 1) + draft.at(n)))
    return best
