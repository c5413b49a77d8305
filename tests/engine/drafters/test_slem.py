"""SLEM in detail: what is drafted, where it begins, where it ends."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from engine.bridge.codec import Codec
from engine.bridge.maps import vocabulary_map
from engine.drafters.companion import Companion
from engine.drafters.cross import Drafted, Method
from engine.drafters.slem import Slem
from engine.speculation.draft import Context
from engine.speculation.sampling import Filters, Picker
from tests.toy_tokenizers import byte_level, codec, sentencepiece

PROMPT = [0]


class Told:
    """A runner that says what it is told: `say(ids of the reply)` -> wishes, as (id, logit)."""

    context = 500

    def __init__(self, vocab_size: int, say: Callable[[tuple[int, ...]], Sequence[tuple[int, float]]]) -> None:
        self.vocab_size, self.say = vocab_size, say
        self.ids: list[int] = []
        self.passes = 0

    @property
    def length(self) -> int:
        return len(self.ids)

    def truncate(self, length: int) -> int:
        del self.ids[length:]
        return length

    def prefill(self, ids: list[int], *more: object) -> bool:
        self.ids += ids
        return True

    def verify(self, tokens: torch.Tensor, parents: tuple[int, ...]) -> torch.Tensor:
        self.passes += 1
        self.rows = [(int(tokens[0]),)]
        for token, parent in zip(tokens[1:].tolist(), parents, strict=True):
            self.rows.append((*self.rows[parent], token))
        out = torch.full((len(self.rows), self.vocab_size), -30.0)
        for r, row in enumerate(self.rows):
            for i, value in self.say(tuple(self.ids[len(PROMPT) :]) + (row if self.ids else row[len(PROMPT) :])):
                out[r, i] = value
        return out

    def keep(self, rows: tuple[int, ...]) -> None:
        self.ids += self.rows[rows[-1]]

    def next(self, ids: list[int]) -> torch.Tensor:
        logits = self.verify(torch.tensor(ids), tuple(range(len(ids) - 1)))[-1:]
        self.keep(tuple(range(len(ids))))
        return logits


def side_of(target: Codec, drafter: Codec, text: bytes, reply: bytes = b"", end: bool = True) -> Companion:
    """A drafter that wants to write `text` in its own canonical tokens, wherever it stands in it, and then to end its turn."""
    ids = drafter.first(text)
    stop = min(drafter.table.ends)

    def say(said: tuple[int, ...]) -> list[tuple[int, float]]:
        spelled = drafter.spell(said)
        if list(said) == ids[: len(said)]:
            wish = ids[len(said)] if len(said) < len(ids) else stop
        elif text.startswith(spelled) and (rest := drafter.encode(text[len(spelled) :])):
            wish = rest[0]
        else:
            wish = stop
        return [(wish, 5.0)]

    side = Companion(Told(len(drafter.table.tokens), say), lambda question: list(PROMPT), target, drafter)  # type: ignore[arg-type]
    side.begin(context(target, reply))
    assert side.align(context(target, reply))
    return side


def context(target: Codec, reply: bytes = b"", filters: Filters = Filters(), with_laws: bool = False) -> Context:  # noqa: B008  frozen
    return Context(
        [1, *target.first(reply)] if reply else [1], 1, 0, Picker(filters, 3), vocab_size=len(target.table.tokens), with_laws=with_laws
    )


def drafted(how: Callable[[Codec, Codec], Method], target: Codec, drafter: Codec, text: bytes, reply: bytes, budget: int) -> Drafted:
    return how(target, drafter).draft(side_of(target, drafter, text, reply), context(target, reply), budget)


def slem(target: Codec, drafter: Codec) -> Method:
    return Slem(vocabulary_map(target, drafter).ends)


FINE, COARSE = (byte_level, 290), (byte_level, 420)
TEXT = b"the quick brown fox jumps over the lazy dog"


def test_it_hands_over_what_the_targets_encoder_makes_of_the_text() -> None:
    compared = 0
    for one, other in ((COARSE, FINE), (FINE, COARSE), ((sentencepiece, 420), FINE), (COARSE, (sentencepiece, 420))):
        target, drafter = codec(*one), codec(*other)
        want = target.first(TEXT)
        for budget in (1, 2, 3, 5, 8):
            for done in (0, 4):
                found = drafted(slem, target, drafter, TEXT, target.spell(want[:done]), budget)
                spelled, ahead = target.spell(found.tokens), want[done:]
                assert len(found.tokens) == budget
                assert target.spell(ahead).startswith(spelled)
                words = target.encode(spelled[: max(spelled.rfind(b" "), 0)])  # all but the last, which may be only begun
                assert found.tokens[: len(words)] == words == ahead[: len(words)]
                compared += len(words)
                assert not found.laws
                assert found.end is None
    assert compared > 40


def test_the_end_of_a_turn_is_the_targets_own() -> None:
    target, drafter = codec(*COARSE), codec(*FINE)
    want = [*target.first(TEXT), target.turn_end]
    found = drafted(slem, target, drafter, TEXT, TEXT[:30], 20)
    assert found.tokens == target.encode(TEXT)[len(target.encode(TEXT[:30])) :] + [target.turn_end]
    assert found.end == len(found.tokens) - 1
    only = drafted(slem, target, drafter, TEXT, TEXT, 3)
    assert (only.tokens, only.end) == ([target.turn_end], 0)
    assert drafted(slem, target, drafter, TEXT, TEXT, 1).tokens == [target.turn_end]
    assert drafted(slem, target, drafter, TEXT, target.spell(want[:-2]), 1).end is None  # no room for it


def test_other_control_tokens_end_the_draft_and_are_no_text() -> None:
    target, drafter = codec(*COARSE), codec(*FINE)
    other = min(drafter.table.control - drafter.table.ends)
    side = side_of(target, drafter, TEXT)
    side.runner.say = lambda said: [(drafter.first(TEXT)[len(said)] if len(said) < 4 else other, 5.0)]  # type: ignore[attr-defined]
    found = Slem({}).draft(side, context(target), 9)
    assert target.spell(found.tokens) == drafter.spell(drafter.first(TEXT)[:4]).rstrip(b" ")
    assert found.end is None


def test_a_word_that_the_target_has_only_begun_is_offered_again() -> None:
    """The drafter has one token for " there"; the target stopped behind " the", where it had to. A pass more is not needed."""
    target, drafter = codec(*FINE), codec(*COARSE)
    text = b"and there he said"
    cut = target.encode(text)
    split = next(n for n in range(1, len(cut)) if target.spell(cut[:n]).endswith(b" the"))
    reply = target.spell(cut[:split])
    side = side_of(target, drafter, text, reply)
    assert drafter.spell(side.follower.ids[-1:]) == b" the"
    passes = side.runner.passes  # type: ignore[attr-defined]
    found = slem(target, drafter).draft(side, context(target, reply), 2)
    assert found.tokens == cut[split : split + 2]
    assert side.runner.passes - passes <= 2  # type: ignore[attr-defined]
    assert side.follower.ids == drafter.encode(b"and there he")[: len(side.follower.ids)]


def test_what_the_target_would_have_written_otherwise_is_not_put_in_its_place() -> None:
    """Both have a token " there": behind " the" it cannot have been meant."""
    both = codec(*COARSE)
    side = side_of(both, codec(byte_level, 424), b"and there", b"and the")
    found = slem(both, codec(byte_level, 424)).draft(side, context(both, b"and the"), 2)
    assert side.follower.ids[: len(codec(byte_level, 424).encode(b"and the"))] == codec(byte_level, 424).encode(b"and the")
    assert found.tokens[:1] == both.encode(b"re")[:1]


def test_inside_a_character_only_tokens_that_go_on_with_it_are_drafted() -> None:
    target, drafter = codec(byte_level, 290), codec(sentencepiece, 420)
    text = "a 你好 b".encode()
    cut = target.encode(text)
    for n in range(1, len(cut)):
        reply = target.spell(cut[:n])
        side = side_of(target, drafter, text, reply)
        found = slem(target, drafter).draft(side, context(target, reply), 4)
        assert text.startswith(reply + target.spell([i for i in found.tokens if i != target.turn_end]))
        assert found.tokens or side.follower.held or Codec.whole(reply) == len(text)
    wrong = side_of(target, drafter, "a 长".encode(), target.spell(cut[:3]))
    assert wrong.follower.held
    found = slem(target, drafter).draft(wrong, context(target, target.spell(cut[:3])), 4)
    assert "a 你".encode().startswith(target.spell(cut[:3]) + target.spell(found.tokens)[:1])  # it must go on with the character


def test_drafts_by_chance_are_for_comparison() -> None:
    target, drafter = codec(*COARSE), codec(*FINE)
    side = side_of(target, drafter, TEXT)
    words = drafter.encode(b"abcdefgh")
    side.runner.say = lambda said: [(i, 3.0) for i in words]  # type: ignore[attr-defined]
    by_chance = [tuple(Slem({}, sampled=True).draft(_again(side, target, seed), context_of(target, seed), 4).tokens) for seed in range(12)]
    assert len(set(by_chance)) > 6
    surely = [tuple(Slem({}).draft(_again(side, target, seed), context_of(target, seed), 4).tokens) for seed in range(4)]
    assert len(set(surely)) == 1


def context_of(target: Codec, seed: int) -> Context:
    ctx = context(target, filters=Filters(1.0))
    ctx.picker = Picker(Filters(1.0), seed)
    return ctx


def _again(side: Companion, target: Codec, seed: int) -> Companion:
    side.begin(context_of(target, seed))
    assert side.align(context_of(target, seed))
    return side


def test_the_penalty_counts_in_its_own_ids() -> None:
    """What stands in prompt, reply and draft is penalised in the drafter, as in the target."""
    target, drafter = codec(*COARSE), codec(*FINE)
    a, b, c = drafter.encode(b"xyz")
    side = side_of(target, drafter, TEXT)
    side.runner.say = lambda said: [(a, 5.0), (b, 4.5), (c, 4.2)]  # type: ignore[attr-defined]
    ctx = context(target, filters=Filters(0.0, repeat_penalty=1.5))
    side.begin(ctx)
    side.align(ctx)
    found = Slem({}).draft(side, ctx, 4)
    assert target.spell(found.tokens)[:4] == b"xyzx"
