"""Properties of the alignment, for any text, any cut and any draft: bytes are kept, nothing is control, work is bounded, ids that are
called unchanged are."""

from __future__ import annotations

from functools import lru_cache

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.bridge.align import DRAFT_BYTES, WINDOW_BYTES, WINDOW_TOKENS, Follower, Line, safe_start
from engine.bridge.codec import Codec
from tests.engine.bridge import toys

TOKENIZERS = toys.sound()
# target, drafter: each class on either side
PAIRS = [
    ("byte-level", "ranks"),
    ("ranks", "prepend"),
    ("prepend", "byte-level"),
    ("no prefix", "byte-level with a prefix"),
    ("byte-level with a prefix", "metaspace"),
    ("metaspace", "unigram"),
    ("unigram", "no prefix"),
    ("byte-level", "NFC"),
    ("NFC", "no prefix"),
    ("mistral", "byte-level"),
    ("byte-level", "mistral"),
    ("mistral", "no prefix"),
    ("metaspace", "mistral"),
]
TRICKY = (
    *(
        "</s>",
        "<|im_end|>",
        "<s>",
        "<unk>",
        "<0x0A>",
        "▁",
        "Ġ",
        "\r\n",
        "\n\n    ",
        "  ",
        "\t",
        "🙂",
        "👩‍👩‍👧",
        "é",
        "e\u0301",
        "你好",
        "世",
    ),
    *("hello", "hel", " rain", "bow", "12345", "-" * 40, "长" * 30, "\ufeff", "\u00a0"),
)
TEXTS = st.lists(st.one_of(st.sampled_from(TRICKY), st.text(st.characters(codec="utf-8"), max_size=6)), max_size=12).map("".join)
STEPS = st.lists(st.tuples(st.integers(1, 6), st.lists(st.integers(0, 1 << 20), max_size=8), st.booleans()), min_size=1, max_size=12)
STEP_BYTES = 512  # what both sides may encode in a step
FEW = settings(max_examples=60, deadline=None)


@pytest.fixture(scope="module", autouse=True)
def _home_of_module(shelf_home: object) -> None:
    """Codecs are made before a test's own fixture runs."""


@lru_cache
def codec(name: str) -> Codec:
    return Codec(toys.mistral() if name == "mistral" else TOKENIZERS[name])


def is_subsequence(short: bytes, long: bytes) -> bool:
    rest = iter(long)
    return all(byte in rest for byte in short)


@pytest.mark.parametrize("pair", PAIRS, ids=" <- ".join)
@FEW
@given(text=TEXTS, start=st.integers(0, 5), stop=st.integers(0, 400), steps=STEPS, at_start=st.booleans())
def test_a_drafter_follows_any_reply(
    pair: tuple[str, str], text: str, start: int, stop: int, steps: list[tuple[int, list[int], bool]], at_start: bool
) -> None:
    """The reply is any slice of bytes, committed in any steps, with any drafts between them."""
    target, drafter = map(codec, pair)
    sayable = sorted(i for i, token in enumerate(drafter.table.tokens) if token)
    data = text.encode()[start:stop]
    ids = target.first(data) if at_start else target.encode(data)
    follower = Follower(target, drafter, at_start)
    cache: list[int] = []  # as the owner keeps it
    at = 0
    for n, drafts, ended in steps:
        before = follower.encoded
        follower.extend(ids[at : at + n])
        at += n
        follower.sync()
        # bytes are kept
        assert drafter.spell(follower.ids) + follower.held == follower.read
        spelled = target.spell(ids[:at])
        said = spelled.removeprefix(target.lead) if at_start else spelled
        assert follower.read == ((drafter.lead if at_start else b"") + said if said else b"")
        assert len(follower.held) <= 3
        assert Codec.whole(follower.held) == 0
        # what is called unchanged is
        assert cache[: follower.changed] == follower.ids[: follower.changed]
        cache = list(follower.ids)
        follower.changed = len(cache)
        known = len(cache)
        for choice in drafts:
            token = sayable[choice % len(sayable)]
            if len(follower.drafted) + len(drafter.spell([token])) > DRAFT_BYTES:
                break
            follower.put(token)
            cache.append(token)
        assert drafter.spell(follower.ids[known:]) == follower.drafted
        # candidates spell the draft
        found = follower.candidates(ended)
        there = target.spell(found)
        news = follower.news
        if at_start and not follower.line.ends:
            there = there.removeprefix(target.lead)
        assert news.startswith(there)
        waiting = news[len(there) :]
        rest = waiting if ended else waiting.lstrip(b" ")
        assert len(rest) <= 3
        assert Codec.whole(bytes(follower.line.text[-3:]) + news) - len(follower.line.text[-3:]) <= len(news) - len(rest)
        # nothing is control, and a step is bounded
        assert not set(found) & target.table.control
        assert not set(follower.ids) & drafter.table.control
        assert follower.encoded - before <= STEP_BYTES


@FEW
@given(data=st.one_of(TEXTS.map(str.encode), st.lists(st.one_of(st.binary(max_size=3), TEXTS.map(str.encode))).map(b"".join)), steps=STEPS)
def test_a_drafter_without_some_characters_passes_them_over(data: bytes, steps: list[tuple[int, list[int], bool]]) -> None:
    """Bytes that are no text, too."""
    target, drafter = codec("byte-level"), codec("no fallback")
    ids = target.encode(data)
    follower = Follower(target, drafter)
    at = 0
    for n, _, _ in steps:
        before = follower.encoded
        follower.extend(ids[at : at + n])
        at += n
        follower.sync()
        said = target.spell(ids[:at])
        assert follower.read == (drafter.lead + said if said else b"")
        assert follower.held == follower.read[Codec.whole(bytes(follower.read)) :]
        assert is_subsequence(drafter.spell(follower.ids), bytes(follower.read))
        assert not set(follower.ids) & drafter.table.control
        assert follower.encoded - before <= STEP_BYTES


@pytest.mark.parametrize("name", [*TOKENIZERS, "mistral"])
@FEW
@given(text=TEXTS, cut=st.integers(0, 200), draft=TEXTS, silent=st.lists(st.integers(0, 40), max_size=4))
def test_what_follows_a_line_spells_what_was_drafted(name: str, text: str, cut: int, draft: str, silent: list[int]) -> None:
    """Cut inside a character too: what completes it is whole then. Ids without text, here and there, take no room."""
    side = codec(name)
    known = text.encode()[:cut]
    line = Line(side, b"")
    told = side.encode(known)
    for at in silent:
        told.insert(min(at, len(told)), min(side.table.control))
    line.add(told)
    known = bytes(line.text)
    data = draft.encode()[:DRAFT_BYTES]
    ids = line.follow(data)
    spelled = side.spell(ids)
    assert data.startswith(spelled)
    assert not set(ids) & side.table.control
    if name != "no fallback":
        assert len(data) - len(spelled) <= 3
    # a part of the line that begins at its last words says the same
    assert line.tail().follow(data) == ids
    joined = line.joined(data)
    assert joined in ([], ids)


@settings(max_examples=300, deadline=None)
@given(tokens=st.lists(st.one_of(st.binary(max_size=5), st.sampled_from([b" a", b"\n", b"  ", b"b", "é".encode()])), max_size=60))
def test_safe_starts(tokens: list[bytes]) -> None:
    """Idempotent, never cut into a character, two tokens back where a word begins there, within the window. Some tokens have no text."""
    text = b"".join(tokens)
    ends = [len(b"".join(tokens[: i + 1])) for i in range(len(tokens))]
    first = safe_start(text, ends)
    assert 0 <= first <= len(tokens)
    at = ends[first - 1] if first else 0
    assert len(text) - at <= WINDOW_BYTES
    assert len(tokens) - first <= WINDOW_TOKENS
    if first < len(tokens):
        assert first == 0 or at < len(text)
        assert first == 0 or text[at] & 0xC0 != 0x80
        assert safe_start(text[at:], [end - at for end in ends[first:]]) == 0
    words = [i for i in range(1, len(tokens) - 1) if text[ends[i - 1] : ends[i - 1] + 1] in (b" ", b"\n")]
    reach = [i for i in words if len(text) - ends[i - 1] <= WINDOW_BYTES and len(tokens) - i <= WINDOW_TOKENS]
    if reach:
        assert first == max(reach)
