"""A trace: what an engine answered, with times; written by hand (`scripted`), recorded, and stored as JSON (`.gz`: compressed).

Fields that have their default are left out of the file.
"""

from __future__ import annotations

import gzip
import json
import re
from collections.abc import Sequence
from dataclasses import MISSING, Field, dataclass, fields, is_dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, get_args, get_origin, get_type_hints

from engine.protocol import (
    Done,
    Event,
    Failed,
    FinishReason,
    Loading,
    Looked,
    Memory,
    Notice,
    Origin,
    Prefill,
    Ready,
    Sampling,
    Segment,
    Step,
    Unloaded,
    Weighed,
)

Timed = tuple[float, Event]  # seconds since the command was taken up
EVENTS: dict[str, Any] = {cls.__name__: cls for cls in (Loading, Ready, Unloaded, Prefill, Step, Notice, Done, Weighed, Looked, Failed)}
SAMPLING = Sampling(temperature=0.7, top_p=0.95, top_k=0, min_p=0.0, repeat_penalty=1.0)
MEMORY = Memory(target=900_000_000, kv=50_000_000)
READY = Ready("target", "none", "none", "cpu", "nf4", "int8", "nf4", 8192, SAMPLING, True, MEMORY)
DONE = Done(0, "stop", "", (), None, 0, 0, 0, 0.0, SAMPLING, None, MEMORY)


@dataclass(frozen=True, slots=True)
class Take:
    """What one drafter did with one prompt; with an empty prompt: what came when this drafter was put beside the target."""

    prompt: str  # the last message of the person
    drafter: str
    timed: tuple[Timed, ...]


@dataclass(frozen=True, slots=True)
class Trace:
    """What is answered to each command: `takes` by prompt and drafter, `replies` in turn, whatever was asked."""

    load: tuple[Timed, ...] = ((0.0, READY),)
    swap: tuple[Timed, ...] = ((0.0, READY),)
    replies: tuple[tuple[Timed, ...], ...] = ()
    takes: tuple[Take, ...] = ()

    @property
    def prompts(self) -> tuple[str, ...]:
        """The recorded prompts, in the order of the recording."""
        return tuple(dict.fromkeys(take.prompt for take in self.takes if take.prompt))

    def take(self, prompt: str, drafter: str) -> Take | None:
        """The recording of this prompt with this drafter, else with any other."""
        found = [take for take in self.takes if take.prompt == prompt]
        return next((take for take in found if take.drafter == drafter), found[0] if found and prompt else None)


def scripted(
    text: str,
    *,
    depth: int = 4,
    kept: Sequence[int] = (4, 1, 3, 0, 2),
    step_s: float = 0.03,
    prompt_tokens: int = 40,
    reused: int = 0,
    prefill_s: float = 0.2,
    plain_s: float | None = 0.03,
    finish_reason: FinishReason = "stop",
) -> tuple[Timed, ...]:
    """A reply out of a text: words are tokens, each step drafts `depth` and keeps the next number of `kept`."""
    words = re.findall(r"\s*\S+|\s+$", text)
    timed: list[Timed] = [
        (prefill_s * part, Prefill(0, reused + int((prompt_tokens - reused) * part), prompt_tokens, reused)) for part in (0.0, 0.5, 1.0)
    ]
    start, index = 0, 0
    stop = finish_reason == "stop"
    while start < len(words) + stop:
        keep = min(kept[index % len(kept)], depth)
        chunk, index = words[start : start + keep + 1], index + 1
        own: Origin = "plain" if depth == 0 else "bonus" if keep == depth else "correction"
        segments = tuple(
            Segment(word, "kept" if i < keep else own, (start + i,), i + 1 if i < keep else 0, index) for i, word in enumerate(chunk)
        )
        whole = 0.001 + step_s
        draft_s, verify_s = (step_s * 0.25, step_s * 0.7) if depth else (0.0, step_s * 0.95)
        other_s = whole - draft_s - verify_s
        step = Step(0, index, segments, len(chunk), depth, min(keep, len(chunk)), depth, draft_s, verify_s, 0.0, other_s, whole * index)
        timed.append((prefill_s + step.at_s, step))
        start += keep + 1
    done = replace(
        DONE,
        finish_reason=finish_reason,
        text="".join(words),
        token_ids=tuple(range(len(words))),
        stop_id=2 if stop else None,
        prompt_tokens=prompt_tokens,
        reused_tokens=reused,
        prefill_s=prefill_s,
        plain_s=plain_s,
    )
    return (*timed, (timed[-1][0], done))


def save_trace(trace: Trace, path: Path) -> None:
    """Write a trace as JSON."""
    text = json.dumps(_plain(trace), ensure_ascii=False, separators=(",", ":")) + "\n"
    path.write_bytes(gzip.compress(text.encode(), mtime=0) if path.suffix == ".gz" else text.encode())


def load_trace(path: Path) -> Trace:
    """Read a trace that `save_trace` wrote."""
    data = path.read_bytes()
    trace: Trace = _read(Trace, json.loads(gzip.decompress(data) if path.suffix == ".gz" else data))
    return trace


def _plain(value: Any) -> Any:
    if isinstance(value, (tuple, list)):
        return [_plain(item) for item in value]
    if not is_dataclass(value) or isinstance(value, type):
        return value
    items = ((f, getattr(value, f.name)) for f in fields(value))
    named = {f.name: _plain(item) for f, item in items if item != _default(f)}
    return {"event": type(value).__name__, **named} if type(value).__name__ in EVENTS else named


def _default(field: Field[Any]) -> Any:
    return field.default if field.default_factory is MISSING else field.default_factory()


def _read(hint: Any, value: Any) -> Any:
    """The value of a field of this type."""
    if not isinstance(value, (list, dict)):
        return value
    inner, kind = _shape(hint)
    if inner:
        kinds = inner[:1] * len(value) if inner[1:] == (...,) else inner
        return tuple(map(_read, kinds, value))
    if isinstance(value, dict) and "event" in value:
        kind, value = EVENTS[value["event"]], {name: item for name, item in value.items() if name != "event"}
    if kind is None or not isinstance(value, dict):
        return value
    hints = _hints(kind)
    return kind(**{name: _read(hints[name], item) for name, item in value.items()})


@cache
def _shape(hint: Any) -> tuple[tuple[Any, ...], Any]:
    """The types in a tuple, or the dataclass that this is, perhaps one of several."""
    inner = get_args(hint)
    if get_origin(hint) is tuple:
        return inner, None
    return (), next((kind for kind in inner or (hint,) if is_dataclass(kind)), None)


@cache
def _hints(kind: Any) -> dict[str, Any]:
    return get_type_hints(kind)
