"""TLI, masked and pushed forward: the laws that are told are those that were drawn from, in target ids."""

from __future__ import annotations

from collections import Counter, defaultdict

import numpy as np
import pytest
import torch

from engine.bridge.codec import Codec
from engine.bridge.maps import vocabulary_map
from engine.drafters.companion import Companion
from engine.drafters.cross import Drafted
from engine.drafters.law import MOST, draw, filtered, joined, near, share
from engine.drafters.tli import Tli
from engine.speculation import noise
from engine.speculation.sampling import Filters, Picker, Row
from tests.engine.drafters.test_slem import COARSE, FINE, Told, context
from tests.toy_tokenizers import byte_level, codec, sentencepiece

ONE = Filters(1.0)


def side_of(target: Codec, drafter: Codec, wishes: dict[int, float]) -> Companion:
    """A drafter that has the same wishes everywhere."""
    side = Companion(Told(len(drafter.table.tokens), lambda said: list(wishes.items())), lambda question: [0], target, drafter)  # type: ignore[arg-type]
    return side


def ask(how: str, side: Companion, filters: Filters, seed: int, with_laws: bool, budget: int = 1, seen: tuple[int, ...] = ()) -> Drafted:
    ctx = context(side.target, with_laws=with_laws)
    ctx.picker = Picker(filters, seed, seen)
    side.begin(ctx)
    assert side.align(ctx)
    return Tli(how, vocabulary_map(side.target, side.drafter)).draft(side, ctx, budget)  # type: ignore[arg-type]


def pushed(side: Companion, wishes: dict[int, float], how: str, filters: Filters, seen: tuple[int, ...] = ()) -> np.ndarray:
    """The law of the first target piece, worked out the long way: over all of both vocabularies."""
    maps = vocabulary_map(side.target, side.drafter)
    index = (maps.same if how == "tli" else maps.first).tolist()
    for end, theirs in maps.ends.items():
        index[end] = theirs
    temperature = filters.temperature
    wide = np.full(len(side.target.table.tokens), -np.inf)
    for d in range(len(index)):
        if index[d] >= 0:
            wide[index[d]] = np.logaddexp(wide[index[d]], wishes.get(d, -30.0) / temperature)
    return Picker(filters, 0, seen).laws(torch.tensor(wide * temperature)[None], [Row(0)])[0].numpy()


def some_wishes(drafter: Codec, seed: int) -> dict[int, float]:
    rng = np.random.default_rng(seed)
    ids = rng.permutation([i for i, token in enumerate(drafter.table.tokens) if token is not None])[:40]
    wishes = {int(i): float(v) for i, v in zip(ids, rng.normal(0, 1.5, len(ids)), strict=True)}
    wishes[min(drafter.table.ends)] = 1.0
    wishes[min(drafter.table.control - drafter.table.ends)] = 1.0  # never said
    return wishes


FILTERS = [ONE, Filters(0.6, top_p=0.8), Filters(1.0, top_k=7), Filters(1.3, min_p=0.1), Filters(0.8, repeat_penalty=1.4)]


@pytest.mark.parametrize("how", ["tli", "pf"])
@pytest.mark.parametrize("filters", FILTERS, ids=str)
@pytest.mark.parametrize("pair", [(COARSE, FINE), (FINE, COARSE), (FINE, (sentencepiece, 420))], ids=str)
def test_the_law_is_the_sum_over_all_drafter_tokens_behind_the_targets_filters(how: str, filters: Filters, pair: tuple) -> None:
    target, drafter = codec(*pair[0]), codec(*pair[1])
    wishes = some_wishes(drafter, 3)
    side = side_of(target, drafter, wishes)
    seen = tuple(range(60, 200)) if filters.repeat_penalty != 1.0 else ()
    found = ask(how, side, filters, 1, True, seen=seen)
    want = pushed(side, wishes, how, filters, seen)
    law = found.laws[0]
    assert isinstance(law, torch.Tensor)
    assert law.shape == (len(target.table.tokens),)
    assert float(law.sum()) == pytest.approx(1.0)
    assert np.abs(law.numpy() - want).max() < 1e-4  # what is far below the best was left out


@pytest.mark.parametrize("how", ["tli", "pf"])
def test_pieces_come_as_often_as_the_law_says_and_the_rest_follows_for_certain(how: str) -> None:
    target, drafter = codec(*FINE), codec(*COARSE)
    wishes = some_wishes(drafter, 5)
    maps = vocabulary_map(target, drafter)
    twins = [d for d in wishes if maps.first[d] == maps.first[max(wishes, key=lambda d: d in maps.rest)]]
    assert any(d in maps.rest for d in wishes)
    assert twins
    side = side_of(target, drafter, wishes)
    runs = [ask(how, side, ONE, seed, True, budget=4) for seed in range(1200)]
    law = runs[0].laws[0]
    assert isinstance(law, torch.Tensor)
    counts = Counter(run.tokens[0] for run in runs)
    assert sum(abs(counts[t] / 1200 - float(p)) for t, p in enumerate(law)) / 2 < 0.08
    if how == "tli":
        assert all(all(isinstance(one, torch.Tensor) for one in run.laws) for run in runs)
        return
    followed: dict[int, Counter[tuple[int, ...]]] = defaultdict(Counter)
    for run in runs:
        assert len(run.laws) == len(run.tokens)
        until = next((i for i, one in enumerate(run.laws) if i and one is not None), len(run.laws))
        if until < 4:
            followed[run.tokens[0]][tuple(run.tokens[1:until])] += 1
    for piece, ways in followed.items():  # which drafter token it was, by the drafter's own law
        masses: dict[tuple[int, ...], float] = defaultdict(float)
        for d, value in wishes.items():
            if maps.first[d] == piece:
                masses[maps.rest.get(d, ())] += float(np.exp(value))
        total, n = sum(masses.values()), sum(ways.values())
        if n > 150 and len(masses) > 1:
            assert all(abs(ways[way] / n - mass / total) < 0.15 for way, mass in masses.items() if mass > 0.02 * total)


def test_with_the_shared_noise_the_draw_is_the_targets_own() -> None:
    """Same law, same index, same ids: the pick of the target."""
    target, drafter = codec(*COARSE), codec(byte_level, 424)
    wishes = some_wishes(drafter, 7)
    side = side_of(target, drafter, wishes)
    drawn = 0
    for filters in FILTERS[:4]:
        for seed in range(40):
            law = pushed(side, wishes, "tli", filters)
            with np.errstate(divide="ignore"):
                picked = int(np.argmax(np.log(law) + noise.gumbel(seed, 0, np.arange(len(law)))))
            assert ask("tli", side, filters, seed, False).tokens == [picked]
            drawn += picked != target.turn_end
    assert drawn > 100


def test_under_the_ratio_rule_a_proposal_does_not_share_the_noise_of_the_picks() -> None:
    target, drafter = codec(*COARSE), codec(*FINE)
    side = side_of(target, drafter, some_wishes(drafter, 8))
    same = sum(ask("tli", side, ONE, s, True).tokens == ask("tli", side, ONE, s, False).tokens for s in range(200))
    assert same < 60


@pytest.mark.parametrize("how", ["tli", "pf"])
def test_little_that_can_be_said_is_not_said(how: str) -> None:
    target, drafter = codec(*FINE), codec(*COARSE)
    maps = vocabulary_map(target, drafter)
    control = min(drafter.table.control - drafter.table.ends)
    lone = next(d for d in range(len(maps.same)) if maps.same[d] >= 0)
    for value, expected in ((2.0, 1), (3.2, 0)):  # e^-3.2 = 4 %
        side = side_of(target, drafter, {control: value, lone: 0.0})
        assert len(ask(how, side, ONE, 1, True).tokens) == expected
    outside = next(iter(maps.rest))
    side = side_of(target, drafter, {outside: 9.0, lone: 0.0})
    assert ask(how, side, ONE, 1, True).tokens == ([] if how == "tli" else [int(maps.first[outside])])


def test_an_end_of_turn_is_drawn_in_the_targets_id_and_ends_the_draft() -> None:
    target, drafter = codec(*COARSE), codec(*FINE)
    for how in ("tli", "pf"):
        for with_laws in (False, True):
            side = side_of(target, drafter, {min(drafter.table.ends): 9.0})
            found = ask(how, side, ONE, 1, with_laws, budget=5)
            assert (found.tokens, found.end) == ([target.turn_end], 0)


# --- small laws -----------------------------------------------------------------------------------------------------------------


def test_near_keeps_what_counts() -> None:
    logits = torch.tensor([0.0, -11.9, -12.1, -3.0])
    assert near(logits, ONE)[0].tolist() == [0, 1, 3]
    assert near(logits, Filters(0.5))[0].tolist() == [0, 3]
    assert near(logits, Filters())[0].tolist() == [0, 1, 3]
    assert near(logits + 20, Filters(0.5, repeat_penalty=1.4))[0].tolist() == [0, 1, 2, 3]
    many = torch.linspace(0.0, 1.0, 3 * MOST)
    ids, values = near(many, ONE)
    assert ids.tolist() == list(range(2 * MOST, 3 * MOST))
    assert values.dtype == np.float64


def test_draws_and_joins() -> None:
    law, ids = np.array([0.0, 0.25, 0.75]), np.array([4, 9, 11])
    counts = Counter(draw(law, ids, seed, 3, noise.PROPOSE) for seed in range(4000))
    assert counts[0] == 0
    assert counts[1] / 4000 == pytest.approx(0.25, abs=0.03)
    assert [share(np.array([1.0, 3.0]), u) for u in (0.1, 0.24, 0.26, 1.0)] == [0, 0, 1, 1]
    merged = joined(np.array([1.0, 2.0, 2.0]), np.array([0, 1, 1]), 0.5)
    assert merged[0] == pytest.approx(1.0)
    assert merged[1] == pytest.approx(2.0 + 0.5 * np.log(2))
    law = filtered(Filters(1.0, repeat_penalty=2.0), ids, np.array([2.0, 2.0, 2.0]), {9}, [11])
    assert law[0] / law[1] == pytest.approx(np.e)
    assert law[1] == law[2]
