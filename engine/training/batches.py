"""From stored texts to batches: padded texts of similar length, and what each drafted token should be.

The order of an epoch follows from (seed, epoch) alone, so a resumed run sees what it would have seen.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from engine.training.shards import TEACHER, Text

NEAR = 8  # batches whose texts are sorted by length together: little padding, and an order that stays random


@dataclass(frozen=True, slots=True)
class Batch:
    """Texts side by side, and M rows of them to learn from. Row: position t of a text, whose k-th drafted token is token t + 2 + k."""

    tokens: Tensor  # (B, N) int64, padded with 0
    hidden: Tensor  # (B, N - 1, H) float32
    text: Tensor  # (M,) which text
    at: Tensor  # (M,) which position
    labels: Tensor  # (M, K) int64 token ids; -1 = behind the end
    goals: Tensor  # (M, K) place of the hidden state to come near to in (B · (N - 1)); -1 = none
    soft_ids: Tensor  # (M, K, TEACHER) columns of the LM head; -1 = none
    soft_chances: Tensor  # (M, K, TEACHER) the target's chances of them; 0 where there is none

    def goal(self, k: int) -> tuple[Tensor, Tensor]:
        """Of the k-th drafted token: rows that have a goal, and these hidden states."""
        rows = (self.goals[:, k] >= 0).nonzero()[:, 0]
        return rows, self.hidden.flatten(0, 1)[self.goals[rows, k]]

    def to(self, device: torch.device) -> Batch:
        """On a device."""
        return Batch(*(getattr(self, name).to(device) for name in self.__slots__))


def build(texts: Sequence[Text], drafted: int, columns: Tensor) -> Batch:
    """A batch that teaches `drafted` tokens. `columns` (V,): the LM head's column of a token, -1 where the shortlist lacks it."""
    longest = max(len(text.ids) for text in texts)
    width = texts[0].hidden.shape[1]
    tokens = torch.zeros((len(texts), longest), dtype=torch.int64)
    hidden = torch.zeros((len(texts), longest - 1, width))
    parts: list[tuple[Tensor, ...]] = []
    for row, text in enumerate(texts):
        n = len(text.ids)
        tokens[row, :n] = text.ids
        hidden[row, : n - 1] = text.hidden
        parts.append(_rows(row, text, drafted, columns, longest - 1))
    which, at, labels, goals, soft_ids, soft_chances = (torch.cat(column) for column in zip(*parts, strict=True))
    return Batch(tokens, hidden, which, at, labels, goals, soft_ids, soft_chances)


def _rows(row: int, text: Text, drafted: int, columns: Tensor, stride: int) -> tuple[Tensor, ...]:
    """The rows of one text: from where the root is the prompt's last token to where one token is left to draft."""
    n = len(text.ids)
    at = torch.arange(max(text.start - 2, 0), n - 2)  # (m,)
    wanted = at[:, None] + 2 + torch.arange(drafted)  # (m, K) index of each drafted token
    there = wanted < n
    inside = wanted.clamp(max=n - 1)
    labels = torch.where(there, text.ids[inside], -1)
    goals = torch.where(there, row * stride + (inside - 1), -1)
    judged = (inside - text.start).clamp(min=0)
    there &= wanted >= text.start  # a prompt of one token has a row whose first token is still the prompt's
    chances = text.top_chances[judged]  # (m, K, TEACHER)
    ids = columns[text.top_ids[judged]]
    known = (ids >= 0) & there[:, :, None]
    pad = TEACHER - ids.shape[-1]
    soft_ids = torch.nn.functional.pad(torch.where(known, ids, -1), (0, pad), value=-1)
    soft_chances = torch.nn.functional.pad(torch.where(known, chances, 0.0), (0, pad))
    return torch.full_like(at, row), at, torch.where(there, labels, -1), torch.where(there, goals, -1), soft_ids, soft_chances


def order(numbers: Sequence[int], length: Callable[[int], int], tokens: int, seed: int, epoch: int) -> list[list[int]]:
    """One epoch: batches of text numbers of at most about `tokens` padded tokens each, every text once."""
    rng = random.Random(f"{seed}/{epoch}")
    shuffled = list(numbers)
    rng.shuffle(shuffled)
    batches: list[list[int]] = []
    group: list[int] = []
    held = 0

    def cut() -> None:
        nonlocal held
        group.sort(key=lambda number: (length(number), number))
        batch: list[int] = []
        for number in group:
            if batch and (len(batch) + 1) * length(number) > tokens:
                batches.append(batch)
                batch = []
            batch.append(number)
        if batch:
            batches.append(batch)
        group.clear()
        held = 0

    for number in shuffled:
        group.append(number)
        held += length(number)
        if held >= NEAR * tokens:
            cut()
    cut()
    rng.shuffle(batches)
    return batches
