"""Prompts to measure with: the bundled sets, files of one's own, and what is said about broken ones."""

from __future__ import annotations

from pathlib import Path

import pytest

from app.prompts import SETS, TASKS, Prompt, read
from engine.errors import EngineError


@pytest.mark.parametrize("name", SETS)
def test_bundled_prompts_can_be_read(name: str) -> None:
    """At least four each; every prompt says its kind of task."""
    prompts = read(name)
    assert len(prompts) >= 4
    assert {prompt.task for prompt in prompts} <= set(TASKS)
    if name in TASKS:
        assert {prompt.task for prompt in prompts} == {name}


def test_several_sets_and_no_prompt_twice() -> None:
    both = read("code, story")
    assert {prompt.task for prompt in both} == {"code", "story"}
    everything = read("all")
    assert read("mixed,all")[: len(read("mixed"))] == read("mixed")
    assert len(read("mixed,all")) == len(everything) == len(set(everything))
    assert [prompt.task for prompt in read("mixed")] == list(TASKS)


def test_a_prompts_file_keeps_odd_line_breaks_inside_a_prompt(tmp_path: Path) -> None:
    file = tmp_path / "prompts.jsonl"
    file.write_text('\ufeff{"prompt": "a\u2028b"}\r\n\n{"prompt": "two", "more": 1, "task": "riddles"}\n', encoding="utf-8")
    assert read(str(file)) == (Prompt("a\u2028b"), Prompt("two", "riddles"))


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b'{"prompt": "a"}\n{"prompt" "b"}\n', "line 2 is not JSON"),
        (b'{"prompt": "a"}\n\n["b"]\n', "line 3 has no text"),
        (b'{"prompt": " "}\n', "line 1 has no text"),
        (b"\n", "holds no prompts"),
        (b'{"prompt": "\xff"}\n', "not valid UTF-8"),
    ],
)
def test_a_bad_prompts_file_is_named_with_its_line(tmp_path: Path, content: bytes, said: str) -> None:
    file = tmp_path / "prompts.jsonl"
    file.write_bytes(content)
    with pytest.raises(EngineError, match=said) as caught:
        read(str(file))
    assert caught.value.hint


def test_a_missing_prompts_file_names_the_bundled_sets(tmp_path: Path) -> None:
    with pytest.raises(EngineError, match="cannot be read") as caught:
        read(str(tmp_path / "nothing.jsonl"))
    assert "reasoning" in caught.value.hint
