"""Heads in step with the text: hidden states, own cache, second prompts, swaps, long texts; known problems of the references."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from engine.drafters.heads.grow import Tree
from engine.drafters.heads.specs import Family
from engine.speculation import loop, verify
from engine.speculation.draft import Context, Draft
from engine.speculation.sampling import Filters, Picker
from tests.engine.drafters.heads.worlds import FAMILIES, begin, make_heads, make_target, reply
from tests.tiny import carry_on

GREEDY: dict[str, Any] = {"filters": Filters(), "seed": 1, "stop_ids": frozenset(), "rule": "match"}


def context(ids: list[int], budget: int, vocab: int, filters: Filters = Filters()) -> Context:  # noqa: B008  frozen
    return Context(ids, 0, 0, Picker(filters, 1, ids), lambda source: budget, vocab)


def tree_behind(target: Any, drafter: Any, ids: list[int], budget: int = 63) -> tuple[Any, ...]:
    """What is drafted behind a text."""
    draft = drafter.propose(context(ids, budget, target.vocab_size))
    return draft.tokens, draft.parents


def fresh(family: Family, target: Any, ids: list[int], **more: Any) -> tuple[Any, ...]:
    """What heads draft that have read the whole text at once."""
    other = make_heads(family, target, **more)
    assert target.length == len(ids) - 1
    target.needs = other.needs
    assert other.rewind(ids) == 0
    assert target.reread(ids[:-1], 0, lambda at, taps: other.absorb(ids, at, taps), None, None)
    return tree_behind(target, other, ids)


@pytest.mark.parametrize("family", FAMILIES)
def test_after_every_round_the_heads_have_read_the_confirmed_text_and_nothing_else(family: Family) -> None:
    """vllm#14649: keys and values from guessed hidden states must not stay."""
    target = make_target(3, 12, family, torch.float64)
    drafter = make_heads(family, target)
    propose, drafts = drafter.propose, []

    def watched(ctx: Context) -> Draft:
        draft = propose(ctx)
        assert drafter.head.length == len(ctx.ids) - 1
        drafts.append((list(ctx.ids), (draft.tokens, draft.parents)))
        return draft

    drafter.propose = watched  # type: ignore[method-assign]
    reply(target, [1, 2, 3, 4], drafter, k=20, max_tokens=30)
    assert len(drafts) > 3
    for ids, draft in drafts[:: max(1, len(drafts) // 4)]:
        target.truncate(0)
        target.prefill(ids[:-1])
        tokens, parents = fresh(family, target, ids)
        assert draft == (tokens[: len(draft[0])], parents[: len(draft[1])])  # the first n nodes are the tree of n


@pytest.mark.parametrize("family", FAMILIES)
def test_a_second_prompt_and_a_second_turn(family: Family) -> None:
    """EAGLE#82: garbage on the second prompt. Whatever was reused, the heads draft as if they had read it all at once."""
    target = make_target(3, 503, family, torch.float64)
    drafter = make_heads(family, target)
    rng = random.Random(1)
    ids = [rng.randrange(503) for _ in range(20)]
    reply(target, ids, drafter, k=9)
    first = list(drafter._ids)
    texts = [
        [*first, 7, 8, 9, 10],  # the next turn
        [*first, 7],  # nothing to read but the root
        first[:15],  # back into the first text
        first[:15],  # regenerate: the same prompt again
        [*first[:10], 1, 2, 3],  # another branch
        [5, 6],  # another chat
        [5],  # nothing confirmed at all
        ids,
    ]
    for text in texts:
        held = min(target.length, len(text) - 1)
        while held and drafter._ids[:held] != text[:held]:
            held -= 1
        target.truncate(held)
        begin(target, text, drafter)
        got = tree_behind(target, drafter, text)
        if len(text) == 1:
            assert got == ((), ())
            continue
        assert drafter.head.length == len(text) - 1
        assert got == fresh(family, target, text)


@pytest.mark.parametrize("window", [None, 16])
@pytest.mark.parametrize("family", ["eagle3", "hydra++"])
def test_reading_again_for_the_taps_writes_no_keys_and_values(family: Family, window: int | None) -> None:
    """Also where a sliding layer has forgotten the beginning."""
    target = make_target(3, 40, family, context=2400, window=window)
    rng = random.Random(2)
    ids = [rng.randrange(40) for _ in range(1700)]
    drafter = make_heads(family, target)
    target.needs = drafter.needs
    told: list[tuple[int, torch.Tensor]] = []
    target.prefill(ids[:-1], sink=lambda at, taps: told.append((at, taps)))
    assert [at for at, _ in told] == [0, 512, 1024, 1536]  # chunk by chunk
    before = [group.store.clone() for group in target.cache.groups]
    for start in (0, 3, 511, 1600, 1698):
        again: list[tuple[int, torch.Tensor]] = []
        assert target.reread(ids[:-1], start, lambda at, taps, again=again: again.append((at, taps)), None, None)
        first, taps = again[0][0], torch.cat([t for _, t in again])
        assert first <= start
        assert first + len(taps) == 1699
        whole = torch.cat([t for _, t in told])
        assert torch.allclose(taps, whole[first:], atol=1e-4)
    assert target.length == 1699
    assert all(torch.equal(a, group.store) for a, group in zip(before, target.cache.groups, strict=True))


@pytest.mark.parametrize("family", FAMILIES)
def test_three_thousand_tokens(family: Family) -> None:
    """sglang#3574, vllm#23072: heads made for few positions, a text far behind them."""
    target = make_target(3, 12, family, context=3200)
    drafter = make_heads(family, target)
    rng = random.Random(3)
    prompt = [rng.randrange(12) for _ in range(3000)]
    plain = reply(target, prompt, None, max_tokens=20)
    run = reply(target, prompt, drafter, max_tokens=20, k=30)
    assert run.ids == plain.ids
    assert sum(step.nodes for step in run.steps) > 0
    assert drafter.head.length > 3000


def test_the_room_that_a_context_leaves_bounds_the_tree() -> None:
    target = make_target(3, 12, context=40)
    drafter = make_heads("eagle2", target)
    prompt = [i % 12 for i in range(20)]
    plain = reply(target, prompt, None, max_tokens=100)
    run = reply(target, prompt, drafter, max_tokens=100, k=59)
    assert run.ids == plain.ids
    assert run.reason == plain.reason == "context"


@pytest.mark.parametrize("family", FAMILIES)
def test_stop_ids_in_the_middle_of_a_kept_path(family: Family) -> None:
    target = make_target(3, 12, family)
    drafter = make_heads(family, target)
    for stop in range(12):
        plain = reply(target, [1, 2, 3], None, max_tokens=40, stop_ids=frozenset([stop]))
        run = reply(target, [1, 2, 3], drafter, max_tokens=40, stop_ids=frozenset([stop]), k=40)
        assert (run.ids, run.reason) == (plain.ids, plain.reason)
        assert target.length == 3 + len(plain.ids) - 1


def test_padding_is_never_accepted() -> None:
    """5.4: the references fill short rows with token 0, or the last node's token, and take them for drafts."""
    draft = Draft((4, 6, 9), (0, 0, 2))  # [4] is a short row, [6, 9] a long one
    assert verify.match(draft, [4, 0, 1, 1]) == ((0, 1), (4, 0))
    assert verify.match(draft, [6, 1, 2, 9]) == ((0, 2), (6, 2))
    assert verify.match(Draft(), [3]) == ((0,), (3,))


def test_behind_a_short_path_that_was_kept_whole_stands_a_bonus() -> None:
    draft = Draft((4, 6, 9), (0, 0, 2))
    own = {path: loop._own(draft, path) for path in ((0,), (0, 1), (0, 2), (0, 2, 3))}
    assert own == {(0,): "correction", (0, 1): "bonus", (0, 2): "correction", (0, 2, 3): "bonus"}
    assert loop._own(Draft(), (0,)) == "plain"


def test_a_child_that_ties_with_its_parent_never_stands_alone() -> None:
    """4.3: a child with log chance 0 has its parent's score; cutting between the two must keep the parent."""
    tree = Tree()
    for _ in range(4):
        parent = tree.add(1, 0, np.float32(-1.0))
        child = tree.add(2, parent, np.float32(-1.0))
        tree.add(3, child, np.float32(-1.0))
    for n in range(1, 13):
        best = tree.best(n)
        assert len(best.tokens) == n
        assert best.depths == [1 + (best.depths[p - 1] if p else 0) for p in best.parents]
        ranked = tree.ranked()
        assert all(parent <= i for i, parent in enumerate(ranked.parents))
    assert tree.ranked().depths == [1] * 4 + [2] * 4 + [3] * 4


@pytest.mark.parametrize("family", ["eagle2", "gumiho", "eagle3"])
def test_whole_ties_still_make_a_tree(family: Family) -> None:
    """Every token equally likely: the lowest ids, the shallowest nodes, the same tree each time."""
    target = make_target(3, 12, family)
    drafter = make_heads(family, target)
    ids = [1, 2, 3, 4]
    begin(target, ids, drafter)
    drafter._read(3)

    def flat(logits: torch.Tensor, paths: Any, k: int) -> Any:
        k = min(k, 12)
        return np.tile(np.arange(k), (len(paths), 1)), np.zeros((len(paths), k), np.float32)

    trees = [drafter.head.grow(4, n, flat) for n in (1, 5, 23, 59, 59)]
    assert trees[-1].tokens == trees[-2].tokens
    for tree in trees:
        assert all(parent <= i for i, parent in enumerate(tree.parents))


def test_numbers_that_are_not_finite_draft_nothing() -> None:
    """EAGLE#45: a head that overflows costs its drafts, not the text."""
    target = make_target(3, 12)
    drafter = make_heads("eagle2", target)
    plain = reply(target, [1, 2, 3], None)
    reply(target, [1, 2, 3], drafter, k=8)
    drafter.rewind([])
    drafter.head.features.fc._weight.fill_(float("inf"))  # type: ignore[union-attr]
    run = reply(target, [1, 2, 3], drafter, k=8)
    assert run.ids == plain.ids
    assert sum(step.nodes for step in run.steps) == 0


def test_a_reading_that_was_cut_short_goes_on_where_it_stopped() -> None:
    target = make_target(3, 40, dtype=torch.float64, context=2400)
    drafter = make_heads("eagle2", target)
    rng = random.Random(2)
    ids = [rng.randrange(40) for _ in range(1500)]
    target.needs = drafter.needs
    asked = iter([False, True])
    drafter.rewind(ids)
    assert not target.prefill(ids[:-1], None, lambda: next(asked), lambda at, taps: drafter.absorb(ids, at, taps))
    assert drafter._held == target.length == 512
    begin(target, ids, drafter)
    assert tree_behind(target, drafter, ids) == fresh("eagle2", target, ids)


def test_missing_hidden_states_mean_no_draft() -> None:
    target = make_target(3, 12)
    drafter = make_heads("eagle2", target)
    target.prefill([1, 2, 3])
    assert drafter.propose(context([1, 2, 3, 4], 8, 12)).tokens == ()


def test_plain_steps_let_hidden_states_wait_within_bounds() -> None:
    """A drafter that is turned off goes on hearing the target; what waits is read from time to time."""
    target = make_target(3, 12, dtype=torch.float64, context=1400)
    drafter = make_heads("eagle2", target)
    target.needs = drafter.needs
    begin(target, [1, 2, 3], drafter)
    run = carry_on(target, [1, 2, 3], drafter, k=0, max_tokens=1200, **GREEDY)
    assert len(run.ids) == 1200
    assert drafter._held == 1202
    assert drafter._held - drafter.head.length < 512
    assert sum(len(taps) for taps in drafter._waiting) == drafter._held - drafter.head.length
    ids = [1, 2, 3, *run.ids]
    assert tree_behind(target, drafter, ids) == fresh("eagle2", target, ids)


def test_the_corrected_gumiho_drafts_otherwise_and_changes_nothing() -> None:
    target = make_target(3, 503, "gumiho")
    plain = reply(target, [1, 2, 3, 4], None)
    kept, corrected = (make_heads("gumiho", target, 2, corrected=c) for c in (False, True))
    drafts = []
    for drafter in (kept, corrected):
        assert reply(target, [1, 2, 3, 4], drafter, k=63).ids == plain.ids
        target.truncate(0)
        begin(target, [5, 6, 7, 8], drafter)
        drafts.append(tree_behind(target, drafter, [5, 6, 7, 8]))
    assert drafts[0] != drafts[1]


@pytest.mark.parametrize("family", FAMILIES)
def test_the_first_nodes_are_the_smaller_tree(family: Family) -> None:
    """Nodes stand in order of trust, so a larger budget only adds nodes."""
    target = make_target(3, 503, family)
    drafter = make_heads(family, target)
    begin(target, [1, 2, 3, 4], drafter)
    whole = tree_behind(target, drafter, [1, 2, 3, 4], 64)
    assert 20 < len(whole[0]) == drafter.needs.max_nodes
    for n in (0, 1, 2, 3, 4, 7, 15, 30, 64):
        tokens, parents = tree_behind(target, drafter, [1, 2, 3, 4], n)
        assert len(tokens) == min(n, drafter.needs.max_nodes)
        assert (tokens, parents) == (whole[0][:n], whole[1][:n])


@pytest.mark.parametrize("family", FAMILIES)
def test_with_noise_the_shared_one_decides_the_children(family: Family) -> None:
    """At T > 0 the tree follows the seed, at T = 0 and under the ratio rule it does not."""
    target = make_target(3, 503, family)
    drafter = make_heads(family, target)
    ids = [1, 2, 3, 4]
    begin(target, ids, drafter)
    warm = Filters(temperature=1.0)

    def drafted(seed: int, filters: Filters, with_laws: bool = False) -> tuple[int, ...]:
        ctx = replace(context(ids, 30, 503, filters), picker=Picker(filters, seed, ids), with_laws=with_laws)
        return drafter.propose(ctx).tokens

    assert drafted(1, warm) == drafted(1, warm) != drafted(2, warm)
    assert drafted(1, Filters()) == drafted(2, Filters())
    assert drafted(1, warm, True) == drafted(2, warm, True)
