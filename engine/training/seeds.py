"""The prompts that a target answers to make training data: bundled topics × tasks × languages × lengths, and a person's own. No torch.

The order is fixed by the seed: the first hundred prompts are as mixed as the first ten thousand, so any beginning is a good sample. Two
thirds are answered with the likeliest token, one third is sampled. Topics of `seed_texts/held_out.txt` never stand in a training prompt.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Literal

Part = Literal["train", "judge", "report"]
LONGEST = {"short": 96, "medium": 192, "long": 320}  # tokens of a reply
SAMPLED_EVERY = 3  # of so many prompts one is answered with chance
SYSTEM_EVERY = 9
TEMPERATURE = 0.8
HELD_OUT_TOKENS = 128
PER_HELD_OUT_TOPIC = 2


@dataclass(frozen=True, slots=True)
class Seed:
    """One prompt. `number` is its place in the order; replies are kept and sorted by it."""

    number: int
    prompt: str
    system: str | None = None
    temperature: float = 0.0
    max_tokens: int = 192
    part: Part = "train"


@dataclass(frozen=True, slots=True)
class Topic:
    """What a prompt is about."""

    name: str
    field: str
    part: Part = "train"


def topics(part: Part = "train") -> tuple[Topic, ...]:
    """The bundled topics of one part."""
    if part == "train":
        return tuple(Topic(name, field) for name, field in (line.split("\t") for line in _lines("topics.txt")))
    rows = (line.split("\t") for line in _lines("held_out.txt"))
    return tuple(Topic(name, field, part) for name, field, where in rows if where == part)


def training(seed: int, own: Sequence[str] = ()) -> Iterator[Seed]:
    """Training prompts without end: a person's own first, each once, then every bundled topic with one task, again with another, …

    The same arguments, the same order.
    """
    rng = random.Random(seed)
    number = 0
    for prompt in own:
        yield _seed(number, prompt, "medium", rng)
        number += 1
    rounds = {topic: rng.sample(_tasks(topic.field), len(_tasks(topic.field))) for topic in topics()}
    turn = 0
    while True:
        order = list(rounds)
        rng.shuffle(order)
        for topic in order:
            tasks = rounds[topic]
            text, length = tasks[turn % len(tasks)]
            again = turn // len(tasks)  # every task was asked: from now on all replies are sampled
            yield _seed(number, text.replace("{topic}", topic.name), length, rng, always_sampled=again > 0)
            number += 1
        turn += 1


def held_out(part: Part, seed: int) -> tuple[Seed, ...]:
    """Prompts about topics that are never trained on, answered with the likeliest token."""
    rng = random.Random(seed)
    found: list[Seed] = []
    for topic in topics(part):
        for text, _ in rng.sample(_tasks(topic.field), PER_HELD_OUT_TOPIC):
            found.append(Seed(len(found), text.replace("{topic}", topic.name), None, 0.0, HELD_OUT_TOKENS, part))
    rng.shuffle(found)
    return tuple(found)


def _seed(number: int, prompt: str, length: str, rng: random.Random, always_sampled: bool = False) -> Seed:
    system = rng.choice(_lines("systems.txt")) if rng.randrange(SYSTEM_EVERY) == 0 else None
    sampled = rng.randrange(SAMPLED_EVERY) == 0 or always_sampled
    return Seed(number, prompt, system, TEMPERATURE if sampled else 0.0, LONGEST[length])


def _tasks(field: str) -> list[tuple[str, str]]:
    """(text, length) of the tasks that go with a field: stories and code have their own, and stories the general ones, too."""
    wanted = {"code": ("code",), "stories": ("stories", "talk")}.get(field, ("talk",))
    return [(task["text"], task["length"]) for task in map(json.loads, _lines("tasks.jsonl")) if task["fields"] in wanted]


@cache
def _lines(file: str) -> tuple[str, ...]:
    text = resources.files("engine.training").joinpath("seed_texts", file).read_text(encoding="utf-8")
    return tuple(line for line in text.splitlines() if line.strip() and not line.startswith("#"))
