"""A conversation on one target: what is read again, what is written, and how it ends."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch

from engine.decoder.target import LeanTarget
from engine.drafters.model import ModelDrafter
from engine.drafters.ngram import Ngram
from engine.errors import EngineError
from engine.protocol import Done, Event, Generate, Message, Notice, Prefill, Sampling, Step
from engine.session import Session
from engine.speculation.control import Controller
from engine.speculation.draft import Context, Draft, Drafter, Needs, Verdict
from tests.tiny import Adversary, tiny_config, tiny_target

ALPHABET = "abcdefghijklmnopqrstuvwxyz .,!?\n"
SAMPLED = Sampling(temperature=1.0, top_p=1.0, top_k=0, min_p=0.0, repeat_penalty=1.0)
GREEDY = Sampling(temperature=0.0)


class Letters:
    """A tokenizer with a letter a token. A turn is its words and a newline; nothing is special but what a test names."""

    def __init__(self, eos_ids: Sequence[int] = ()) -> None:
        self.eos_ids = frozenset(eos_ids)

    def encode(self, text: str, special: bool) -> list[int]:
        return [ALPHABET.index(c) for c in text]

    def decode(self, ids: Sequence[int]) -> str:
        return "".join(ALPHABET[i] for i in ids)

    def render(self, messages: Sequence[Message], carry_on: bool = False) -> list[int]:
        text = "".join(f"{m.role[0]}.{m.content}\n" for m in (messages[:-1] if carry_on else messages))
        return self.encode(text + "a." + (messages[-1].content if carry_on else ""), special=True)


@dataclass
class Chat:
    """A session with everything that it said."""

    target: LeanTarget
    eos_ids: Sequence[int] = ()
    stop: Sequence[str] = ()
    events: list[Event] = field(default_factory=list)
    messages: list[Message] = field(default_factory=list)
    number: int = 0

    def __post_init__(self) -> None:
        self.session = Session(self.target, Letters(self.eos_ids), SAMPLED, self.stop, Controller())  # type: ignore[arg-type]

    def use(self, drafter: Drafter | None) -> Chat:
        self.session.loaded.drafter = drafter
        return self

    def ask(
        self, text: str = "", cancelled: Callable[[], bool] = lambda: False, between: Callable[[], None] = lambda: None, **more: Any
    ) -> Done:
        """One turn; the answer becomes part of the chat."""
        self.number += 1
        if text:
            self.messages.append(Message("user", text))
        if "raw" not in more:
            more["messages"] = tuple(self.messages)
        command = Generate(self.number, **({"seed": self.number, "max_tokens": 30} | more))
        self.events = []
        done = self.session.reply(command, self.events.append, cancelled, between)
        self.check(done)
        if "raw" not in more and not more.get("carry_on"):
            self.messages.append(Message("assistant", done.text))
        return done

    def check(self, done: Done) -> None:
        """What every reply keeps: steps in order, segments that are the text and the ids, a cache that lacks only the last token."""
        steps = [e for e in self.events if isinstance(e, Step)]
        segments = [s for step in steps for s in step.segments] + list(done.tail)
        assert "".join(s.text for s in segments) == done.text
        assert tuple(t for s in segments for t in s.token_ids) == done.token_ids
        assert [step.index for step in steps] == list(range(1, len(steps) + 1))
        assert sum(step.emitted for step in steps) == len(done.token_ids)
        assert all(e.reply == done.reply for e in self.events if not isinstance(e, Notice))
        prefills = [e for e in self.events if isinstance(e, Prefill)]
        assert prefills[0].done == prefills[0].reused == done.reused_tokens
        assert [e.done for e in prefills] == sorted(e.done for e in prefills)
        assert all(e.total == done.prompt_tokens for e in prefills)
        if done.finish_reason != "cancelled":
            assert prefills[-1].done == done.prompt_tokens - 1
            assert self.target.length == done.prompt_tokens + len(done.token_ids) - 1
        assert self.session.tally.emitted == len(done.token_ids)

    @property
    def notices(self) -> list[str]:
        return [e.text for e in self.events if isinstance(e, Notice)]


def drafters() -> list[Drafter | None]:
    return [
        None,
        Ngram(min_match=1),
        ModelDrafter("same", tiny_target(3, context=600), 32),
        ModelDrafter("other", tiny_target(4, context=600), 32),
        Adversary(random.Random(1), 32),
    ]


def target(window: int | None = None, context: int = 600) -> LeanTarget:
    return tiny_target(3, tiny_config(window=window), context=context)


# --- turns --------------------------------------------------------------------------------------------------------------


def test_a_later_turn_reads_only_its_new_tokens() -> None:
    chat = Chat(target()).use(Ngram())
    first = chat.ask("hello there")
    assert (first.prompt_tokens, first.reused_tokens) == (len("u.hello there\na."), 0)
    second = chat.ask("and now?")
    # all of the first turn but its last token, whose keys were never made
    assert second.reused_tokens == first.prompt_tokens + len(first.token_ids) - 1
    assert second.prompt_tokens - second.reused_tokens == len("\nu.and now?\na.") + 1
    again = chat.session.reply(Generate(9, tuple(chat.messages[:3]), seed=1, max_tokens=5), chat.events.append, lambda: False, lambda: None)
    assert again.reused_tokens == again.prompt_tokens - 1  # only the root: the same prompt once more
    other = chat.session.reply(Generate(10, (Message("user", "hello you"),), max_tokens=5), chat.events.append, lambda: False, lambda: None)
    assert other.reused_tokens == len("u.hello ")


@pytest.mark.parametrize("window", [None, 12])
@pytest.mark.parametrize("sampling", [GREEDY, SAMPLED, Sampling(temperature=0.8, repeat_penalty=1.2)], ids=str)
def test_three_turns_are_the_same_with_any_drafter(sampling: Sampling, window: int | None) -> None:
    texts = []
    for drafter in drafters():
        chat = Chat(target(window), eos_ids=(5,)).use(drafter)
        texts.append([chat.ask(text, sampling=sampling, k=k) for text, k in (("one", 4), ("two two", None), ("three", 1))])
    plain = texts[0]
    for dones in texts[1:]:
        for done, expected in zip(dones, plain, strict=True):
            assert done.token_ids == expected.token_ids
            assert (done.text, done.finish_reason, done.stop_id) == (expected.text, expected.finish_reason, expected.stop_id)
            assert (done.prompt_tokens, done.reused_tokens) == (expected.prompt_tokens, expected.reused_tokens)


def test_a_drafter_may_be_exchanged_at_any_step() -> None:
    plain = Chat(target()).ask("hello", max_tokens=120)
    chat = Chat(target())
    pool, rng = drafters(), random.Random(4)

    def between() -> None:
        chat.use(rng.choice(pool))

    done = chat.ask("hello", between=between, max_tokens=120)
    assert done.token_ids == plain.token_ids


def test_the_seed_makes_the_text_and_a_cold_start_changes_nothing() -> None:
    chat = Chat(target())
    one, two = chat.ask("hello", seed=1), chat.ask("more", seed=2)
    cold = Chat(target())
    cold.messages = chat.messages[:2]
    assert cold.ask("more", seed=2).token_ids == two.token_ids
    assert Chat(target()).ask("hello", seed=1).token_ids == one.token_ids
    assert Chat(target()).ask("hello", seed=3).token_ids != one.token_ids


# --- ways to ask --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("drafter", range(5))
def test_carrying_on_is_the_reply_that_was_cut(drafter: int) -> None:
    """The noise counts on from `offset`, so that the whole is what one longer reply would have been."""
    whole = Chat(target()).ask("hello", seed=7, max_tokens=40)
    chat = Chat(target()).use(drafters()[drafter])
    begun = chat.ask("hello", seed=7, max_tokens=13)
    assert begun.finish_reason == "length"
    rest = chat.ask(seed=7, max_tokens=27, carry_on=True, offset=13)
    assert begun.token_ids + rest.token_ids == whole.token_ids
    assert begun.text + rest.text == whole.text
    assert rest.reused_tokens == begun.prompt_tokens + 12


def test_a_carried_on_reply_keeps_its_first_space() -> None:
    """Many tokenizers drop a space in front of all text; behind a reply that goes on it belongs there."""

    def chat() -> Chat:
        it = Chat(target())
        letters = it.session.tokenizer
        it.session.tokenizer.decode = lambda ids: Letters.decode(letters, ids).removeprefix(" ")  # type: ignore[method-assign, arg-type]
        return it

    whole = chat().ask("hello", seed=7, max_tokens=60)
    space = whole.text.index(" ", 3)
    cut = chat()
    begun = cut.ask("hello", seed=7, max_tokens=len(whole.token_ids) - len(whole.text) + space)
    rest = cut.ask(seed=7, max_tokens=5, carry_on=True, offset=len(begun.token_ids))
    assert rest.text[0] == " "
    assert whole.text.startswith(begun.text + rest.text)


def test_raw_is_taken_as_it_is() -> None:
    chat = Chat(target())
    done = chat.ask(raw="once upon")
    assert done.prompt_tokens == len("once upon")
    assert chat.ask(raw="once upon", seed=1).token_ids == done.token_ids
    with pytest.raises(EngineError) as caught:
        chat.ask(raw="")
    assert caught.value.kind == "empty"


def test_wishes_win_over_the_models_defaults_and_the_reply_says_what_was_used() -> None:
    chat = Chat(target())
    assert chat.ask("x", max_tokens=2).sampling == SAMPLED
    assert chat.ask("x", max_tokens=2, sampling=Sampling(top_k=5, temperature=0.0)).sampling == Sampling(0.0, 1.0, 5, 0.0, 1.0)
    bare = Session(target(), Letters(), Sampling(), (), Controller())  # type: ignore[arg-type]
    done = bare.reply(Generate(1, (Message("user", "x"),), max_tokens=2), lambda event: None, lambda: False, lambda: None)
    assert done.sampling == Sampling(0.7, 0.95, 0, 0.0, 1.0)


def test_greedy_text_and_ids_have_the_stats_of_their_steps() -> None:
    chat = Chat(target()).use(ModelDrafter("same", tiny_target(3, context=600), 32))
    done = chat.ask("hello", sampling=GREEDY, k=4, max_tokens=31)
    steps = [e for e in chat.events if isinstance(e, Step)]
    assert [step.emitted for step in steps] == [5, 5, 5, 5, 5, 5, 1]
    assert all(step.accepted == step.drafted == step.nodes for step in steps)
    assert [s.origin for s in steps[0].segments] == ["kept"] * 4 + ["bonus"]
    assert [s.position for s in steps[0].segments] == [1, 2, 3, 4, 0]
    assert steps[-1].drafted == 0
    assert steps[-1].segments[0].origin == "plain"
    assert (done.method, done.drafter) == ("model", "same")
    assert chat.session.tally.tau == pytest.approx(31 / 7)


# --- ends ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("drafter", range(5))
@pytest.mark.parametrize(("k", "most"), [(0, 30), (None, 1), (3, 1), (9, 2), (9, 0)])
def test_short_replies(drafter: int, k: int | None, most: int) -> None:
    plain = Chat(target()).ask("hello", max_tokens=most)
    chat = Chat(target()).use(drafters()[drafter])
    done = chat.ask("hello", k=k, max_tokens=most)
    assert done.token_ids == plain.token_ids
    assert len(done.token_ids) == most
    assert done.finish_reason == "length"
    drafted = sum(e.drafted for e in chat.events if isinstance(e, Step))
    assert (drafted == 0) or (k != 0 and most > 1)


def test_stop_ids_end_it_and_are_not_part_of_it() -> None:
    plain = Chat(target()).ask("hello", max_tokens=60)
    for position in (0, 3, 17):
        eos = plain.token_ids[position]
        expected = plain.token_ids[: plain.token_ids.index(eos)]
        for drafter in drafters():
            chat = Chat(target(), eos_ids=(eos,)).use(drafter)
            done = chat.ask("hello", max_tokens=60, k=5)
            assert done.token_ids == expected
            assert (done.finish_reason, done.stop_id) == ("stop", eos)
            after = chat.ask("go on", max_tokens=3)
            assert after.reused_tokens == max(done.prompt_tokens + len(expected) - 1, 0)


def test_a_stop_string_gives_the_same_ids_with_any_drafter() -> None:
    plain = Chat(target()).ask("hello", max_tokens=80)
    for at, length in ((0, 2), (11, 3), (30, 1), (50, 4)):
        stop = plain.text[at : at + length]
        cut = plain.text.index(stop)
        for where in ("model", "command"):
            for drafter in drafters():
                chat = Chat(target(), stop=(stop,) if where == "model" else ()).use(drafter)
                done = chat.ask("hello", max_tokens=80, k=6, stop=(stop,) if where == "command" else ())
                assert done.text == plain.text[:cut]
                assert done.token_ids == plain.token_ids[: cut + length]
                assert (done.finish_reason, done.stop_id) == ("stop", None)


@pytest.mark.parametrize("drafter", range(5))
def test_the_end_of_the_context(drafter: int) -> None:
    plain = Chat(target(context=60)).ask("hello", max_tokens=None)
    chat = Chat(target(context=60)).use(drafters()[drafter])
    done = chat.ask("hello", max_tokens=None, k=7)
    assert done.token_ids == plain.token_ids
    assert (done.finish_reason, done.prompt_tokens + len(done.token_ids)) == ("context", 60)
    full = chat.ask(raw="a" * 59, max_tokens=None)
    assert len(full.token_ids) == 1


def test_too_long_says_how_much_and_what_could_go() -> None:
    chat = Chat(target(context=50))
    chat.messages = [Message("system", "be nice"), Message("user", "a" * 10), Message("assistant", "b" * 10), Message("user", "c" * 20)]
    with pytest.raises(EngineError) as caught:
        chat.ask()
    needed = len(Letters().render(chat.messages))
    assert caught.value.kind == "too_long"
    assert caught.value.numbers == {"needed": needed, "limit": 49, "droppable": 2}
    assert f"{needed}" in caught.value.message
    assert "50" in caught.value.message
    long = (Message("user", "y" * 60),)
    for command in (Generate(2, raw="x" * 50), Generate(3, long), Generate(4, long, trim=True)):
        with pytest.raises(EngineError) as caught:
            chat.session.reply(command, chat.events.append, lambda: False, lambda: None)
        assert caught.value.numbers["droppable"] == 0


def test_trimming_drops_whole_old_turns_and_keeps_the_system_message() -> None:
    chat = Chat(target(context=60))
    turns = [Message("user", "a" * 10), Message("assistant", "b" * 10), Message("user", "c" * 10), Message("assistant", "d" * 10)]
    system = Message("system", "be nice")
    chat.messages = [system, *turns]
    done = chat.ask("e" * 10, trim=True, max_tokens=4)
    assert done.trimmed == 2
    expected = Letters().render([system, turns[2], turns[3], Message("user", "e" * 10)])
    assert done.prompt_tokens == len(expected)
    assert chat.session._ids[: len(expected)] == expected
    fits = Chat(target(context=60)).ask("short", trim=True)
    assert fits.trimmed == 0


# --- stops and failures ---------------------------------------------------------------------------------------------------


def test_a_stop_while_reading_keeps_what_was_read() -> None:
    prompt = "".join(random.Random(1).choices(ALPHABET, k=1500))
    chat = Chat(target(context=3000)).use(Ngram())
    asked = iter([False, True])
    done = chat.ask(raw=prompt, cancelled=lambda: next(asked, True))
    assert (done.finish_reason, done.token_ids, done.text, done.prompt_tokens) == ("cancelled", (), "", 1500)
    assert chat.target.length == 512
    done = chat.ask(raw=prompt, seed=5)
    assert done.reused_tokens == 512
    assert done.token_ids == Chat(target(context=3000)).ask(raw=prompt, seed=5).token_ids


@pytest.mark.parametrize("drafter", range(5))
def test_a_stop_while_writing_keeps_what_was_written(drafter: int) -> None:
    plain = Chat(target()).ask("hello", max_tokens=60)
    for after in (0, 1, 3, 7):
        chat = Chat(target()).use(drafters()[drafter])

        def stopped(chat: Chat = chat, after: int = after) -> bool:
            return sum(isinstance(e, Step) for e in chat.events) >= after and any(
                isinstance(e, Prefill) and e.done == e.total - 1 for e in chat.events
            )

        done = chat.ask("hello", max_tokens=60, k=4, cancelled=stopped)
        steps = sum(isinstance(e, Step) for e in chat.events)
        assert steps == after
        assert done.finish_reason == "cancelled"
        assert done.token_ids == plain.token_ids[: len(done.token_ids)]
        second = chat.ask("more", seed=9)
        cold = Chat(target())
        cold.messages = chat.messages[:2]
        assert second.token_ids == cold.ask("more", seed=9).token_ids


@dataclass
class Broken:
    """Fails where it is told to."""

    where: str
    error: BaseException
    calls: int = 2  # that go well
    name: str = "broken"
    method: str = "model"
    needs: Needs = field(default_factory=Needs)

    def _maybe(self, where: str) -> None:
        if where == self.where:
            self.calls -= 1
            if self.calls < 0:
                raise self.error

    def sync(self, ctx: Context) -> None:
        self._maybe("sync")

    def propose(self, ctx: Context) -> Draft:
        self._maybe("propose")
        return Draft((1, 2, 3), (0, 1, 0), source=self.name)

    def commit(self, ctx: Context, verdict: Verdict) -> None:
        self._maybe("commit")

    def memory(self) -> int:
        return 0

    def close(self) -> None:
        """Nothing."""


@pytest.mark.parametrize("where", ["sync", "propose", "commit"])
def test_a_drafter_that_fails_leaves_the_conversation_usable(where: str) -> None:
    plain = Chat(target()).ask("hello", seed=3)
    chat = Chat(target()).use(Broken(where, RuntimeError("boom"), calls=0 if where == "sync" else 2))
    with pytest.raises(RuntimeError, match="boom"):
        chat.ask("hello", seed=3)
    written = [t for e in chat.events if isinstance(e, Step) for s in e.segments for t in s.token_ids]
    assert tuple(written) == plain.token_ids[: len(written)]
    again = chat.use(None).session.reply(
        Generate(5, (Message("user", "hello"),), seed=3, max_tokens=30), chat.events.append, lambda: False, lambda: None
    )
    assert again.token_ids == plain.token_ids


@pytest.mark.parametrize("where", ["prefill", "verify", "keep"])
@pytest.mark.parametrize("drafter", range(4))
def test_no_memory_in_the_middle_never_mixes_two_texts(monkeypatch: pytest.MonkeyPatch, where: str, drafter: int) -> None:
    """What the cache holds and what the session believes it holds must stay one, or a later reply would be silently wrong."""
    rng = random.Random(2)
    texts = ["".join(rng.choices(ALPHABET, k=1300)) for _ in range(2)]
    chat = Chat(target(context=3000)).use(drafters()[drafter])
    first = chat.ask(raw=texts[0], seed=1)
    calls = 0
    name = {"prefill": "_chunk", "verify": "_rows", "keep": "keep"}[where]
    real = getattr(chat.target, name)

    def fail_later(*args: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == 3:
            raise MemoryError
        return real(*args)

    monkeypatch.setattr(chat.target, name, fail_later)
    with pytest.raises(MemoryError):
        chat.ask(raw=texts[1], seed=2)
    monkeypatch.undo()
    for text, seed in ((texts[0], 1), (texts[1], 2), (texts[0][:700] + texts[1][700:], 3)):
        done = chat.ask(raw=text, seed=seed)
        assert done.token_ids == Chat(target(context=3000)).ask(raw=text, seed=seed).token_ids
    assert chat.ask(raw=texts[0], seed=1).token_ids == first.token_ids


def test_numbers_that_are_not_finite_are_an_error_and_heal() -> None:
    chat = Chat(target())
    plain = chat.ask("hello", seed=1)
    real = chat.target.verify
    chat.target.verify = lambda tokens, parents: real(tokens, parents) * float("nan")  # type: ignore[method-assign]
    with pytest.raises(EngineError) as caught:
        chat.ask("more")
    assert caught.value.kind == "not_finite"
    chat.target.verify = real  # type: ignore[method-assign]
    chat.messages = []
    assert chat.ask("hello", seed=1).token_ids == plain.token_ids


# --- strict ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("most", [0, 15])
def test_strict_on_a_target_that_is_not_exact_drafts_nothing_and_says_why_once(most: int) -> None:
    chat = Chat(target()).use(Ngram(min_match=1))
    chat.session.control.most = most  # 0 as just after a load
    assert not chat.target.exact
    chat.ask("hello", strict=True)
    assert len(chat.notices) == 1
    assert "--strict" in chat.notices[0]
    assert all(e.nodes == 0 for e in chat.events if isinstance(e, Step))
    chat.ask("hello", strict=True)
    assert chat.notices == []
    chat.ask("hello hello", k=3)
    assert any(e.nodes for e in chat.events if isinstance(e, Step))
    assert Chat(target()).ask("hello", strict=True).finish_reason == "length"


def test_strict_on_an_exact_target_drafts_as_ever() -> None:
    chat = Chat(target()).use(Ngram(min_match=1))
    chat.target.exact = True
    chat.ask("hello hello", strict=True, k=3, max_tokens=60)
    assert chat.notices == []
    assert any(e.nodes for e in chat.events if isinstance(e, Step))


def test_strict_without_a_drafter_has_nothing_to_say() -> None:
    chat = Chat(target())
    chat.ask("hello", strict=True)
    assert chat.notices == []


def test_memory_is_counted() -> None:
    chat = Chat(target())
    assert chat.session.memory().drafter == 0
    chat.use(ModelDrafter("m", tiny_target(4), 32))
    memory = chat.ask("x").memory
    assert memory.kv > 0
    assert memory.drafter > 0


def test_the_ratio_rule_writes_replies_too() -> None:
    """Text by the papers' rule: another law of randomness, the same ends and counts; at T = 0 the same text."""
    for drafter in drafters()[:4]:
        chat = Chat(target(), eos_ids=(5,)).use(drafter)
        done = chat.ask("hello", verify="ratio", k=4, max_tokens=60)
        assert 5 not in done.token_ids
        greedy = chat.ask("more", verify="ratio", sampling=GREEDY, k=4)
        plain = Chat(target(), eos_ids=(5,))
        plain.messages = chat.messages[:3]
        assert plain.ask(sampling=GREEDY).token_ids == greedy.token_ids
    assert torch.is_inference_mode_enabled() is False
