"""The walk, and that the ratio rule is lossless: the shipped code enumerated over all of its random choices, then with real noise."""

from __future__ import annotations

import itertools
import random
from collections import defaultdict
from collections.abc import Callable, Iterator
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from engine.drafters.model import ModelDrafter
from engine.drafters.ngram import Ngram
from engine.speculation import noise, verify
from engine.speculation.draft import Draft, chain
from engine.speculation.sampling import Filters, Picker, Row
from tests.tiny import Adversary, tiny_config, tiny_target, write

V = 3
Law = Callable[[tuple[int, ...]], torch.Tensor]  # prefix -> law (V,)


# --- match -----------------------------------------------------------------------------------------------------------


def test_match_walks_while_a_child_is_the_pick() -> None:
    #           root - 5 - 7 - 9,  root - 6, 5 - 8
    draft = Draft((5, 6, 7, 8, 9), (0, 0, 1, 1, 3))
    assert verify.match(draft, [5, 7, 0, 9, 1, 2]) == ((0, 1, 3, 5), (5, 7, 9, 2))
    assert verify.match(draft, [6, 7, 4, 9, 1, 2]) == ((0, 2), (6, 4))
    assert verify.match(draft, [5, 8, 4, 9, 3, 2]) == ((0, 1, 4), (5, 8, 3))
    assert verify.match(draft, [1, 7, 4, 9, 3, 2]) == ((0,), (1,))
    assert verify.match(Draft(), [4]) == ((0,), (4,))


def test_match_takes_one_of_equal_siblings() -> None:
    assert verify.match(Draft((5, 5), (0, 0)), [5, 1, 2]) == ((0, 1), (5, 1))


@pytest.mark.parametrize("case", range(50))
def test_match_emits_the_picks_of_its_own_path(case: int) -> None:
    rng = random.Random(case)
    n = rng.randint(0, 12)
    draft = Draft(tuple(rng.randrange(3) for _ in range(n)), tuple(rng.randint(0, i) for i in range(n)))
    picks = [rng.randrange(3) for _ in range(n + 1)]
    path, emitted = verify.match(draft, picks)
    assert emitted == tuple(picks[row] for row in path)
    assert list(path) == sorted(path)
    for above, row in itertools.pairwise(path):
        assert draft.parents[row - 1] == above
        assert draft.tokens[row - 1] == picks[above]
    assert not any(parent == path[-1] and draft.tokens[i] == picks[path[-1]] for i, parent in enumerate(draft.parents))


# --- ratio, enumerated -----------------------------------------------------------------------------------------------


class _Script:
    """Replays a row of choices and asks for the next when they run out; `weight` is the probability of the row."""

    def __init__(self, choices: list[int]) -> None:
        self.choices, self.at, self.weight, self.widths = choices, 0, 1.0, []

    def choose(self, law: list[float]) -> int:
        if self.at == len(self.choices):
            self.choices.append(next(i for i, p in enumerate(law) if p > 0))
        choice = self.choices[self.at]
        self.at += 1
        self.weight *= law[choice]
        self.widths.append([i for i, p in enumerate(law) if p > 0])
        return choice


def scripts() -> Iterator[_Script]:
    """All rows of choices, depth first. The caller runs each to its end."""
    choices: list[int] = []
    while True:
        script = _Script(choices)
        yield script
        while choices and script.widths[len(choices) - 1][-1] == choices[-1]:
            choices.pop()
        if not choices:
            return
        more = script.widths[len(choices) - 1]
        choices[-1] = more[more.index(choices[-1]) + 1]


class _U:
    """A uniform number that is only ever compared: `u · mass < p` is true with probability min(1, p / mass)."""

    def __init__(self, script: _Script) -> None:
        self.script, self.mass = script, 1.0

    def __mul__(self, mass: float) -> _U:
        self.mass = mass
        return self

    def __lt__(self, p: float) -> bool:
        yes = min(1.0, p / self.mass) if self.mass > 0 else 1.0
        return self.script.choose([1.0 - yes, yes]) == 1


def enumerate_law(
    monkeypatch: pytest.MonkeyPatch, p: Law, draw: Callable[[_Script], Draft], length: int, ratio: Callable = verify.ratio
) -> dict[tuple[int, ...], float]:
    """Joint law of the first `length` tokens: one verified draft, then plain sampling from p."""
    out: dict[tuple[int, ...], float] = defaultdict(float)
    for script in scripts():
        monkeypatch.setattr(verify.noise, "uniform", lambda *_, script=script: _U(script))
        monkeypatch.setattr(verify.noise, "gumbel_all", lambda *_: torch.zeros(V, dtype=torch.float64))
        fake = SimpleNamespace(argmax=lambda x, script=script: torch.tensor(script.choose(x.exp().tolist())))
        monkeypatch.setattr(verify, "torch", fake)
        draft = draw(script)
        rows = [Row(0)]
        for token, parent in zip(draft.tokens, draft.parents, strict=True):
            rows.append(Row(rows[parent].index + 1, (*rows[parent].path, token)))
        laws = torch.stack([p(row.path) for row in rows])
        path, emitted = ratio(draft, laws, rows, 0)
        assert emitted[:-1] == tuple(draft.tokens[row - 1] for row in path[1:])
        tokens = list(emitted[:length])
        while len(tokens) < length:
            tokens.append(script.choose(p(tuple(tokens)).tolist()))
        out[tuple(tokens)] += script.weight
    assert sum(out.values()) == pytest.approx(1.0)
    return out


def random_law(seed: int, zeros: bool = False) -> Law:
    """A law per prefix; with `zeros` some tokens are filtered away."""

    def law(prefix: tuple[int, ...]) -> torch.Tensor:
        rng = random.Random(f"{seed} {prefix}")
        masses = [rng.random() ** 3 for _ in range(V)]
        if zeros:
            masses[rng.randrange(V)] = 0.0
        total = sum(masses)
        return torch.tensor([m / total for m in masses], dtype=torch.float64)

    return law


def total_variation(p: Law, got: dict[tuple[int, ...], float], length: int) -> float:
    tv = 0.0
    for tokens in itertools.product(range(V), repeat=length):
        true = 1.0
        for i, token in enumerate(tokens):
            true *= float(p(tokens[:i])[token])
        tv += abs(true - got.get(tokens, 0.0)) / 2
    return tv


def drawn(q: Law, depth: int) -> Callable[[_Script], Draft]:
    """A chain drawn from q, with its laws."""

    def draw(script: _Script) -> Draft:
        tokens: list[int] = []
        laws = []
        for _ in range(depth):
            laws.append(q(tuple(tokens)))
            tokens.append(script.choose(laws[-1].tolist()))
        return chain(tokens, "q", torch.stack(laws) if laws else None)

    return draw


@pytest.mark.parametrize("zeros", [False, True])
@pytest.mark.parametrize("depth", [0, 1, 2])
@pytest.mark.parametrize("seed", range(3))
def test_a_drawn_chain_leaves_the_law_as_it_is(monkeypatch: pytest.MonkeyPatch, seed: int, depth: int, zeros: bool) -> None:
    p, q = random_law(seed, zeros), random_law(100 + seed, zeros)
    assert total_variation(p, enumerate_law(monkeypatch, p, drawn(q, depth), 3), 3) < 1e-12


def test_a_drafter_that_is_the_target_is_always_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    p = random_law(1, zeros=True)
    lengths = []
    real = verify.ratio
    got = enumerate_law(monkeypatch, p, drawn(p, 2), 3, lambda *a: lengths.append(len((walk := real(*a))[0])) or walk)
    assert set(lengths) == {3}
    assert total_variation(p, got, 3) < 1e-12


TREES = [
    ((0, 1), (0, 0)),
    ((2, 1, 0), (0, 0, 0)),  # all tokens: one of them must stand
    ((1, 1, 0), (0, 0, 0)),  # a duplicate
    ((0, 1, 2, 0), (0, 0, 1, 2)),
    ((0, 1, 1, 2, 0), (0, 1, 1, 0, 4)),
]


@pytest.mark.parametrize("zeros", [False, True])
@pytest.mark.parametrize("tree", TREES, ids=str)
def test_a_tree_of_certain_tokens_leaves_the_law_as_it_is(
    monkeypatch: pytest.MonkeyPatch, tree: tuple[tuple[int, ...], tuple[int, ...]], zeros: bool
) -> None:
    for seed in range(2):
        p = random_law(seed, zeros)
        assert total_variation(p, enumerate_law(monkeypatch, p, lambda _: Draft(*tree), 3), 3) < 1e-12


def test_siblings_drawn_from_a_law_are_refused() -> None:
    draft = Draft((0, 1), (0, 0), torch.full((2, V), 1 / 3))
    with pytest.raises(AssertionError, match="siblings"):
        verify.ratio(draft, torch.full((3, V), 1 / 3), [Row(0), Row(1, (0,)), Row(1, (1,))], 0)


def _no_residual(draft: Draft, laws: torch.Tensor, rows: list[Row], seed: int) -> verify.Walk:
    """Wrong on purpose: a rejected token is replaced by a draw from p instead of from what is left of it."""
    path, emitted = verify.ratio(draft, laws, rows, seed)
    if len(path) <= len(draft.tokens):
        _, plain = verify.ratio(chain([], ""), laws[path[-1]][None], [rows[path[-1]]], seed)
        emitted = (*emitted[:-1], plain[-1])
    return path, emitted


def _wrong_law(draft: Draft, laws: torch.Tensor, rows: list[Row], seed: int) -> verify.Walk:
    """Wrong on purpose: the law that is told is not the one that was drawn from (another temperature)."""
    assert draft.laws is not None
    told = draft.laws**0.5
    return verify.ratio(Draft(draft.tokens, draft.parents, told / told.sum(-1, keepdim=True)), laws, rows, seed)


def _masked_target(draft: Draft, laws: torch.Tensor, rows: list[Row], seed: int) -> verify.Walk:
    """Wrong on purpose: the residual ranges only over what the drafter can say."""
    assert draft.laws is not None
    masked = laws.clone()
    masked[:-1] = torch.where(draft.laws > 0.2, masked[:-1], 0.0)
    return verify.ratio(draft, masked / masked.sum(-1, keepdim=True), rows, seed)


@pytest.mark.parametrize("wrong", [_no_residual, _wrong_law, _masked_target])
def test_negative_controls_are_seen_by_the_enumeration(monkeypatch: pytest.MonkeyPatch, wrong: Callable) -> None:
    for seed in range(3):
        p, q = random_law(seed), random_law(100 + seed)
        assert total_variation(p, enumerate_law(monkeypatch, p, drawn(q, 2), 3, wrong), 3) > 0.005


# --- ratio with the real noise -----------------------------------------------------------------------------------------

P = torch.tensor([[0.45, 0.10, 0.05, 0.40, 0.00]] * 2, dtype=torch.float64)
Q = torch.tensor([[0.02, 0.35, 0.30, 0.23, 0.10]], dtype=torch.float64)
DRAWS = 6000


def chi_square(ratio: Callable[[Draft, int], verify.Walk]) -> float:
    """Statistic of the first emitted token over many seeds; 3 degrees of freedom, 16.3 is p = 0.001."""
    counts = np.zeros(5)
    for seed in range(DRAWS):
        proposed = int(torch.argmax(Q[0].log() + noise.gumbel_all(seed, 0, 5, Q.device, noise.PROPOSE)))
        counts[ratio(chain([proposed], "q", Q), seed)[1][0]] += 1
    assert counts[4] == 0
    expected = P[0].numpy()[:4] * DRAWS
    return float(((counts[:4] - expected) ** 2 / expected).sum())


def test_with_the_real_noise_the_law_holds() -> None:
    assert chi_square(lambda draft, seed: verify.ratio(draft, P, [Row(0), Row(1)], seed)) < 16.3


def test_the_proposals_noise_must_not_be_used_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Negative controls: the test above sees a residual, or an acceptance, that shares the proposal's stream."""
    ask = lambda draft, seed: verify.ratio(draft, P, [Row(0), Row(1)], seed)  # noqa: E731
    with monkeypatch.context() as patch:
        patch.setattr(verify.noise, "RESIDUAL", noise.PROPOSE)
        assert chi_square(ask) > 100

    def from_proposal(seed: int, index: int, stream: int, which: int) -> float:
        g = noise.gumbel_all(seed, index, 5, Q.device, noise.PROPOSE)
        return float(torch.exp(-torch.exp(-g[int(torch.argmax(Q[0].log() + g))])))

    with monkeypatch.context() as patch:
        patch.setattr(verify.noise, "uniform", from_proposal)
        assert chi_square(ask) > 100


def test_certain_siblings_with_the_real_noise() -> None:
    """Each sibling has a uniform number of its own: one number for all would favour the first."""
    counts = np.zeros(5)
    draft = Draft((1, 3, 4), (0, 0, 0))
    laws, rows = P[:1].expand(4, -1), [Row(0), Row(1, (1,)), Row(1, (3,)), Row(1, (4,))]
    for seed in range(DRAWS):
        counts[verify.ratio(draft, laws, rows, seed)[1][0]] += 1
    expected = P[0].numpy()[:4] * DRAWS
    assert counts[4] == 0
    assert ((counts[:4] - expected) ** 2 / expected).sum() < 16.3


def test_laws_that_differ_by_rounding_never_give_a_broken_pick() -> None:
    """(p − ψ)+ may be empty or tiny after a rejection; the pick stays within p."""
    p = torch.softmax(torch.randn(2, 50, generator=torch.Generator().manual_seed(1), dtype=torch.float64) * 4, -1)
    p[:, 25:] = 0
    p /= p.sum(-1, keepdim=True)
    for psi in (p[:1].clone(), p[:1] * (1 + 1e-15), p[:1] * (1 - 1e-12), p[:1].float().double()):
        for token in range(25):
            for seed in range(20):
                _, emitted = verify.ratio(chain([token], "q", psi), p, [Row(0), Row(1)], seed)
                assert all(float(p[0, t]) > 0 for t in emitted)
    one = torch.zeros(1, 50, dtype=torch.float64)
    one[0, 3] = 1.0
    assert verify.ratio(chain([7], "q", None), one.expand(2, -1), [Row(0), Row(1)], 1) == ((0,), (3,))


def test_greedy_ratio_equals_match() -> None:
    """At T = 0 the laws are one-hot, whatever was proposed."""
    logits = torch.randn(7, 40, generator=torch.Generator().manual_seed(2))
    picker = Picker(Filters(), 1)
    for case in range(60):
        rng = random.Random(case)
        parents = tuple(rng.randint(0, i) for i in range(6))
        picks = logits.argmax(-1).tolist()
        tokens = tuple(picks[parent] if rng.random() < 0.6 else rng.randrange(40) for parent in parents)
        rows = [Row(i) for i in range(7)]
        draft = Draft(tokens, parents)
        ratio, match = verify.ratio(draft, picker.laws(logits, rows), rows, case), verify.match(draft, picks)
        assert ratio[1] == match[1]
        assert len(ratio[0]) == len(match[0])


# --- through the whole loop --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("filters", [Filters(1.0), Filters(1.0, top_k=4)], ids=str)
@pytest.mark.parametrize("who", ["none", "model", "ngram", "trees"])
def test_the_loop_keeps_the_targets_law(who: str, filters: Filters) -> None:
    """Two tokens over many seeds against the product of the target's laws: chi-square with small cells pooled."""
    vocab, prompt, n = 6, [1, 2, 3, 1, 2], 700
    target = tiny_target(3, tiny_config(vocab_size=vocab))
    picker = Picker(filters, 0)
    target.prefill(prompt[:-1])
    first = picker.laws(target.verify(torch.tensor(prompt[-1:]), ()), [Row(0)])[0]
    expected = np.zeros((vocab, vocab))
    for token in range(vocab):
        logits = target.verify(torch.tensor([prompt[-1], token]), (0,))[1:]
        expected[token] = (first[token] * picker.laws(logits, [Row(1)])[0]).numpy() * n
    drafter = {
        "none": None,
        "model": ModelDrafter("other", tiny_target(4, tiny_config(vocab_size=vocab)), vocab),
        "ngram": Ngram(min_match=1),
        "trees": Adversary(random.Random(1), vocab, prompt_len=len(prompt)),
    }[who]
    counts = np.zeros((vocab, vocab))
    drafted = 0
    for seed in range(n):
        run = write(target, prompt, drafter, filters=filters, seed=seed, max_tokens=3, rule="ratio", k=4)
        counts[run.ids[0], run.ids[1]] += 1
        drafted += sum(step.drafted for step in run.steps)
    assert (drafted > n / 2) == (who != "none")
    assert counts[expected == 0].sum() == 0
    few = expected < 5
    observed, wanted = np.append(counts[~few], counts[few].sum()), np.append(expected[~few], expected[few].sum())
    good = wanted > 0
    statistic = ((observed[good] - wanted[good]) ** 2 / wanted[good]).sum()
    degrees = int(good.sum()) - 1
    assert statistic < degrees + 3.7 * (2 * degrees) ** 0.5 + 6


def test_greedy_text_is_the_same_under_both_rules() -> None:
    target = tiny_target(3)
    plain = write(target, [1, 2, 3], None, max_tokens=40)
    for drafter in (Ngram(min_match=1), ModelDrafter("other", tiny_target(4), 32), Adversary(random.Random(1), 32, plain.ids, 3)):
        assert write(target, [1, 2, 3], drafter, max_tokens=40, rule="ratio").ids == plain.ids
