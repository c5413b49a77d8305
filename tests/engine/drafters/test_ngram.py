"""The look-up against a slow search through the whole text, and several drafters in line."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Any

import pytest

from engine.drafters.ngram import Ngram
from engine.drafters.stacked import Stacked
from engine.speculation.draft import Context, Draft, Needs, Verdict, chain
from engine.speculation.sampling import Filters, Picker


def context(ids: list[int], budget: int = 5, start: int = 0) -> Context:
    return Context(ids, start, 0, Picker(Filters(), 1), budget=lambda source: budget)


def slow(ids: list[int], budget: int, low: int, high: int) -> tuple[int, list[int]]:
    """The longest earlier match of the text's end, the most recent among equals, and what followed it."""
    for n in range(min(high, len(ids)), low - 1, -1):
        for at in range(len(ids) - 1, n - 1, -1):
            if ids[at - n : at] == ids[-n:]:
                out = list(ids)
                for i in range(budget):
                    out.append(out[at + i])
                return n, out[len(ids) :]
    return 0, []


@pytest.mark.parametrize(("low", "high"), [(1, 1), (1, 4), (2, 8), (3, 3)])
def test_it_finds_what_a_whole_search_finds(low: int, high: int) -> None:
    rng = random.Random(low * 10 + high)
    for case in range(25):
        ids = [rng.randrange(2 + case % 4) for _ in range(rng.randint(1, 12))]
        drafter = Ngram(min_match=low, max_match=high)
        ctx = context(ids, budget=rng.randint(1, 9))
        drafter.sync(ctx)
        for _ in range(40):
            draft = drafter.propose(ctx)
            length, expected = slow(ids, ctx.budget(""), low, high)
            if not length:
                assert draft.note in ("", "behind a change")
                expected = list(draft.tokens)
            assert list(draft.tokens) == expected
            assert draft.parents == tuple(range(len(expected)))
            assert draft.laws is None
            if length:
                assert draft.note == f"match of {length}"
                assert draft.source == f"ngram, {'long' if length >= 4 else 'short'} matches"
            new = [rng.randrange(2 + case % 4) for _ in range(rng.randint(1, 3))]
            ids.extend(new)
            drafter.commit(ctx, Verdict((0,), tuple(new)))


def test_a_repetition_goes_on_into_its_own_copy() -> None:
    drafter = Ngram(min_match=2)
    ctx = context([7, 1, 2, 1, 2, 1, 2], budget=7)
    drafter.sync(ctx)
    assert drafter.propose(ctx).tokens == (1, 2, 1, 2, 1, 2, 1)


def test_nothing_to_say_is_an_empty_draft() -> None:
    drafter = Ngram(min_match=2)
    for ids in ([1], [1, 2], [1, 2, 3, 4, 5], [1, 1, 2, 1, 3]):
        ctx = context(ids)
        drafter.sync(ctx)
        assert drafter.propose(ctx) == Draft()
    ctx = context([1, 2, 1, 2], budget=0)
    drafter.sync(ctx)
    assert drafter.propose(ctx).tokens == ()


def test_the_budget_is_asked_by_the_length_of_the_match() -> None:
    asked: list[str] = []
    ctx = context([1, 2, 3, 4, 5, 1, 2, 3, 4])
    ctx.budget = lambda source: asked.append(source) or 0  # type: ignore[func-returns-value]
    drafter = Ngram("look-up")
    drafter.sync(ctx)
    drafter.propose(ctx)
    ctx.ids.extend([9, 2, 3])
    drafter.sync(ctx)
    drafter.propose(ctx)
    assert asked == ["look-up, long matches", "look-up, short matches"]


SOURCE = [10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20]


def reply(drafter: Ngram, tokens: list[int], budget: int = 4) -> list[tuple[str, tuple[int, ...], int]]:
    """What was drafted for a reply behind `SOURCE`, and how much of it was right, step by step."""
    ctx = context([*SOURCE, 1, 10, 11], budget)
    drafter.sync(ctx)
    steps = []
    while tokens:
        draft = drafter.propose(ctx)
        right = 0
        while right < min(len(draft.tokens), len(tokens) - 1) and draft.tokens[right] == tokens[right]:
            right += 1
        new, tokens = tokens[: right + 1], tokens[right + 1 :]
        ctx.ids.extend(new)
        drafter.commit(ctx, Verdict(tuple(range(right + 1)), tuple(new)))
        steps.append((draft.note, draft.tokens, right))
    return steps


def test_a_copy_goes_on_behind_a_token_that_was_replaced() -> None:
    """12 13 | 99 in place of 14 | 15 16 17 18: nothing matches (.., 99), and the copy goes on all the same."""
    assert reply(Ngram(), [12, 13, 99, 15, 16, 17, 18, 98, 20]) == [
        ("match of 2", (12, 13, 14, 15), 2),
        ("behind a change", (15, 16, 17, 18), 4),
        ("behind a change", (20, 1, 10, 11), 0),
    ]


def test_a_copy_is_given_up_after_some_changes_in_a_row() -> None:
    steps = reply(Ngram(), [99, 98, 97, 96])
    assert [note for note, _, _ in steps] == ["match of 2", "behind a change", "behind a change", ""]
    assert [tokens[:1] for _, tokens, _ in steps] == [(12,), (13,), (14,), ()]
    again = reply(Ngram(), [99, 98, 14, 97, 96, 17, 18])  # one that is as in the copy counts anew
    assert [(note, right) for note, _, right in again] == [
        ("match of 2", 0),
        ("behind a change", 0),
        ("behind a change", 1),
        ("behind a change", 0),
        ("behind a change", 1),
    ]


def test_a_new_match_is_better_than_an_old_copy() -> None:
    drafter = Ngram()
    ctx = context([*SOURCE, 1, 16, 17])
    drafter.sync(ctx)
    assert drafter.propose(ctx).tokens[:1] == (18,)
    ctx.ids.extend([10, 11])
    drafter.commit(ctx, Verdict((0,), (10, 11)))
    assert drafter.propose(ctx).tokens[:1] == (12,)
    other = context([*SOURCE, 1, 10, 12])
    drafter.sync(other)
    assert drafter.propose(other) == Draft()  # another text: no copy is left


def test_the_copy_is_followed_also_when_another_drafts() -> None:
    """It yields or has no budget: what came is compared all the same."""
    drafter = Ngram()
    ctx = context([*SOURCE, 1, 10, 11])
    drafter.sync(ctx)
    ctx.yields = lambda source, rival: True
    assert drafter.propose(ctx) == Draft()
    ctx.ids.extend([12, 99])
    drafter.commit(ctx, Verdict((0, 1), (12, 99)))
    ctx.yields = lambda source, rival: False
    assert drafter.propose(ctx).tokens == (14, 15, 16, 17, 18)


def test_sync_follows_another_text_or_the_same_one() -> None:
    drafter = Ngram(min_match=2)
    drafter.sync(context([1, 2, 3, 1, 2]))
    longer = context([1, 2, 3, 1, 2, 9, 1, 2])
    drafter.sync(longer)
    assert drafter.propose(longer).tokens[:1] == (9,)  # the most recent
    other = context([5, 1, 2])
    drafter.sync(other)
    assert drafter.propose(other).tokens == ()  # nothing left of the text before
    shorter = context([5, 1])
    drafter.sync(shorter)
    assert drafter.propose(shorter).tokens == ()
    drafter.close()
    drafter.sync(longer)
    assert drafter.propose(longer).tokens[:1] == (9,)
    assert drafter.memory() == 0


def test_a_step_does_not_grow_with_the_text() -> None:
    """Twenty thousand tokens are indexed once; a step then looks up a few keys."""
    rng = random.Random(1)
    ctx = context([rng.randrange(5000) for _ in range(20_000)])
    drafter = Ngram()
    drafter.sync(ctx)
    keys = len(drafter._followed)
    ctx.ids.append(3)
    drafter.commit(ctx, Verdict((0,), (3,)))
    assert len(drafter._followed) <= keys + 7
    drafter.sync(ctx)
    assert len(drafter._ids) == 20_001


# --- several in line ------------------------------------------------------------------------------------------------------


@dataclass
class Part:
    """Says what it is told to, and writes down what it hears."""

    name: str
    says: list[int]
    method: str = "model"
    needs: Needs = field(default_factory=Needs)
    heard: list[Any] = field(default_factory=list)

    def sync(self, ctx: Context) -> None:
        self.heard.append("sync")

    def propose(self, ctx: Context) -> Draft:
        self.heard.append("propose")
        return chain(self.says, self.name)

    def commit(self, ctx: Context, verdict: Verdict) -> None:
        self.heard.append(verdict)

    def memory(self) -> int:
        return 10

    def close(self) -> None:
        self.heard.append("close")


def test_the_first_that_has_something_to_say_drafts_and_all_hear_the_verdict() -> None:
    reader: Any = object()
    a, b, c = Part("a", [], "ngram", Needs(max_nodes=30)), Part("b", [4, 5]), Part("c", [6], "pf", Needs((5, 1), True, 20, reader))
    line = Stacked([a, b, c])
    ctx = context([1, 2, 3])
    line.sync(ctx)
    assert line.propose(ctx).source == "b"
    verdict = Verdict((0, 1), (4, 9))
    line.commit(ctx, verdict)
    line.close()
    assert a.heard == ["sync", "propose", verdict, "close"]
    assert b.heard == ["sync", "propose", verdict, "close"]
    assert c.heard == ["sync", verdict, "close"]  # not asked
    assert (line.name, line.method, line.memory()) == ("a+b+c", "pf", 30)
    assert line.needs == Needs((5, 1), True, 30)
    assert line.needs.reader is reader
    b.says = []
    assert line.propose(ctx).source == "c"
    assert ctx.rival == ""
    c.says = []
    assert line.propose(ctx).tokens == ()


def test_each_part_knows_who_drafts_if_it_does_not() -> None:
    seen: list[str] = []

    class Asks(Part):
        def propose(self, ctx: Context) -> Draft:
            seen.append(ctx.rival)
            return super().propose(ctx)

    a, b, c = Asks("a", []), Asks("b", []), Asks("c", [6])
    line, ctx = Stacked([a, b, c]), context([1, 2, 3])
    line.propose(ctx)
    line.propose(ctx)
    b.says = [1]
    line.propose(ctx)
    line.propose(ctx)
    assert seen == ["", "", "", "c", "c", "", "c", "c", "b", "c"]
