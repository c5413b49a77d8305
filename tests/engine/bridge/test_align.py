"""Two tokenizers on one reply: where it is encoded anew, what the drafter's ids are, what a draft is in target ids. In bytes throughout."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest

from engine.bridge.align import DRAFT_BYTES, WINDOW_BYTES, WINDOW_TOKENS, Follower, Line, safe_start
from engine.bridge.codec import Codec
from tests.toy_tokenizers import LINES, PAIRS, byte_level, codec, of, sentencepiece

TEXT = "".join(LINES) + "def f(x):\n        return é 你好 🙂👩‍👩‍👧\r\n\t\tx  =  1234567\n\n\nend --------------------------------------- "


def ends(tokens: Sequence[bytes]) -> list[int]:
    out, at = [], 0
    for token in tokens:
        at += len(token)
        out.append(at)
    return out


# --- safe starts ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("tokens", "start"),
    [
        ([], 0),
        ([b"Hello"], 0),
        ([b"Hello", b" you"], 0),
        ([b"Hello", b" you", b" there"], 1),
        ([b"a", b" b", b" c", b"d", b"e"], 2),
        ([b"a", b"\n", b"b", b"c"], 1),
        ([b"a", b"\tb", b"c", b"d"], 0),  # a tab is no boundary: many tokenizers join it with the word behind
        ([b"a", " é".encode()[:2], " é".encode()[2:], b"x", b"y"], 1),
        ([b" a", "é".encode()[:1], "é".encode()[1:], b"b"], 0),
    ],
)
def test_safe_starts(tokens: list[bytes], start: int) -> None:
    assert safe_start(b"".join(tokens), ends(tokens)) == start


def test_without_words_it_starts_with_a_character_in_reach() -> None:
    text = "长" * 100
    tokens = [text.encode()[i : i + 2] for i in range(0, 300, 2)]
    first = safe_start(text.encode(), ends(tokens))
    assert first % 3 == 0
    assert 300 - WINDOW_BYTES <= 2 * first <= 300 - WINDOW_BYTES + 6
    letters = [b"x"] * 100
    assert safe_start(b"x" * 100, ends(letters)) == 100 - WINDOW_TOKENS
    assert safe_start(b"x" * 200, ends([b"x" * 200])) == 1  # longer than any window: nothing of it
    assert safe_start(b"ab cd", ends([b"ab", b" cd"]), 1) == 0


def test_a_safe_start_of_the_window_is_the_window() -> None:
    rng = random.Random(3)
    for _ in range(300):
        tokens = [rng.choice([b"a", b" b", b"\n", b"cd", "é".encode(), "🙂".encode()[:2], "🙂".encode()[2:], b"  "]) for _ in range(40)]
        text, stops = b"".join(tokens), ends(tokens)
        first = safe_start(text, stops)
        assert first <= 38
        at = stops[first - 1] if first else 0
        assert safe_start(text[at:], [stop - at for stop in stops[first:]]) == 0


# --- drafts as target ids ---------------------------------------------------------------------------------------------------


def line(side: Codec, text: str | bytes = b"", lead: bytes = b"") -> Line:
    made = Line(side, lead)
    made.add(side.encode(text.encode() if isinstance(text, str) else text))
    return made


def test_a_draft_is_encoded_in_the_light_of_what_stands_before_it() -> None:
    side = codec(byte_level, 420)
    hello, there = side.encode(b" hello"), side.encode(b" there")
    assert len(hello) == len(there) == 1
    assert line(side, "hello,").follow(b" hello there") == hello + there
    begun = line(side, " hel")
    assert begun.follow(b"lo there") == side.encode(b"lo") + there  # " hello" reaches over the end: it goes on from there
    assert begun.joined(b"lo there") == []
    assert line(side, "hello,").joined(b" there") == there
    assert line(side).follow(b"") == line(side, "a").follow(b"") == []


def test_half_a_character_waits_and_is_gone_on_with() -> None:
    side, smile = codec(byte_level, 420), "🙂".encode()
    assert line(side, "a").follow(b"b" + smile[:3]) == side.encode(b"b")
    assert line(side, "a").follow(smile[:3]) == line(side).follow(smile[:2]) == []
    begun = line(side, b"a" + smile[:2])
    assert side.spell(begun.follow(smile[2:] + b"b")) == smile[2:] + b"b"
    assert begun.joined(smile[2:3]) == []
    bad = line(side, b"a\xe9")  # the character that it began never came
    assert side.spell(bad.follow(b"bc")) == b"bc"


def test_a_dummy_prefix_appears_only_where_the_format_has_it() -> None:
    side = codec(sentencepiece, 420, True)
    assert side.lead == b" "
    assert side.spell(line(side, lead=b" ").follow(b"hello")) == b" hello"
    assert side.spell(line(side).follow(b"hello")) == b"hello"
    assert side.spell(line(side, " the", b" ").follow(b"re and")) == b"re and"


def test_a_tail_goes_on_as_the_whole_line_does() -> None:
    for make in ((byte_level, 360), (sentencepiece, 420)):
        side = codec(*make)
        ids = side.encode(TEXT.encode())
        for n in range(1, len(ids), 3):
            whole = Line(side, b"")
            whole.add(ids[:n])
            ahead = side.spell(ids[n : n + 6])
            assert whole.tail().follow(ahead) == whole.follow(ahead)
            assert whole.tail().tail().follow(ahead) == whole.follow(ahead)


# --- the drafter's ids ------------------------------------------------------------------------------------------------------


def spelled(follower: Follower, side: Codec) -> bytes:
    return side.spell(follower.ids)


@pytest.mark.parametrize("pair", PAIRS)
@pytest.mark.parametrize("seed", range(3))
def test_the_drafter_follows_any_steps_by_bytes_and_at_bounded_cost(pair: str, seed: int) -> None:
    """Arbitrary cut points, inside characters too; drafts of its own in between, right and wrong ones; no step encodes more than 512
    bytes; its ids stay what its own encoder makes of the text, up to a word here and there."""
    (_, target), (_, drafter) = map(of, PAIRS[pair])
    rng = random.Random(seed)
    ids = target.first((TEXT * 2).encode())
    follower = Follower(target, drafter)
    canonical = drafter.first((TEXT * 2).encode())
    places = dict(zip([0, *ends([drafter.spell([i]) for i in canonical])], canonical, strict=False))  # by offset
    at, right, drafted = 0, 0, 0
    while at < len(ids):
        before = follower.encoded
        new = ids[at : at + rng.randint(1, 5)]
        at += len(new)
        follower.extend(new)
        follower.sync()
        assert spelled(follower, drafter) + follower.held == follower.read
        assert len(follower.held) <= 3
        assert bytes(follower.read).removeprefix(drafter.lead) == target.said(ids[:at])
        for _ in range(rng.randint(0, 6)):
            token = places.get(len(spelled(follower, drafter))) if rng.random() < 0.9 else None
            token = rng.choice(sorted(drafter.ids.values())) if token is None else token
            if len(follower.drafted) + len(drafter.spell([token])) <= DRAFT_BYTES:
                follower.put(token)
        found = follower.candidates()
        assert follower.news.startswith(target.spell(found).removeprefix(target.lead if not follower.read else b""))
        assert follower.encoded - before <= 512
        right += sum(a == b for a, b in zip(found, ids[at:], strict=False))
        drafted += len(found)
    assert right > 0.3 * drafted > 0
    follower.sync()
    mine = dict(zip([0, *ends([drafter.spell([i]) for i in follower.ids])], follower.ids, strict=False))
    assert sum(mine.get(at) == i for at, i in places.items()) > 0.97 * len(canonical)


def test_what_was_kept_keeps_its_place_in_the_cache() -> None:
    """`changed`: so many of the first ids need not be read again."""
    target, drafter = codec(byte_level, 420), codec(byte_level, 290)
    follower = Follower(target, drafter)
    follower.extend(target.encode(b"It's a table, and the"))
    follower.sync()
    follower.changed = before = len(follower.ids)
    ahead = drafter.encode(b" rainbow is over the river")
    for token in ahead[:6]:
        follower.put(token)
    assert follower.changed == before + 6
    kept = drafter.spell(ahead[:4])
    follower.extend(target.encode(kept))
    follower.sync()
    assert follower.changed == before + 4
    assert follower.ids[before : before + 4] == ahead[:4]
    follower.changed = len(follower.ids)
    for token in ahead[4:]:
        follower.put(token)
    follower.extend(target.encode(b"\n\nSo"))
    follower.sync()
    assert follower.changed == before + 4


def test_a_word_that_was_begun_becomes_one_token_when_it_is_whole() -> None:
    side = codec(byte_level, 420)
    follower = Follower(codec(byte_level, 290), side)
    for part in (b"the quick hel", b"lo"):
        follower.extend(codec(byte_level, 290).encode(part))
        follower.sync()
    assert follower.ids == side.encode(b"the quick hello")


def test_text_inside_a_character_waits_for_its_rest() -> None:
    target, drafter = codec(byte_level, 290), codec(sentencepiece, 420)
    smile = "🙂".encode()
    follower = Follower(target, drafter, at_start=False)
    follower.extend(target.encode(b"ab" + smile[:2]))
    follower.sync()
    assert (spelled(follower, drafter), follower.held) == (b"ab", smile[:2])
    assert not follower.plain
    for token in drafter.pieces(smile + b"c"):
        follower.put(token)
    assert follower.news == smile[2:] + b"c"
    assert target.spell(follower.candidates()) == smile[2:] + b"c"
    follower.sync()
    follower.put(drafter.encode(b"x")[0])  # not what the reply has begun
    assert follower.news == b""
    assert follower.candidates() == []
    follower.extend(target.encode(b"z"))  # nor does the target go on with it
    follower.sync()
    assert spelled(follower, drafter) == b"ab" + smile[:2] + b"z"
    assert follower.held == b""


def test_what_the_drafter_has_no_token_for_is_passed_over() -> None:
    drafter = codec(sentencepiece, 420)
    lacking = Codec.__new__(Codec)  # the same without byte fallback
    lacking.__dict__.update(drafter.__dict__)
    lacking.encode = lambda text: drafter.encode(text[: text.find(b"\xd0")] if b"\xd0" in text else text)  # type: ignore[method-assign]
    lacking.pieces = lambda data: [] if b"\xd0" in data else drafter.pieces(data)  # type: ignore[method-assign]
    target = codec(byte_level, 290)
    follower = Follower(target, lacking, at_start=False)
    for part in ("ДД", "Дab", "Д", "Д", "c d", "ДД" * 60, "e"):
        follower.extend(target.encode(part.encode()))
        before = follower.encoded
        follower.sync()
        assert follower.encoded - before <= 512
    assert drafter.spell(follower.ids) == b"abc de"


def test_tokens_that_are_no_text_have_no_width() -> None:
    (tokenizer, target), (_, drafter) = of((byte_level, 330)), of((byte_level, 290))
    end = tokenizer.hf.eos_token_id
    padded = len(target.table.tokens) - 1
    follower = Follower(target, drafter)
    follower.extend([end, padded])
    follower.sync()
    assert (follower.ids, follower.read) == ([], b"")
    follower.extend([*target.encode(b"hello"), end, *target.encode(b" there")])
    follower.sync()
    assert spelled(follower, drafter) == b"hello there"
    assert target.spell(follower.line.follow(b" you")) == b" you"


@pytest.mark.parametrize("lead", [True, False])
def test_formats_that_begin_with_a_space_of_their_own(lead: bool) -> None:
    plain, dummy = codec(byte_level, 360), codec(sentencepiece, 420, True)
    target, drafter = (dummy, plain) if lead else (plain, dummy)
    follower = Follower(target, drafter)
    assert not follower.plain
    follower.sync()
    for token in drafter.first(b"hello there"):
        follower.put(token)
    assert follower.news == b"hello there"
    assert follower.candidates(ended=True) == target.first(b"hello there")
    follower.extend(target.first(b"hello there"))
    follower.sync()
    assert follower.ids == drafter.first(b"hello there")
    assert follower.plain
    odd = Follower(target, drafter)
    odd.extend(target.encode(b"hello"))  # without the space that was expected
    odd.sync()
    assert odd.ids == drafter.first(b"hello")


def test_a_last_space_is_left_to_the_next_word_unless_the_turn_ends() -> None:
    target, drafter = codec(byte_level, 420), codec(byte_level, 290)
    follower = Follower(target, drafter)
    follower.extend(target.encode(b"hello"))
    follower.sync()
    for token in drafter.encode(b" there "):
        follower.put(token)
    assert follower.candidates() == target.encode(b" there")
    assert follower.candidates(ended=True) == target.encode(b" there ")


def test_a_longer_token_takes_the_place_of_the_last() -> None:
    target, drafter = codec(byte_level, 290), codec(byte_level, 420)
    follower = Follower(target, drafter)
    follower.extend(target.encode(b"and the"))
    follower.sync()
    follower.changed = len(follower.ids)
    whole = drafter.encode(b"and there")
    last = follower.ids[-1]
    assert (drafter.spell([last]), drafter.spell(whole[-1:])) == (b" the", b" there")
    follower.swap(whole[-1])
    assert follower.ids == whole
    assert follower.changed == len(whole)  # as the owner's cache stands after going back by one
    assert follower.news == b"re"
    follower.sync()  # nothing of it came true
    assert follower.ids == drafter.encode(b"and the")
