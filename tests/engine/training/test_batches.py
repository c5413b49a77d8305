"""Rows, labels and goals of a batch, by counting; the order of an epoch."""

from __future__ import annotations

import torch

from engine.training import batches
from tests.engine.training.worlds import some_text


def test_every_drafted_token_stands_where_it_should() -> None:
    texts = [some_text(0, 12, 4, 8, 40), some_text(1, 7, 5, 8, 40), some_text(2, 9, 1, 8, 40)]
    listed = torch.tensor([3, 4, 5, 8, 11, 12, 13, 20, 21, 22, 30, 31, 38])
    columns = torch.full((40,), -1)
    columns[listed] = torch.arange(len(listed))
    batch = batches.build(texts, 3, columns)
    assert batch.tokens.shape == (3, 12)
    row = 0
    for number, text in enumerate(texts):
        n = len(text.ids)
        assert batch.tokens[number, :n].tolist() == text.ids.tolist()
        for t in range(max(text.start - 2, 0), n - 2):
            assert (int(batch.text[row]), int(batch.at[row])) == (number, t)
            for k in range(3):
                wanted = t + 2 + k
                there = text.start <= wanted < n
                assert int(batch.labels[row, k]) == (int(text.ids[wanted]) if there else -1)
                which, goal = batch.goal(k)
                if there:
                    place = which.tolist().index(row)
                    assert torch.equal(goal[place], text.hidden[wanted - 1])
                    taught = {
                        int(columns[i]): float(p)
                        for i, p in zip(text.top_ids[wanted - text.start], text.top_chances[wanted - text.start], strict=True)
                        if columns[i] >= 0
                    }
                    found = {int(c): float(p) for c, p in zip(batch.soft_ids[row, k], batch.soft_chances[row, k], strict=True) if c >= 0}
                    assert found == taught
                else:
                    assert row not in which.tolist()
                    assert (batch.soft_ids[row, k] == -1).all()
                    assert (batch.soft_chances[row, k] == 0).all()
            row += 1
    assert row == len(batch.text)


def test_an_epoch_has_every_text_once() -> None:
    length = {number: 10 + (number * 37) % 90 for number in range(300)}
    order = batches.order(list(length), length.__getitem__, 400, 1, 0)
    assert sorted(number for batch in order for number in batch) == sorted(length)
    padded = [len(batch) * max(length[number] for number in batch) for batch in order]
    assert max(padded) <= 400
    assert sum(length.values()) / sum(padded) > 0.85  # little padding
    assert order == batches.order(list(length), length.__getitem__, 400, 1, 0)
    assert order != batches.order(list(length), length.__getitem__, 400, 1, 1)
    assert order != batches.order(list(length), length.__getitem__, 400, 2, 0)
