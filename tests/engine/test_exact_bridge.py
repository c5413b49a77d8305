"""The shipped drafters with another tokenizer, enumerated through the shipped loop and verifier: total variation is exactly 0.

Toy tokenizers over a, b, c with an end of turn; the byte tables, codecs, maps and alignment are the shipped ones. `test_exact_rules` has
the same for the rules alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import lru_cache

import pytest
import torch

from engine.bridge.codec import Codec
from engine.bridge.maps import VocabularyMap, vocabulary_map
from engine.drafters.companion import Companion
from engine.drafters.cross import Cross, Method
from engine.drafters.slem import Slem
from engine.drafters.slrs import Slrs, Words
from engine.drafters.tli import Tli
from engine.protocol import Verify
from engine.speculation import noise, verify
from engine.speculation.draft import Context, Draft, Drafter
from engine.speculation.sampling import Filters, Row
from tests.engine.exact import Text, distance, outcomes, summed
from tests.engine.toys import END, SAMPLED, START, Laws, Toy, product, reply, tokenizer

BOTH: tuple[Verify, ...] = ("ratio", "match")
STOP = frozenset([END])
AB, BC, BA, ABC = ("a", "b"), ("b", "c"), ("b", "a"), ("ab", "c")
# letters and merges of the target, then of the drafter
PAIRS = {
    "crossing": (("abc", (AB, ABC)), ("abc", (BC, BA))),
    "shared": (("abc", (AB, BC)), ("abc", (AB, ABC))),
    "the target lacks c": (("ab", (AB, BA)), ("abc", (BC, BA))),
    "the drafter lacks c": (("abc", (AB, BC)), ("ab", (BA, AB))),
    "letters only": (("abc", (AB, ABC)), ("abc", ())),
    "longer than any of the target's": (("abc", (AB,)), ("abc", (AB, ABC, ("abc", "a")))),
}
METHODS: dict[str, Callable[[VocabularyMap], Method]] = {
    "slem": lambda maps: Slem(maps.ends),
    "slem, sampled": lambda maps: Slem(maps.ends, sampled=True),
    "tli": lambda maps: Tli("tli", maps),
    "pf": lambda maps: Tli("pf", maps),
    "slrs": lambda maps: Slrs(maps, reach=2),
}


@pytest.fixture(scope="module", autouse=True)
def _home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SPECCHAT_HOME", str(tmp_path_factory.mktemp("home")))
        yield


@lru_cache
def codecs(pair: str) -> tuple[Codec, Codec]:
    target, drafter = PAIRS[pair]
    return Codec(tokenizer("target", *target)), Codec(tokenizer("drafter", *drafter))


@dataclass
class World:
    """A target, a drafter with another tokenizer, and what they say."""

    pair: str
    p: Laws
    q: Laws
    kept: bool = False  # whether a draft was ever kept

    @classmethod
    def random(cls, pair: str, seed: int, p: int = 3, q: int = 3, end: bool = True) -> World:
        """Laws over `p` and `q` tokens each, an end of turn among them; what lies behind three tokens is certain."""
        target, drafter = codecs(pair)
        first = END if end else END + 1
        return cls(
            pair,
            Laws(f"p {pair} {seed}", range(first, len(target.table.tokens)), p, deep=3),
            Laws(f"q {pair} {seed}", range(first, len(drafter.table.tokens)), q, deep=3),
        )

    @property
    def target(self) -> Toy:
        return Toy(self.p, len(codecs(self.pair)[0].table.tokens))

    def drafter(self, method: Callable[[VocabularyMap], Method]) -> Cross:
        target, drafter = codecs(self.pair)
        maps = vocabulary_map(target, drafter)
        side = Companion(Toy(self.q, len(drafter.table.tokens), start=1), lambda question: [START], target, drafter)
        return Cross("q", side, Slem(maps.ends), method(maps), SAMPLED)

    def variation(
        self,
        monkeypatch: pytest.MonkeyPatch,
        method: str | Callable[[VocabularyMap], Method],
        rule: Verify = "ratio",
        *,
        k: int = 2,
        filters: Filters = SAMPLED,
        change: Callable[[Context, Draft], Draft] | None = None,
        confused: dict[int, int] | None = None,
        length: int = 3,
    ) -> Fraction:
        """Total variation between the joint law of what the shipped loop writes and the product of p."""
        drafter: Drafter = self.drafter(METHODS[method] if isinstance(method, str) else method)
        if change is not None:
            drafter = Changed(drafter, change)  # type: ignore[assignment]
        target = self.target

        def run() -> Text:
            target.passes = 0
            text = reply(target, drafter, k=k, rule=rule, filters=filters, stop_ids=STOP, length=length)
            self.kept |= target.passes < len(text)
            return text

        return distance(outcomes(monkeypatch, run, confused), product(self.p, length, filters, STOP))


@dataclass
class Changed:
    """A drafter whose drafts are changed before they are judged."""

    inner: Drafter
    change: Callable[[Context, Draft], Draft]

    def __getattr__(self, name: str) -> object:
        return getattr(self.inner, name)

    def propose(self, ctx: Context) -> Draft:
        return self.change(ctx, self.inner.propose(ctx))


# --- exact --------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("rule", BOTH)
@pytest.mark.parametrize("method", METHODS)
def test_any_length_of_draft(monkeypatch: pytest.MonkeyPatch, method: str, rule: Verify) -> None:
    p = {"slem": 4, "slem, sampled": 2}.get(method, 3)
    worlds = [World.random("crossing", k, p, 2) for k in range(5)]
    for k, world in enumerate(worlds):
        assert world.variation(monkeypatch, method, rule, k=k) == 0
    assert sum(world.kept for world in worlds) >= 3


@pytest.mark.parametrize("rule", BOTH)
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("pair", list(PAIRS)[1:])
def test_any_pair_of_vocabularies(monkeypatch: pytest.MonkeyPatch, pair: str, method: str, rule: Verify) -> None:
    """Tokens that cross each other's ends, letters that one of them lacks, an end of turn anywhere."""
    world = World.random(pair, 10, 5 if method == "slem" else 3, 2 if method in ("slrs", "slem, sampled") else 3)
    assert world.variation(monkeypatch, method, rule) == 0
    assert world.kept


FILTERS = (
    Filters(temperature=0.5),
    Filters(temperature=1.0, top_k=2),
    Filters(temperature=1.0, top_p=0.77),
    Filters(temperature=0.5, min_p=0.17),
    Filters(temperature=1.0, repeat_penalty=2.0),
)


@pytest.mark.parametrize("rule", BOTH)
@pytest.mark.parametrize("method", ["tli", "pf", "slrs"])
def test_filters(monkeypatch: pytest.MonkeyPatch, method: str, rule: Verify) -> None:
    for seed, filters in enumerate(FILTERS):
        assert World.random("shared", 20 + seed, 3, 3 if method == "tli" else 2).variation(monkeypatch, method, rule, filters=filters) == 0


@pytest.mark.parametrize("method", METHODS)
def test_at_temperature_0_there_is_one_text(monkeypatch: pytest.MonkeyPatch, method: str) -> None:
    kept = set()
    for seed in range(8):
        world = World.random("crossing", 30 + seed, 4, 4)
        target, drafter = world.target, world.drafter(METHODS[method])
        for rule in BOTH:
            got = outcomes(monkeypatch, lambda: reply(target, drafter, k=3, rule=rule, filters=Filters(), stop_ids=STOP))  # noqa: B023
            assert got == product(world.p, 3, Filters(), STOP)
        kept.add(target.passes < 2 * len(next(iter(got))))
    assert True in kept


@pytest.mark.parametrize("method", METHODS)
def test_exact_seed_emits_what_plain_emits(monkeypatch: pytest.MonkeyPatch, method: str) -> None:
    """For every outcome of the noise, not only in law."""
    for k in (1, 2 if method == "slem, sampled" else 3):
        world = World.random("shared", 40 + k, 3, 2)
        target, drafter = world.target, world.drafter(METHODS[method])

        def both(k: int = k, target: Toy = target, drafter: Cross = drafter) -> tuple[Text, Text]:
            plain = reply(target, None, rule="match", stop_ids=STOP)
            return plain, reply(target, drafter, k=k, rule="match", stop_ids=STOP)

        got = outcomes(monkeypatch, both)
        assert all(plain == drafted for plain, drafted in got)
        assert distance(summed(got), product(world.p, 3, SAMPLED, STOP)) == 0


def _cut(draft: Draft, n: int) -> Draft:
    return Draft(draft.tokens[:n], draft.parents[:n], draft.laws[:n] if draft.laws is not None else None, draft.source)


def _by_confidence(_: Context, draft: Draft) -> Draft:
    """The law ahead decides, before anything is drawn from it."""
    unsure = (i for i, law in enumerate(draft.laws or ()) if isinstance(law, torch.Tensor) and float(law.max()) < 0.6)
    return _cut(draft, next(unsure, len(draft.tokens)))


@pytest.mark.parametrize("method", ["tli", "pf"])
def test_ending_a_draft_by_confidence(monkeypatch: pytest.MonkeyPatch, method: str) -> None:
    for seed in range(2):
        assert World.random("crossing", 50 + seed, 3, 2).variation(monkeypatch, method, k=3, change=_by_confidence) == 0


@pytest.mark.parametrize("method", [how for how in METHODS if how != "slrs"])
def test_drafts_end_where_one_more_token_does_not_pay(monkeypatch: pytest.MonkeyPatch, method: str) -> None:
    """The shipped rule: what was drawn stands, and its chance decides whether there is a next draw."""
    asked: list[bool] = []

    def pays(side: Companion, sure: float) -> bool:
        asked.append(sure > 0.4)
        return asked[-1]

    def propose(drafter: Cross, ctx: Context) -> Draft:
        ctx.worth = lambda source: (1.0, 0.0)
        return shipped(drafter, ctx)

    shipped = Cross.propose
    monkeypatch.setattr(Companion, "pays", pays)
    monkeypatch.setattr(Cross, "propose", propose)
    world = World.random("crossing", 57, 3, 2)
    assert world.variation(monkeypatch, method, k=3) == 0
    assert {True, False} <= set(asked)


def test_all_drawn_tokens_may_be_called_certain(monkeypatch: pytest.MonkeyPatch) -> None:
    """Dropping the laws loses speed, never the law of the text."""
    for method in ("pf", "slrs"):
        world = World.random("crossing", 55, 3, 2)
        assert world.variation(monkeypatch, method, k=3, change=lambda ctx, draft: replace(draft, laws=None)) == 0


def test_what_was_drawn_and_never_tested_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two refused ends in a row, and the drafter may not end the reply any more. An end behind a rejected token counts for nothing, but a
    draft without it begins the count anew: so what is masked later knows a draw, and that draw's noise must not come back."""
    half, low, high = Fraction(1, 2), Fraction(1, 4), Fraction(3, 4)

    class P(Laws):
        def __call__(self, text: Text) -> dict[int, Fraction]:
            return {3: Fraction(1)} if len(text) in (0, 2) else {2: half, 4: half}

    class Q(Laws):
        def __call__(self, text: Text) -> dict[int, Fraction]:
            return {END: high, 2: low} if text and text[-1] in (4, 5) else {END: low, 2: high}

    world = World("crossing", P("p", ()), Q("q", ()))
    assert world.variation(monkeypatch, "tli", k=3, length=4) == 0
    monkeypatch.setattr("engine.drafters.tli.fresh", lambda ctx: ctx.picker.seed)
    assert world.variation(monkeypatch, "tli", k=3, length=4) > Fraction(1, 1000)


# --- mistakes that must be seen ----------------------------------------------------------------------------------------------

Ratio = Callable[[Draft, torch.Tensor, Sequence[Row], int], verify.Walk]
SHIPPED: Ratio = verify.ratio
ONLY_TARGET = [5, 6]  # target ids of the pair "crossing" that the drafter lacks: ab, abc


def _masked_target(draft: Draft, p: torch.Tensor, rows: Sequence[Row], seed: int) -> verify.Walk:
    """The target is cut to the intersection."""
    cut = p.clone()
    cut[:, ONLY_TARGET] = 0.0
    whole = cut.sum(-1, keepdim=True)
    return SHIPPED(draft, torch.where(whole > 0, cut / whole, p), rows, seed)


def _narrow_residual(draft: Draft, p: torch.Tensor, rows: Sequence[Row], seed: int) -> verify.Walk:
    """What replaces a rejected token is drawn from the intersection."""
    path, emitted = SHIPPED(draft, p, rows, seed)
    if len(path) > len(draft.tokens):
        return path, emitted
    law = draft.laws[path[-1]] if draft.laws is not None else None
    left = p[path[-1]].clone()
    if isinstance(law, torch.Tensor):
        left = (left - law).clamp_min(0.0)
    left[ONLY_TARGET] = 0.0
    if left.sum() <= 0:
        return path, emitted
    drawn = SHIPPED(Draft(), (left / left.sum())[None], [Row(rows[path[-1]].index)], seed + 1)[1]
    return path, (*emitted[:-1], *drawn)


@pytest.mark.parametrize("wrong", [_masked_target, _narrow_residual])
def test_a_target_cut_to_the_intersection_is_seen(monkeypatch: pytest.MonkeyPatch, wrong: Ratio) -> None:
    world = World.random("crossing", 60, 4, 3)
    assert world.variation(monkeypatch, "tli", k=1) == 0
    monkeypatch.setattr(verify, "ratio", wrong)
    assert world.variation(monkeypatch, "tli", k=1) > Fraction(1, 50)


class _Concatenated(Words):
    """Wrong: ψ(t) is the chance of all ways to spell t, whatever the encoder makes of them."""

    def bounds(self, token: int) -> Iterator[tuple[float, float]]:
        wanted = self._side.target.table.tokens[token]
        spelled = {branch.path: (branch.text, branch.mass) for branch in self._branches[1:]}
        spelled |= {self.path(leaf): (self.text(leaf), float(self.masses[leaf])) for leaf in range(len(self.masses))}
        true = sum((mass for text, mass in spelled.values() if text == wanted), 0.0)
        yield true, true


def test_a_law_of_all_spellings_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """The papers' illustration taken at its word: `ab` drafted as a, b counts for a too, and `ba` for nothing."""
    world = World.random("crossing", 61, 4, 3, end=False)
    assert world.variation(monkeypatch, "slrs", k=1) == 0
    monkeypatch.setattr("engine.drafters.slrs.Words", _Concatenated)
    assert world.variation(monkeypatch, "slrs", k=1) > Fraction(1, 100)


def _told_colder(_: Context, draft: Draft) -> Draft:
    """Wrong: ψ at half the temperature of the draw."""
    colder = [law**2 / (law**2).sum() if isinstance(law, torch.Tensor) else law for law in draft.laws or ()]
    return replace(draft, laws=colder or None)


def _by_candidate(_: Context, draft: Draft) -> Draft:
    """Wrong: an unlikely token that was drawn is not used."""
    unlikely = (i for i, law in enumerate(draft.laws or ()) if isinstance(law, torch.Tensor) and float(law[draft.tokens[i]]) < 0.45)
    return _cut(draft, next(unlikely, len(draft.tokens)))


def _no_end(_: Context, draft: Draft) -> Draft:
    """Wrong: an end of turn that was drawn is not proposed."""
    return _cut(draft, draft.tokens.index(END) if END in draft.tokens else len(draft.tokens))


@pytest.mark.parametrize("wrong", [_told_colder, _by_candidate, _no_end])
@pytest.mark.parametrize("method", ["tli", "pf"])
def test_drafts_that_are_not_what_they_say_are_seen(
    monkeypatch: pytest.MonkeyPatch, method: str, wrong: Callable[[Context, Draft], Draft]
) -> None:
    worlds = [World.random("crossing", 62 + seed, 3, 3) for seed in range(3)]
    assert max(world.variation(monkeypatch, method, k=1, change=wrong) for world in worlds) > Fraction(1, 100)


def test_the_chance_of_the_whole_token_for_its_first_piece_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """Wrong: ψ of a first piece is the chance of the drafter's token alone, not the sum over all tokens that begin with it."""
    target, drafter = codecs("crossing")
    world = World.random("crossing", 66, 3, 4, end=False)

    def change(ctx: Context, draft: Draft) -> Draft:
        alone = []
        for law in draft.laws or ():
            if isinstance(law, torch.Tensor):
                law = law.clone()
                law[3] /= 2  # b stands for b, bc and ba
                law /= law.sum()
            alone.append(law)
        return replace(draft, laws=alone or None)

    assert world.variation(monkeypatch, "pf", k=1) == 0
    assert world.variation(monkeypatch, "pf", k=1, change=change) > Fraction(1, 100)
    assert drafter.table.tokens[5:] == (b"bc", b"ba")
    assert target.ids[b"b"] == 3


@pytest.mark.parametrize("stream", [noise.ACCEPT, noise.RESIDUAL])
def test_using_the_proposals_noise_again_is_seen(monkeypatch: pytest.MonkeyPatch, stream: int) -> None:
    world = World.random("crossing", 67, 4, 3)
    assert world.variation(monkeypatch, "tli", k=1) == 0
    monkeypatch.setattr("engine.drafters.tli.fresh", lambda ctx: ctx.picker.seed)
    assert world.variation(monkeypatch, "tli", k=1, confused={stream: noise.PROPOSE}) > Fraction(1, 50)
