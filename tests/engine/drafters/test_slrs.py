"""SLRS: its law is the push-forward of what can be drawn, found between bounds that close in; nothing in it depends on what was drawn."""

from __future__ import annotations

from collections import Counter, defaultdict
from itertools import pairwise

import numpy as np
import pytest

from engine.bridge.codec import Codec
from engine.bridge.maps import vocabulary_map
from engine.drafters.companion import Companion
from engine.drafters.cross import Drafted
from engine.drafters.law import draw
from engine.drafters.slrs import Slrs, Words
from engine.drafters.tli import Tli
from engine.speculation import noise
from engine.speculation.draft import LazyLaw
from engine.speculation.sampling import Filters, Picker
from tests.engine.drafters.test_slem import COARSE, FINE, Told, context
from tests.toy_tokenizers import codec, sentencepiece

ONE = Filters(1.0)
LETTERS = b"the re"


def world(target: Codec, drafter: Codec, letters: bytes = LETTERS, seed: int = 1) -> Companion:
    """A drafter of single letters and a few longer tokens, with other wishes behind every text."""
    some = [drafter.pieces(bytes([b]))[0] for b in sorted(set(letters))]
    some += [i for token, i in drafter.ids.items() if token in (b"he", b"the", b" the", b"re", b"er")]

    def say(said: tuple[int, ...]) -> list[tuple[int, float]]:
        rng = np.random.default_rng([seed, *said])
        return [*zip(some, rng.normal(0, 1.0, len(some)).tolist(), strict=True), (min(drafter.table.ends), -1.0)]

    return Companion(Told(len(drafter.table.tokens), say), lambda question: [0], target, drafter)  # type: ignore[arg-type]


def ask(side: Companion, seed: int, with_laws: bool = True, budget: int = 1, filters: Filters = ONE, **more: int) -> Drafted:
    ctx = context(side.target, b"a", with_laws=with_laws)
    ctx.picker = Picker(filters, seed)
    side.begin(ctx)
    assert side.align(ctx)
    return Slrs(vocabulary_map(side.target, side.drafter), **more).draft(side, ctx, budget)


def exact(law: LazyLaw, token: int) -> float:
    low, high = list(law.bounds(token))[-1]
    assert low == high
    return low


PAIRS = [(COARSE, FINE), ((sentencepiece, 420), FINE)]


@pytest.mark.parametrize("pair", PAIRS, ids=str)
@pytest.mark.parametrize("room", [{"reach": 1}, {"reach": 2, "rows": 3}, {"reach": 4, "rows": 12}], ids=str)
def test_first_tokens_come_as_often_as_the_law_says(pair: tuple, room: dict[str, int]) -> None:
    target, drafter = codec(*pair[0]), codec(*pair[1])
    side = world(target, drafter)
    law = ask(side, 0, **room).laws[0]
    assert isinstance(law, Words)
    psi = {t: exact(law, t) for t in range(len(target.table.tokens))}
    assert sum(psi.values()) == pytest.approx(1.0)
    leaves = np.arange(len(law.masses))
    counts = Counter(law.pieces(draw(law.masses, leaves, seed, 1, noise.PROPOSE))[0] for seed in range(3000))
    assert sum(abs(counts[t] / 3000 - p) for t, p in psi.items()) / 2 < 0.05
    for seed in range(25):  # and this is how it draws; the law does not know what was drawn
        run = ask(side, seed, **room)
        own = noise.key(seed, 1, noise.PROPOSE)  # of this step alone
        assert run.tokens[0] == law.pieces(draw(law.masses, leaves, own, 1, noise.PROPOSE))[0]
        assert exact(run.laws[0], run.tokens[0]) == psi[run.tokens[0]]  # type: ignore[arg-type]
    if room["reach"] > 1:
        assert any(len(branch.path) for branch in law._branches)
        assert len(law._branches) <= room["rows"] + 1


def test_bounds_close_in_and_hold_the_value() -> None:
    target, drafter = codec(*COARSE), codec(*FINE)
    law = ask(world(target, drafter), 1).laws[0]
    assert isinstance(law, Words)
    steps = 0
    for token in range(len(target.table.tokens)):
        pairs = list(law.bounds(token))
        value = pairs[-1][0]
        for (low, high), (lower, higher) in pairwise(pairs):
            assert low <= lower + 1e-15
            assert higher <= high + 1e-15
            assert low <= value <= high + 1e-15
        steps += len(pairs)
        assert list(law.bounds(token)) == [(value, value)]  # it is remembered
    assert steps > 2 * len(target.table.tokens)


def test_it_reaches_tokens_that_the_drafter_spells_in_several() -> None:
    """Letters only, a target with words: one draw can give a word, of which `pf` could give the first letter."""
    target, drafter = codec(*COARSE), codec(*FINE)
    side = world(target, drafter)
    lengths: Counter[int] = Counter()
    texts = set()
    for seed in range(300):
        found = ask(side, seed, budget=6)
        assert len(found.laws) == len(found.tokens)
        assert isinstance(found.laws[0], Words)
        lengths[sum(law is None for law in found.laws)] += 1
        texts.add(target.spell([i for i in found.tokens if i != target.turn_end]))
    assert any(b" the" in text for text in texts)
    assert any(target.encode(b" the")[0] in ask(side, seed).tokens for seed in range(300))


def test_with_no_room_its_law_is_that_of_pf() -> None:
    target, drafter = codec(*COARSE), codec(*FINE)
    side = world(target, drafter)
    law = ask(side, 1, reach=1).laws[0]
    assert isinstance(law, Words)
    ctx = context(target, b"a", filters=ONE, with_laws=True)
    side.begin(ctx)
    side.align(ctx)
    pf = Tli("pf", vocabulary_map(target, drafter)).draft(side, ctx, 1).laws[0]
    assert all(exact(law, t) == pytest.approx(float(pf[t]), abs=1e-9) for t in range(len(target.table.tokens)))  # type: ignore[index]


def test_how_far_it_looks_does_not_depend_on_seed_or_rule() -> None:
    target, drafter = codec(*COARSE), codec(*FINE)
    side = world(target, drafter)
    passes = set()
    trees = set()
    for seed in range(30):
        for with_laws in (True, False):
            before = side.runner.passes  # type: ignore[attr-defined]
            found = ask(side, seed, with_laws)
            law = found.laws[0]
            assert isinstance(law, Words)
            trees.add(tuple(branch.path for branch in law._branches))
            passes.add(side.runner.passes - before)  # type: ignore[attr-defined]
    assert len(trees) == len(passes) == 1


def test_without_chance_it_hands_over_text_and_inside_filters_it_stays() -> None:
    target, drafter = codec(*COARSE), codec(*FINE)
    side = world(target, drafter)
    sure = ask(side, 1, filters=Filters(), budget=3)
    assert not sure.laws
    assert all(ask(side, seed, filters=Filters(), budget=3).tokens == sure.tokens for seed in range(3))
    narrow = Filters(1.0, top_k=2)
    firsts: dict[Filters, set[int]] = defaultdict(set)
    for seed in range(200):
        for filters in (ONE, narrow):
            firsts[filters].add(ask(side, seed, filters=filters, reach=1).tokens[0])
    assert len(firsts[narrow]) == 2
    assert firsts[narrow] < firsts[ONE]


def test_half_a_character_is_spelled_piece_by_piece() -> None:
    target, drafter = codec(*COARSE), codec(FINE[0], 291)
    smile = [drafter.pieces(bytes([b]))[0] for b in "🙂".encode()]
    side = Companion(
        Told(len(drafter.table.tokens), lambda said: [(smile[min(len(said) - 1, 3)], 9.0)]),  # type: ignore[arg-type]
        lambda question: [0],
        target,
        drafter,
    )
    found = ask(side, 1, budget=3, reach=2)
    assert target.spell(found.tokens) == "🙂".encode()[: len(target.spell(found.tokens))]
    assert found.tokens
