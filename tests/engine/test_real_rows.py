"""Row invariance on real models, bit for bit: logits and picks of a row do not depend on how many rows share the pass."""

from __future__ import annotations

import pytest
import torch

from engine.speculation.sampling import Filters, Picker, Row
from tests.real import GEMMA, PROMPTS, Q05, Q15, SMOL, session

pytestmark = pytest.mark.real
WIDTHS = (1, 2, 3, 4, 5, 6, 7, 8, 9, 12, 15, 16)
FILTERS = (Filters(), Filters(0.7, 0.95), Filters(1.0), Filters(1.0, top_k=40, min_p=0.02))


@pytest.mark.parametrize(
    ("name", "quant", "head"),
    [
        pytest.param(SMOL, "nf4", "int8", marks=pytest.mark.quick),
        pytest.param(Q05, "nf4", "int8", marks=pytest.mark.quick),
        *((name, "nf4", head) for name in (SMOL, Q05, Q15, GEMMA) for head in ("int8", "nf4") if (name, head) != (SMOL, "int8")),
        (SMOL, "int8", "int8"),
        (Q15, "int8", "int8"),
        (GEMMA, "int8", "int8"),
    ],
)
def test_rows_do_not_see_each_other(name: str, quant: str, head: str) -> None:
    made = session(name, quant, head)
    target = made.target
    if not target.exact:
        pytest.skip("this CPU has no row-invariant kernels for the scheme")
    text = " ".join(PROMPTS) * (4 if name == GEMMA else 1)
    ids = made.tokenizer.encode(text, special=True)
    # depths around whole stretches of 64 slots, and for Gemma around its window
    lengths = [5, 47, 60, 63, 64, 120, 250] + ([505, 512, 570, 700] if name == GEMMA else [])
    for length in lengths:
        length = min(length, len(ids) - 17)
        target.truncate(0)
        target.prefill(ids[:length])
        rows = torch.tensor(ids[length : length + 16])
        alone = []
        for i in range(16):
            alone.append(target.verify(rows[i : i + 1], ())[0])
            target.keep((0,))
        target.truncate(length)
        places = [Row(i) for i in range(16)]
        for width in WIDTHS:
            logits = target.verify(rows[:width], tuple(range(width - 1)))
            assert all(torch.equal(logits[i], alone[i]) for i in range(width)), (length, width)
            for filters in FILTERS:
                picks = Picker(filters, 7).pick(logits, places[:width])
                assert picks == [Picker(filters, 7).pick(alone[i][None], places[i : i + 1])[0] for i in range(width)]
