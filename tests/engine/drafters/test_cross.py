"""A drafter with another tokenizer never changes the text, whatever its method, and it drafts well where it agrees."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
import torch

from engine.bridge.align import TRANSLATE_BYTES, WINDOW_BYTES
from engine.bridge.codec import Codec
from engine.decoder.target import LeanTarget
from engine.drafters.companion import Companion
from engine.drafters.cross import MOST_REFUSED, Cross
from engine.drafters.health import MOST_BROKEN
from engine.drafters.ngram import Ngram
from engine.drafters.slrs import HEAVY, LEAST, REACH, Words
from engine.drafters.stacked import Stacked
from engine.errors import EngineError
from engine.protocol import Message, Sampling, Verify
from engine.speculation import verify
from engine.speculation.draft import Context, Draft, Drafter, Question, Verdict
from engine.speculation.sampling import Filters, Picker
from tests.toy_tokenizers import PAIRS, Chat, byte_level, cross, model, of, renumbered, sentencepiece, shuffled

METHODS = ("slem", "tli", "pf", "slrs")
SETTINGS = (
    Sampling(0.0, 1.0, 0, 0.0, 1.0),
    Sampling(0.7, 0.9, 0, 0.0, 1.0),
    Sampling(1.0, 1.0, 0, 0.0, 1.0),
    Sampling(1.0, 1.0, 20, 0.05, 1.0),
    Sampling(0.7, 0.95, 0, 0.0, 1.2),
    Sampling(0.0, 1.0, 0, 0.0, 1.1),
)
PROMPTS = (
    "hello there",
    "def read(path):\n        return",
    "你好，世界。日本語の文章。",
    "مرحبا بالعالم",
    "👩‍👩‍👧 🙂🙂",
    "| a | b |\r\n| --- | --- |",
    "1234567 + 89",
    "<|end|><|user|>it's a test</s>",
    "a  b\t\tc\n\n\nd",
    "héllo naïve café",
)


@pytest.fixture(autouse=True)
def _quick() -> None:
    torch.set_num_threads(1)


def pair(name: str, seed: int = 1, plain: bool = False, window: int | None = None) -> tuple[Chat, dict[str, Cross]]:
    """A chat with the target, and a drafter by each method, on one runner (they take turns)."""
    (tokenizer, target), (other, drafter) = map(of, PAIRS[name])
    made = model(seed, target, window=window, plain=plain)
    alike = name.startswith("same")
    runner = renumbered(model(seed, target, plain=plain), 11, 330) if alike else model(seed + 100, drafter, plain=plain)
    return Chat(made, tokenizer), {how: cross(how, target, drafter, other, runner) for how in (*METHODS, "auto")}


# --- the text ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", PAIRS)
@pytest.mark.parametrize("sampling", SETTINGS, ids=str)
def test_for_a_seed_the_ids_are_those_without_a_drafter(name: str, sampling: Sampling) -> None:
    """Every method, on prompts of many kinds, with fixed and free lengths; three turns each, which use the caches of the ones before."""
    chat, drafters = pair(name, seed=3)
    kept = drafted = 0
    rng = random.Random(f"{sampling} {name}")
    for i, prompt in enumerate(rng.sample(PROMPTS, 5)):
        plain = chat.use(None).ask(prompt, sampling=sampling, seed=i, max_tokens=24)
        for how in rng.sample(METHODS, 2):
            done = chat.use(drafters[how]).ask(prompt, sampling=sampling, seed=i, max_tokens=24, k=rng.choice([1, 3, 6, None]))
            assert done.token_ids == plain.token_ids, (how, prompt)
            assert done.stop_id == plain.stop_id
            assert done.method == how
            kept += sum(step.accepted for step in chat.steps)
            drafted += sum(step.drafted for step in chat.steps)
    assert drafted > 40


@pytest.mark.parametrize("how", [*METHODS, "auto"])
@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_turns_and_continued_replies(how: str, temperature: float) -> None:
    """What was read is read once, on both sides; a reply that is continued, or a raw prompt, goes on without a format's space."""
    sampling = Sampling(temperature, 0.95, 0, 0.0, 1.0)
    for name in ("bytes from pieces", "dummy prefix from bytes"):
        chat, drafters = pair(name, seed=5, plain=True)
        runner = drafters[how].side.runner
        texts = {}
        for drafter in (None, drafters[how]):
            out: list[tuple[int, ...]] = []
            turns: list[Message] = []
            chat.target.truncate(0)
            chat.use(drafter)
            for turn in range(3):
                turns.append(Message("user", PROMPTS[turn]))
                if drafter is not None and turn:
                    held, read = len(drafter.side._held), []
                    prefill = runner.prefill
                    runner.prefill = lambda ids, *more, read=read, prefill=prefill: read.append(len(ids)) or prefill(ids, *more)  # type: ignore[method-assign, misc]
                done = chat.ask(turns, sampling=sampling, seed=turn, max_tokens=20)
                if drafter is not None and turn:
                    del runner.prefill  # type: ignore[method-assign]
                    assert sum(read) < held  # the earlier turns were not read again
                turns.append(Message("assistant", done.text))
                out.append(done.token_ids)
            begun = [*turns[:-1], Message("assistant", "and the rest of it is")]
            out.append(chat.ask(begun, sampling=sampling, seed=9, carry_on=True, offset=6).token_ids)
            out.append(chat.ask("", raw="the lazy dog and", sampling=sampling, seed=4).token_ids)
            texts[drafter] = out
        assert len(set(map(str, texts.values()))) == 1


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_swaps_between_methods_and_drafters_in_mid_reply(temperature: float) -> None:
    chat, one = pair("coarse from fine", seed=7)
    (_, target), (other, drafter) = of(PAIRS["coarse from fine"][0]), of((sentencepiece, 420))
    two = {how: cross(how, target, drafter, other, model(8, drafter), "other") for how in METHODS}
    sampling = Sampling(temperature, 1.0, 0, 0.0, 1.0)
    plain = chat.use(None).ask("hello there", sampling=sampling, seed=6, max_tokens=90)
    pool: list[Drafter | None] = [None, Ngram(), *one.values(), *two.values(), Stacked([Ngram(), one["auto"]])]
    rng = random.Random(2)
    drafted: set[tuple[str, str]] = set()

    def between() -> None:
        if rng.random() < 0.4:
            chat.use(rng.choice(pool))
        if (drafter := chat.session.loaded.drafter) is not None:
            drafted.add((drafter.name, drafter.method))

    done = chat.ask("hello there", between, sampling=sampling, seed=6, max_tokens=90)
    assert done.token_ids == plain.token_ids
    assert {name for name, _ in drafted} >= {"ngram", "little", "other"}
    assert {method for _, method in drafted} >= set(METHODS)


def test_a_drafter_that_slides_a_window() -> None:
    (tokenizer, target), (other, drafter) = map(of, PAIRS["bytes from pieces"])
    runner = model(2, drafter, window=8)
    chat = Chat(model(1, target, window=16), tokenizer)
    plain = chat.ask("the quick brown fox", sampling=SETTINGS[1], seed=1, max_tokens=120)
    for how in METHODS:
        done = chat.use(cross(how, target, drafter, other, runner)).ask("the quick brown fox", sampling=SETTINGS[1], seed=1, max_tokens=120)
        assert done.token_ids == plain.token_ids


# --- how well it drafts -------------------------------------------------------------------------------------------------------


def letters(seed: int = 1) -> tuple[Chat, dict[str, Cross]]:
    """The target drafts for itself behind another tokenizer, on text that has one spelling."""
    (tokenizer, target), (other, drafter) = of((byte_level, 256)), of((shuffled, 256))
    made = model(seed, target, plain=True)
    runner = renumbered(made, 11, 256)
    return Chat(made, tokenizer), {how: cross(how, target, drafter, other, runner) for how in (*METHODS, "auto")}


@pytest.mark.parametrize("how", [*METHODS, "auto"])
@pytest.mark.parametrize("sampling", SETTINGS[:5], ids=str)
def test_a_drafter_that_is_the_target_keeps_nearly_everything(how: str, sampling: Sampling) -> None:
    """With the shared noise it draws the very tokens; greedy drafts of slem do so at temperature 0 only."""
    chat, drafters = letters()
    kept = drafted = 0
    for seed in range(3):
        chat.use(drafters[how]).ask("hello there", sampling=sampling, seed=seed, max_tokens=60, k=4)
        kept += sum(step.accepted for step in chat.steps)
        drafted += sum(step.drafted for step in chat.steps)
    assert drafted > 40
    if not (how == "slem" and sampling.temperature):
        assert kept > 0.97 * drafted
        assert len(chat.steps) < 60 / 3


@pytest.mark.parametrize("how", ["tli", "pf"])
def test_the_ratio_rule_keeps_all_of_it_too(how: str) -> None:
    chat, drafters = letters()
    chat.use(drafters[how]).ask("hello there", sampling=SETTINGS[2], seed=1, max_tokens=60, k=4, verify="ratio")
    assert sum(step.accepted for step in chat.steps) == sum(step.drafted for step in chat.steps) > 30


def test_translation_is_measured_apart_and_bounded() -> None:
    """At most 512 bytes go through the encoders at any step, however long the text is; the time of it is no drafting time."""
    for how, name in (
        ("slem", "coarse from fine"),
        ("slem", "pieces from bytes"),
        ("pf", "coarse from fine"),
        ("tli", "bytes from pieces"),
    ):
        chat, drafters = pair(name, seed=4)
        drafter = drafters[how]
        costs: list[int] = []
        before = 0

        def between(drafter: Cross = drafter, costs: list[int] = costs) -> None:
            nonlocal before
            costs.append(drafter.side.follower.encoded - before)
            before = drafter.side.follower.encoded

        for k in (15, 0):  # the second only listens
            chat.use(drafter).ask("hello there", between, sampling=SETTINGS[1], seed=2, max_tokens=120, k=k)
            assert len(chat.steps) > 30
            assert max(costs[-len(chat.steps) :]) <= 512
            assert all(step.bridge_s > 0.0 for step in chat.steps if step.drafted)


@pytest.mark.parametrize("rule", ["match", "ratio"])
@pytest.mark.parametrize("name", ["bytes from pieces", "dummy prefix from bytes"])
def test_slrs_counts_what_it_encodes_and_its_trees_bound_a_step(name: str, rule: Verify, monkeypatch: pytest.MonkeyPatch) -> None:
    """A leaf takes a window and twice its text at most, once; few leaves are spelled while a draw is made. See the module."""
    chat, drafters = pair(name, seed=4)
    drafter = drafters["slrs"]
    trees: list[Words] = []
    known = [0]  # bytes that any encoder got
    at: list[tuple[int, int, int]] = []  # these, those that the bridge knows of, and what the trees allow
    most = drafted = judged = 0

    class Counted(Words):
        def __init__(self, *more: Any) -> None:
            super().__init__(*more)
            trees.append(self)

    def encode(self: Codec, text: bytes, real: Callable[..., list[int]] = Codec.encode) -> list[int]:
        known[0] += len(text)
        return real(self, text)

    def propose(ctx: Context, real: Callable[[Context], Draft] = drafter.propose) -> Draft:
        nonlocal drafted
        start = len(trees)
        draft = real(ctx)
        spelled: dict[int, int] = {}  # by draw
        for tree in trees[start:]:
            spelled[id(tree._line)] = spelled.get(id(tree._line), 0) + len(tree._pieces)
        assert max(spelled.values(), default=0) <= (REACH - 1) / LEAST + HEAVY
        drafted += sum(spelled.values())
        return draft

    def between() -> None:
        nonlocal most, judged
        leaves = [len(tree.text(leaf)) for tree in trees for leaf in tree._pieces]
        most += len(leaves) * WINDOW_BYTES + 2 * sum(leaves) + (512 - TRANSLATE_BYTES if trees else 512)
        judged += len(leaves)
        trees.clear()
        at.append((known[0], drafter.side.follower.encoded, most))

    monkeypatch.setattr("engine.drafters.slrs.Words", Counted)
    monkeypatch.setattr(Codec, "encode", encode)
    drafter.propose = propose  # type: ignore[method-assign]
    chat.use(drafter).ask("hello there", between, sampling=SETTINGS[2], seed=2, max_tokens=60, verify=rule)
    between()
    for before, after in pairwise(at[1:]):  # the first is of another reply
        got, told, allowed = (b - a for a, b in zip(before, after, strict=True))
        assert got == told <= allowed
    assert len(at) > 10
    assert judged > drafted if rule == "ratio" else judged == drafted > 100


# --- where the time of a step goes ----------------------------------------------------------------------------------------------

BRIDGE_S, DRAFT_S, VERIFY_S, OTHER_S = 1.0, 1e3, 1e6, 1e9  # of one encoding, a pass of the drafter, of the target, a verdict


class Clock:
    """Time passes only where one of these is done, and is exact."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = self.elsewhere = 0.0  # the latter between steps
        self.counts = dict.fromkeys((BRIDGE_S, DRAFT_S, VERIFY_S, OTHER_S), 0)
        self.judging = 0  # encodings while a draft was judged
        self.patch = monkeypatch.setattr
        for module in ("drafters.companion", "drafters.cross", "speculation.loop"):
            self.patch(f"engine.{module}.perf_counter", lambda: self.now)
        self.takes(Codec, "encode", BRIDGE_S)
        self.takes(Companion, "_checked", DRAFT_S)
        for rule in ("match", "ratio"):
            self.takes(verify, rule, OTHER_S)
            self.wrap(verify, rule, self._judge)
        self.wrap(Cross, "sync", self._sync)

    def wrap(self, owner: Any, name: str, around: Callable[[Callable[[], Any]], Any]) -> None:
        real = getattr(owner, name)
        self.patch(owner, name, lambda *more: around(lambda: real(*more)))

    def takes(self, owner: Any, name: str, seconds: float) -> None:
        def around(real: Callable[[], Any]) -> Any:
            self.now += seconds
            self.counts[seconds] += 1
            return real()

        self.wrap(owner, name, around)

    def _judge(self, real: Callable[[], Any]) -> Any:
        before = self.counts[BRIDGE_S]
        walk = real()
        self.judging += self.counts[BRIDGE_S] - before
        return walk

    def _sync(self, real: Callable[[], Any]) -> None:
        before, begun = dict(self.counts), self.now
        real()
        self.counts, self.elsewhere = before, self.elsewhere + self.now - begun

    def read(self) -> tuple[float, ...]:
        return (*(count * seconds for seconds, count in self.counts.items()), self.now - self.elsewhere)


@pytest.mark.parametrize("rule", ["match", "ratio"])
@pytest.mark.parametrize("how", [*METHODS, "behind a look-up"])
def test_every_second_of_a_step_is_in_one_part_and_translation_in_its_own(how: str, rule: Verify, monkeypatch: pytest.MonkeyPatch) -> None:
    """Wherever it happens: while a draft is made, while it is judged, when a drafter reads what was committed. What is done between two
    steps, when another drafter comes in, is in none."""
    chat, one = pair("bytes from pieces", seed=4)
    two = pair("bytes from pieces", seed=5)[1]
    clock = Clock(monkeypatch)
    clock.takes(chat.target, "verify", VERIFY_S)
    at: list[tuple[float, ...]] = []

    def between() -> None:
        at.append(clock.read())
        if len(at) == 10:
            chat.use(drafter(two))

    def drafter(of: dict[str, Cross]) -> Drafter:
        return of[how] if how in of else Stacked([Ngram(), of["pf"]])

    chat.use(drafter(one)).ask("hello there", between, sampling=SETTINGS[2], seed=2, max_tokens=60, verify=rule)
    at.append(clock.read())
    assert len(chat.steps) > 15
    for step, before, after in zip(chat.steps, at[1:], at[2:], strict=False):
        parts = (step.bridge_s, step.draft_s, step.verify_s, step.other_s)
        assert (*parts, sum(parts)) == tuple(b - a for a, b in zip(before, after, strict=True))
    assert clock.counts[BRIDGE_S] > 15
    assert (clock.judging > 0) == ((how, rule) == ("slrs", "ratio"))


# --- choices and edges ----------------------------------------------------------------------------------------------------------


def test_auto_takes_the_method_of_the_temperature_at_each_reply() -> None:
    chat, drafters = letters()
    drafter = drafters["auto"]
    for sampling, method in ((SETTINGS[0], "slem"), (SETTINGS[1], "pf"), (SETTINGS[0], "slem")):
        assert chat.use(drafter).ask("hello", sampling=sampling).method == method
        assert drafter.source == f"little ({method})"
        assert drafter.source in chat.session.control.sources
    assert cross("auto", *_sides(), usual=0.7).method == "pf"
    stack = Stacked([Ngram(), drafter])
    chat.use(stack).ask("hello", sampling=SETTINGS[1])
    assert stack.method == "pf"


def _sides() -> tuple:
    (_, target), (other, drafter) = of((byte_level, 256)), of((shuffled, 256))
    return target, drafter, other, renumbered(model(1, target), 11, 256)


def test_numbers_that_are_none_end_a_draft_and_after_three_the_drafter() -> None:
    """It is said once, the text goes on, and a single bad pass does no lasting harm."""
    chat, drafters = letters()
    drafter = drafters["slem"]
    plain = chat.use(None).ask("hello", seed=1)
    runner = drafter.side.runner
    bad = iter([False, True] + [False] * 6 + [True, False, True] + [True] * 99)
    real = LeanTarget._rows
    runner._rows = lambda *a: (lambda out: (out[0] * float("nan"), out[1]) if next(bad) else out)(real(runner, *a))  # type: ignore[method-assign]
    assert chat.use(drafter).ask("hello", seed=1).token_ids == plain.token_ids
    assert sum(step.accepted for step in chat.steps) >= 4
    said = "little is off: its numbers are not finite (NaN or infinite), three times now."
    assert [note for note in chat.notices if "finite" in note] == [said]
    assert drafter._health.broken == MOST_BROKEN
    assert chat.ask("again", seed=2).token_ids
    assert not any(step.drafted for step in chat.steps)
    assert not chat.notices


def test_a_template_that_cannot_be_used_is_said_and_only_this_reply_goes_without() -> None:
    chat, drafters = letters()
    drafter = drafters["slem"]
    plain = chat.use(None).ask("hello", seed=1)
    render = drafter.side.render

    def broken(question: Question) -> list[int]:
        raise EngineError("The chat template of little cannot be used: roles must alternate.", "Use --raw.")

    drafter.side.render = broken
    assert chat.use(drafter).ask("hello", seed=1).token_ids == plain.token_ids
    assert any("little does not draft for this reply. The chat template" in note for note in chat.notices)
    assert not any(step.drafted for step in chat.steps)
    drafter.side.render = render
    assert chat.use(drafter).ask("hello", seed=1).token_ids == plain.token_ids
    assert any(step.drafted for step in chat.steps)


def test_a_model_without_template_gets_role_labels() -> None:
    (tokenizer, target), (_, drafter) = of((byte_level, 256)), of((shuffled, 256))
    other = replace(shuffled(256), hf=type(shuffled(256).hf)(tokenizer_object=shuffled(256).hf.backend_tokenizer, eos_token="<|end|>"))
    assert not other.has_template
    chat = Chat(model(1, target), tokenizer)
    plain = chat.ask("hello", seed=1)
    made = cross("slem", target, drafter, other, renumbered(model(1, target), 11, 256))
    assert chat.use(made).ask("hello", seed=1).token_ids == plain.token_ids
    assert other.decode(made.side._prompt) == "User: hello\nAssistant:"


@pytest.mark.parametrize("how", METHODS)
def test_a_small_context_ends_the_drafting_not_the_reply(how: str) -> None:
    (tokenizer, target), (other, drafter) = of((byte_level, 256)), of((shuffled, 256))
    made = model(1, target, plain=True)
    chat = Chat(made, tokenizer)
    sampling = Sampling(0.7, 1.0, 0, 0.0, 1.0)
    plain = chat.ask("hello", sampling=sampling, seed=3, max_tokens=120)
    small = renumbered(made, 11, 256)
    for context in (5, 11, 12, 40, 57):
        runner = LeanTarget(small.model.weights, context)
        done = chat.use(cross(how, target, drafter, other, runner)).ask("hello", sampling=sampling, seed=3, max_tokens=120)
        assert done.token_ids == plain.token_ids
        assert (len(plain.token_ids) < context) or any(f"fills its context of {context} tokens" in note for note in chat.notices)
        assert runner.length <= context


def test_an_end_of_turn_is_proposed_and_if_refused_twice_no_more() -> None:
    """The drafter wants to stop at once, the target does not; the target wants to stop, the drafter knows."""
    (tokenizer, target), (other, drafter) = of((byte_level, 256)), of((shuffled, 256))
    for how in METHODS:
        eager = model(1, target, plain=True)
        weights = eager.model.weights
        bias = weights.head._bias.clone()  # type: ignore[union-attr]
        bias[tokenizer.hf.eos_token_id] = 60.0
        weights = replace(weights, head=type(weights.head)(weights.head._weight, bias))  # type: ignore[union-attr, call-arg]
        made = cross(how, target, drafter, other, renumbered(LeanTarget(weights, 400), 11, 256))
        patient = model(2, target, plain=True)
        patient.model.weights.head._bias[tokenizer.hf.eos_token_id] = -60.0  # type: ignore[union-attr, index]
        chat = Chat(patient, tokenizer)
        plain = chat.ask("hello", seed=1, max_tokens=30)
        done = chat.use(made).ask("hello", seed=1, max_tokens=30)
        assert done.token_ids == plain.token_ids
        refused = [step.drafted for step in chat.steps][:MOST_REFUSED]
        assert refused == [1] * MOST_REFUSED
        assert made.side.silenced
        assert max(step.drafted for step in chat.steps[MOST_REFUSED:]) > 1
        chat.ask("hello again", seed=1, max_tokens=30)
        assert [step.drafted for step in chat.steps][:MOST_REFUSED] == refused  # it was for one reply
        agreed = Chat(LeanTarget(weights, 400), tokenizer)
        done = agreed.use(made).ask("hello", seed=1)
        assert (done.token_ids, done.stop_id) == ((), tokenizer.hf.eos_token_id)
        assert [step.accepted for step in agreed.steps] == [1]


def test_cancelled_while_it_reads_and_asked_again() -> None:
    drafter = letters()[1]["pf"]
    ids = list(range(20, 60))
    asked = iter([True] * 3)
    ctx = Context(ids, 30, 0, Picker(Filters(0.7), 1), lambda source: 4, 300, cancelled=lambda: next(asked, False))
    ctx.question = Question((Message("user", "hello there"),))
    drafter.sync(ctx)
    assert drafter.side._held == []
    assert drafter.propose(ctx).tokens == ()
    assert len(drafter.propose(ctx).tokens) == 4
    ids += [65, 66]
    drafter.commit(ctx, Verdict((0,), (65, 66)))
    assert len(drafter.propose(ctx).tokens) == 4
    assert drafter.memory() > 0
    drafter.close()
