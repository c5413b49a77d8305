"""The prompts to measure with: the bundled sets, one per kind of task, and JSONL files of a person's own.

One `{"prompt": …}` a line; `"task"` may name the kind of task, other keys are ignored.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from importlib import resources
from pathlib import Path

from engine.errors import EngineError

TASKS = ("code", "reasoning", "story", "rewriting", "questions", "multilingual")
SETS = ("mixed", *TASKS, "all")  # mixed: one prompt of each task
ABOUT = {
    "mixed": "one prompt of each kind",
    "code": "writing and repairing programs",
    "reasoning": "word problems with steps",
    "story": "free writing: drafts are guessed least often here",
    "rewriting": "most of the answer stands in the question",
    "questions": "short explanations",
    "multilingual": "German, French, Spanish, Chinese",
    "all": "all prompts of all kinds",
}


@dataclass(frozen=True, slots=True)
class Prompt:
    """One question and its kind of task, "" where none is said."""

    text: str
    task: str = ""


def read(source: str) -> tuple[Prompt, ...]:
    """Prompts of bundled sets by name (several with commas), or of a JSONL file."""
    names = [name.strip() for name in source.split(",")]
    if all(name in SETS for name in names):
        wanted = dict.fromkeys(name for given in names for name in (TASKS if given == "all" else (given,)))
        found = (prompt for name in wanted for prompt in _parsed(_bundled(name), name))
        return tuple({prompt.text: prompt for prompt in found}.values())
    try:
        text = Path(source).read_bytes().decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise EngineError(f"{source} is not valid UTF-8 (byte {error.start}).", "Save it as UTF-8.", kind="encoding") from error
    except OSError as error:
        hint = f"Give a JSONL file, or one of the bundled sets: {', '.join(SETS)}."
        raise EngineError(f"{source} cannot be read: {error.strerror or error}.", hint, kind="config") from error
    return _parsed(text, source)


def _bundled(name: str) -> str:
    return resources.files("app").joinpath("prompts", f"{name}.jsonl").read_text(encoding="utf-8")


def _parsed(text: str, source: str) -> tuple[Prompt, ...]:
    prompts = tuple(_prompt(line, f"{source}, line {n}") for n, line in enumerate(text.split("\n"), start=1) if line.strip())
    if not prompts:
        raise EngineError(f"{source} holds no prompts.", 'Write one {"prompt": "…"} a line.', kind="config")
    return prompts


def _prompt(line: str, where: str) -> Prompt:
    hint = 'Each line is one JSON object: {"prompt": "…"}.'
    try:
        entry = json.loads(line)
    except ValueError as error:
        raise EngineError(f"{where} is not JSON ({error}).", hint, kind="config") from error
    prompt = entry.get("prompt") if isinstance(entry, dict) else None
    if not isinstance(prompt, str) or not prompt.strip():
        raise EngineError(f'{where} has no text under "prompt".', hint, kind="config")
    task = entry.get("task")
    return Prompt(prompt, task if isinstance(task, str) else "")
