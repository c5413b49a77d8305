"""Many replies of tiny random models with filters: every method under both rules has the law of plain decoding, to a chi-square test.

Two layers in float64, 32 and 48 tokens, tokenizers of their own; logits are kept by text, so that a reply costs no passes. Seeds are fixed:
the numbers are the same in every run. Exact enumeration (`test_exact_bridge`) proves more on smaller worlds; this one has real logits,
real noise and filters that cut anywhere.

What it sees, with a chance of 95 % and in the direction that is hardest to see: a law of the first token that is off by a total variation
of 5 %, and a law of the first two that is off by 9 % (`test_how_small_an_error_is_seen`). Half of that would take four times the replies,
a minute for each method.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import lru_cache

import numpy as np
import pytest
import torch

from engine.bridge.codec import Codec
from engine.bridge.maps import vocabulary_map
from engine.decoder.target import LeanTarget
from engine.drafters.companion import Companion
from engine.drafters.cross import Cross, Method
from engine.drafters.model import ModelDrafter
from engine.drafters.slem import Slem
from engine.drafters.slrs import Slrs
from engine.drafters.tli import Tli
from engine.protocol import Verify
from engine.speculation import verify
from engine.speculation.draft import Context, Draft, Drafter, Law, LazyLaw
from engine.speculation.sampling import Filters, Picker, Row
from tests.engine.exact import Text
from tests.engine.toys import END, START, Toy, reply, tokenizer
from tests.tiny import tiny_config, tiny_target

N = 8000
K = 2  # the second token is the last that is looked at
TESTS = 34  # of laws that must hold, in this file: Bonferroni
LEAST_P = 1e-4 / TESTS
STOP = frozenset([END])
FILTERS = {
    "warm": Filters(temperature=1.0),
    "usual": Filters(temperature=0.7, top_p=0.9),
    "all": Filters(temperature=1.3, top_k=9, top_p=0.95, min_p=0.06),
    "penalised": Filters(temperature=0.8, top_k=20, repeat_penalty=1.6),
}
SUBTLE = (("model", "all", 0.91), ("slem", "all", 0.7), ("pf", "usual", 0.91), ("slrs", "all", 0.91))  # what part of a law is told
METHODS = ("model", "slem", "slem, sampled", "tli", "pf", "slrs")


@pytest.fixture(scope="module", autouse=True)
def _home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SPECCHAT_HOME", str(tmp_path_factory.mktemp("home")))
        yield


@dataclass
class Kept:
    """Logits of a tiny model behind START and the last two tokens of a text, each worked out once."""

    model: LeanTarget
    sharp: float  # what the logits are multiplied with
    like: Callable[[Text], torch.Tensor] = lambda text: torch.zeros(1)  # what is added to them: those of the target, for a drafter
    known: dict[Text, torch.Tensor] = field(default_factory=dict)

    def logits(self, text: Text, vocab_size: int) -> torch.Tensor:
        text = text[-2:]
        if text not in self.known:
            self.model.truncate(0)
            self.model.prefill([START, *text][:-1])
            logits = self.model.verify(torch.tensor([START, *text][-1:]), ()) * self.sharp + self.like(text)
            logits[:, START] = -50.0  # as models that never say it
            self.known[text] = logits
        return self.known[text]


def merges(letters: str, size: int, seed: int, begun: Sequence[tuple[str, str]] = ()) -> list[tuple[str, str]]:
    """Random merges of a tokenizer of `size` tokens, behind those of `begun`."""
    rng = random.Random(seed)
    found = list(begun)
    known = [*letters, *(left + right for left, right in found)]
    while 2 + len(known) < size:
        pair = rng.choice(known), rng.choice(known)
        if len("".join(pair)) <= 4 and "".join(pair) not in known:
            found.append(pair)
            known.append("".join(pair))
    return found


@lru_cache
def world() -> tuple[Codec, Codec, Kept, Kept, Kept]:
    """Both codecs; logits of the target, of a drafter with the target's vocabulary, of one with its own. The drafters agree with the target
    for the most part, so that many drafts are kept: what is never kept tests nothing."""
    mine = merges("abcdefg", 32, 1)
    target = Codec(tokenizer("target", "abcdefg", mine), 32)
    drafter = Codec(tokenizer("drafter", "abcdefgh", merges("abcdefgh", 48, 2, mine[:16])), 48)
    models = [tiny_target(seed, tiny_config(vocab_size=size)) for seed, size in ((3, 32), (4, 32), (5, 48))]
    first = vocabulary_map(target, drafter).first.copy()
    first[END] = END
    alone = np.log(np.maximum(np.bincount(first[first >= 0], minlength=32), 1))  # ids that begin with one piece share its mass
    says = Kept(models[0], 0.15)

    def same(text: Text) -> torch.Tensor:
        return says.logits(text, 32)

    def other(text: Text) -> torch.Tensor:
        known = target.encode(drafter.spell(text))
        return torch.where(torch.from_numpy(first >= 0), (says.logits(tuple(known), 32)[0] - torch.from_numpy(alone))[first], -3.0)

    return target, drafter, says, Kept(models[1], 0.06, same), Kept(models[2], 0.06, other)


def made(method: str) -> Drafter:
    target, drafter, _, same, other = world()
    if method == "model":
        return ModelDrafter("same", Toy(same, 32, start=1), 32)  # type: ignore[arg-type]
    maps = vocabulary_map(target, drafter)
    how: dict[str, Method] = {
        "slem": Slem(maps.ends),
        "slem, sampled": Slem(maps.ends, sampled=True),
        "tli": Tli("tli", maps),
        "pf": Tli("pf", maps),
        "slrs": Slrs(maps, reach=2, rows=4),
    }
    side = Companion(Toy(other, 48, start=1), lambda question: [START], target, drafter)  # type: ignore[arg-type]
    return Cross(method, side, Slem(maps.ends), how[method], Filters(temperature=1.0))


def law(logits: torch.Tensor, f: Filters, text: Text = ()) -> np.ndarray:
    """A reference of its own: a penalty for the tokens of `text`, temperature, top-k, top-p, min-p, each on what the one before left."""
    values = logits.numpy().astype(np.float64)
    again = np.isin(np.arange(len(values)), text)
    values = np.where(again & (values > 0), values / f.repeat_penalty, np.where(again, values * f.repeat_penalty, values)) / f.temperature
    order = np.argsort(-values, kind="stable")
    p = np.exp(values[order] - values[order[0]])
    if f.top_k:
        p[f.top_k :] = 0.0
    p /= p.sum()
    keep = (np.cumsum(p) - p < f.top_p) & (p >= f.min_p * p[0])
    p = np.where(keep, p, 0.0)
    out = np.zeros(len(p))
    out[order] = p / p.sum()
    return out


def expected(f: Filters) -> dict[Text, float]:
    """The law of the first two tokens."""
    model = world()[2]
    found: dict[Text, float] = {}
    for token, p in enumerate(law(model.logits((), 32)[0], f)):
        if token == END or not p:
            found[token,] = p
        else:
            found |= {(token, then): p * q for then, q in enumerate(law(model.logits((token,), 32)[0], f, (token,)))}
    return {text: p for text, p in found.items() if p > 0}


def first(texts: Mapping[Text, float]) -> dict[Text, float]:
    """Of the first token alone: fewer cells see smaller errors."""
    found: dict[Text, float] = {}
    for text, p in texts.items():
        found[text[:1]] = found.get(text[:1], 0.0) + p
    return found


def chi_square(seen: np.ndarray, true: np.ndarray) -> float:
    """p of the test of counts (n,) with cells below 5 pooled."""
    few = true * seen.sum() < 5
    have, want = np.append(seen[~few], seen[few].sum()), np.append(true[~few], true[few].sum()) * seen.sum()
    good = want > 0
    statistic = float(((have[good] - want[good]) ** 2 / want[good]).sum())
    return float(torch.special.gammaincc(torch.tensor((good.sum() - 1) / 2).double(), torch.tensor(statistic / 2).double()))


def judged(found: Sequence[Text], wanted: Mapping[Text, float]) -> tuple[float, float]:
    """The lower p of two chi-square tests, of both tokens and of the first; total variation of both as a multiple of what chance alone
    gives on average."""
    counts = Counter(found)
    assert set(counts) <= set(wanted), "a text that the target cannot write"
    n = len(found)
    true, seen = np.array([*wanted.values()]), np.array([counts[text] for text in wanted])
    assert (true * n >= 5).sum() >= 20
    alone, begun = first(wanted), first(counts)
    p = min(chi_square(seen, true), chi_square(np.array([begun.get(text, 0.0) for text in alone]), np.array([*alone.values()])))
    chance = np.sqrt(2 * true * (1 - true) / (np.pi * n)).sum() / 2
    return p, float(np.abs(seen / n - true).sum() / 2 / chance)


@contextmanager
def remembered() -> Iterator[None]:
    """Laws and encodings, which know nothing of a draw, are worked out once, by all that they depend on: half the time would go there."""
    laws, encode = Picker.laws, Codec.encode
    known: dict[object, torch.Tensor] = {}
    spelled: dict[object, list[int]] = {}

    def kept(self: Picker, logits: torch.Tensor, rows: Sequence[Row]) -> torch.Tensor:
        key = self.filters, frozenset(self.seen), tuple(row.path for row in rows), logits.shape, logits.numpy().tobytes()
        if key not in known:
            known[key] = laws(self, logits, rows)
        return known[key].clone()

    def encoded(self: Codec, text: bytes) -> list[int]:
        if (self.table.key, text) not in spelled:
            spelled[self.table.key, text] = encode(self, text)
        return [*spelled[self.table.key, text]]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Picker, "laws", kept)
        patch.setattr(Codec, "encode", encoded)
        yield


def texts(drafter: Drafter | None, f: Filters, rule: Verify, n: int = N, k: int = 3) -> tuple[list[Text], int]:
    """The first two tokens of n replies, and the passes that they took."""
    target = Toy(world()[2], 32)  # type: ignore[arg-type]
    out = [reply(target, drafter, k=k, rule=rule, length=2, filters=f, stop_ids=STOP, prompt=[START], seed=seed) for seed in range(n)]
    return out, target.passes


@pytest.mark.parametrize("name", FILTERS)
def test_plain_decoding_has_the_targets_law(name: str) -> None:
    found, _ = texts(None, FILTERS[name], "match")
    p, tv = judged(found, expected(FILTERS[name]))
    assert p > LEAST_P
    assert tv < 1.3


@pytest.mark.parametrize(
    ("method", "name"),
    [
        *(("model", f) for f in ("all", "penalised")),
        *(("slem", f) for f in ("usual", "penalised")),
        ("slem, sampled", "all"),
        *(("tli", f) for f in ("usual", "all")),
        *((m, f) for m in ("pf", "slrs") for f in ("usual", "all", "penalised")),
    ],
)
def test_ratio_rule(method: str, name: str) -> None:
    with remembered():
        found, passes = texts(made(method), FILTERS[name], "ratio", k=K)
    p, tv = judged(found, expected(FILTERS[name]))
    assert p > LEAST_P
    assert tv < 1.3
    tokens = sum(map(len, found))
    assert passes < (tokens if "slem" in method else 0.9 * tokens)  # many drafts are kept


@pytest.mark.parametrize("method", METHODS)
def test_exact_seed_rule(method: str) -> None:
    """More than a law: the very texts."""
    for f in FILTERS.values():
        plain, _ = texts(None, f, "match", 250)
        found, passes = texts(made(method), f, "match", 250)
        assert found == plain
        assert passes < sum(map(len, found))


# --- what these tests can see ----------------------------------------------------------------------------------------------


def off(true: np.ndarray, by: float) -> np.ndarray:
    """The law at this total variation that is hardest to see: all of one half of the cells rise alike, all others fall alike."""
    rise = np.isin(np.arange(len(true)), np.argsort(-true)[::2])
    return true * np.where(rise, 1 + by / true[rise].sum(), 1 - by / true[~rise].sum())


@pytest.mark.parametrize("name", FILTERS)
def test_how_small_an_error_is_seen(name: str) -> None:
    """The numbers at the top of this file."""
    rng = np.random.default_rng(1)
    both = expected(FILTERS[name])
    for law_, by in ((first(both), 0.05), (both, 0.09)):
        true = np.array([*law_.values()])
        wrong = off(true, by)
        assert np.abs(wrong - true).sum() / 2 == pytest.approx(by)
        seen = [chi_square(rng.multinomial(N, wrong), true) < LEAST_P for _ in range(200)]
        assert np.mean(seen) > 0.95


@dataclass
class Short:
    """Wrong by a little: the law of a draft's first token is told too small everywhere."""

    inner: Drafter
    by: float
    psi: np.ndarray = field(default_factory=lambda: np.zeros(0))  # of the first token of a reply, as it is

    def __getattr__(self, name: str) -> object:
        return getattr(self.inner, name)

    def propose(self, ctx: Context) -> Draft:
        draft = self.inner.propose(ctx)
        if not draft.tokens:
            return draft
        laws: list[Law] = list(draft.laws) if draft.laws is not None else [None] * len(draft.tokens)
        true = laws[0]
        if true is None:
            true = torch.nn.functional.one_hot(torch.tensor(draft.tokens[0]), 32).double()
        if not len(self.psi):
            self.psi = np.array([float(true[t]) if isinstance(true, torch.Tensor) else [*true.bounds(t)][-1][0] for t in range(32)])
        return replace(draft, laws=[true * self.by if isinstance(true, torch.Tensor) else Less(true, self.by), *laws[1:]])


@dataclass
class Less:
    """A part of a law that is found on demand."""

    law: LazyLaw
    by: float

    def bounds(self, token: int) -> Iterator[tuple[float, float]]:
        for low, high in self.law.bounds(token):
            yield low * self.by, high * self.by


@pytest.mark.parametrize(("method", "name", "by"), SUBTLE)
def test_a_law_that_is_a_little_wrong_is_seen(method: str, name: str, by: float) -> None:
    drafter = Short(made(method), by)
    with remembered():
        found, _ = texts(drafter, FILTERS[name], "ratio", k=K)  # type: ignore[arg-type]
    wanted = expected(FILTERS[name])
    true = np.array([first(wanted).get((t,), 0.0) for t in range(32)])
    kept, left = np.minimum(drafter.psi, true / by), np.maximum(true - by * drafter.psi, 0.0)
    wrong = kept + (1 - kept.sum()) * left / left.sum()
    assert 0.03 < np.abs(wrong - true).sum() / 2 < 0.05
    assert judged(found, wanted)[0] < LEAST_P


@dataclass
class Colder:
    """Wrong: the laws that are told are those of a quarter of the temperature."""

    inner: Drafter

    def __getattr__(self, name: str) -> object:
        return getattr(self.inner, name)

    def propose(self, ctx: Context) -> Draft:
        draft = self.inner.propose(ctx)
        laws = [law**4 / (law**4).sum() if isinstance(law, torch.Tensor) else law for law in draft.laws or ()]
        return replace(draft, laws=laws or None)


def test_a_wrong_temperature_is_seen() -> None:
    found, _ = texts(Colder(made("pf")), FILTERS["warm"], "ratio", 4000)  # type: ignore[arg-type]
    p, tv = judged(found, expected(FILTERS["warm"]))
    assert p < 1e-8
    assert tv > 1.3


def test_a_target_cut_to_the_intersection_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    target, drafter, *_ = world()
    both = vocabulary_map(target, drafter).same
    missing = sorted(set(range(2, 32)) - set(both.tolist()))
    assert missing
    shipped = verify.ratio

    def cut(draft, laws, rows, seed):
        laws = laws.clone()
        laws[:, missing] = 0.0
        return shipped(draft, laws / laws.sum(-1, keepdim=True), rows, seed)

    monkeypatch.setattr(verify, "ratio", cut)
    found, _ = texts(made("tli"), FILTERS["warm"], "ratio", 4000)
    p, tv = judged(found, expected(FILTERS["warm"]))
    assert p < 1e-8
    assert tv > 1.3
