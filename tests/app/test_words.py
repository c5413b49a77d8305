"""Numbers in sentences have the right form of their noun, everywhere."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from engine.words import counted

ROOT = Path(__file__).parents[2]
NOUNS = (
    "tokens", "replies", "prompts", "turns", "lines", "characters", "steps", "nodes", "chats", "messages", "files", "lanes", "repeats",
    "cores", "ids", "matches", "versions", "models", "drafters", "seconds",
)  # fmt: skip
CONSTANTS = {"MOST_ATTACHED", "MOST", "SHORT_CONTEXT"}  # never 1


@pytest.mark.parametrize(
    ("number", "noun", "said"),
    [(0, "token", "0 tokens"), (1, "token", "1 token"), (1240, "token", "1,240 tokens"), (1, "reply", "1 reply"), (2, "reply", "2 replies"),
     (2, "match", "2 matches"), (3, "key", "3 keys")],
)  # fmt: skip
def test_counted(number: int, noun: str, said: str) -> None:
    assert counted(number, noun) == said
    assert counted(2, "half", "halves") == "2 halves"


def loose(path: Path) -> list[str]:
    """Sentences of a file that put a plural behind a number that could be 1."""
    found = []
    for text in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if not isinstance(text, ast.JoinedStr):
            continue
        for value, after in zip(text.values, text.values[1:], strict=False):
            if not (isinstance(value, ast.FormattedValue) and isinstance(after, ast.Constant)):
                continue
            word = str(after.value).lstrip(" ").partition(" ")[0].rstrip(".,;:)")
            constant = isinstance(value.value, ast.Name) and value.value.id in CONSTANTS
            if str(after.value).startswith(" ") and word in NOUNS and not constant:
                found.append(f"{path.relative_to(ROOT)}:{text.lineno}: {ast.unparse(value)}{after.value}")
    return found


def test_no_sentence_says_1_tokens() -> None:
    """A number that may be 1 stands before a noun only through `counted`."""
    assert [text for path in sorted((ROOT / "app").rglob("*.py")) for text in loose(path)] == []
    assert loose(ROOT / "engine" / "session.py") == []


def test_the_search_finds_what_it_seeks(tmp_path: Path) -> None:
    wrong = ROOT / "tests" / "app" / "test_words.py"
    number = 1
    assert f"{number} tokens" == "1 tokens"
    assert [line.rpartition(": ")[2] for line in loose(wrong)] == ["{number} tokens"]
