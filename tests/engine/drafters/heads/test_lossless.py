"""Promise 1 with heads: the text is the target's own, greedy or sampled, whatever the heads draft."""

from __future__ import annotations

import random

import pytest

from engine.drafters.heads.specs import Family
from engine.speculation.sampling import Filters
from tests.engine.drafters.heads.worlds import FAMILIES, make_heads, make_target, reply

SIZES = (None, 1, 2, 3, 5, 8, 15, 30, 63)  # nodes; None = the controller decides


@pytest.mark.parametrize("family", FAMILIES)
def test_greedy_text_is_the_plain_one(family: Family) -> None:
    """200 random prompts, two vocabularies: in the small one drafts are kept deep, tokens collide and tie."""
    rng = random.Random(family)
    prompts = deepest = 0
    for vocab, rounds in ((12, 130), (503, 70)):
        target = make_target(3, vocab, family)
        drafters = [make_heads(family, target, seed) for seed in range(3)]
        for case in range(rounds):
            prompt = [rng.randrange(vocab) for _ in range(rng.randint(1, 12))]
            plain = reply(target, prompt, None)
            run = reply(target, prompt, drafters[case % 3], k=SIZES[case % len(SIZES)])
            assert run.ids == plain.ids, (vocab, case)
            prompts += 1
            deepest = max([deepest, *(step.accepted for step in run.steps)])
    assert prompts >= 200
    assert deepest >= 2


@pytest.mark.parametrize(
    "filters",
    [
        Filters(temperature=0.7),
        Filters(temperature=1.0),
        Filters(temperature=1.0, top_p=0.9, repeat_penalty=1.2),
        Filters(temperature=0.7, top_k=3),
    ],
    ids=str,
)
@pytest.mark.parametrize("family", FAMILIES)
def test_sampled_text_is_the_plain_one(family: Family, filters: Filters) -> None:
    rng = random.Random(family)
    kept = 0
    for vocab, rounds in ((12, 14), (503, 6)):
        target = make_target(4, vocab, family)
        drafter = make_heads(family, target, 1)
        for case in range(rounds):
            prompt = [rng.randrange(vocab) for _ in range(rng.randint(2, 12))]
            plain = reply(target, prompt, None, filters, seed=case)
            run = reply(target, prompt, drafter, filters, seed=case, k=SIZES[case % len(SIZES)])
            assert run.ids == plain.ids, (vocab, case)
            kept += sum(step.accepted for step in run.steps)
    assert kept > 0
