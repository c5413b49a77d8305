"""How a draft begins where the two tokenizers do not meet: the last word is offered to the drafter once more.

The target may stop inside what the drafter would write as one token (`second_l|argest`, a newline before an indentation). Going on behind a
token that the drafter never puts there gives poor drafts. So the pass that reads the last token also tells what else could have stood in
its place; where a longer token with the same beginning is likelier, and the target would not have written it otherwise, that one is
drafted: what it has more than the last token is new. This costs one more row, no pass.
"""

from __future__ import annotations

import numpy as np
from torch import Tensor

from engine.drafters.companion import Companion


def likeliest(logits: Tensor, ids: np.ndarray) -> int | None:
    """The best of some ids; None where there are none."""
    return int(ids[int(logits.cpu().numpy()[ids].argmax())]) if len(ids) else None


def reopen(side: Companion) -> tuple[list[int], Tensor | None]:
    """Begin a draft. Either the last id gave way to a longer one, which is drafted now: the target ids of what it adds, no logits. Or it
    stays: no ids, and the logits (D,) behind it. Raises NotFinite."""
    follower = side.follower
    before, behind = side.around()
    if before is None:
        return [], behind
    last = side.drafter.spell(follower.ids[-1:])
    token = likeliest(before, side.beginnings.of(last)) if follower.read.endswith(last) else None
    longer = side.drafter.table.tokens[token] if token is not None else None
    if token is None or longer is None or longer == last:
        return [], behind
    with side.translating():
        ids = follower.line.joined(longer[len(last) :])
    if not ids:
        return [], behind
    side.swap(token)
    return ids, None
