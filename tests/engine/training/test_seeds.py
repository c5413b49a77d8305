"""Bundled prompts: varied, in a fixed order, and never about a held-out topic."""

from __future__ import annotations

import re
from itertools import islice

from engine.training import seeds


def test_held_out_topics_are_never_asked_about() -> None:
    held = [topic.name for part in ("judge", "report") for topic in seeds.topics(part)]
    assert len(held) == len(set(held)) == 40
    assert not set(held) & {topic.name for topic in seeds.topics()}
    prompts = [seed.prompt for seed in islice(seeds.training(1), 30_000)]
    words = {name: re.compile(rf"\b{re.escape(name)}\b", re.IGNORECASE) for name in held}
    assert not [(name, prompt) for name in held for prompt in prompts if words[name].search(prompt)]


def test_the_two_held_out_parts_share_no_topic() -> None:
    assert not {topic.name for topic in seeds.topics("judge")} & {topic.name for topic in seeds.topics("report")}
    asked = seeds.held_out("judge", 1)
    assert sorted(seed.number for seed in asked) == list(range(len(asked)))
    assert all(seed.temperature == 0.0 for seed in asked)
    assert all(any(topic.name in seed.prompt for topic in seeds.topics("judge")) for seed in asked)


def test_every_topic_comes_before_any_comes_twice() -> None:
    topics = seeds.topics()
    first = [seed.prompt for seed in islice(seeds.training(1), len(topics))]
    assert all(any(topic.name in prompt for prompt in first) for topic in topics)


def test_prompts_are_varied() -> None:
    first = list(islice(seeds.training(1), 3000))
    assert [seed.number for seed in first] == list(range(3000))
    assert len({seed.prompt for seed in first}) == 3000
    sampled = sum(seed.temperature > 0 for seed in first) / 3000
    assert 0.25 < sampled < 0.42
    assert {seed.max_tokens for seed in first} == set(seeds.LONGEST.values())
    assert any(seed.system for seed in first)
    assert any("中文" in seed.prompt for seed in first)
    assert any("Python" in seed.prompt for seed in first)


def test_the_order_follows_from_the_seed_alone() -> None:
    assert list(islice(seeds.training(3), 50)) == list(islice(seeds.training(3), 50))
    assert [s.prompt for s in islice(seeds.training(3), 50)] != [s.prompt for s in islice(seeds.training(4), 50)]


def test_a_persons_own_prompts_come_first() -> None:
    asked = list(islice(seeds.training(1, ("mine {topic}", "and mine")), 3))
    assert [seed.prompt for seed in asked[:2]] == ["mine {topic}", "and mine"]
    assert asked[2].number == 2


def test_when_all_tasks_were_asked_replies_are_sampled() -> None:
    code = next(topic for topic in seeds.topics() if topic.field == "code").name
    mine = [seed for seed in islice(seeds.training(1), 40_000) if code in seed.prompt]
    seen: set[str] = set()
    for seed in mine:
        if seed.prompt in seen:
            assert seed.temperature > 0.0
        seen.add(seed.prompt)
    assert len(mine) > len(seen)
