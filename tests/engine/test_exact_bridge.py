"""The shipped drafters with another tokenizer, enumerated through the shipped loop and verifier: total variation is exactly 0.

Toy tokenizers over a, b, c with an end of turn; the byte tables, codecs, maps and alignment are the shipped ones. `test_exact_rules` has
the same for the rules alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import lru_cache
from typing import NamedTuple

import pytest
import torch

from engine.bridge.codec import Codec
from engine.bridge.maps import VocabularyMap, vocabulary_map
from engine.decoder.tokenizer import Tokenizer
from engine.drafters.companion import Companion
from engine.drafters.cross import Cross, Method
from engine.drafters.slem import Slem
from engine.drafters.slrs import Slrs, Words
from engine.drafters.tli import Tli
from engine.protocol import Verify
from engine.speculation import noise, verify
from engine.speculation.draft import Context, Draft, Drafter, Law
from engine.speculation.loop import StepResult
from engine.speculation.sampling import Filters, Row
from tests.engine.exact import Text, distance, outcomes, summed
from tests.engine.toys import END, SAMPLED, START, Laws, Toy, product, reply, sentencepiece, tokenizer

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
Sides = Callable[[], tuple[Tokenizer, Tokenizer]]  # of the target, of the drafter
# characters of several tokens: é of two bytes, and 㡡 of three
ACUTE, BEGUN, WHOLE, ENDED = ("Ã", "©"), ("ã", "¡"), ("ã¡", "¡"), ("¡", "¡")
SPLIT: dict[str, Sides] = {
    "the target splits it": lambda: (tokenizer("target", "aÃ©"), tokenizer("drafter", "aÃ©", [ACUTE])),
    "both can split it": lambda: (tokenizer("target", "aÃ©", [ACUTE]), tokenizer("drafter", "aÃ©", [("a", "Ã"), ACUTE])),
    "the drafter splits it": lambda: (tokenizer("target", "aÃ©", [ACUTE]), tokenizer("drafter", "aÃ©")),
    "three bytes": lambda: (tokenizer("target", "ã¡", [ENDED]), tokenizer("drafter", "ã¡", [BEGUN, WHOLE])),
}
# whose format has a space in front of a reply
LEADS: dict[str, Sides] = {
    "both": lambda: (sentencepiece("target", "▁ab", [("▁", "a")], lead=True), sentencepiece("drafter", "▁ab", [AB], lead=True)),
    "the target's": lambda: (sentencepiece("target", "▁ab", [("▁", "a")], lead=True), tokenizer("drafter", "Ġab", [AB])),
    "the drafter's": lambda: (tokenizer("target", "Ġab", [AB]), sentencepiece("drafter", "▁ab", [("▁", "a")], lead=True)),
}
# who has two ids with the same bytes
TWINS: dict[str, Sides] = {
    "the drafter has": lambda: (tokenizer("target", "ab", [AB]), sentencepiece("drafter", "ab", [BA], twins="ab")),
    "both have": lambda: (sentencepiece("target", "ab", [BA], twins="b"), sentencepiece("drafter", "ab", [AB], twins="b")),
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
    if (sides := (SPLIT | LEADS | TWINS).get(pair)) is not None:
        target, drafter = sides()
    else:
        target, drafter = (tokenizer(name, *side) for name, side in zip(("target", "drafter"), PAIRS[pair], strict=True))
    return Codec(target), Codec(drafter)


class Drafted(NamedTuple):
    """What a step drafted, and what became of it."""

    tokens: Text = ()
    kept: int = 0  # of them
    laws: bool = False  # whether one of them has a law
    read: bool = False  # whether the reply had begun
    held: bytes = b""  # the beginning of a character at its end
    plain: bool = True  # as the follower says


@dataclass
class World:
    """A target, a drafter with another tokenizer, and what they say."""

    pair: str
    p: Laws
    q: Laws
    kept: bool = False  # whether a draft was ever kept
    steps: set[Drafted] = field(default_factory=set)  # that had a draft

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
        cross = self.drafter(METHODS[method] if isinstance(method, str) else method)
        target = self.target
        last = Drafted()

        def noted(ctx: Context, draft: Draft) -> Draft:
            nonlocal last
            draft = change(ctx, draft) if change is not None else draft
            follower = cross.side.follower
            last = Drafted(draft.tokens, 0, draft.laws is not None, bool(follower.read), follower.held, follower.plain)
            return draft

        def heard(step: StepResult) -> None:
            if last.tokens:
                self.steps.add(last._replace(kept=step.accepted))

        drafter: Drafter = Changed(cross, noted)  # type: ignore[assignment]

        def run() -> Text:
            target.passes = 0
            text = reply(target, drafter, k=k, rule=rule, filters=filters, stop_ids=STOP, length=length, heard=heard)
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


@pytest.mark.parametrize("rule", BOTH)
@pytest.mark.parametrize("method", METHODS)
def test_an_end_of_turn_inside_a_draft(monkeypatch: pytest.MonkeyPatch, method: str, rule: Verify) -> None:
    """It is drafted and kept, at a draft's first place and behind it: a method that never offers one loses speed, not the law."""
    world = World.random("shared", 30, 3, 2)
    assert world.variation(monkeypatch, method, rule) == 0
    ends = {step.tokens.index(END) for step in world.steps if END in step.tokens[: step.kept]}
    assert 0 in ends
    assert max(ends) > 0


@pytest.mark.parametrize("rule", BOTH)
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize(("pair", "seed"), [*zip(SPLIT, (1, 1, 3, 3), strict=True)])
def test_a_reply_that_stops_inside_a_character(monkeypatch: pytest.MonkeyPatch, pair: str, seed: int, method: str, rule: Verify) -> None:
    """The drafter is not told of half a character, so its laws are not those of what comes next: only text goes on, all of it certain. The
    target may also begin another character, or write bytes that are none."""
    world = World.random(pair, seed, 3, 2)
    assert world.variation(monkeypatch, method, rule) == 0
    inside = [step for step in world.steps if step.held]
    kept = [codecs(pair)[0].spell(step.tokens[:1]) for step in inside if step.kept and step.tokens[0] != END]
    assert any(0x80 <= first[0] < 0xC0 for first in kept)  # it goes on with the character
    assert not any(step.plain or step.laws for step in inside)
    assert any(step.kept and step.laws for step in world.steps) == (rule == "ratio" and "slem" not in method)


@pytest.mark.parametrize("rule", BOTH)
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize(("pair", "seed"), [*zip(LEADS, (1, 0, 1), strict=True)])
def test_a_space_in_front_that_is_the_formats(monkeypatch: pytest.MonkeyPatch, pair: str, seed: int, method: str, rule: Verify) -> None:
    """Until the reply has begun, a drafted token with this space in it is another one for the target: only text can be drafted."""
    target, drafter = codecs(pair)
    assert (target.lead, drafter.lead) == (b"" if pair == "the drafter's" else b" ", b"" if pair == "the target's" else b" ")
    world = World.random(pair, seed, 3, 2)
    assert world.variation(monkeypatch, method, rule) == 0
    assert {target.spell([token])[:1] == b" " for token in world.p(()) if token != END} == {True, False}  # with and without the space
    before = [step for step in world.steps if not step.read]
    assert any(step.kept for step in before)
    assert not any(step.plain or step.laws for step in before)
    assert any(step.kept and step.laws for step in world.steps) == (rule == "ratio" and "slem" not in method)


def twins(pair: str) -> World:
    """A world whose drafter has ids with the same bytes for one place, the first of the reply among them."""
    target, drafter = codecs(pair)
    table, seed = drafter.table.tokens, {"the drafter has": 3, "both have": 6}[pair]
    same = [i for i, token in enumerate(table) if token is not None and table.count(token) > 1]
    ids = [END, *same] if len(same) > 2 else [END, *same, table.index(b"a")]
    world = World(pair, Laws(f"p {pair} {seed}", range(END, len(target.table.tokens)), 3, deep=3), Laws(f"q {pair} {seed}", ids, 3, deep=2))
    said = [table[i] for i in world.q(()) if i != END]
    assert len(set(said)) < len(said)
    return world


@pytest.mark.parametrize("rule", BOTH)
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("pair", TWINS)
def test_ids_with_the_same_bytes(monkeypatch: pytest.MonkeyPatch, pair: str, method: str, rule: Verify) -> None:
    world = twins(pair)
    assert world.variation(monkeypatch, method, rule, length=2 if method == "slrs" else 3) == 0
    assert world.kept


@pytest.mark.parametrize("method", ["tli", "pf", "slrs"])
def test_the_law_of_a_token_sums_over_the_ids_with_its_bytes(monkeypatch: pytest.MonkeyPatch, method: str) -> None:
    """The very number, and that the mass of one of the ids alone is seen."""
    world = twins("the drafter has")
    (target, drafter), first = codecs(world.pair), world.q(())
    wanted = [sum(q for d, q in first.items() if drafter.table.tokens[d] == token) for token in target.table.tokens]
    wanted[START], wanted[END] = Fraction(0), first.get(END, Fraction(0))
    assert sum(wanted) == 1
    twin = next(d for d in first if d != drafter.ids.get(drafter.table.tokens[d] or b"", d))
    told: list[list[float]] = []

    def listed(law: Law) -> list[float]:
        if isinstance(law, torch.Tensor):
            return law.tolist()
        return [[*law.bounds(token)][-1][0] if law is not None else 0.0 for token in range(len(wanted))]

    def heard(ctx: Context, draft: Draft) -> Draft:
        told.extend([listed(draft.laws[0])] if draft.laws and ctx.next_index == 0 else [])
        return draft

    def alone(ctx: Context, draft: Draft) -> Draft:
        if not draft.laws or ctx.next_index > 0:
            return draft
        law = torch.tensor(listed(draft.laws[0]), dtype=torch.float64)
        law[target.ids[drafter.spell([twin])]] -= float(first[twin])
        return replace(draft, laws=[law / law.sum()])

    # a draw of one token for SLRS: with more, ψ of a token counts longer texts that begin with it
    how = METHODS[method] if method != "slrs" else lambda maps: Slrs(maps, reach=1)
    assert world.variation(monkeypatch, how, k=1, length=2, change=heard) == 0
    assert told
    assert all(law == pytest.approx([float(w) for w in wanted], abs=1e-12) for law in told)
    assert world.variation(monkeypatch, how, k=1, length=2, change=alone) > Fraction(1, 100)


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
    """The shipped rule: what was drawn stands, and its chance decides whether there is a next draw. SLRS is left out: it asks for no worth,
    since it lays down its stop before it draws, so its drafts end at the budget alone."""
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
