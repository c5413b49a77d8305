"""A model as drafter: its cache follows the text through every turn of events."""

from __future__ import annotations

import random

import pytest
import torch

from engine.drafters.model import CATCH_UP, ModelDrafter, common
from engine.drafters.ngram import Ngram
from engine.drafters.stacked import Stacked
from engine.speculation.draft import Context, Drafter, Verdict
from engine.speculation.sampling import Filters, Picker, Row
from tests.tiny import tiny_config, tiny_target, write

SAMPLED = Filters(temperature=1.0, top_p=0.9)


def context(ids: list[int], budget: int = 4, filters: Filters = SAMPLED, **more: object) -> Context:
    return Context(ids, 3, 0, Picker(filters, 5), budget=lambda source: budget, vocab_size=32, **more)  # type: ignore[arg-type]


def test_common_beginnings() -> None:
    assert common([1, 2, 3], [1, 2, 4], 0, 9) == 2
    assert common([1, 2, 3], [1, 2, 3, 4], 0, 9) == 3
    assert common([1, 2, 3], [1, 2, 3, 4], 0, 2) == 2
    assert common([1, 2, 3], [9, 2, 4], 1, 9) == 2  # the first is known to be equal
    assert common([], [1], 0, 5) == 0


@pytest.mark.parametrize("filters", [Filters(), SAMPLED, Filters(temperature=0.8, repeat_penalty=1.3)], ids=str)
def test_it_draws_what_the_target_would_draw_if_it_were_the_target(filters: Filters) -> None:
    """The same noise in the same places: a copy of the target is always kept."""
    target = tiny_target(3)
    drafter = ModelDrafter("same", tiny_target(3), 32)
    run = write(target, [1, 2, 3, 4], drafter, filters=filters, max_tokens=60, k=5)
    assert all(step.accepted == step.drafted for step in run.steps)
    assert len(run.steps) <= 60 / 6 + 1


def test_its_cache_holds_the_committed_text_after_any_verdict() -> None:
    rng = random.Random(1)
    runner = tiny_target(4)
    drafter = ModelDrafter("other", runner, 32)
    ids = [rng.randrange(32) for _ in range(10)]
    ctx = context(ids)
    drafter.sync(ctx)
    while len(ids) < 200:
        if rng.random() < 0.8:  # else it was passed over, as behind another drafter
            draft = drafter.propose(ctx)
            assert len(draft.tokens) == 4
        else:
            draft = None
        kept, rooted = rng.randint(0, 4) if draft else 0, len(ids)
        emitted = list(draft.tokens[:kept]) if draft else [rng.randrange(32) for _ in range(rng.choice([0, 1, 7, 30]))]
        emitted += [rng.randrange(32)]
        if rng.random() < 0.1:
            emitted = emitted[:-1]  # a stop cut it: perhaps nothing at all
        ids.extend(emitted)
        drafter.commit(ctx, Verdict(tuple(range(kept + 1)), tuple(emitted)))
        assert runner.length == len(drafter._ids) <= len(ids) - 1
        assert drafter._ids == ids[: runner.length]
        if draft and len(emitted) > kept:  # what was kept is not read again
            assert runner.length >= rooted + min(kept, 3)
    fresh = tiny_target(4)
    fresh.prefill(ids[: runner.length])
    probe = torch.tensor([3])
    assert torch.allclose(runner.verify(probe, ()), fresh.verify(probe, ()), atol=1e-10)


def test_what_it_says_follows_from_the_text_alone() -> None:
    """After rejections, rests and catching up, it proposes exactly what a new one proposes."""
    rng = random.Random(2)
    old = ModelDrafter("m", tiny_target(4), 32)
    ids = [rng.randrange(32) for _ in range(6)]
    ctx = context(ids)
    old.sync(ctx)
    for gap in (1, 3, CATCH_UP, CATCH_UP + 1, 40, 2):
        fresh = ModelDrafter("m", tiny_target(4), 32)
        fresh.sync(ctx)
        assert fresh.propose(ctx).tokens == old.propose(ctx).tokens
        for new in ([rng.randrange(32) for _ in range(gap)], [1]):  # the second without a draft of its own
            ids.extend(new)
            old.commit(ctx, Verdict((0,), tuple(new)))


def test_sync_keeps_what_is_common_and_reads_the_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    runner = tiny_target(4)
    drafter = ModelDrafter("m", runner, 32)
    read: list[int] = []
    prefill = runner.prefill
    monkeypatch.setattr(runner, "prefill", lambda ids, *more: read.append(len(ids)) or prefill(ids, *more))
    drafter.sync(context(list(range(20))))
    drafter.sync(context([*range(20), 5, 6]))
    drafter.sync(context([*range(10), 31, 30]))
    drafter.sync(context([*range(10), 31]))
    assert read == [19, 2, 1, 0]
    assert runner.length == 10


def test_a_stop_while_it_reads_leaves_it_usable() -> None:
    runner = tiny_target(4, context=2000)
    drafter = ModelDrafter("m", runner, 32)
    rng = random.Random(3)
    ids = [rng.randrange(32) for _ in range(1500)]
    asked = iter([False, True] + [True] * 50)
    drafter.sync(context(ids, cancelled=lambda: next(asked)))
    assert runner.length == 512
    assert drafter._ids == ids[:512]
    ctx = context(ids)
    drafter.sync(ctx)
    fresh = ModelDrafter("m", tiny_target(4, context=2000), 32)
    fresh.sync(ctx)
    assert drafter.propose(ctx).tokens == fresh.propose(ctx).tokens
    assert drafter.propose(context(ids, cancelled=lambda: True)).tokens == ()


def test_its_laws_are_those_it_drew_from_in_the_targets_width() -> None:
    drafter = ModelDrafter("m", tiny_target(4, tiny_config(vocab_size=20)), 32)
    ctx = context([1, 2, 3, 4], with_laws=True)
    drafter.sync(ctx)
    draft = drafter.propose(ctx)
    assert draft.laws is not None
    assert draft.laws.shape == (4, 32)
    assert draft.laws.sum(-1).tolist() == pytest.approx([1.0] * 4)
    assert all(draft.laws[i, token] > 0 for i, token in enumerate(draft.tokens))
    assert (draft.laws[:, 20:] == 0).all()
    runner = tiny_target(4, tiny_config(vocab_size=20))
    runner.prefill([1, 2, 3])
    logits = runner.verify(torch.tensor([4, *draft.tokens[:-1]]), (0, 1, 2))
    assert torch.allclose(draft.laws[:, :20], ctx.picker.laws(logits, [Row(1 + i) for i in range(4)]))
    ctx = context([1, 2, 3, 4])
    drafter.sync(ctx)
    assert drafter.propose(ctx).laws is None


def test_the_rule_decides_which_noise_it_draws_with() -> None:
    """Under the ratio rule a proposal must not share the noise of the picks."""
    picks = []
    for with_laws in (False, True):
        drafter = ModelDrafter("m", tiny_target(4), 32)
        ctx = context([1, 2, 3, 4], budget=40, with_laws=with_laws, filters=Filters(1.0))
        drafter.sync(ctx)
        picks.append(drafter.propose(ctx).tokens)
    assert picks[0][:10] != picks[1][:10]


# --- sizes that do not fit ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("filters", [Filters(), SAMPLED, Filters(temperature=0.8, repeat_penalty=1.3)], ids=str)
@pytest.mark.parametrize("vocab_size", [20, 40])
def test_a_drafter_with_fewer_or_more_ids_changes_nothing(vocab_size: int, filters: Filters) -> None:
    """The text holds ids that a smaller drafter has never heard of; a larger one may want ids that the target lacks."""
    target = tiny_target(3)
    prompt = [31, 5, 25, 6, 30, 7]
    plain = write(target, prompt, None, filters=filters, max_tokens=50)
    assert max(plain.ids) >= 20
    for drafter in (
        ModelDrafter("m", tiny_target(4, tiny_config(vocab_size=vocab_size)), 32),
        Stacked([Ngram(min_match=1), ModelDrafter("m", tiny_target(4, tiny_config(vocab_size=vocab_size)), 32)]),
    ):
        run = write(target, prompt, drafter, filters=filters, max_tokens=50)
        assert run.ids == plain.ids
        assert sum(step.drafted for step in run.steps) > 20


@pytest.mark.parametrize("length", [10, 28, 30, 31, 32, 33, 60, 120])
def test_a_text_longer_than_its_context_ends_its_work_and_nothing_else(length: int) -> None:
    """A small drafter may have been made for a shorter context than the target."""
    rng = random.Random(length)
    target = tiny_target(3, context=200)
    prompt = [rng.randrange(32) for _ in range(length)]
    plain = write(target, prompt, None, max_tokens=60)

    def run(drafter: Drafter) -> None:
        result = write(target, prompt, drafter, max_tokens=60)
        assert result.ids == plain.ids
        assert (sum(step.drafted for step in result.steps) > 0) == (length < 32)

    drafter = ModelDrafter("short", tiny_target(3, context=32), 32)
    run(drafter)
    short = write(target, [1, 2, 3], drafter, max_tokens=12)  # a new chat: it is back
    assert sum(step.accepted for step in short.steps) > 0


def test_memory_and_close() -> None:
    runner = tiny_target(4)
    drafter = ModelDrafter("m", runner, 32)
    assert drafter.memory() == sum(runner.memory()) > 0
    drafter.close()
    assert not hasattr(runner, "model")


def test_numbers_that_are_none_end_a_draft_and_after_three_the_drafter() -> None:
    """The text is the target's own all the same, a single bad pass does no lasting harm, and it is said once."""
    target, runner = tiny_target(3), tiny_target(3)
    plain = write(target, [1, 2, 3, 4], None, filters=SAMPLED, max_tokens=60)
    real, bad = runner.next, iter([False, True] + [False] * 9 + [True, False, True])
    runner.next = lambda ids: real(ids) * (float("nan") if next(bad) else 1.0)  # type: ignore[method-assign]
    drafter = ModelDrafter("same", runner, 32)
    run = write(target, [1, 2, 3, 4], drafter, filters=SAMPLED, max_tokens=60, k=5)
    assert run.ids == plain.ids
    assert next(bad, None) is None
    assert [step.drafted for step in run.steps[:3]] == [1, 5, 4]
    assert not any(step.drafted for step in run.steps[4:])
    told: list[str] = []
    ctx = context([1, 2, 3, 4], tell=told.append)
    other = ModelDrafter("other", tiny_target(4), 32)
    other._runner.next = lambda ids: torch.full((1, 32), float("nan"))  # type: ignore[method-assign]
    for _ in range(5):
        assert not other.propose(ctx).tokens
    assert told == ["other is off: its numbers are not finite (NaN or infinite), three times now."]
