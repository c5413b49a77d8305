"""Promise 1 through the bridge, on real models in 4 bit: same seed, same ids, with a drafter of another tokenizer or none.

Four pairs over three tokenizers, ten prompts that tokenizers disagree on. Temperature 0 has no noise, so one seed says everything there.
"""

from __future__ import annotations

from functools import cache

import pytest

from engine.bridge.maps import vocabulary_map
from engine.drafters.bridged import METHODS, made
from engine.drafters.cross import Cross
from engine.protocol import Generate, Message, Sampling
from engine.session import Session
from engine.speculation.sampling import Filters
from tests.real import GEMMA, Q05, Q15, SMOL, reply, session

pytestmark = pytest.mark.real

PROMPTS = (
    "Explain in a few sentences why bread rises, and what happens if it's left out too long.",
    "Write a Python class for a binary tree with insert and delete; the methods have nested ifs, four levels deep. Code only.",
    "用三句话介绍一下长城，并说明它有多长。",
    "日本の四季について、短い文章を三つ書いてください。",
    "اكتب ثلاث نصائح للحفاظ على الصحة في فصل الشتاء.",
    "Reply only with emojis about a family holiday: 👩‍👩‍👧 🏖️ 🧑🏽‍🚀 and so on, twenty of them.",
    "A Markdown table of five European capitals with country, population and the year of foundation, columns aligned with spaces.",
    "Write the first twelve powers of 17, then 3.14159265358979 with its digits reversed.",
    "These lines end as on Windows:\r\n\r\nname;age\r\nAnna;31\r\nBen;28\r\n\r\nAdd three lines in the same way.\r\n",
    "What do <|im_end|>, </s>, <end_of_turn> and <|endoftext|> mean in a chat template? Quote each of them.",
)
TEMPERATURES = (0.0, 0.7, 1.0)
Case = tuple[float, int, int]  # temperature, seed, prompt


@cache
def target(name: str) -> Session:
    made = session(name)
    if not made.target.exact:
        pytest.skip("this CPU has no row-invariant kernels")
    return made


@cache
def plain(name: str, case: Case, tokens: int) -> tuple[int, ...]:
    """Without a drafter; shared by all pairs with this target."""
    temperature, seed, prompt = case
    one = target(name)
    one.loaded.drafter = None
    return reply(one, PROMPTS[prompt], temperature=temperature, seed=seed, tokens=tokens).token_ids


@cache
def drafter(name: str, drafter: str) -> Cross:
    """Loaded once; it moves to the one session of its target."""
    found = session(name, drafter=drafter).loaded.drafter
    assert isinstance(found, Cross)
    return found


def by(method: str, cross: Cross) -> Cross:
    """The same model with another method."""
    one = made(method, vocabulary_map(cross.side.target, cross.side.drafter))
    return Cross(cross.name, cross.side, one, one, Filters())


def compare(name: str, cross: Cross, cases: list[Case], tokens: int) -> tuple[int, int]:
    """Replies compared, drafted tokens kept."""
    one, kept = target(name), 0
    for i, case in enumerate(cases):
        wanted = plain(name, case, tokens)
        one.loaded.drafter = cross
        temperature, seed, prompt = case
        done = reply(one, PROMPTS[prompt], temperature=temperature, seed=seed, tokens=tokens, k=(3, 5, None)[i % 3])
        assert done.token_ids == wanted, case
        kept += one.tally.accepted
    one.loaded.drafter = None
    return len(cases), kept


@pytest.mark.parametrize(("name", "other"), [(Q15, SMOL), (Q15, GEMMA), (GEMMA, SMOL), (Q05, SMOL)])
def test_ids_are_those_without_a_drafter(name: str, other: str) -> None:
    cases = [(t, s, p) for t in TEMPERATURES for s in range(5 if t else 1) for p in range(len(PROMPTS))]
    compared, kept = compare(name, drafter(name, other), cases, 96)
    assert compared == 110
    assert kept > 500


@pytest.mark.quick
def test_half_a_billion_with_smollm2() -> None:
    cases = [(t, 1, p) for t in (0.0, 0.7) for p in (1, 2, 5, 8)]
    compared, kept = compare(Q05, drafter(Q05, SMOL), cases, 32)
    assert compared == 8
    assert kept > 8


@pytest.mark.quick
def test_every_method_and_swaps_between_them() -> None:
    cross, one = drafter(Q05, SMOL), target(Q05)
    for method in METHODS:
        compare(Q05, by(method, cross), [(0.7, 1, 1), (0.0, 1, 8)], 16 if method == "slrs" else 32)
        assert by(method, cross).method == method
    wanted = plain(Q05, (0.7, 1, 1), 32)
    pool = [by("pf", cross), None, by("slem", cross), by("tli", cross)]
    steps = 0

    def between() -> None:
        nonlocal steps
        one.loaded.drafter = pool[steps // 3 % len(pool)]
        steps += 1

    command = Generate(2, (Message("user", PROMPTS[1]),), sampling=Sampling(0.7, 0.95, 0, 0.0, 1.0), seed=1, max_tokens=32, k=4)
    assert one.reply(command, lambda event: None, lambda: False, between).token_ids == wanted
    one.loaded.drafter = None
    assert steps > 9
