"""Promise 1: the text is the target's own. Same seed, same ids, with any drafter or none."""

from __future__ import annotations

import random

import pytest
import torch

from engine.drafters.model import ModelDrafter
from engine.drafters.ngram import Ngram
from engine.drafters.stacked import Stacked
from engine.speculation.sampling import Filters
from tests.tiny import Adversary, carry_on, tiny_config, tiny_target, write

FILTERS = [
    Filters(),
    Filters(temperature=0.7, top_p=0.9),
    Filters(temperature=1.0),
    Filters(temperature=1.0, top_k=5, min_p=0.05),
    Filters(temperature=0.8, repeat_penalty=1.3),
    Filters(repeat_penalty=1.5),
]


@pytest.mark.parametrize("window", [None, 12])
@pytest.mark.parametrize("filters", FILTERS, ids=str)
def test_no_draft_can_change_the_text(filters: Filters, window: int | None) -> None:
    """Random trees, duplicates, true and false tokens, stop ids inside: thousands of drafts, one text."""
    target = tiny_target(3, tiny_config(window=window))
    rng = random.Random(11)
    drafts = 0
    for case in range(40):
        prompt = [rng.randrange(32) for _ in range(rng.randint(1, 40))]
        stop_ids = frozenset(rng.sample(range(32), rng.choice([0, 1, 3])))
        max_tokens = rng.choice([1, 2, 7, 30])
        plain = write(target, prompt, None, filters=filters, seed=case, max_tokens=max_tokens, stop_ids=stop_ids)
        held = target.length
        for honest in (0.0, 0.6, 1.0):
            truth = plain.ids + [next(iter(stop_ids), 0)]
            adversary = Adversary(random.Random(case), 32, truth, len(prompt), honest)
            run = write(target, prompt, adversary, filters=filters, seed=case, max_tokens=max_tokens, stop_ids=stop_ids, k=9)
            assert run.ids == plain.ids
            assert run.reason == plain.reason
            assert target.length == held == len(prompt) + len(plain.ids) - 1
            drafts += sum(step.nodes > 0 for step in run.steps)
    assert drafts > 300  # over all settings: thousands


@pytest.mark.parametrize("tree", [False, True])
def test_the_cache_comes_as_far_as_without_a_draft(tree: bool) -> None:
    """Sliding layers forget by how far a text came, a stop id included: what the next turn can reuse is the same with any drafter."""
    target = tiny_target(3, tiny_config(window=12))
    rng = random.Random(2)
    reached: list[int] = []
    keep = target.keep

    def recorded(rows: tuple[int, ...]) -> None:
        keep(rows)
        reached.append(target.length)

    target.keep = recorded  # type: ignore[method-assign]
    inside = 0
    for case in range(20):
        prompt, stop_ids = [rng.randrange(32) for _ in range(5)], frozenset(rng.sample(range(32), 3))
        plain = write(target, prompt, None, filters=FILTERS[2], seed=case, max_tokens=40, stop_ids=stop_ids)
        farthest = max(reached)
        reached.clear()
        truth = plain.ids + [s for s in (plain.steps[-1].stop_id,) if s is not None]
        adversary = Adversary(random.Random(case), 32, truth, len(prompt), 1.0, tree)
        run = write(target, prompt, adversary, filters=FILTERS[2], seed=case, max_tokens=40, stop_ids=stop_ids)
        assert run.ids == plain.ids
        assert max(reached) == farthest
        inside += run.reason == "stop" and run.steps[-1].emitted > 0
        reached.clear()
    assert inside > 3


@pytest.mark.parametrize("filters", FILTERS, ids=str)
def test_the_shipped_drafters_change_nothing(filters: Filters) -> None:
    target = tiny_target(3)
    rng = random.Random(5)
    for case, lengths in enumerate([(0, 4), (1,), (None,)] * 3):
        prompt = [rng.randrange(32) for _ in range(rng.randint(2, 30))]
        plain = write(target, prompt, None, filters=filters, seed=case, max_tokens=60)
        drafters = [
            Ngram(min_match=1),
            ModelDrafter("same", tiny_target(3), 32),
            ModelDrafter("other", tiny_target(4), 32),
            Stacked([Ngram(min_match=2), ModelDrafter("other", tiny_target(4, tiny_config(window=8)), 32)]),
        ]
        for drafter in drafters:
            for k in lengths:
                run = write(target, prompt, drafter, filters=filters, seed=case, max_tokens=60, k=k)
                assert run.ids == plain.ids, (drafter.name, k)
        same = write(target, prompt, drafters[1], filters=filters, seed=case, max_tokens=60, k=4)
        assert sum(s.accepted for s in same.steps) == sum(s.drafted for s in same.steps) > 0  # it agrees with itself


def test_swapping_drafters_in_mid_reply_keeps_the_text() -> None:
    target = tiny_target(3)
    filters = Filters(temperature=0.9, top_p=0.95)
    plain = write(target, [1, 2, 3], None, filters=filters, max_tokens=80)
    pool = [None, Ngram(min_match=1), ModelDrafter("other", tiny_target(4), 32), ModelDrafter("same", tiny_target(3), 32)]
    rng = random.Random(2)

    def between(ctx):
        drafter = rng.choice(pool)
        if drafter is not None:
            drafter.sync(ctx)
        return drafter

    assert write(target, [1, 2, 3], None, filters=filters, max_tokens=80, between=between).ids == plain.ids


@pytest.mark.parametrize("window", [None, 12])
def test_three_turns_with_any_drafter(window: int | None) -> None:
    """What a reply leaves in the cache is the same with any drafter, so the next turns are too."""
    filters = Filters(temperature=1.0)
    texts = []
    for make in (lambda: None, Ngram, lambda: ModelDrafter("other", tiny_target(4), 32)):
        target, drafter = tiny_target(3, tiny_config(window=window)), make()
        ids, out = [1, 2, 3, 4], []
        target.prefill(ids[:-1])
        for turn in range(3):
            run = carry_on(target, ids, drafter, filters=filters, seed=turn, max_tokens=25, stop_ids=frozenset([7]), k=4, rule="match")
            out.append(run.ids)
            ids += [9, 8, 7, turn]
            target.prefill(ids[target.length : -1])
        texts.append(out)
    assert texts[0] == texts[1] == texts[2]


@pytest.mark.parametrize("window", [None, 12, 70])
def test_the_cache_after_many_steps_equals_a_fresh_one(window: int | None) -> None:
    target = tiny_target(3, tiny_config(window=window), context=2600)
    rng = random.Random(1)
    prompt = [rng.randrange(32) for _ in range(1900)]
    plain = write(target, prompt, None, max_tokens=200)
    run = write(target, prompt, Adversary(random.Random(0), 32, plain.ids, len(prompt), 0.8), max_tokens=200, k=7)
    assert run.ids == plain.ids
    ids = prompt + plain.ids
    after = target.verify(torch.tensor(ids[-1:]), ())
    fresh = tiny_target(3, tiny_config(window=window), context=2600)
    fresh.prefill(ids[:-1])
    assert torch.allclose(after, fresh.verify(torch.tensor(ids[-1:]), ()), atol=1e-10)


def test_a_stop_string_inside_a_draft_ends_the_reply_there() -> None:
    target = tiny_target(3)
    plain = write(target, [1, 2, 3], None, max_tokens=40)
    for stop_after in range(1, 12):
        adversary = Adversary(random.Random(stop_after), 32, plain.ids, 3, 0.9)
        run = write(target, [1, 2, 3], adversary, max_tokens=40, k=6, stop_after=stop_after)
        assert run.ids == plain.ids[:stop_after]
        assert run.reason == "stop"
        assert target.length == 3 + stop_after - 1


def test_the_context_ends_the_reply() -> None:
    target = tiny_target(3, context=40)
    run = write(target, list(range(20)), Ngram(min_match=1), max_tokens=100)
    assert run.reason == "context"
    assert len(run.ids) == 20
