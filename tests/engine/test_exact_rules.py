"""The shipped loop, verifier, sampler and same-vocabulary drafter, enumerated: the joint law of three tokens is exactly the target's.

The negative controls are the mistakes that the literature and other programs make; the enumeration must see each of them.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction

import pytest
import torch

from engine.drafters.model import ModelDrafter
from engine.protocol import Verify
from engine.speculation import noise, verify
from engine.speculation.draft import Context, Draft, Drafter, Needs, Verdict
from engine.speculation.sampling import Filters, Row
from tests.engine.exact import Text, distance, outcomes, summed
from tests.engine.toys import SAMPLED, Laws, Toy, product, reply

V = 4
IDS = range(V)
BOTH: tuple[Verify, ...] = ("ratio", "match")


def variation(
    monkeypatch: pytest.MonkeyPatch,
    p: Laws,
    make: Callable[[], Drafter | None],
    *,
    k: int = 2,
    rule: Verify = "ratio",
    vocab_size: int = V,
    filters: Filters = SAMPLED,
    stop_ids: frozenset[int] = frozenset(),
    confused: dict[int, int] | None = None,
) -> Fraction:
    """Total variation between the joint law of the first three tokens that the shipped loop writes and the product of p."""
    target = Toy(p, vocab_size)
    got = outcomes(monkeypatch, lambda: reply(target, make(), k=k, rule=rule, filters=filters, stop_ids=stop_ids), confused)
    return distance(got, product(p, 3, filters, stop_ids))


def model(q: Laws) -> Callable[[], Drafter]:
    return lambda: ModelDrafter("q", Toy(q, V, start=1), V)


def laws(seed: int, p: int = 3, q: int = 3) -> tuple[Laws, Laws]:
    """A target and a drafter; what lies behind the three tokens is certain."""
    return Laws(f"p{seed}", IDS, p, deep=3), Laws(f"q{seed}", IDS, q, deep=3)


# --- the model drafter ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("rule", BOTH)
@pytest.mark.parametrize("k", range(5))
def test_a_drafting_model_leaves_the_law_as_it_is(monkeypatch: pytest.MonkeyPatch, k: int, rule: Verify) -> None:
    p, q = laws(k, 3, 2)
    assert variation(monkeypatch, p, model(q), k=k, rule=rule) == 0


@pytest.mark.parametrize("rule", BOTH)
def test_laws_without_zeros(monkeypatch: pytest.MonkeyPatch, rule: Verify) -> None:
    p, q = laws(9, V, V)
    assert variation(monkeypatch, p, model(q), k=1, rule=rule) == 0


FILTERS = [
    Filters(temperature=0.5),
    Filters(temperature=1.0, top_k=2),
    Filters(temperature=1.0, top_p=0.77),
    Filters(temperature=0.5, min_p=0.3),
    Filters(temperature=0.5, top_k=3, top_p=0.91, min_p=0.011),
    Filters(temperature=1.0, repeat_penalty=2.0),
    Filters(temperature=0.5, top_k=3, repeat_penalty=2.0),
    Filters(),
]


@pytest.mark.parametrize("rule", BOTH)
@pytest.mark.parametrize("filters", FILTERS, ids=str)
def test_filters(monkeypatch: pytest.MonkeyPatch, filters: Filters, rule: Verify) -> None:
    p, q = laws(20, V, 3)
    assert variation(monkeypatch, p, model(q), filters=filters, rule=rule) == 0


@pytest.mark.parametrize("rule", BOTH)
@pytest.mark.parametrize("k", [1, 3])
def test_a_stop_id_inside_a_draft(monkeypatch: pytest.MonkeyPatch, k: int, rule: Verify) -> None:
    p, q = laws(30, 3, 3)
    stop_ids = frozenset([1])
    assert product(p, 3, SAMPLED, stop_ids) != product(p)
    assert variation(monkeypatch, p, model(q), k=k, rule=rule, stop_ids=stop_ids) == 0


def test_exact_seed_emits_what_plain_emits(monkeypatch: pytest.MonkeyPatch) -> None:
    """For every outcome of the noise, not only in law."""
    fewer = set()  # passes: some drafts are kept
    for k in (1, 2, 4):
        p, q = laws(40 + k, 3, 2)
        target = Toy(p, V)

        def both(k: int = k, target: Toy = target, q: Laws = q) -> tuple[Text, Text, bool]:
            target.passes = 0
            plain = reply(target, None, rule="match")
            passes, target.passes = target.passes, 0
            return plain, reply(target, model(q)(), k=k, rule="match"), target.passes < passes

        got = outcomes(monkeypatch, both)
        assert all(plain == drafted for plain, drafted, _ in got)
        assert distance(summed(got), product(p)) == 0
        fewer |= {less for _, _, less in got}
    assert True in fewer


# --- a union of vocabularies, trees, mixed rules ----------------------------------------------------------------------------


@dataclass
class Made:
    """A drafter that makes its draft from the reply so far, `tokens` from its own draws."""

    draft: Callable[[Context], Draft]
    name: str = "made"
    method: str = "model"
    needs: Needs = field(default_factory=Needs)

    def sync(self, ctx: Context) -> None:
        """Nothing to catch up with."""

    def propose(self, ctx: Context) -> Draft:
        return self.draft(ctx)

    def commit(self, ctx: Context, verdict: Verdict) -> None:
        """Nothing to roll back."""

    def memory(self) -> int:
        return 0

    def close(self) -> None:
        """Nothing to free."""


@pytest.mark.parametrize("rule", BOTH)
@pytest.mark.parametrize("k", range(5))
def test_the_union_of_two_vocabularies(monkeypatch: pytest.MonkeyPatch, k: int, rule: Verify) -> None:
    """The papers' yardstick (algorithm 1): p is 0 on what only the drafter has, q on what only the target has. The exact-seed rule draws
    both by the same noise, so a token that one of them lacks must not shift what the other draws."""
    p, q = Laws(f"p union {k}", [0, 1, 2, 3], 3, deep=3), Laws(f"q union {k}", [2, 3, 4, 5], 3, deep=3)
    assert variation(monkeypatch, p, lambda: ModelDrafter("q", Toy(q, 6, start=1), 6), k=k, rule=rule, vocab_size=6) == 0


TREES = [
    ((0, 1), (0, 0)),
    ((1, 1, 0), (0, 0, 0)),  # a duplicate
    ((2, 2, 2), (0, 0, 0)),
    ((2, 1, 0, 3), (0, 0, 0, 0)),  # all tokens: one of them must stand
    ((0, 1, 2, 0, 3), (0, 0, 1, 2, 1)),
    ((0, 1, 1, 2, 0, 0), (0, 1, 1, 0, 4, 4)),
]


@pytest.mark.parametrize("rule", BOTH)
@pytest.mark.parametrize("tree", TREES, ids=str)
def test_trees_of_certain_tokens(monkeypatch: pytest.MonkeyPatch, tree: tuple[Text, Text], rule: Verify) -> None:
    """Siblings are tried in order, each with a number of its own, duplicates too."""

    def draft(ctx: Context) -> Draft:
        shift = sum(ctx.ids) + len(ctx.ids)  # another tree at each place
        return Draft(tuple((token + shift) % V for token in tree[0]), tree[1])

    for seed in range(2):
        p, _ = laws(50 + seed, V)
        assert variation(monkeypatch, p, lambda: Made(draft), k=6, rule=rule) == 0


@dataclass
class Changed:
    """A drafter whose drafts are changed before they are judged."""

    inner: Drafter
    change: Callable[[Context, Draft], Draft]

    def __getattr__(self, name: str) -> object:
        return getattr(self.inner, name)

    def propose(self, ctx: Context) -> Draft:
        return self.change(ctx, self.inner.propose(ctx))


def changed(q: Laws, change: Callable[[Context, Draft], Draft]) -> Callable[[], Drafter]:
    return lambda: Changed(model(q)(), change)  # type: ignore[return-value]


def _some_certain(ctx: Context, draft: Draft) -> Draft:
    """Which rule judges a position depends on the tokens before it, as it may."""
    text = (*ctx.ids, *draft.tokens)
    assert draft.laws is not None
    return replace(draft, laws=[None if sum(text[: len(ctx.ids) + i]) % 2 else law for i, law in enumerate(draft.laws)])


def test_both_rules_in_one_draft(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = set()
    for seed in range(3):
        p, q = laws(60 + seed, 3, 2)

        def change(ctx: Context, draft: Draft) -> Draft:
            new = _some_certain(ctx, draft)
            assert new.laws is not None
            seen.add(tuple(law is None for law in new.laws))
            return new

        assert variation(monkeypatch, p, changed(q, change), k=3) == 0
    assert {(True, False), (False, True)} <= {row[:2] for row in seen}


@dataclass
class Slowly:
    """A law that is found in steps."""

    law: torch.Tensor

    def bounds(self, token: int) -> Iterator[tuple[float, float]]:
        true = float(self.law[token])
        yield 0.0, 1.0
        yield true / 2, (1 + true) / 2
        yield true, true


def test_laws_found_on_demand(monkeypatch: pytest.MonkeyPatch) -> None:
    """Bounds give the decisions of the exact values, and the residual that draws until it fits is the residual."""

    def change(ctx: Context, draft: Draft) -> Draft:
        assert draft.laws is not None
        return replace(draft, laws=[Slowly(law) if i % 2 == 0 else law for i, law in enumerate(draft.laws)])

    for k in (1, 3):
        p, q = laws(70 + k, 3, 2)
        assert variation(monkeypatch, p, changed(q, change), k=k) == 0


# --- ending a draft early ----------------------------------------------------------------------------------------------------


def _cut(draft: Draft, n: int) -> Draft:
    return Draft(draft.tokens[:n], draft.parents[:n], draft.laws[:n] if draft.laws is not None else None, draft.source)


def _by_confidence(_: Context, draft: Draft) -> Draft:
    """The law ahead decides, before anything is drawn from it."""
    assert draft.laws is not None
    return _cut(draft, next((i for i, law in enumerate(draft.laws) if float(law.max()) < 0.6), len(draft.tokens)))


def _by_candidate(_: Context, draft: Draft) -> Draft:
    """Wrong: the drawn token decides whether it is used."""
    assert draft.laws is not None
    unlikely = (i for i, law in enumerate(draft.laws) if float(law[draft.tokens[i]]) < 0.4)
    return _cut(draft, next(unlikely, len(draft.tokens)))


def test_ending_by_confidence_is_exact_and_by_the_candidate_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    wrong = []
    for seed in range(2):
        p, q = laws(80 + seed, 3, 2)
        assert variation(monkeypatch, p, changed(q, _by_confidence), k=3) == 0
        wrong.append(variation(monkeypatch, p, changed(q, _by_candidate), k=3))
        assert variation(monkeypatch, p, changed(q, lambda ctx, draft: replace(_by_candidate(ctx, draft), laws=None)), k=3) == 0
    assert min(wrong) > Fraction(1, 200)


# --- mistakes that must be seen ----------------------------------------------------------------------------------------------

Ratio = Callable[[Draft, torch.Tensor, Sequence[Row], int], verify.Walk]
SHIPPED: Ratio = verify.ratio


def _normal(law: torch.Tensor) -> torch.Tensor:
    return law / law.sum(-1, keepdim=True)


def _masked_target(draft: Draft, p: torch.Tensor, rows: Sequence[Row], seed: int) -> verify.Walk:
    """The target is cut to what both vocabularies have (here: not token 0)."""
    cut = p.clone()
    cut[:, 0] = 0.0
    return SHIPPED(draft, torch.where(cut.sum(-1, keepdim=True) > 0, _normal(cut), p), rows, seed)


def _narrow_residual(draft: Draft, p: torch.Tensor, rows: Sequence[Row], seed: int) -> verify.Walk:
    """What replaces a rejected token is drawn without token 0."""
    path, emitted = SHIPPED(draft, p, rows, seed)
    if len(path) > len(draft.tokens):
        return path, emitted
    at = path[-1]
    left = (p[at] - torch.as_tensor(draft.laws[at])).clamp_min(0.0) if draft.laws is not None else p[at].clone()
    left[0] = 0.0
    drawn = SHIPPED(Draft(), _normal(left)[None], [Row(rows[at].index)], seed + 1)[1] if left.sum() > 0 else emitted[-1:]
    return path, (*emitted[:-1], *drawn)


def _no_residual(draft: Draft, p: torch.Tensor, rows: Sequence[Row], seed: int) -> verify.Walk:
    """What replaces a rejected token is drawn from p as it is."""
    path, emitted = SHIPPED(draft, p, rows, seed)
    if len(path) > len(draft.tokens):
        return path, emitted
    return path, (*emitted[:-1], *SHIPPED(Draft(), p[path[-1]][None], [Row(rows[path[-1]].index)], seed + 1)[1])


@pytest.mark.parametrize("wrong", [_masked_target, _narrow_residual, _no_residual])
def test_wrong_verifiers_are_seen(monkeypatch: pytest.MonkeyPatch, wrong: Ratio) -> None:
    p, q = laws(90, V, 3)
    assert variation(monkeypatch, p, model(q), k=1) == 0
    monkeypatch.setattr(verify, "ratio", wrong)
    assert variation(monkeypatch, p, model(q), k=1) > Fraction(1, 50)


def test_a_law_at_another_temperature_than_was_drawn_from_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    def change(ctx: Context, draft: Draft) -> Draft:
        assert isinstance(draft.laws, torch.Tensor)
        return replace(draft, laws=_normal(draft.laws**2))

    p, q = laws(91, 3, 3)
    assert variation(monkeypatch, p, changed(q, change), k=1) > Fraction(1, 100)


@pytest.mark.parametrize("stream", [noise.ACCEPT, noise.RESIDUAL])
def test_using_the_proposals_noise_again_is_seen(monkeypatch: pytest.MonkeyPatch, stream: int) -> None:
    p, q = laws(92, V, V)
    assert variation(monkeypatch, p, model(q), k=1) == 0
    assert variation(monkeypatch, p, model(q), k=1, confused={stream: noise.PROPOSE}) > Fraction(1, 50)


def test_one_number_for_all_siblings_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    p, _ = laws(93, V)
    real = noise.uniform
    make = lambda: Made(lambda ctx: Draft((0, 1, 2), (0, 0, 0)))  # noqa: E731
    assert variation(monkeypatch, p, make, k=3) == 0

    def ratio(draft: Draft, p: torch.Tensor, rows: Sequence[Row], seed: int) -> verify.Walk:
        fresh = noise.uniform
        assert fresh is not real
        with monkeypatch.context() as patch:
            patch.setattr(noise, "uniform", lambda seed, index, stream, which: fresh(seed, index, stream, 0))
            return SHIPPED(draft, p, rows, seed)

    monkeypatch.setattr(verify, "ratio", ratio)
    assert variation(monkeypatch, p, make, k=3) > Fraction(1, 50)


def test_the_yardstick_itself_sees_a_small_bias() -> None:
    rng = random.Random(1)
    p, _ = laws(94, 3)
    true = product(p)
    text = rng.choice(sorted(true))
    moved = dict(true)
    moved[text] += Fraction(1, 10**9)
    assert distance(true, moved) == Fraction(1, 2 * 10**9)
