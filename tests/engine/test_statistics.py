"""Many replies of tiny random models with filters: every method under both rules has the law of plain decoding, to a chi-square test.

Two layers in float64, 32 and 48 tokens, tokenizers of their own; logits are kept by text, so that a reply costs no passes. Seeds are fixed:
the numbers are the same in every run. Exact enumeration (`test_exact_bridge`) proves more on smaller worlds; this one has real logits,
real noise and filters that cut anywhere.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import lru_cache

import numpy as np
import pytest
import torch

from engine.bridge.codec import Codec
from engine.bridge.maps import vocabulary_map
from engine.decoder.target import LeanTarget
from engine.decoder.tokenizer import Tokenizer
from engine.drafters.companion import Companion
from engine.drafters.cross import Cross, Method
from engine.drafters.model import ModelDrafter
from engine.drafters.slem import Slem
from engine.drafters.slrs import Slrs
from engine.drafters.tli import Tli
from engine.protocol import Verify
from engine.speculation import verify
from engine.speculation.draft import Context, Draft, Drafter
from engine.speculation.sampling import Filters
from tests.engine.exact import Text
from tests.engine.toys import END, START, Toy, reply, tokenizer
from tests.tiny import tiny_config, tiny_target

N = 2500
TESTS = 12  # of this file: Bonferroni
LEAST_P = 1e-4 / TESTS
STOP = frozenset([END])
FILTERS = {
    "warm": Filters(temperature=1.0),
    "usual": Filters(temperature=0.7, top_p=0.9),
    "all": Filters(temperature=1.3, top_k=9, top_p=0.95, min_p=0.06),
}
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
    known: dict[Text, torch.Tensor] = field(default_factory=dict)

    def logits(self, text: Text, vocab_size: int) -> torch.Tensor:
        text = text[-2:]
        if text not in self.known:
            self.model.truncate(0)
            self.model.prefill([START, *text][:-1])
            logits = self.model.verify(torch.tensor([START, *text][-1:]), ()) * self.sharp
            logits[:, START] = -50.0  # as models that never say it
            self.known[text] = logits
        return self.known[text]


def words(name: str, letters: str, size: int, seed: int) -> Tokenizer:
    """A tokenizer of `size` tokens with random merges."""
    rng = random.Random(seed)
    known = list(letters)
    merges: list[tuple[str, str]] = []
    while 2 + len(known) < size:
        pair = rng.choice(known), rng.choice(known)
        if len("".join(pair)) <= 4 and "".join(pair) not in known:
            merges.append(pair)
            known.append("".join(pair))
    return tokenizer(name, letters, merges)


@lru_cache
def world() -> tuple[Codec, Codec, Kept, Kept, Kept]:
    """Both codecs; logits of the target, of a drafter with the target's vocabulary, of one with its own."""
    target, drafter = words("target", "abcdefg", 32, 1), words("drafter", "abcdefgh", 48, 2)
    models = [Kept(tiny_target(seed, tiny_config(vocab_size=size)), 0.15) for seed, size in ((3, 32), (4, 32), (5, 48))]
    return Codec(target, 32), Codec(drafter, 48), models[0], models[1], models[2]


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


def law(logits: torch.Tensor, f: Filters) -> np.ndarray:
    """A reference of its own: temperature, top-k, top-p, min-p, each on what the one before left."""
    values = logits.numpy().astype(np.float64) / f.temperature
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
            found |= {(token, then): p * q for then, q in enumerate(law(model.logits((token,), 32)[0], f))}
    return {text: p for text, p in found.items() if p > 0}


def judged(counts: Counter[Text], wanted: dict[Text, float]) -> tuple[float, float]:
    """p of the chi-square test with cells below 5 pooled; total variation as a multiple of what chance alone gives on average."""
    assert set(counts) <= set(wanted), "a text that the target cannot write"
    n = counts.total()
    true = np.array([*wanted.values()])
    seen = np.array([counts[text] for text in wanted])
    few = true * n < 5
    have, want = np.append(seen[~few], seen[few].sum()), np.append(true[~few], true[few].sum()) * n
    good = want > 0
    statistic = float(((have[good] - want[good]) ** 2 / want[good]).sum())
    assert good.sum() > 20
    p = float(torch.special.gammaincc(torch.tensor((good.sum() - 1) / 2).double(), torch.tensor(statistic / 2).double()))
    chance = np.sqrt(2 * true * (1 - true) / (np.pi * n)).sum() / 2
    return p, float(np.abs(seen / n - true).sum() / 2 / chance)


def texts(drafter: Drafter | None, f: Filters, rule: Verify, n: int = N) -> tuple[list[Text], int]:
    """The first two tokens of n replies, and the passes that they took."""
    target = Toy(world()[2], 32)  # type: ignore[arg-type]
    out = [reply(target, drafter, k=3, rule=rule, length=2, filters=f, stop_ids=STOP, prompt=[START], seed=seed) for seed in range(n)]
    return out, target.passes


def test_plain_decoding_has_the_targets_law() -> None:
    for f in FILTERS.values():
        found, _ = texts(None, f, "match", N)
        p, tv = judged(Counter(found), expected(f))
        assert p > LEAST_P
        assert tv < 1.3


@pytest.mark.parametrize(
    ("method", "name"),
    [("model", "all"), ("slem", "usual"), ("slem, sampled", "all"), *((m, f) for m in METHODS[3:] for f in ("usual", "all"))],
)
def test_ratio_rule(method: str, name: str) -> None:
    found, passes = texts(made(method), FILTERS[name], "ratio")
    p, tv = judged(Counter(found), expected(FILTERS[name]))
    assert p > LEAST_P
    assert tv < 1.3
    assert passes < sum(map(len, found))  # some drafts are kept


@pytest.mark.parametrize("method", METHODS)
def test_exact_seed_rule(method: str) -> None:
    """More than a law: the very texts."""
    for f in FILTERS.values():
        plain, _ = texts(None, f, "match", 250)
        found, passes = texts(made(method), f, "match", 250)
        assert found == plain
        assert passes < sum(map(len, found))


# --- what these tests can see ----------------------------------------------------------------------------------------------


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
    p, tv = judged(Counter(found), expected(FILTERS["warm"]))
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
    p, tv = judged(Counter(found), expected(FILTERS["warm"]))
    assert p < 1e-8
    assert tv > 1.3
