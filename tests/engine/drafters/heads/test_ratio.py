"""The ratio rule on trees: the recorded cases of the reference, and exact chances on trees that heads drafted.

Where the references are wrong (bonus from the raw logits, padding that is accepted), ours must differ.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from engine.drafters.heads.specs import Family
from engine.speculation import verify
from engine.speculation.draft import Draft
from engine.speculation.sampling import Filters, Picker, Row
from tests.engine.drafters.heads.cases import FOLDER, has
from tests.engine.drafters.heads.test_heads_drafter import context
from tests.engine.drafters.heads.worlds import begin, make_heads, make_target

DRAWS = 20_000
POSTERIOR = FOLDER / "posterior" / "evaluate_posterior.safetensors"


def recorded() -> dict[str, Tensor]:
    return load_file(POSTERIOR) if POSTERIOR.is_file() else {}


def reference_law(logits: Tensor, temperature: float, top_p: float, top_k: int) -> Tensor:
    """Temperature, then top-p, then top-k: the reference's order (ours has top-k first)."""
    scaled = logits.double() / temperature
    if top_p:
        law, order = torch.softmax(scaled, -1).sort(descending=True)
        beyond = law.cumsum(-1) - law > top_p
        scaled = scaled.index_fill(0, order[beyond], float("-inf"))
    if top_k:
        scaled = scaled.masked_fill(scaled < scaled.topk(top_k).values[-1], float("-inf"))
    return torch.softmax(scaled, -1)


class Spy:
    """Noise that tells the law it is added to."""

    def __init__(self) -> None:
        self.law = torch.empty(0)

    def __radd__(self, log_law: Tensor) -> Tensor:
        self.law = log_law.exp()
        return log_law


def judge(draft: Draft, laws: Tensor, uniforms: Iterator[float], monkeypatch: pytest.MonkeyPatch) -> tuple[tuple[int, ...], Tensor]:
    """The kept path, and the law that the last token is drawn from."""
    spy = Spy()
    monkeypatch.setattr(verify.noise, "uniform", lambda *_: next(uniforms))
    monkeypatch.setattr(verify.noise, "gumbel_all", lambda *_: spy)
    path, _ = verify.ratio(draft, laws, [Row(0)] * len(laws), 0)
    monkeypatch.undo()
    return path, spy.law


@pytest.mark.skipif(not has("posterior", "evaluate_posterior"), reason="the folder of fixtures has no posterior")
@pytest.mark.parametrize("case", sorted({int(name[1 : name.index(".")]) for name in recorded()}))
def test_recorded_verification(case: int, monkeypatch: pytest.MonkeyPatch) -> None:
    at = {name.removeprefix(f"c{case}."): value for name, value in recorded().items() if name.startswith(f"c{case}.")}
    temperature, top_p, top_k = (float(f"{x:.6g}") for x in at["params"].tolist())
    draft = Draft(tuple(at["node_tokens"].tolist()[1:]), tuple(at["parents"].tolist()[1:]))
    laws = torch.stack([reference_law(row, temperature, top_p, int(top_k)) for row in at["node_logits"]])
    path, law = judge(draft, laws, iter(at["uniforms"].tolist()), monkeypatch)
    rows = at["retrieve_indices"].tolist()
    assert len(path) - 1 == int(at["accept_length"])
    assert next(i for i, row in enumerate(rows) if tuple(row[: len(path)]) == path) == int(at["best_candidate"])
    assert torch.allclose(law.float(), at["sample_p"], atol=2e-5)
    if not (top_p and top_k):  # with one of the two filters the order does not matter: our own filters give these laws
        filters = Filters(temperature, top_p or 1.0, int(top_k))
        own = Picker(filters, 0).laws(at["node_logits"], [Row(0)] * len(laws))
        assert torch.allclose(own, laws, atol=1e-6)


def test_the_bonus_is_drawn_from_the_filtered_law(monkeypatch: pytest.MonkeyPatch) -> None:
    """5.3: Gumiho and EAGLE-1 draw the bonus behind a whole path from the raw logits."""
    made = torch.Generator().manual_seed(0)
    logits = torch.randn(2, 8, generator=made) * 2
    laws = Picker(Filters(temperature=0.5, top_p=0.8), 0).laws(logits, [Row(0), Row(1)])
    token = int(laws[0].argmax())
    path, law = judge(Draft((token,), (0,)), laws, iter([1e-9]), monkeypatch)
    assert path == (0, 1)
    assert torch.allclose(law, laws[1])
    assert not torch.allclose(law, torch.softmax(logits[1].double(), -1), atol=0.05)


def chi_square(counts: Counter[int], law: Tensor) -> float:
    """p-value of the counts under the law; ids without chance must not occur."""
    total = sum(counts.values())
    assert all(float(law[token]) > 0 for token in counts)
    expected = {token: float(p) * total for token, p in enumerate(law.tolist()) if p > 0}
    if len(expected) < 2:
        return 1.0
    statistic = sum((counts[token] - e) ** 2 / e for token, e in expected.items())
    return float(torch.special.gammaincc(torch.tensor((len(expected) - 1) / 2.0), torch.tensor(statistic / 2.0)))


def drafted(family: Family, filters: Filters) -> tuple[Draft, Tensor, list[Row]]:
    """A tree that heads drafted under the ratio rule, and the target's laws at its rows."""
    target = make_target(4, 12, family)
    target.model.weights.head._weight.mul_(0.5)  # type: ignore[attr-defined]  no sure tokens
    drafter = make_heads(family, target, 1)
    ids = [1, 2, 3, 4]
    begin(target, ids, drafter)
    ctx = context(ids, 15, 12, filters)
    ctx.with_laws = True
    draft = drafter.propose(ctx)
    depth = [0]
    for parent in draft.parents:
        depth.append(depth[parent] + 1)
    rows = [Row(d) for d in depth]
    logits = target.verify(torch.tensor([ids[-1], *draft.tokens]), draft.parents)
    return draft, ctx.picker.laws(logits, rows), rows


def draws(draft: Draft, laws: Tensor, rows: list[Row], rule: Callable[..., Any] = verify.ratio) -> tuple[float, float]:
    """Smallest p-values of the first token, and of the second one behind each drafted child."""
    first: Counter[int] = Counter()
    second: dict[int, Counter[int]] = {}
    for seed in range(DRAWS):
        path, tokens = rule(draft, laws, rows, seed)
        first[tokens[0]] += 1
        if len(path) > 1:
            second.setdefault(path[1], Counter())[tokens[1]] += 1
    behind = [chi_square(counts, laws[row]) for row, counts in second.items() if sum(counts.values()) > 500]
    return chi_square(first, laws[0]), min(behind, default=1.0)


@pytest.mark.parametrize(
    ("family", "filters"),
    [
        ("eagle2", Filters(temperature=0.5)),
        ("eagle2", Filters(temperature=1.0, top_p=0.9)),
        ("gumiho", Filters(temperature=1.0)),
        ("hydra", Filters(temperature=1.0, top_p=0.9)),
    ],
    ids=str,
)
def test_the_law_is_exactly_the_targets(family: Family, filters: Filters) -> None:
    draft, laws, rows = drafted(family, filters)
    assert any(draft.parents.count(row) > 1 for row in draft.parents)  # it branches
    first, second = draws(draft, laws, rows)
    assert first > 1e-4
    assert second > 1e-4


def test_a_biased_rule_would_be_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """Negative control: one random number for all siblings, or a bonus from the raw law."""
    draft, laws, rows = drafted("eagle2", Filters(temperature=1.0))
    plain = verify.noise.uniform
    monkeypatch.setattr(verify.noise, "uniform", lambda seed, index, stream, which=0: plain(seed, index, stream, 0))
    assert min(draws(draft, laws, rows)) < 1e-6
    monkeypatch.undo()
    flat = laws.sqrt() / laws.sqrt().sum(-1, keepdim=True)

    def raw_bonus(draft: Draft, laws: Tensor, rows: list[Row], seed: int) -> Any:
        path, tokens = verify.ratio(draft, laws, rows, seed)
        if path[-1] not in draft.parents:
            tokens = (*tokens[:-1], int(torch.multinomial(flat[path[-1]], 1)))
        return path, tokens

    torch.manual_seed(0)
    one_child = Draft((int(laws[0].argmax()),), (0,))
    assert draws(one_child, laws[[0, 1 + draft.tokens.index(one_child.tokens[0])]], rows[:2], raw_bonus)[1] < 1e-6
