"""Edge cases of two tokenizers on one reply, by their numbers in section 6 of the cross-tokenizer notes. The others are in

- `test_bytes`: 1, 3, 5, 6, 7, 22, 23, 24, 34, 36, 37, 38, 57; `test_codec`: 1, 2, 4-8, 10, 11, 14, 16, 20-24, 34, 36, 37
- `test_maps`: 3, 15, 16, 22, 24, 34, 35, 36, 38, 39; `test_check`: 6, 33, 34, 57
- `test_align`: 12 (a draft in the light of what stands before it), 17 (a last space)
- `test_dummy_prefix`, on a real tokenizer: 1, 2, 3, 8, 10, 11, 13-16, 22
- `tests/engine/test_text.py`: 1, 2, what the screen shows of a character, or a picture, of several tokens
- `tests/engine/decoder/test_hf.py`: 52, what a wider pass of a model with experts costs

What cannot be shown here: 30, nothing masks the target by a grammar; 43, keys and values are not quantised; 53, `--draft-device` takes a
machine with a second device. 18 is decided otherwise by the design: the last candidate is kept, and it counts. 56 is the screen's matter;
its bytes are not.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import lru_cache

import pytest
import torch
from tokenizers import AddedToken, decoders, models, pre_tokenizers
from tokenizers import Tokenizer as Backend

from engine.bridge.align import DRAFT_BYTES, Follower, safe_start
from engine.bridge.codec import Codec
from engine.bridge.maps import vocabulary_map
from engine.bridge.spelling import alphabet
from engine.decoder.tokenizer import NO_TEMPLATE, Tokenizer
from engine.drafters.bridged import METHODS, made
from engine.drafters.companion import Companion
from engine.drafters.cross import Cross
from engine.drafters.health import MOST_BROKEN
from engine.protocol import Message, Sampling
from engine.speculation.draft import Context, Draft, Drafter, Question
from engine.speculation.sampling import Filters, Picker
from engine.text import REPLACEMENT, Detokenizer
from tests import toy_tokenizers
from tests.engine.bridge.toys import CHATML, INST, byte_level, sentencepiece, wrap
from tests.engine.exact import Text
from tests.engine.toys import Toy
from tests.tiny import Run, write

STEP_BYTES = 512
GREEDY = Filters()
SAMPLED = Filters(temperature=0.7, top_p=0.9)


def habit(merges: list[tuple[str, str]], regex: bool) -> Tokenizer:
    """Bytes and these merges, nothing else. `regex`: texts are split into words as GPT-2 does it, else not at all."""
    sign = alphabet()
    pairs = [("".join(sign[ord(c)] for c in left), "".join(sign[ord(c)] for c in right)) for left, right in merges]
    vocabulary = {token: i for i, token in enumerate([*sign.values(), *(left + right for left, right in pairs)])}
    backend = Backend(models.BPE(vocabulary, pairs))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=regex)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens(["<|im_end|>"])
    return wrap(backend)


BOTH = [("\n", "\n"), (" ", " "), ("r", "e"), ("re", "t"), ("ret", "u"), ("retu", "r"), ("retur", "n")]
MAKERS: dict[str, Callable[[], Tokenizer]] = {
    "bytes": lambda: wrap(byte_level()),
    "letters": lambda: wrap(byte_level(size=262)),
    "pieces": lambda: wrap(sentencepiece(prefix="none")),
    "no fallback": lambda: wrap(sentencepiece(prefix="none", fallback=False)),
    "thinking": lambda: wrap(byte_level(added=[AddedToken(t, special=False, normalized=False) for t in ("<think>", "</think>")])),
    "joins": lambda: habit([*BOTH, ("  ", " "), (" ", "return"), (" ", "x"), (" ", "b")], regex=True),  # as Qwen and Llama 3
    "apart": lambda: habit([*BOTH, ("  ", "  ")], regex=False),  # as Gemma
}


@pytest.fixture(scope="module", autouse=True)
def _home_of_module(shelf_home: object) -> None:
    """Codecs are made before a test's own fixture runs."""


@lru_cache
def side(name: str) -> Codec:
    return Codec(MAKERS[name]())


@dataclass
class Speaker:
    """The logits of a model that wants to say one text in its own tokens, and then to end its turn."""

    codec: Codec
    text: bytes
    chance: float = 20.0  # logit of what it wants; the others have none
    known: dict[Text, torch.Tensor] = field(default_factory=dict)

    def logits(self, text: Text, vocab_size: int) -> torch.Tensor:
        if text not in self.known:
            table = self.codec.table
            said = b"".join(table.tokens[i] or b"" for i in text)
            rest = self.text[len(said) :] if self.text.startswith(said) else b""
            token = (self.codec.encode(rest) or [self.codec.turn_end])[0]
            self.known[text] = torch.zeros(1, vocab_size, dtype=torch.float64)
            self.known[text][0, token] = self.chance
        return self.known[text]


def drafter_of(
    target: Codec,
    drafter: Codec,
    says: bytes,
    method: str = "slem",
    prompt: tuple[int, ...] = (65,),
    context: int = 4000,
    chance: float = 20.0,
) -> Cross:
    maps = vocabulary_map(target, drafter)
    runner = Toy(Speaker(drafter, says, chance), len(drafter.table.tokens), start=len(prompt), context=context)  # type: ignore[arg-type]
    how = made(method, maps)
    return Cross("little", Companion(runner, lambda question: list(prompt), target, drafter), how, how, Filters())  # type: ignore[arg-type]


def talk(
    target: Codec, says: bytes, drafter: Drafter | None, *, filters: Filters = GREEDY, k: int = 4, chance: float = 20.0, **more
) -> Run:
    """A reply of a target that wants to say a text."""
    toy = Toy(Speaker(target, says, chance), len(target.table.tokens), start=2, context=4000)  # type: ignore[arg-type]
    more = {"max_tokens": 3000, "stop_ids": target.table.ends} | more
    run = write(toy, [65, 66], drafter, filters=filters, k=k, **more)
    assert toy.length == 2 + len(run.ids) - 1
    return run


def both(target: str, drafter: str, text: str, method: str = "slem", says: str | None = None, **more) -> Run:
    """The same reply with and without a drafter, which by default wants to say the same. Returns that with it."""
    one, other = side(target), side(drafter)
    plain = talk(one, text.encode(), None, **more)
    assert one.spell(plain.ids) == text.encode()
    run = talk(one, text.encode(), drafter_of(one, other, (text if says is None else says).encode(), method), **more)
    assert (run.ids, run.reason) == (plain.ids, plain.reason)
    return run


def kept(run: Run) -> tuple[int, int]:
    return sum(step.accepted for step in run.steps), sum(step.drafted for step in run.steps)


def offers(drafter: Cross) -> list[Draft]:
    """What it will have drafted, step by step."""
    propose, made = drafter.propose, []

    def kept_too(ctx: Context) -> Draft:
        made.append(propose(ctx))
        return made[-1]

    drafter.propose = kept_too  # type: ignore[method-assign]
    return made


# --- text and boundaries --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", METHODS)
def test_4_a_drafter_that_cannot_spell_an_invalid_byte(method: str) -> None:
    """The byte stays in the reply and is shown once as what it is. While more of its character may come nothing is drafted; when it turns
    out to be no character, the drafter reads over it and drafts again."""
    tokenizer, one, other = MAKERS["bytes"](), side("bytes"), side("no fallback")
    text, read = b"hello \xe9a world hello world", b"hello a world hello world"
    assert other.pieces(b"\xe9") == []
    ids = one.encode(text)
    follower = Follower(one, other)
    for n, token in enumerate(ids, 1):
        follower.extend([token])
        follower.sync()
        known = one.spell(ids[:n])
        assert follower.read == known
        assert follower.held == (b"\xe9" if known.endswith(b"\xe9") else b"")
        assert other.spell(follower.ids) == known.replace(b"\xe9", b"")
    assert follower.ids == other.encode(b"hello ") + other.encode(b"a world hello world")
    shown = Detokenizer(tokenizer.decode)
    for token in ids:
        shown.push(token, "plain", 0, 1)
    shown.finish()
    assert shown.text == f"hello {REPLACEMENT}a world hello world"
    drafter = drafter_of(one, other, read, method)
    drafts = offers(drafter)
    run = talk(one, text, drafter, k=2)
    assert run.ids == talk(one, text, None).ids == ids
    assert [(step.drafted, step.accepted) for step in run.steps] == [(2, 2), (2, 0), (0, 0), (2, 2), (1, 1)]
    assert one.spell(drafts[1].tokens) == b"a world"  # all is well up to here, then the byte comes instead
    assert one.spell(drafts[3].tokens) == b" world hello"


@pytest.mark.parametrize("method", METHODS)
def test_9_a_tab_is_no_boundary(method: str) -> None:
    assert safe_start(b"ab\tcd", [1, 2, 4, 5]) == 0
    assert safe_start(b"a b\tcd", [1, 3, 5, 6]) == 1
    run = both("bytes", "pieces", "\tif you don't\t\t:\tpass\r\n\treturn x", method)
    assert kept(run)[0] > 0.5 * kept(run)[1] > 0


def test_18_the_last_candidate_is_kept_and_counts() -> None:
    """`wor` of `world` is offered; where the target writes the whole word, it is one refused token in the numbers."""
    one, other = side("bytes"), side("letters")
    follower = Follower(one, other)
    follower.extend(one.encode(b"hello"))
    follower.sync()
    for token in other.encode(b" wor"):
        follower.put(token)
    found = follower.candidates()
    assert one.spell(found) == b" wor"
    assert found != one.encode(b" world")[: len(found)]
    run = both("bytes", "letters", "hello world hello world", k=1)
    assert kept(run)[0] < kept(run)[1]
    assert sum(step.accepted for step in run.steps) + len(run.steps) >= len(run.ids)


def test_19_half_a_character_alone_is_no_draft() -> None:
    """The drafter says half a smile and wants to stop: the target makes a plain step, and the reply goes on."""
    one, other = side("pieces"), side("letters")
    text = "🙂 hello".encode()
    drafter = drafter_of(one, other, text[:2])
    run = talk(one, text, drafter)
    assert run.ids == talk(one, text, None).ids
    assert run.steps[0].drafted == 0
    assert run.steps[0].emitted == 1


SPLIT = {
    ("joins", b"f:\n\n    return x"): [b"f", b":", b"\n\n", b"   ", b" return", b" x"],
    ("apart", b"f:\n\n    return x"): [b"f", b":", b"\n\n", b"    ", b"return", b" ", b"x"],
    ("joins", b"a  b"): [b"a", b" ", b" b"],
    ("apart", b"a  b"): [b"a", b"  ", b"b"],
}


@pytest.mark.parametrize(("method", "rule"), [("slem", "match"), ("slem", "ratio"), ("pf", "match"), ("pf", "ratio")])
@pytest.mark.parametrize("text", [b"f:\n\n    return x", b"a  b"])
@pytest.mark.parametrize(("target", "drafter"), [("joins", "apart"), ("apart", "joins")])
def test_13_14_indentation_and_runs_of_spaces(target: str, drafter: str, text: bytes, method: str, rule: str) -> None:
    """One leaves the last space to the word, the other does not. Whose text is encoded anew drafts what the target itself writes. Pieces
    that stand as they were drawn spell the same, but otherwise: they are kept up to the spaces and refused there."""
    one, other = side(target), side(drafter)
    ids = one.encode(text)
    assert [one.table.tokens[i] for i in ids] == SPLIT[target, text]
    assert [other.table.tokens[i] for i in other.encode(text)] == SPLIT[drafter, text]
    spoken = drafter_of(one, other, text, method)
    drafts = offers(spoken)
    run = talk(one, text, spoken, k=len(ids) + 1, rule=rule)
    assert (run.ids, run.reason) == (ids, "stop")
    first = list(drafts[0].tokens)
    if method == "slem" or rule == "match":
        assert first == [*ids, one.turn_end]
        assert len(run.steps) == 1
        return
    spaces = next(i for i, token in enumerate(SPLIT[target, text]) if token.startswith(b" "))
    words = first[:-1] if first[-1] == one.turn_end else first
    assert text.startswith(one.spell(words))
    assert len(one.spell(words)) > len(one.spell(ids[: spaces + 1]))
    assert first[:spaces] == ids[:spaces]
    assert first[spaces] != ids[spaces]
    assert run.steps[0].accepted == spaces


@pytest.mark.parametrize("text", ["-" * 600, "ab" * 300, "长城很" * 100, "| --- " * 80, "QUJD" * 120])
@pytest.mark.parametrize("pair", [("bytes", "pieces"), ("pieces", "letters")])
def test_54_55_long_runs_and_texts_without_spaces(text: str, pair: tuple[str, str]) -> None:
    """Nearly all is kept, no draft is endless, and a step's translation does not grow with the text."""
    one, other = map(side, pair)
    drafter = drafter_of(one, other, text.encode())
    costs = [0]
    propose = drafter.propose

    def counted(ctx: Context) -> Draft:
        before = drafter.side.follower.encoded
        draft = propose(ctx)
        costs.append(drafter.side.follower.encoded - before)
        assert len(drafter.side.follower.drafted) <= DRAFT_BYTES
        return draft

    drafter.propose = counted  # type: ignore[method-assign]
    run = talk(one, text.encode(), drafter, k=15)
    assert one.spell(run.ids) == text.encode()
    assert max(costs) <= STEP_BYTES
    assert max(step.drafted for step in run.steps) <= 15
    assert kept(run)[0] > 0.8 * kept(run)[1] > 50
    assert len(run.steps) < 0.5 * len(run.ids)


@pytest.mark.parametrize("method", METHODS)
def test_56_right_to_left_and_marks_keep_their_bytes(method: str) -> None:
    run = both("bytes", "pieces", "مرحبا بالعالم cafe\u0301 हिन्दी שלום n\u0303", method)
    assert kept(run)[0] > 0.5 * kept(run)[1] > 0


# --- ends and limits ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("filters", [Filters(), SAMPLED], ids=str)
def test_25_a_drafter_that_wants_to_end_at_once(method: str, filters: Filters) -> None:
    """Two refusals, each of one candidate, and its ends are masked for this reply."""
    one, other = side("bytes"), side("pieces")
    text = b"hello world, it's a rainbow"
    drafter = drafter_of(one, other, b"", method)
    run = talk(one, text, drafter, filters=filters)
    assert run.ids == talk(one, text, None, filters=filters).ids
    assert [(step.drafted, step.accepted) for step in run.steps[:2]] == [(1, 0), (1, 0)]
    assert drafter.side.silenced
    agreed = talk(one, b"", drafter_of(one, other, b"", method), filters=filters)
    assert [(step.drafted, step.accepted, step.stop_id) for step in agreed.steps] == [(1, 1, one.turn_end)]


@pytest.mark.parametrize("rule", ["match", "ratio"])
def test_26_an_end_inside_a_draft_ends_the_reply_there(rule: str) -> None:
    """What lies behind it was true as well, and is neither said nor left in the cache."""
    one = side("bytes")
    end, ids = one.turn_end, one.encode(b"hello world")

    @dataclass
    class Beyond:
        name: str = "beyond"
        method: str = "model"
        needs: object = None

        def sync(self, ctx: Context) -> None: ...
        def commit(self, ctx: Context, verdict: object) -> None: ...
        def propose(self, ctx: Context) -> Draft:
            tokens = (*ids[len(ctx.ids) - 2 :], end, end, end)[: ctx.budget("beyond")]
            return Draft(tokens, tuple(range(len(tokens))))

    for filters in (Filters(), Filters(temperature=1.0)):
        run = talk(one, b"hello world", Beyond(), filters=filters, k=12, rule=rule, chance=60.0)  # type: ignore[arg-type]
        assert run.ids == ids
        assert run.reason == "stop"
        assert [(step.stop_id, step.accepted) for step in run.steps] == [(end, len(ids) + 1)]


@pytest.mark.parametrize("method", METHODS)
def test_31_a_stop_string_inside_a_draft(method: str) -> None:
    """The reply ends at it, on the screen and in the cache, and the next one drafts as if nothing had been."""
    chat, drafter = _chat(method)
    asked = {"sampling": Sampling(0.8, 1.0, 0, 0.0, 1.0), "seed": 4, "max_tokens": 60}
    whole = chat.use(None).ask("hello", **asked)
    for at in (5, 17, 30):
        stop = (whole.text[at : at + 3],)
        plain = chat.use(None).ask("hello", stop=stop, **asked)
        length = chat.target.length
        done = chat.use(drafter).ask("hello", stop=stop, k=8, **asked)
        assert (done.text, done.token_ids, done.finish_reason) == (plain.text, plain.token_ids, "stop")
        assert chat.target.length == length
    assert chat.ask("hello", k=8, **asked).token_ids == whole.token_ids


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("most", [1, 2, 3, 7])
def test_32_the_limit_inside_a_draft(method: str, most: int) -> None:
    one, other = side("bytes"), side("pieces")
    text = b"hello world, it's a rainbow: 12345"
    run = talk(one, text, drafter_of(one, other, text, method), k=9, max_tokens=most)
    assert run.ids == talk(one, text, None).ids[:most]
    assert run.reason == "length"
    written = 0
    for step in run.steps:
        assert step.drafted <= most - written - 1
        written += step.emitted


# --- prompts --------------------------------------------------------------------------------------------------------------------


def _chat(method: str, drafter: Tokenizer | None = None, target: Tokenizer | None = None) -> tuple[toy_tokenizers.Chat, Cross]:
    """A chat between tiny models; a tokenizer of the tests' own for either side."""
    one, other = target or toy_tokenizers.byte_level(360), drafter or toy_tokenizers.byte_level(290)
    codecs = [Codec(made, len(made.hf) + 3) for made in (one, other)]
    models = [toy_tokenizers.model(seed, codec, plain=True) for seed, codec in enumerate(codecs)]
    return toy_tokenizers.Chat(models[0], one), toy_tokenizers.cross(method, *codecs, other, models[1])


QUESTION = (Message("system", "Be brief."), Message("user", "hello there"))
NO_SYSTEM = "{% if messages[0]['role'] == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}" + CHATML


@pytest.mark.parametrize(
    ("template", "prompt"),
    [
        (INST, "<s>[INST] Be brief.\n\nhello there [/INST]"),  # 27: a begin-of-text of its own; 28: no words for a system turn
        (NO_SYSTEM, "<|im_start|>user\nBe brief.\n\nhello there<|im_end|>\n<|im_start|>assistant\n"),
        (None, "System: Be brief.\nUser: hello there\nAssistant:"),  # 33
    ],
)
def test_27_28_33_each_model_reads_the_question_in_its_own_format(template: str | None, prompt: str) -> None:
    """And a target without begin-of-text, system words and all, is not touched by that."""
    if template == INST:
        template = INST.replace("{% for m", "{% if messages[0]['role'] == 'system' %}{{ raise_exception('no') }}{% endif %}{% for m", 1)
    chat, drafter = _chat("slem", wrap(byte_level(), template=template))
    plain = chat.use(None).ask(QUESTION, seed=1)
    done = chat.use(drafter).ask(QUESTION, seed=1)
    assert done.token_ids == plain.token_ids
    assert any(step.drafted for step in chat.steps)
    other = wrap(byte_level(), template=template)
    assert other.decode(drafter.side._prompt) == prompt
    assert drafter.side._held[: len(drafter.side._prompt)] == drafter.side._prompt
    begins = drafter.side.drafter.spell(drafter.side.follower.ids)
    assert begins.startswith(b" ") == (template != NO_SYSTEM)  # "Assistant: …" and "[/INST] …" have a space in front of the words


def test_33_a_model_without_template_says_so(tmp_path) -> None:
    from engine.decoder.tokenizer import load_tokenizer

    wrap(byte_level(), template=None).hf.save_pretrained(tmp_path)
    assert load_tokenizer(tmp_path).notes == (NO_TEMPLATE,)


def test_29_words_of_thinking_are_ordinary_text_for_the_drafter() -> None:
    one, other = side("thinking"), side("pieces")
    text = "<think>\nhello world\n</think>\n\nhello"
    ids = one.encode(text.encode())
    assert len(one.encode(b"<think>")) == 1
    follower = Follower(one, other)
    follower.extend(ids)
    follower.sync()
    assert other.spell(follower.ids) == text.encode()
    assert not set(follower.ids) & other.table.control
    both("thinking", "pieces", text, says="hello world and so on")


# --- vocabularies and numbers ----------------------------------------------------------------------------------------------------


def test_39_tokens_that_the_target_cannot_spell() -> None:
    """Half of an é says nothing to a target without bytes: pf never draws it, slem offers the whole character."""
    one, other = side("no fallback"), side("letters")
    maps = vocabulary_map(one, other)
    halves = [other.ids[bytes([b])] for b in "é".encode()]
    assert [int(maps.first[i]) for i in halves] == [-1, -1]
    assert one.ids.get("é".encode()) is not None
    slem = both("no fallback", "letters", "caféé naïve hello", "slem")
    assert kept(slem)[0] >= 4
    drawn: list[int] = []
    drafter = drafter_of(one, other, "é".encode() * 9, "pf", chance=4.0)
    put = drafter.side.put
    drafter.side.put = lambda token: drawn.append(token) or put(token)  # type: ignore[method-assign, func-returns-value]
    talk(one, b"hello world " * 3, drafter, filters=Filters(temperature=1.0), rule="ratio", max_tokens=30)
    assert drawn
    assert not set(drawn) & set(halves)


def test_40_numbers_that_are_none() -> None:
    one, other = side("bytes"), side("pieces")
    text = b"hello world, it's a rainbow"
    drafter = drafter_of(one, other, text)
    speaker = drafter.side.runner.law  # type: ignore[attr-defined]
    logits = speaker.logits
    speaker.logits = lambda ids, size: logits(ids, size) * float("nan")
    run = talk(one, text, drafter)
    assert run.ids == talk(one, text, None).ids
    assert not any(step.drafted for step in run.steps)
    assert drafter._health.broken == MOST_BROKEN


@pytest.mark.parametrize("method", METHODS)
def test_49_drafts_stay_inside_the_targets_filters(method: str) -> None:
    """The laws that are drawn from have as many tokens as the filters leave, at most; other supports than the target's are no harm."""
    one, other = side("bytes"), side("letters")
    text = b"hello world, it's a rainbow"
    for filters, most in ((Filters(1.0, top_k=3), 3), (Filters(1.0, top_p=0.3), 1)):
        drafter = drafter_of(one, other, text, method, chance=7.0)
        propose, sizes = drafter.propose, []

        def seen(ctx: Context, propose=propose, sizes=sizes) -> Draft:
            draft = propose(ctx)
            sizes.extend(int((law > 0).sum()) for law in draft.laws or () if isinstance(law, torch.Tensor))
            return draft

        drafter.propose = seen  # type: ignore[method-assign]
        run = talk(one, text, drafter, filters=filters, rule="ratio", chance=7.0)
        assert kept(run)[0] > 0
        assert all(size <= most for size in sizes)
        assert bool(sizes) == (method in ("tli", "pf"))


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("filters", [Filters(), Filters(0.9, top_k=1), Filters(0.9, min_p=1.0), Filters(0.7, top_p=0.5)], ids=str)
def test_50_equal_logits_fall_to_the_same_token(method: str, filters: Filters) -> None:
    """All tokens but one tie, and at some places that one does not lead."""
    one, other = side("bytes"), side("pieces")
    text = b"hello world, it's a rainbow"
    for chance in (0.0, 1e-9):
        plain = talk(one, text, None, filters=filters, chance=chance, max_tokens=12)
        run = talk(one, text, drafter_of(one, other, text, method, chance=chance), filters=filters, chance=chance, max_tokens=12)
        assert run.ids == plain.ids


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("temperature", [1e-7, 1e-5, 1e-3])
def test_51_hardly_any_temperature_is_none(method: str, temperature: float) -> None:
    run = both("bytes", "pieces", "hello world, it's a rainbow", method, filters=Filters(temperature=temperature), chance=2.0)
    greedy = both("bytes", "pieces", "hello world, it's a rainbow", method, chance=2.0)
    assert run.ids == greedy.ids
    assert kept(run)[0] > 0.6 * kept(run)[1] > 0
    assert Filters(temperature=1e-7).greedy


# --- caches ---------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", METHODS)
def test_41_windows_that_slide_on_both_sides(method: str) -> None:
    """Going back over the edge of a window needs keys that have left it."""
    codecs = [toy_tokenizers.codec(toy_tokenizers.byte_level, size) for size in (360, 290)]
    target = toy_tokenizers.model(1, codecs[0], window=9, plain=True)
    chat = toy_tokenizers.Chat(target, toy_tokenizers.byte_level(360))
    asked = {"sampling": Sampling(0.9, 1.0, 0, 0.0, 1.0), "seed": 2, "max_tokens": 90}
    plain = chat.ask("hello there", **asked)
    runner = toy_tokenizers.model(3, codecs[1], window=5, plain=True)
    drafter = toy_tokenizers.cross(method, *codecs, toy_tokenizers.byte_level(290), runner)
    assert chat.use(drafter).ask("hello there", k=11, **asked).token_ids == plain.token_ids
    assert any(step.drafted > 4 for step in chat.steps)


def test_42_a_model_that_cannot_go_back_is_given_no_drafts() -> None:
    one, other = side("bytes"), side("pieces")
    text = b"hello world"
    toy = Toy(Speaker(one, text), len(one.table.tokens), start=2, max_nodes=0)  # type: ignore[arg-type]
    run = write(toy, [65, 66], drafter_of(one, other, text), stop_ids=one.table.ends)
    assert one.spell(run.ids) == text
    assert not any(step.drafted for step in run.steps)


@pytest.mark.parametrize("method", METHODS)
def test_44_after_a_wholly_kept_draft_its_last_token_is_read_with_the_next(method: str) -> None:
    """The last drafted token was never read. What the cache holds is always the beginning of prompt and reply, and all but the last id."""
    one, other = side("letters"), side("bytes")
    text = b"hello world, it's a rainbow: 12345"
    drafter = drafter_of(one, other, text, method)
    runner, propose = drafter.side.runner, drafter.propose

    def checked(ctx: Context) -> Draft:
        draft = propose(ctx)
        ids = [*drafter.side._prompt, *drafter.side.follower.ids]
        assert drafter.side._held == runner.ids == ids[: len(runner.ids)]  # type: ignore[attr-defined]
        assert len(runner.ids) >= len(ids) - 1 or not draft.tokens  # type: ignore[attr-defined]
        return draft

    drafter.propose = checked  # type: ignore[method-assign]
    run = talk(one, text, drafter, k=3)
    assert run.ids == talk(one, text, None).ids
    assert sum(step.accepted == step.drafted > 0 for step in run.steps) > 2


def test_45_a_drafters_context_ends_its_work_and_it_says_so() -> None:
    one, other = side("bytes"), side("letters")
    text = b"hello world, it's a rainbow: 12345"
    said: list[str] = []
    drafter = drafter_of(one, other, text, context=14)
    sync = drafter.sync
    drafter.sync = lambda ctx: setattr(ctx, "tell", said.append) or sync(ctx)  # type: ignore[method-assign, func-returns-value]
    run = talk(one, text, drafter)
    assert run.ids == talk(one, text, None).ids
    assert kept(run)[0] > 0
    assert said == ["little rests: the conversation fills its context of 14 tokens."]


def _context(one: Codec, reply: bytes, question: str) -> Context:
    ctx = Context([65, 66, *one.encode(reply)], 2, 0, Picker(Filters(), 0), lambda source: 3, len(one.table.tokens))
    ctx.question = Question((Message("user", question),))
    return ctx


def test_46_47_the_next_turn_reads_only_what_is_new_and_an_edited_one_from_the_change() -> None:
    """By ids, so a template that rewrites what was said costs a longer reading and nothing else."""
    one, other = side("bytes"), side("letters")
    drafter = drafter_of(one, other, b"hello world")
    drafter.side.render = lambda question: other.encode(question.messages[0].content.encode())
    runner = drafter.side.runner
    read: list[int] = []
    prefill = runner.prefill
    runner.prefill = lambda ids, *more: read.append(len(ids)) or prefill(ids, *more)  # type: ignore[method-assign, func-returns-value, assignment]
    first = "the quick brown fox jumps over"
    for question, new in ((first, len(first) - 1), (f"{first} the lazy", 10), (f"{first} a dog", 6), ("the quick", 0), ("The quick", 8)):
        read.clear()
        ctx = _context(one, b"", question)
        drafter.sync(ctx)
        assert sum(read) <= new
        fresh = drafter_of(one, other, b"hello world")
        fresh.side.render = drafter.side.render
        fresh.sync(ctx)
        assert drafter.propose(ctx).tokens == fresh.propose(ctx).tokens
        assert drafter.side._held[: len(question) - 1] == other.encode(question.encode())[: len(question) - 1]


def test_47_a_stop_while_it_reads_leaves_both_sides_whole() -> None:
    chat, drafter = _chat("pf")
    asked = {"sampling": Sampling(0.8, 1.0, 0, 0.0, 1.0), "seed": 4, "max_tokens": 40}
    plain = chat.use(None).ask("hello there", **asked)
    stop = iter([False] * 7 + [True] * 99)
    command = toy_tokenizers.Generate(9, (Message("user", "hello there"),), k=4, **asked)
    chat.use(drafter)
    done = chat.session.reply(command, lambda event: None, lambda: next(stop), lambda: None)
    assert done.finish_reason == "cancelled"
    assert done.token_ids == plain.token_ids[: len(done.token_ids)]
    assert chat.target.length <= done.prompt_tokens + len(done.token_ids)
    assert chat.ask("hello there", **asked).token_ids == plain.token_ids


@pytest.mark.parametrize("method", METHODS)
def test_48_penalties_see_the_drafted_prefix_and_forget_what_was_refused(method: str) -> None:
    """Each row by its own path; refused tokens leave no trace in what is penalised."""
    chat, drafter = _chat(method)
    for temperature in (0.0, 0.9):
        asked = {"sampling": Sampling(temperature, 1.0, 0, 0.0, 1.4), "seed": 3, "max_tokens": 60}
        plain = chat.use(None).ask("hello there", **asked)
        other = chat.ask("hello there", **(asked | {"sampling": Sampling(temperature, 1.0, 0, 0.0, 1.0)}))
        assert plain.token_ids != other.token_ids
        assert chat.use(drafter).ask("hello there", k=5, **asked).token_ids == plain.token_ids
        assert any(step.accepted < step.drafted for step in chat.steps)
