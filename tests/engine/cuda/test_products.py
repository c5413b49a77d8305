"""Tables of calls: found on kernels that switch by the number of rows, and keeping the bits."""

from __future__ import annotations

import functools

import pytest
import torch
from torch import Tensor

from engine.cuda import products
from engine.cuda.products import MOST, SIZES, Planned, Survey, Table, plan, survey
from engine.cuda.recorder import EagerRecorder, Run
from engine.decoder.front import Front
from engine.decoder.linear import Dense

CPU = torch.device("cpu")


class Switching:
    """A product like those of a card: one way of summing up to `few` rows, another one above. Counts its calls' rows."""

    row_invariant = False

    def __init__(self, few: int, n: int = 24, k: int = 96, placeless: bool = True) -> None:
        made = torch.Generator().manual_seed(1)
        self.out_features, self.in_features = n, k
        self._weight = torch.randn(n, k, generator=made)
        self._few, self._places = few, not placeless
        self.calls: list[int] = []

    def __call__(self, x: Tensor, front: Front | None = None, add: Tensor | None = None) -> Tensor:
        assert front is None
        assert add is None
        self.calls.append(len(x))
        terms = x[:, None, :] * self._weight
        if len(x) > self._few:
            terms = terms.flip(-1)
        out = functools.reduce(torch.add, terms.unbind(-1))  # one after the other, in this order
        return out + torch.arange(len(x))[:, None] * 1e-3 if self._places and len(x) > self._few else out

    @property
    def nbytes(self) -> int:
        return 7


def prices(seconds: dict[int, float]) -> EagerRecorder:
    """A recorder whose clock says what the numbers of rows cost."""

    class Priced(EagerRecorder):
        def record(self, run: Run) -> Run:
            return run

        def seconds(self, run: Run, times: int) -> float:
            (out,) = run()
            assert out is not None
            return seconds[len(out)]

    return Priced(CPU)


FLAT = dict.fromkeys(SIZES, 1.0)


def test_a_survey_finds_what_keeps_the_bits() -> None:
    found = survey([Switching(3)], prices(FLAT), torch.float32)
    assert found.alone == (1, 2, 3)
    assert found.placeless == (8, 16)
    assert found.seconds == FLAT
    assert survey([Switching(99)], prices(FLAT), torch.float32).alone == SIZES
    assert survey([Switching(3, placeless=False)], prices(FLAT), torch.float32).placeless == ()


def test_every_sample_must_agree() -> None:
    assert survey([Switching(99), Switching(2)], prices(FLAT), torch.float32).alone == (1, 2)


@pytest.mark.parametrize(
    ("seconds", "alone", "placeless", "three", "seven"),
    [
        (FLAT, (1, 2, 3), (8, 16), (16,), (16,)),  # padding costs nothing
        ({**FLAT, 16: 2.0}, (1, 2, 3), (8, 16), (8,), (8,)),
        ({**FLAT, 8: 1.3, 16: 1.3}, (1, 2, 3), (8, 16), (3,), (1, 3, 3)),  # one row would suffer
        ({**FLAT, 8: 1.3, 16: 1.3}, (1, 2, 3, 4), (), (3,), (3, 4)),
        ({**FLAT, 8: 1.6, 16: 1.6}, (1,), (8, 16), (8,), (8,)),  # piece by piece would cost four times as much
        ({**FLAT, 8: 2.5, 16: 2.5}, (1,), (8, 16), (), ()),  # nothing bearable: near-ties
        ({**FLAT, 8: 1.3, 16: 1.3}, SIZES, (8, 16), (3,), (7,)),  # bits are kept anyway
    ],
)
def test_plans(
    seconds: dict[int, float], alone: tuple[int, ...], placeless: tuple[int, ...], three: tuple[int, ...], seven: tuple[int, ...]
) -> None:
    table = plan(Survey(seconds, alone, placeless))
    if not three:
        assert table == Table()
        return
    assert len(table.calls) == MOST + 1
    assert table.calls[0] == ()
    for rows, wanted in ((3, three), (7, seven)):
        assert sorted(table.sizes(rows)) == sorted(wanted)
    for rows in range(1, 70):
        assert rows <= sum(table.sizes(rows))
        assert set(table.sizes(rows)) <= {1, *alone, *placeless}


def test_a_dear_size_is_passed_over() -> None:
    """Rows that fit into a cheaper call with room to spare go there."""
    seconds = {**FLAT, 2: 9.0, 8: 5.0, 16: 5.0}
    table = plan(Survey(seconds, (1, 2, 3), ()))
    assert table.sizes(2) in ((3,), (1, 1))
    assert sum(seconds[s] for s in table.sizes(2)) == 1.0
    assert table.sizes(2) == (3,)


@pytest.mark.parametrize(
    ("found", "few"), [(Survey(FLAT, (1, 2, 3), ()), 3), (Survey(FLAT, (1, 2, 3), (8,)), 3), (Survey(FLAT, (1, 2, 3), (16,)), 3)]
)
def test_planned_rows_have_the_same_bits_at_any_number(found: Survey, few: int) -> None:
    inner = Switching(few)
    made = Planned(inner, plan(found), 80)
    assert made.row_invariant
    assert made.nbytes == 7
    x = torch.randn(70, inner.in_features)
    singly = torch.cat([made(x[i : i + 1]) for i in range(70)])
    for rows in (1, 2, 3, 4, 5, 8, 9, 15, 16, 17, 33, 65):
        assert torch.equal(made(x[:rows]), singly[:rows]), rows
    assert not torch.equal(inner(x[:9]), torch.cat([inner(x[i : i + 1]) for i in range(9)]))  # else this proves nothing


def test_front_and_sum_come_around_it() -> None:
    inner = Switching(3)
    made = Planned(inner, plan(Survey(FLAT, (1, 2, 3), ())), 80)
    x, add = torch.randn(5, 96), torch.randn(5, 24)

    class Twice:
        name = "norm"

        def __call__(self, x: Tensor) -> Tensor:
            return 2 * x

    assert torch.equal(made(x, Twice(), add), add + made(2 * x))


def test_prompts_go_in_one_call() -> None:
    inner = Switching(3)
    Planned(inner, plan(Survey(FLAT, (1, 2, 3), ())), 20)(torch.randn(21, 96))
    assert inner.calls == [21]


def test_without_a_table_nothing_changes() -> None:
    inner = Switching(3)
    made = Planned(inner, Table(), 80)
    assert not made.row_invariant
    made(torch.randn(5, 96))
    assert inner.calls == [5]


def test_real_products_of_this_machine() -> None:
    """Whatever it finds here must hold: dense bf16 rows differ by their number on most processors."""
    torch.manual_seed(0)
    linears = [Dense(torch.randn(512, 256, dtype=torch.bfloat16), None) for _ in range(2)]
    found = survey(linears, EagerRecorder(CPU), torch.bfloat16)
    assert 1 in found.alone
    assert all(seconds > 0 for seconds in found.seconds.values())
    table = plan(found)
    if not table.calls:
        pytest.skip("no bearable table for dense products here")
    made = Planned(linears[0], table, 80)
    x = torch.randn(products.MOST, 256).to(torch.bfloat16)
    singly = torch.cat([made(x[i : i + 1]) for i in range(len(x))])
    for rows in range(1, products.MOST + 1):
        assert torch.equal(made(x[:rows]), singly[:rows])
